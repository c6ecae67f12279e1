"""Makes quants.json, the oracle of the quantizers: numbers, and the blocks that llama.cpp makes of them.

Needs: pip install llama-cpp-python==0.3.36 gguf==0.19.0 numpy (llama-cpp-python is compiled, for minutes).
"""
import ctypes
import json
import pathlib
from importlib.metadata import version

import gguf
import llama_cpp
import numpy as np

ggml = ctypes.CDLL(str(next((pathlib.Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so*"))))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                                     ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

rng = np.random.default_rng(11)
x = np.concatenate([
    rng.normal(0, 0.02, 512),                                  # as weights are
    rng.standard_t(2, 256) * 0.01,                             # with outliers
    np.abs(rng.normal(0, 1, 128)), -np.abs(rng.normal(0, 1, 128)),  # of one sign
    np.zeros(64), np.full(64, 0.5), np.full(64, -0.25), rng.normal(0, 1e-9, 64),
]).astype(np.float32)

out = {"llama_cpp": version("llama-cpp-python"), "numbers": x.astype(">f4").tobytes().hex(), "types": {}}
for name in ("Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"):
    qtype = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = np.zeros(len(x) // elems * size, np.uint8)
    ggml.ggml_quantize_chunk(int(qtype), x.ctypes.data, blocks.ctypes.data, 0, len(x) // 256, 256, None)
    out["types"][name] = {"blocks": blocks.tobytes().hex()}
    if name in ("Q5_K", "MXFP4"):  # blocks.json has the values of the others
        values = gguf.dequantize(blocks.reshape(-1, size), qtype).astype(np.float32).reshape(-1)
        out["types"][name]["values"] = values.astype(">f4").tobytes().hex()
(pathlib.Path(__file__).parent / "quants.json").write_text(json.dumps(out, indent=1) + "\n")
