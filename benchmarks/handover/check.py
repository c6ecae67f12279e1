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
import struct
import subprocess
import sys
import time
import unicodedata

import gguf
import llama_cpp
import numpy as np
from tokenizers import Tokenizer

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


def same_blocks(a, b):
    global failed
    left, right = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (a, b))
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


BASE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "torch_dtype": "float32"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256}
FAMILIES = {
    "llama, biases": ("llama3", {"model_type": "llama", "attention_bias": True, "mlp_bias": True}),
    "llama, rope llama3": ("llama3", {"model_type": "llama", "rope_scaling": LLAMA3}),
    "llama, rope linear": ("smollm2", {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "tie_word_embeddings": True}),
    "llama, SentencePiece": ("llama2", {"model_type": "llama"}),
    "llama, SentencePiece, no prefix": ("gemma", {"model_type": "llama"}),
    "mistral": ("gpt2", {"model_type": "mistral", "head_dim": 32, "sliding_window": None}),
    "qwen2": ("qwen2", {"model_type": "qwen2", "use_sliding_window": False}),
    "qwen3": ("qwen2", {"model_type": "qwen3", "head_dim": 32, "use_sliding_window": False, "attention_bias": False}),
    "mixtral": ("gpt2", {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 256}),
    "mixtral, narrow heads": ("llama2", {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 3,
            "intermediate_size": 96, "head_dim": 24}),
    "mixtral, 4 experts": ("llama3", {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
            "intermediate_size": 256, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "qwen3_moe": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 32, "use_sliding_window": False, "attention_bias": False,
            "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True,
            "num_hidden_layers": 9}),
    "qwen3_moe, narrow experts": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 64, "use_sliding_window": False,
            "attention_bias": False, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
            "norm_topk_prob": True, "tie_word_embeddings": True}),
    "qwen3_moe, 8 experts": ("qwen2", {"model_type": "qwen3_moe", "head_dim": 32, "use_sliding_window": False,
            "attention_bias": False, "num_experts": 8, "num_experts_per_tok": 8, "moe_intermediate_size": 128,
            "norm_topk_prob": True}),
}
EXPERTS = {"mixtral": ("block_sparse_moe.", "w1", "w3", "w2"), "qwen3_moe": ("mlp.", "gate_proj", "up_proj", "down_proj")}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM", "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}


def feed_forward(c, d, f):
    """Names, shapes and biases of a layer's feed-forward."""
    if c["model_type"] not in EXPERTS:
        bias = c.get("mlp_bias")
        return [("mlp.gate_proj", (f, d), bias), ("mlp.up_proj", (f, d), bias), ("mlp.down_proj", (d, f), bias)]
    prefix, gate, up, down = EXPERTS[c["model_type"]]
    f, n = c.get("moe_intermediate_size", f), c.get("num_experts", c.get("num_local_experts"))
    all = [(prefix + "gate", (n, d), False)]
    for e in range(n):
        p = f"{prefix}experts.{e}."
        all += [(p + gate, (f, d), False), (p + up, (f, d), False), (p + down, (d, f), False)]
    return all


def random_model(where, tokenizers, name, keys):
    """Writes a model directory with random weights, its tokenizer.json, and a tokenizer_config.json."""
    where.mkdir(parents=True)
    # A row for each token: millrace never picks a row without one.
    rows = Tokenizer.from_file(str(tokenizers / f"{name}.json")).get_vocab_size()
    c = {**BASE, **keys, "vocab_size": rows, "architectures": [ARCHITECTURES[keys["model_type"]]]}
    rng = np.random.default_rng(7)
    d, f, h = c["hidden_size"], c["intermediate_size"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    q, kv, v = h * c["num_attention_heads"], h * c["num_key_value_heads"], c["vocab_size"]
    qkv_bias = c.get("attention_bias") or keys["model_type"] == "qwen2"
    shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (v, d)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        for key, shape, bias in (
                ("self_attn.q_proj", (q, d), qkv_bias), ("self_attn.k_proj", (kv, d), qkv_bias),
                ("self_attn.v_proj", (kv, d), qkv_bias), ("self_attn.o_proj", (d, q), c.get("attention_bias")),
                *feed_forward(c, d, f)):
            shapes[p + key + ".weight"] = shape
            if bias:
                shapes[p + key + ".bias"] = shape[:1]
        shapes[p + "input_layernorm.weight"] = shapes[p + "post_attention_layernorm.weight"] = (d,)
        if keys["model_type"] in ("qwen3", "qwen3_moe"):
            shapes[p + "self_attn.q_norm.weight"] = shapes[p + "self_attn.k_norm.weight"] = (h,)
    header, body = {}, b""
    for key, shape in shapes.items():
        x = rng.normal(1, 0.1, shape) if key.endswith("norm.weight") else rng.normal(0, 0.1, shape)
        data = x.astype("<f4").tobytes()
        header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    front = json.dumps(header).encode()
    (where / "model.safetensors").write_bytes(struct.pack("<Q", len(front)) + front + body)
    (where / "config.json").write_text(json.dumps(c))
    (where / "tokenizer.json").write_bytes((tokenizers / f"{name}.json").read_bytes())
    (where / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>",
            "tokenizer_class": "PreTrainedTokenizerFast"}))


def families(args):
    tokenizers, work = pathlib.Path(args.families), pathlib.Path(args.work)
    texts = json.loads((tokenizers / "texts.json").read_text())
    print("| model | tokenizer | greedy tokens equal | closest logits | ids equal | of texts in NFC | q8_0 | q4_k_m | of types |\n"
          "|---|---|---|---|---|---|---|---|---|")
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
        for dtype, ftype in (("q8_0", 7), ("q4_k_m", 15)):
            ours, theirs = (model.with_suffix(f".{dtype}.{who}") for who in ("millrace", "llama"))
            ours.unlink(missing_ok=True)
            report, _ = millrace(args, "export", str(model), "--gguf", str(ours), "--dtype", dtype, "--json")
            quantize(file, theirs, ftype)
            blocks.append(same_blocks(ours, theirs))
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
