"""Count what becomes of public files for reinforcement learning: the tables of docs/other-trainers.md, "Rewards".

    python3 benchmarks/rl/convert.py MILLRACE VERL TRL OPEN_R1

The last three are clones of volcengine/verl, huggingface/trl and huggingface/open-r1 (bare ones will do). The files are

* verl: the scripts of a shell in examples/;
* TRL: the commands in docs/source and examples that give settings to trl grpo or rloo, or to a script whose name has grpo,
  gspo or rloo: a line that ends in a backslash continues, and each command is a file of its own;
* open-r1: the recipes in directories named grpo.

Millrace converts each by itself. Scripts with settings of none of these trainers are "not read". Files "run" for which
all open decisions are of the kinds in OPEN, which nearly every file leaves open. The others are "to decide". What is
printed of objectives counts those with a divergence from a reference (kl), and with a critic (loss: ppo).
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

OPEN = (
    r"the script does not say what ", r"model: a Hugging Face directory", r"datasets: the file names no data",  # the machine
    r"rl\.prompts_per_step: (multiply|\d+ answers of a round on one device)",  # devices
    r"max_steps: the file passes", r"sequence_len: the file does not say how long a prompt is",
    r"rl\.reference_memory: ", r"rl\.reward\[\d*\]\.memory: ", r"memory: gradient_checkpointing",  # memory
    r"rl\.reward: ",  # programs that judge
    r"learning_rate: the file trains an adapter", r"eval: the file evaluates", r"save\.every: by save_strategy", r"report_to: ",
)
COMMAND = re.compile(r"(?:accelerate launch|trl (?:grpo|rloo)|python|uv run|CUDA_VISIBLE_DEVICES)\b.*")
FOR = re.compile(r"(?:trl (?:grpo|rloo)\b|\w*(?:grpo|gspo|rloo)\w*\.py)")


def git(repo, *args):
    bare = pathlib.Path(repo, ".git")
    where = bare if bare.is_dir() else repo
    return subprocess.run(["git", f"--git-dir={where}", *args], capture_output=True, check=True, text=True).stdout


def files(repo, *under):
    return git(repo, "ls-tree", "-r", "--name-only", "HEAD", *under).splitlines()


def show(repo, name):
    return git(repo, "show", f"HEAD:{name}")


def verl(repo):
    for name in files(repo, "examples"):
        if name.endswith(".sh"):
            yield name, show(repo, name)


def trl(repo):
    seen = set()
    for name in files(repo, "docs/source", "examples"):
        if not name.endswith((".md", ".py")):
            continue
        lines = show(repo, name).splitlines()
        at = 0
        while at < len(lines):
            command = lines[at].strip()
            while command.endswith("\\") and at + 1 < len(lines):
                at += 1
                command = command[:-1].rstrip() + " " + lines[at].strip()
            at += 1
            if COMMAND.match(command) and FOR.search(command) and " --" in command and command not in seen:
                seen.add(command)
                yield f"{name}-{at}.sh", command + "\n"


def open_r1(repo):
    for name in files(repo, "recipes"):
        if "/grpo/" in name and name.endswith(".yaml"):
            yield name, show(repo, name)


def main(program, *repos):
    for what, read, repo in zip(("verl", "TRL", "open-r1"), (verl, trl, open_r1), repos):
        counts, why, open_, asks = (collections.Counter() for _ in range(4))
        for name, text in read(repo):
            with tempfile.TemporaryDirectory() as tmp:
                path = pathlib.Path(tmp, name.replace("/", "+"))
                path.write_text(text)
                made = subprocess.run([program, "convert", str(path), "--json"], capture_output=True, text=True)
            if made.returncode:
                line = made.stderr.strip().splitlines()[-1].removeprefix("millrace: ").removeprefix(f"{path}: ")
                kind = "not read" if re.search("none of actor_rollout_ref|no command in this script", line) else "refused"
                counts[kind] += 1
                if kind == "refused":
                    why[line] += 1
                continue
            made_of = json.loads(made.stdout)
            decide = [x for x in made_of.get("decide") or [] if not re.match("|".join(OPEN), x)]
            counts["to decide" if decide else "runs"] += 1
            for x in decide:
                open_[x] += 1
            for x in ("kl:", "loss: ppo"):
                asks[x] += any(x in of["value"] for of in made_of["settings"] if of["key"] == "objective")
        commit = git(repo, "rev-parse", "--short", "HEAD").strip()
        print(f"{what} {commit}: {sum(counts.values())} files", dict(counts), "objectives with", dict(asks))
        for name, of in (("refused", why), ("to decide", open_)):
            for line, n in of.most_common():
                print(f"  {name} {n}: {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
