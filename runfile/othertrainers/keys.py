"""Lists the keys that files of other trainers may have, for testdata/keys.txt:

    for p in transformers==5.23.0 trl==1.16.0 llamafactory==0.9.5 axolotl==0.19.0; do pip download --no-deps -d wheels $p; done
    python3 keys.py wheels > testdata/keys.txt

Nothing of them is installed or run: their classes of options are read as source text.
"""

import ast
import pathlib
import sys
import zipfile

# Of each wheel: where the classes of options are, and the classes whose fields, with those of their bases, a user's file may have.
TOOLS = [
    ("transformers", "transformers/training_args", ["TrainingArguments"]),
    ("trl", "trl/trainer/", ["SFTConfig", "DPOConfig", "KTOConfig", "ModelConfig"]),
    ("trl", "trl/experimental/", ["CPOConfig", "ORPOConfig"]),
    ("trl", "trl/scripts/utils", ["ScriptArguments", "DatasetMixtureConfig"]),
    ("llamafactory", "llamafactory/hparams/", ["ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments",
                                               "GeneratingArguments"]),
    ("llamafactory", "llamafactory/v1/config/", ["ModelArguments", "DataArguments", "TrainingArguments", "SampleArguments"]),
    ("axolotl", "axolotl/utils/schemas/", ["AxolotlInputConfig"]),
]


def classes(wheel, within):
    """All classes of a wheel's modules: name -> (bases, fields)."""
    found = {}
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if not name.startswith(within) or not name.endswith(".py"):
                continue
            for node in ast.walk(ast.parse(z.read(name))):
                if isinstance(node, ast.ClassDef):
                    bases = [b.id for b in node.bases if isinstance(b, ast.Name)]
                    fields = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
                    found.setdefault(node.name, ([], []))
                    found[node.name][0].extend(bases)
                    found[node.name][1].extend(fields)
    return found


def main():
    for tool, within, roots in TOOLS:
        (wheel,) = pathlib.Path(sys.argv[1]).glob(f"{tool}-*.whl")
        found, todo, seen, keys = classes(wheel, within), list(roots), set(), set()
        while todo:
            name = todo.pop()
            if name in seen or name not in found:
                continue
            seen.add(name)
            bases, fields = found[name]
            todo += bases
            keys.update(f for f in fields if not f.startswith("_") and f != "model_config")
        print("#", "-".join(wheel.name.split("-")[:2]), within)
        print("\n".join(sorted(keys)))


main()
