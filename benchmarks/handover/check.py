"""Compares GGUF files of millrace with llama.cpp: tokens, ids, quantized blocks, perplexity, sizes and seconds.

    pip install -r requirements.txt
    python check.py --millrace ./millrace --model DIR --text TEXT --work DIR
    python check.py --millrace ./millrace --families ../../data/tokenizer/testdata --work DIR

The first form takes a real model, the second makes small random models of each family with the tokenizers of the tests.
Prints Markdown. Ends with status 1 if something differs: greedy tokens in f32, or their number in a prompt; ids, of
texts in NFC without a zero byte; a quantized block.
"""
import argparse
import ctypes
import json
import math
import pathlib
import subprocess
import sys
import time
import unicodedata

import gguf
import llama_cpp
import numpy as np
from tokenizers import Tokenizer

from random_models import FAMILIES, MIXTURES, random_model

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "There was a small house at the edge of", "1, 2, 3, 4,",
           "Q: What is 12 + 30?\nA:", "Die Hauptstadt von Deutschland ist"]
WINDOW = 512  # tokens of a window of the perplexity
failed = False

# Without the buffers for AMX, with which this version crashes on quantized files, those of its own quantizer included.
default_params = llama_cpp.llama_model_default_params


def plain_params():
    params = default_params()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = plain_params


def millrace(args, *more):
    begun = time.perf_counter()
    done = subprocess.run([args.millrace, *more], check=True, capture_output=True, text=True)
    return done.stdout, time.perf_counter() - begun


def open_llama(path, context):
    f32 = llama_cpp.GGML_TYPE_F32
    return llama_cpp.Llama(str(path), n_ctx=context, n_batch=context, n_ubatch=context, n_threads=2,
                           n_threads_batch=2, logits_all=True, type_k=f32, type_v=f32, flash_attn=False, verbose=False)


def greedy(llm, ids, count):
    """The most likely tokens, and the smallest distance between the two best logits on the way."""
    llm.reset()
    llm.eval(ids)
    out, margin = [], math.inf
    while True:
        logits = llm._scores[-1]
        best = np.argsort(logits)[-2:]
        margin = min(margin, float(logits[best[1]] - logits[best[0]]))
        out.append(int(best[1]))
        if len(out) == count or out[-1] == llm.token_eos():
            return out, margin
        llm.eval(out[-1:])


def same_tokens(args, model, path, prompts, count):
    """How many prompts have the same ids in llama.cpp and tokenizers, as many in millrace, and the same greedy tokens."""
    global failed
    reference = Tokenizer.from_file(str(model / "tokenizer.json"))
    llm = open_llama(path, 1024)
    equal, smallest = 0, math.inf
    for prompt in prompts:
        text, _ = millrace(args, "generate", "--model", str(model), "--prompt", prompt, "--temperature", "0",
                "--max-tokens", str(count),
                           "--compute", "f32", "--device", "cpu", "--json")
        ours = json.loads(text)
        ids = llm.tokenize(prompt.encode(), add_bos=True, special=True)
        theirs, margin = greedy(llm, ids, count)
        if theirs[-1] == llm.token_eos():
            theirs.pop()
        if ours["tokens"] and ours["tokens"][-1] == llm.token_eos():
            ours["tokens"].pop()
        smallest = min(smallest, margin)
        wanted = reference.encode(prompt).ids
        if ids == wanted and len(ids) == ours["prompt_tokens"] and theirs == ours["tokens"]:
            equal += 1
            continue
        failed = True
        print(f"DIFFERENT: {prompt!r}: ids of llama.cpp {ids},\n of tokenizers {wanted}, millrace has "
              f"{ours['prompt_tokens']},\n"
              f" llama.cpp {theirs}\n millrace  {ours['tokens']}")
    return equal, smallest


def same_ids(tokenizer_json, llm, texts):
    """How many texts have the ids of tokenizers. One that must have them and has not is a failure."""
    global failed
    reference = Tokenizer.from_file(str(tokenizer_json))
    equal = 0
    for t in filter(None, texts):
        if llm.tokenize(t.encode(), add_bos=True, special=True) == reference.encode(t).ids:
            equal += 1
        elif "\0" not in t and unicodedata.is_normalized("NFC", t):
            failed = True
            print(f"DIFFERENT: ids of {t!r}")
    return equal


def perplexity(path, ids, windows):
    llm = open_llama(path, WINDOW)
    total, n = 0.0, 0
    for w in range(windows):
        part = ids[w * WINDOW:(w + 1) * WINDOW]
        llm.reset()
        llm.eval(part)
        logits = llm._scores.astype(np.float64)[:-1]
        top = logits.max(axis=1)
        logsum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        total += float((logsum - logits[np.arange(len(part) - 1), part[1:]]).sum())
        n += len(part) - 1
    return math.exp(total / n), n


def quantize(source, target, ftype):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = ftype, 2
    begun = time.perf_counter()
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) != 0:
        sys.exit("llama.cpp does not quantize it")
    return time.perf_counter() - begun


def same_blocks(a, b, apart=()):
    """How many tensors have the same type and bytes, those with an ending of apart apart."""
    global failed
    left, right = ({t.name: t for t in gguf.GGUFReader(p).tensors if not t.name.endswith(apart)} for p in (a, b))
    if left.keys() != right.keys():
        failed = True
        return "other tensors"
    types = sum(left[n].tensor_type == right[n].tensor_type for n in left)
    data = sum(left[n].tensor_type == right[n].tensor_type and left[n].data.tobytes() == right[n].data.tobytes()
            for n in left)
    failed = failed or data != len(left)
    return f"{types} of {len(left)} types, {data} of {len(left)} tensors"


def real_model(args):
    model, work = pathlib.Path(args.model), pathlib.Path(args.work)
    files, seconds = {}, {}
    for dtype in dict.fromkeys(["f32", *args.types.split(",")]):  # f32 is what llama.cpp quantizes
        files[dtype] = work / f"{dtype}.gguf"
        files[dtype].unlink(missing_ok=True)
        _, seconds[dtype] = millrace(args, "export", str(model), "--gguf", str(files[dtype]), "--dtype", dtype)
    if args.tokens:
        equal, margin = same_tokens(args, model, files["f32"], PROMPTS, args.tokens)
        print(f"Greedy tokens in f32: {equal} of {len(PROMPTS)} prompts, {args.tokens} tokens each, are equal; "
              f"the closest two logits were {margin:.4f} apart.\n")
    text = pathlib.Path(args.text).read_text()
    llm = open_llama(files["f32"], WINDOW)
    paragraphs = [p for p in text.split("\n") if p][:2000]
    equal = same_ids(model / "tokenizer.json", llm, paragraphs)
    print(f"Ids of {len(paragraphs)} paragraphs: {equal} equal those of tokenizers.\n")
    ids = llm.tokenize(text[:400_000].encode(), add_bos=False, special=False)
    del llm
    print("| file | MB | seconds | perplexity | blocks like llama.cpp's |\n|---|---|---|---|---|")
    for dtype in args.types.split(","):
        path = files[dtype]
        rows = [(f"{dtype}, millrace", path, seconds[dtype], "")]
        if dtype in ("q8_0", "q4_k_m"):
            other = work / f"{dtype}-llama.gguf"
            took = quantize(files["f32"], other, {"q8_0": 7, "q4_k_m": 15}[dtype])
            rows = [(*rows[0][:3], same_blocks(path, other)), (f"{dtype}, llama.cpp", other, took, "")]
        for name, p, took, blocks in rows:
            ppl, n = perplexity(p, ids, args.windows)
            print(f"| {name} | {p.stat().st_size / 1e6:.1f} | {took:.1f} | {ppl:.4f} | {blocks} |", flush=True)
    print(f"\nPerplexity of {n} tokens in windows of {WINDOW}.")


def families(args):
    tokenizers, work = pathlib.Path(args.families), pathlib.Path(args.work)
    texts = json.loads((tokenizers / "texts.json").read_text())
    print("| model | tokenizer | greedy tokens equal | closest logits | ids equal | of texts in NFC | mxfp4 | q8_0 "
          "| q4_k_m | of types |\n|---|---|---|---|---|---|---|---|---|---|")
    for name, (tokenizer, keys) in FAMILIES.items():
        if args.only and args.only not in name:
            continue
        model = work / name.replace(", ", "-").replace(" ", "-")
        random_model(model, tokenizers, tokenizer, keys)
        file = model.with_suffix(".gguf")
        file.unlink(missing_ok=True)
        millrace(args, "export", str(model), "--gguf", str(file), "--dtype", "f32")
        prompts = [PROMPTS[0], PROMPTS[1], "the wheel turns while the water runs " * 12]
        equal, margin = same_tokens(args, model, file, prompts, args.tokens)
        llm, normal = open_llama(file, WINDOW), [unicodedata.normalize("NFC", t) for t in texts]
        ids, in_nfc = (same_ids(model / "tokenizer.json", llm, ts) for ts in (texts, normal))
        del llm
        blocks, types = [], ""
        for dtype, ftype in (("mxfp4", 38), ("q8_0", 7), ("q4_k_m", 15)):
            if dtype == "mxfp4" and not (keys["model_type"] in MIXTURES or keys.get("enable_moe_block")):
                blocks.append("")
                continue
            ours, theirs = (model.with_suffix(f".{dtype}.{who}") for who in ("millrace", "llama"))
            ours.unlink(missing_ok=True)
            report, _ = millrace(args, "export", str(model), "--gguf", str(ours), "--dtype", dtype, "--json")
            quantize(file, theirs, ftype)
            # llama.cpp takes each tensor of several matrices for one of experts, and so has these in MXFP4, too.
            apart = ("attn_k_b.weight", "attn_v_b.weight") if dtype == "mxfp4" else ()
            blocks.append(same_blocks(ours, theirs, apart))
            types = ", ".join(f"{n} {t}" for t, n in sorted(json.loads(report)["tensors"].items()))
        print(f"| {name} | {tokenizer} | {equal} of {len(prompts)} prompts | {margin:.4f} "
              f"| {ids} of {sum(map(bool, texts))} texts | {in_nfc} | {' | '.join(blocks)} | {types} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", default="./millrace")
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--families")
    parser.add_argument("--only", help="of the families, those with this in their names")
    parser.add_argument("--work", required=True)
    parser.add_argument("--tokens", type=int, default=32, help="greedy tokens of a prompt; 0: do not compare them")
    parser.add_argument("--types", default="f32,bf16,f16,q8_0,q4_k_m")
    parser.add_argument("--windows", type=int, default=4)
    args = parser.parse_args()
    pathlib.Path(args.work).mkdir(parents=True, exist_ok=True)
    if args.families:
        families(args)
    if args.model:
        real_model(args)
    sys.exit(failed)


main()
