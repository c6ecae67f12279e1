"""Makes blocks.json, tiny_llama.gguf and tiny_qwen3moe.gguf, the oracles of the GGUF tests. Needs: pip install
gguf==0.19.0 numpy.

blocks.json: for each quantized type, blocks of random bytes with sane scales, and what the gguf package dequantizes
them to, as hexadecimal float32 bits. tiny_llama.gguf and tiny_qwen3moe.gguf: models whose files were written by the gguf
package.
"""
import json
import pathlib
from importlib.metadata import version

import gguf
import numpy as np

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(7)
Q = gguf.GGMLQuantizationType

# Where each type keeps its binary16 scales; all other bytes may be anything.
SCALES = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q4_K: [0, 2], Q.Q6_K: [208]}
out = {"gguf": version("gguf"), "numpy": np.__version__, "types": {}}
for qtype, offsets in SCALES.items():
    elems, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, size=(3 if elems == 32 else 2, size), dtype=np.uint8)
    for o in offsets:
        blocks[:, o:o + 2] = rng.normal(0, 0.02, size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    x = gguf.dequantize(blocks, qtype).astype(np.float32).reshape(-1)
    out["types"][qtype.name] = {"blocks": blocks.tobytes().hex(), "values": x.astype(">f4").tobytes().hex()}
(here / "blocks.json").write_text(json.dumps(out, indent=1) + "\n")

w = gguf.GGUFWriter(here / "tiny_llama.gguf", "llama")
w.add_block_count(1)
w.add_context_length(64)
w.add_embedding_length(32)
w.add_feed_forward_length(64)
w.add_head_count(4)
w.add_head_count_kv(2)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(10000.0)
w.add_vocab_size(8)
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("smollm")
w.add_token_list(["<|endoftext|>", "<|im_start|>", "a", "b", "Ġ", "ab", "Ġa", "[PAD7]"])
w.add_token_types([3, 3, 1, 1, 1, 1, 1, 5])
w.add_token_merges(["a b", "Ġ a"])
w.add_bos_token_id(0)
w.add_eos_token_id(1)
w.add_chat_template("{{ '<|im_start|>' }}")


def tensor(name, *shape, qtype=None):
    x = rng.normal(0, 0.1, size=shape).astype(np.float32)
    if qtype is None:
        w.add_tensor(name, x)
    else:
        w.add_tensor(name, gguf.quantize(x, qtype), raw_dtype=qtype)


tensor("token_embd.weight", 8, 32, qtype=Q.Q8_0)
tensor("output_norm.weight", 32)
tensor("blk.0.attn_norm.weight", 32)
tensor("blk.0.ffn_norm.weight", 32)
tensor("blk.0.attn_q.weight", 32, 32, qtype=Q.Q4_1)
tensor("blk.0.attn_k.weight", 16, 32, qtype=Q.Q5_0)
tensor("blk.0.attn_v.weight", 16, 32, qtype=Q.Q5_1)
tensor("blk.0.attn_output.weight", 32, 32, qtype=Q.Q4_0)
tensor("blk.0.ffn_gate.weight", 64, 32, qtype=Q.F16)
tensor("blk.0.ffn_up.weight", 64, 32, qtype=Q.BF16)
tensor("blk.0.ffn_down.weight", 32, 64)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()


def bit_sum(x):
    bits = np.ascontiguousarray(x).reshape(-1).view(np.uint32).astype(np.uint64)
    return int((bits * (np.arange(len(bits), dtype=np.uint64) + 1)).sum() & np.uint64((1 << 53) - 1))


# The same tensors as transformers wants them, in bf16: the sum of the bits per tensor, weighted by position.
r = gguf.GGUFReader(here / "tiny_llama.gguf")
sums = {}
for t in r.tensors:
    x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
    x = x.reshape(tuple(int(d) for d in reversed(t.shape)))
    for key, heads in (("attn_q.", 4), ("attn_k.", 2)):
        if key in t.name:  # the inverse of convert_hf_to_gguf.py's LlamaModel.permute
            x = x.reshape(heads, x.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)
    sums[t.name] = bit_sum(x)
(here / "tiny_llama.json").write_text(json.dumps({"gguf": version("gguf"), "numpy": np.__version__, "sums": sums}, indent=1) + "\n")

w = gguf.GGUFWriter(here / "tiny_qwen3moe.gguf", "qwen3moe")
w.add_block_count(2)
w.add_context_length(64)
w.add_embedding_length(32)
w.add_feed_forward_length(96)
w.add_head_count(4)
w.add_head_count_kv(2)
w.add_key_length(16)
w.add_value_length(16)
w.add_layer_norm_rms_eps(1e-6)
w.add_rope_freq_base(1000000.0)
w.add_expert_count(5)
w.add_expert_used_count(2)
w.add_expert_feed_forward_length(32)
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("qwen2")
w.add_token_list(["<|endoftext|>", "<|im_start|>", "a", "b", "Ġ", "ab", "Ġa", "[PAD7]"])
w.add_token_types([3, 3, 1, 1, 1, 1, 1, 5])
w.add_token_merges(["a b", "Ġ a"])
w.add_eos_token_id(1)
tensor("token_embd.weight", 8, 32)
tensor("output_norm.weight", 32)
tensor("output.weight", 8, 32, qtype=Q.Q8_0)
for layer in range(2):
    b = f"blk.{layer}."
    for name, *shape in (("attn_q", 64, 32), ("attn_k", 32, 32), ("attn_v", 32, 32), ("attn_output", 32, 64)):
        tensor(f"{b}{name}.weight", *shape, qtype=Q.F16)
    for name, size in (("attn_q_norm", 16), ("attn_k_norm", 16), ("attn_norm", 32), ("ffn_norm", 32)):
        tensor(f"{b}{name}.weight", size)
    tensor(b + "ffn_gate_inp.weight", 5, 32)
    tensor(b + "ffn_gate_exps.weight", 5, 32, 32, qtype=Q.Q8_0)
    tensor(b + "ffn_up_exps.weight", 5, 32, 32, qtype=Q.Q4_0)
    tensor(b + "ffn_down_exps.weight", 5, 32, 32, qtype=Q.Q5_1)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

# Experts one by one, as transformers names them.
sums = {}
for t in gguf.GGUFReader(here / "tiny_qwen3moe.gguf").tensors:
    x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(int(d) for d in reversed(t.shape)))
    if "_exps." in t.name:
        sums |= {f"{t.name}/{e}": bit_sum(x[e]) for e in range(len(x))}
    else:
        sums[t.name] = bit_sum(x)
(here / "tiny_qwen3moe.json").write_text(json.dumps({"gguf": version("gguf"), "numpy": np.__version__, "sums": sums}, indent=1) + "\n")
