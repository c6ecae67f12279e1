"""Import first in tests: kernels then run in Triton's interpreter, on the CPU.

It fixes three differences between Triton 3.5's interpreter and a GPU. The interpreter rounds to bf16 by cutting off,
multiplies matrices of bf16 as if their bits were integers, and converts a loop's bounds in a way that NumPy 2.4 no
longer allows.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def to_bf16(x):
    """The bits of fp32 numbers rounded to bf16, to nearest even; a NaN stays one."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (np.where(np.isnan(x), bits | 0x400000, rounded) >> 16).astype(np.uint16)


def from_bf16(bits):
    """The fp32 numbers that bits of bf16 stand for."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


_convert_float = interpreter._convert_float
_patch_lang_tensor = interpreter._patch_lang_tensor
_create_dot = interpreter.InterpreterBuilder.create_dot


def _convert(x, source, target, rounding):
    if source == tl.float32 and target == tl.bfloat16:
        return to_bf16(x)
    if source == tl.bfloat16 and target == tl.float32:
        return from_bf16(x.view(np.uint16)).view(np.uint32)
    return _convert_float(x, source, target, rounding)


def _dot(self, a, b, d, *precision):
    a, b = (interpreter.TensorHandle(from_bf16(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
    return _create_dot(self, a, b, d, *precision)


def _patch_tensor(tensor):
    _patch_lang_tensor(tensor)
    tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._convert_float = _convert
interpreter.InterpreterBuilder.create_dot = _dot
interpreter._patch_lang_tensor = _patch_tensor
