"""Writes schedules.json: the learning rates of transformers' schedules, step by step.

    python3 -m pip install torch==2.9.0 transformers==4.57.3
    python3 optim/testdata/schedules.py

Of wsd with a floor the rates of the warm-up are left out (null): transformers begins those at the floor, and Millrace
begins every warm-up at 0.
"""

import json
import pathlib

import torch
import transformers
from transformers import optimization

PEAK, FLOOR = 2e-5, 3e-6


def rates(shape, floor, warmup, steps):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    if shape == "constant":
        s = optimization.get_constant_schedule_with_warmup(optimizer, warmup)
    elif shape == "linear" and floor == 0:
        s = optimization.get_linear_schedule_with_warmup(optimizer, warmup, steps)
    elif shape == "linear":  # the polynomial of degree 1 has an end other than 0
        s = optimization.get_polynomial_decay_schedule_with_warmup(optimizer, warmup, steps, lr_end=floor, power=1.0)
    elif shape == "cosine" and floor == 0:
        s = optimization.get_cosine_schedule_with_warmup(optimizer, warmup, steps)
    elif shape == "cosine":
        s = optimization.get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, steps, min_lr=floor)
    else:
        s = optimization.get_wsd_schedule(optimizer, warmup, max(steps // 10, 1), num_training_steps=steps,
                                          decay_type="linear", min_lr_ratio=floor / PEAK)
    out = []
    for step in range(steps):
        out.append(None if shape == "wsd" and floor > 0 and step < warmup else s.get_last_lr()[0])
        optimizer.step()
        s.step()
    return out


cases = [
    {"shape": shape, "floor": floor, "warmup": warmup, "rates": rates(shape, floor, warmup, steps)}
    for shape in ("constant", "linear", "cosine", "wsd")
    for floor in (0, FLOOR)
    if shape != "constant" or floor == 0
    for warmup in (0, 5)
    for steps in (7, 37, 60)
]
text = ",\n".join("    " + json.dumps(case) for case in cases)
(pathlib.Path(__file__).parent / "schedules.json").write_text(
    f'{{"transformers": "{transformers.__version__}", "peak": {PEAK}, "cases": [\n{text}\n]}}\n')
