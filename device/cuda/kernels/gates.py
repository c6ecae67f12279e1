"""The gated unit of feed-forwards, which are dense (glu.py) or of experts (experts.py): device.GLUSpec.

Sources: Shazeer, "GLU Variants Improve Transformer" (2020); Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
"""

import triton
import triton.language as tl

# The activations by their words in the names of kernels, in the order of device.Activation.
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
SILU, GELU = tl.constexpr(0), tl.constexpr(1)

GLU = "alpha:fp32 limit:fp32 plus:fp32"  # the arguments of a unit


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _between(x, limit):
    """x, but no further from 0 than the limit. A NaN stays one."""
    x = tl.minimum(x, limit, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(x, -limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gated(gate, up, alpha, limit, plus, ACTIVATION: tl.constexpr):
    """f(g) and f'(g) of the activation f at g = min(gate, limit), and u = clamp(up, -limit, limit) + plus. The unit is
    f(g)*u. Without a limit it is infinite, alpha is 1 and plus is -0, which leaves each number as it is. A NaN stays
    one."""
    g = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
    u = _between(up, limit) + plus
    if ACTIVATION == SILU:
        s = _sigmoid(alpha * g)
        f = g * s
        slope = s * (1.0 + alpha * g * (1.0 - s))
    elif ACTIVATION == GELU:
        s = 0.5 * (1.0 + tl.erf(g * 0.7071067811865476))
        f = g * s
        slope = s + g * (tl.exp(-0.5 * g * g) * 0.3989422804014327)
    else:
        # (1 + tanh(z/2))/2 is sigmoid(z). Beyond 16 it is 0 or 1, and z stays finite.
        x = _between(g, 16.0)
        cubic = x * x * 0.07135481282553501
        s = _sigmoid(x * (cubic + 1.5957691216057308))
        f = g * s
        slope = s * (1.0 + x * (3.0 * cubic + 1.5957691216057308) * (1.0 - s))
    return f, slope, u
