"""Prints transformers' inv_freq of Llama 3.2 1B as Go (rope_golden_test.go). Needs torch and transformers==4.57.3."""
import sys
import torch, transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

c = LlamaConfig(hidden_size=2048, num_attention_heads=32, rope_theta=500000.0, max_position_embeddings=131072,
                rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=8192))
inv, _ = ROPE_INIT_FUNCTIONS["llama3"](c, device="cpu")
print(f"package hf\n\n// Made by testdata/rope_llama3.py with transformers {transformers.__version__}, torch {torch.__version__}.")
print("var ropeLlama3Golden = []float64{")
for x in inv.tolist():
    print(f"\t{x!r},")
print("}")
