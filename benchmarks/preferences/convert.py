"""Counts what millrace convert makes of files for preferences in clones of public repositories:

    python3 convert.py ./millrace CLONE...

Of each path that a clone's history has, the newest version counts, and of files that are equal without their comments the first.
"""

import collections
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ASKS = re.compile(r"^\s*(stage: *[\"']?(dpo|kto|rm|ppo|orpo)|rl: *[\"']?\w|pref_loss|loss_type|rl_beta|beta: |dpo_|cpo_|simpo_"
                  r"|gamma_beta_ratio|reward_model: *true|precompute_ref|process_reward_model)", re.M)
MODEL = re.compile(r"^(model_name_or_path|base_model|model_name|model)\s*:", re.M)
OTHERS = re.compile("accelerate|deepspeed|compose|runpod|github")
# Decisions that every file leaves to its user, whatever it trains.
STANDING = ("batch_tokens", "memory:", "save.every", "eval", "chat_template: ", "learning_rate: the file trains an adapter",
            "learning_rate: it is a tenth",
            "precision:", "model: it is not known", "special_tokens")


def git(clone, *args):
    return subprocess.run(["git", "-C", clone, *args], capture_output=True, text=True, errors="replace").stdout


def files(clone):
    """The paths of YAML files that ask for preferences or rewards, with their text."""
    newest, commit = {}, None
    for line in git(clone, "log", "--name-only", "--diff-filter=AMR", "--format=@%H", "--", "*.yaml", "*.yml").splitlines():
        if line.startswith("@"):
            commit = line[1:]
        elif line:
            newest.setdefault(line, commit)
    for path, commit in sorted(newest.items()):
        text = git(clone, "show", f"{commit}:{path}")
        if not OTHERS.search(path) and ASKS.search(text) and MODEL.search(text):
            yield path, text


def main():
    program, clones, seen = sys.argv[1], sys.argv[2:], set()
    with tempfile.TemporaryDirectory() as work:
        for clone in clones:
            counts, goals = collections.Counter(), collections.Counter()
            for path, text in files(clone):
                lines = [line.strip() for line in text.splitlines()]
                key = hashlib.sha1("\n".join(x for x in lines if x and x[0] != "#").encode()).hexdigest()
                if key in seen:
                    continue
                seen.add(key)
                file = pathlib.Path(work, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                ran = subprocess.run([program, "convert", "--json", "--force", str(file)], capture_output=True, text=True)
                result = json.loads(ran.stdout) if ran.returncode == 0 else {"cannot": [ran.stderr]}
                rest = [d for d in result.get("decide") or [] if not d.startswith(STANDING)]
                kind = "refused" if result.get("cannot") else "to decide" if rest else "runs"
                counts[kind] += 1
                objective = next((s["value"] for s in result.get("settings", []) if s["key"] == "objective"), "none")
                goals[kind if kind == "refused" else re.search(r"type: (\w+)|none", objective).group(0)] += 1
                print(kind, path, "; ".join(result.get("cannot") or rest), sep="\t")
            print("TOTAL", clone, dict(counts), dict(goals), sep="\t")


main()
