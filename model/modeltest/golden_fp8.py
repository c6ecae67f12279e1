"""Write testdata-latent/fp8/fp8.safetensors: how transformers turns a matrix in FP8 into bf16.

    python3 -m pip install torch==2.9.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python3 model/modeltest/golden_fp8.py

    x             F8_E4M3 [256, 128]  each code but the two NaNs 128 times
    x_scale_inv   f32 [2, 1]          a number for each block of 128 rows and columns
    expected      bf16 [256, 128]
"""

import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

if __name__ == "__main__":
    rng = np.random.default_rng(20254)
    codes = np.array([c for c in range(256) if c & 127 != 127], dtype=np.uint8)
    codes = rng.permutation(np.resize(codes, 256 * 128)).reshape(256, 128)
    x = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    # The second makes subnormal numbers of bf16.
    scales = torch.tensor([[3.1415927e-4], [1.7e-37]], dtype=torch.float32)
    expected = Fp8Dequantize(None)._dequantize_one(x, scales, torch.bfloat16)
    out = pathlib.Path(__file__).parent / "testdata-latent" / "fp8"
    out.mkdir(parents=True, exist_ok=True)
    save_file({"x": x, "x_scale_inv": scales, "expected": expected}, out / "fp8.safetensors")
    (out / "fp8.safetensors").chmod(0o644)
    sys.exit(0 if expected.isfinite().all() else "not finite")
