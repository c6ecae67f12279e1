"""Compares GGUF files of millrace with those of llama.cpp's own converter: tensors and metadata.

    python check.py --millrace ./millrace --families ../../data/tokenizer/testdata --work work
    python converter.py --millrace ./millrace --source llama.cpp --work work qwen3_moe=qwen2 mixtral=gpt-2

Needs llama.cpp's sources, such as vendor/llama.cpp in the source archive of llama-cpp-python, and torch and transformers.
Models are those that check.py has made, each with the name of its tokenizer's rules: the converter knows tokenizers by a
hash of ids, and those of the tests are not in its list. Prints Markdown. Ends with status 1 if something differs.
"""
import argparse
import json
import logging
import pathlib
import runpy
import subprocess
import sys


def families(base):
    """The classes of the converter that are made of a class."""
    for family in base.__subclasses__():
        yield family
        yield from families(family)


def convert(source, model, file, dtype, pre):
    """Runs the converter with that name of the tokenizer's rules, on a byte-level BPE for all families."""
    import conversion
    config = json.loads((model / "config.json").read_text())
    conversion.get_model_class(config["architectures"][0])  # the class is there after that
    conversion.TextModel.get_vocab_base_pre = lambda *_: pre
    for family in families(conversion.TextModel):
        family.set_vocab = lambda self: self._set_vocab_gpt2()
    sys.argv = ["convert_hf_to_gguf.py", str(model), "--outfile", str(file), "--outtype", dtype]
    if config["model_type"] in ("glm4_moe", "glm4_moe_lite", "qwen3_5", "qwen3_next"):
        sys.argv.append("--no-mtp")  # transformers takes an absent num_nextn_predict_layers for 1
    runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")
    logging.disable()


def compare(ours, theirs):
    """How many tensors are equal in name, shape, type and bytes, and which metadata differ, the model's name apart."""
    import gguf
    left, right = (gguf.GGUFReader(p) for p in (ours, theirs))
    a, b = ({t.name: (list(t.shape), t.tensor_type, t.data.tobytes()) for t in r.tensors} for r in (left, right))
    keys = [k for k in sorted(left.fields.keys() | right.fields.keys()) if not k.startswith("GGUF.") and k != "general.name"]
    values = [[(r.fields[k].types, r.fields[k].contents()) if k in r.fields else None for r in (left, right)] for k in keys]
    other = [k for k, (x, y) in zip(keys, values) if x != y]
    return sum(a[n] == b.get(n) for n in a), len(a.keys() | b.keys()), len(keys), other


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="./millrace")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("models", nargs="+", metavar="MODEL=PRE")
    args = parser.parse_args()
    sys.path[:0] = [str(args.source), str(args.source / "gguf-py")]
    print("| model | form | equal tensors | equal metadata |\n|---|---|---|---|")
    failed = False
    for model, pre in (m.split("=") for m in args.models):
        for dtype in ("f32", "bf16", "f16", "q8_0"):
            ours, theirs = (args.work / f"{model}.{dtype}.{who}" for who in ("millrace", "converter"))
            ours.unlink(missing_ok=True)
            subprocess.run([args.millrace, "export", str(args.work / model), "--gguf", str(ours), "--dtype", dtype], check=True,
                           capture_output=True)
            convert(args.source, args.work / model, theirs, dtype, pre)
            equal, tensors, keys, other = compare(ours, theirs)
            failed = failed or equal != tensors or bool(other)
            print(f"| {model} | {dtype} | {equal} of {tensors} | {keys - len(other)} of {keys} {', '.join(other)}|", flush=True)
    sys.exit(failed)


main()
