"""Writes splits.json: how the library datasets (4.4.1) sorts files into splits by their names, and which of them it then reads.

    pip install datasets==4.4.1
    python data/testdata/splits.py > data/testdata/splits.json
"""

import json
import os
import random
import tempfile

from datasets.data_files import DataFilesDict, get_data_patterns
from datasets.load import infer_module_for_data_files_list, _EXTENSION_TO_MODULE

random.seed(6)
WORDS = ["train", "training", "test", "testing", "eval", "evaluation", "dev", "val", "valid", "validation", "trainer", "constraint",
         "data", "en", "part", "x", "a1", "test2", "2train", "Train"]
ENDINGS = [".jsonl", ".jsonl", ".json", ".parquet", ".txt", ".csv", ".md", ".py"]


def component():
    words = random.choices(WORDS, weights=[3] * 10 + [2] * 10, k=random.choice([1, 1, 1, 2, 3]))
    return random.choice(["-", "_", ".", " "]).join(words)


def name():
    if random.random() < 0.12:
        split = random.choice(["train", "test", "validation", "extra", "b.c"])
        return f"data/{split}-0000{random.randrange(2)}-of-00002{random.choice(ENDINGS)}"
    if random.random() < 0.05:
        return random.choice(["README.md", "config.json", "dataset_info.json", ".hidden/train.json", "__x/test.json", "sub/.train.json"])
    dirs = [component() for _ in range(random.choice([0, 0, 0, 1, 1, 2]))]
    return "/".join(dirs + [component() + random.choice(ENDINGS)])


cases = []
while len(cases) < 200:
    files = sorted({name() for _ in range(random.choice([1, 2, 3, 5, 8]))})
    with tempfile.TemporaryDirectory() as root:
        try:
            for f in files:
                os.makedirs(os.path.dirname(os.path.join(root, f)) or root, exist_ok=True)
                open(os.path.join(root, f), "x").close()
        except OSError:  # one is a directory of another
            continue
        try:
            found = DataFilesDict.from_patterns(get_data_patterns(root), base_path=root)
        except FileNotFoundError:
            found = {}
        splits = []
        for split, paths in found.items():
            paths = sorted({os.path.relpath(p, os.path.realpath(root)) for p in paths})  # some come twice
            module = infer_module_for_data_files_list([os.path.join(root, p) for p in paths])[0]
            splits.append({"name": str(split), "files": paths, "module": module or ""})
        cases.append({"files": files, "splits": splits})

print("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
