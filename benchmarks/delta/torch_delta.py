"""The recurrence of main.go's shape in transformers' forms for PyTorch, on one thread, in CPU time.

    python3 -m pip install torch==2.9.0 transformers==5.24.0
    python3 benchmarks/delta/torch_delta.py [ROWS]

backward is that of a forward pass that kept its graph; a training step that computes layers again has both.
"""

import resource
import sys

import torch
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

ROWS, KEY_HEADS, HEADS, DIM, TURNS = int(sys.argv[1]) if len(sys.argv) > 1 else 1024, 4, 8, 128, 7

torch.set_num_threads(1)
torch.manual_seed(0)


def leaf(heads, dtype):
    return torch.randn(1, ROWS, heads, DIM).to(dtype).requires_grad_()


def cpu_ms():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (use.ru_utime + use.ru_stime)


def measure(rule, dtype, turns):
    """The least milliseconds of: forward without a graph, forward with one, backward."""
    q, k, v = leaf(KEY_HEADS, dtype), leaf(KEY_HEADS, dtype), leaf(HEADS, dtype)
    decay, beta = (-torch.rand(1, ROWS, HEADS)).requires_grad_(), torch.rand(1, ROWS, HEADS).requires_grad_()
    dout, rows = torch.randn(1, ROWS, HEADS, DIM).to(dtype), []
    for _ in range(turns):
        marks = [cpu_ms()]
        with torch.no_grad():
            rule(q, k, v, decay, beta, use_qk_l2norm_in_kernel=True)
        marks.append(cpu_ms())
        out, _ = rule(q, k, v, decay, beta, use_qk_l2norm_in_kernel=True)
        marks.append(cpu_ms())
        out.backward(dout)
        marks.append(cpu_ms())
        rows.append([b - a for a, b in zip(marks, marks[1:])])
    return [min(column) for column in zip(*rows)]


print("| rule | type | forward, ms | forward with graph, ms | backward, ms |\n|---|---|---|---|---|")
for rule, turns in ((qwen3_next.torch_chunk_gated_delta_rule, TURNS), (qwen3_next.torch_recurrent_gated_delta_rule, 2)):
    for dtype in (torch.float32, torch.bfloat16):
        ms = measure(rule, dtype, turns)
        print(f"| {rule.__name__} | {dtype} | " + " | ".join(f"{x:.1f}" for x in ms) + " |", flush=True)
