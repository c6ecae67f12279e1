"""Takes the shorter pairs of LLaMA-Factory's data/dpo_en_demo.json, and writes train.jsonl and held.jsonl.

    python pairs.py dpo_en_demo.json DIR
"""

import json
import random
import sys

source, out = sys.argv[1:3]
role = {"human": "user", "gpt": "assistant", "system": "system"}


def message(m):
    return {"role": role[m["from"]], "content": m["value"]}


rows = []
for r in json.load(open(source)):
    prompt = [message(m) for m in r["conversations"]]
    longest = sum(len(m["content"]) for m in prompt) + max(len(r[side]["value"]) for side in ("chosen", "rejected"))
    if longest < 2000:  # characters
        rows.append({"prompt": prompt, "chosen": [message(r["chosen"])], "rejected": [message(r["rejected"])]})
random.Random(7).shuffle(rows)
for name, part in (("train", rows[:-32]), ("held", rows[-32:])):
    open(f"{out}/{name}.jsonl", "w").write("".join(json.dumps(row) + "\n" for row in part))
