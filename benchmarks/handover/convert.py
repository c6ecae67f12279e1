"""Converts the example files of other trainers, and says what became of each.

    python convert.py --millrace ./millrace LLaMA-Factory axolotl trl > files.tsv
    python convert.py --millrace ./millrace --draw 60 --seed 21 LLaMA-Factory axolotl trl    # for judging by hand

The arguments are checkouts. Each file is converted in its checkout, as its trainer reads it. A line has the file, the
answer, the trainer, what is trained, keys that are not known, and the reason. Answers:

    as meant   a run file that trains what the file trains; of an adapter with a tenth of its rate
    decide     a run file that says what makes its result another one, or what is not known
    no         refused with status 1
    other      status 2: not a training file of a trainer that is known
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys


def convert(millrace, root, file, *flags):
    return subprocess.run([millrace, "convert", str(file), "--json", *flags], cwd=root, capture_output=True, text=True)


# Words of decisions that are about the result, and not about the batch, memory, or when to save.
DECIDE = ("changes the result", "AdamW is the only optimizer", "is the nearest one", "wrong guess", "is a guess", "not known",
          "wsd falls", "lr_scheduler_kwargs", "tokenizer.json", "has keys of its own")


def judged(millrace, root, file):
    done = convert(millrace, root, file)
    if done.returncode != 0:
        answer = {1: "no", 2: "other"}[done.returncode]
        reason = done.stderr.strip().partition(f"{file}: ")[2]
        forced = convert(millrace, root, file, "--force")
        result = json.loads(forced.stdout) if forced.returncode == 0 else {}
    else:
        result = json.loads(done.stdout)
        to_decide = [d for d in result.get("decide") or [] if any(words in d for words in DECIDE)]
        answer, reason = "decide" if to_decide else "as meant", "; ".join(to_decide)
    unknown = [key for left in result.get("left_out") or [] if left["why"] == "it is not known" for key in left["keys"]]
    adapter = any("trains an adapter" in d for d in result.get("decide") or [])
    return [f"{root.name}/{file}", answer, result.get("tool", "-"), "adapter" if adapter else "-", ",".join(unknown) or "-",
            reason]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("--draw", type=int, help="judge this number of files, drawn at random")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("checkouts", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    files = [(root.resolve(), p.relative_to(root)) for root in args.checkouts
             for p in sorted((root / "examples").rglob("*")) if p.suffix in (".yaml", ".yml")]
    if args.draw:
        files = sorted(random.Random(args.seed).sample(files, args.draw))
    counts = {}
    for root, file in files:
        row = judged(args.millrace, root, file)
        counts[root.name, row[1]] = counts.get((root.name, row[1]), 0) + 1
        print("\t".join(row))
    for (name, answer), n in sorted(counts.items()):
        print(f"{name}: {answer} {n}", file=sys.stderr)


main()
