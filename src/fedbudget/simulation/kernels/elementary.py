"""exp in single precision, as a straight line of arithmetic.

A call into the C library would keep a loop from vectorising. Here are only adds,
multiplies, selects and moves of bits, so that a loop over an array runs 16 numbers at a
time. `formulas.exponential` is the same where there is no loop.
"""

from typing import Any

import numpy as np

from fedbudget.simulation.kernels.compiled import compiled_inline

f32 = np.float32
_LOG2_E = f32(1.4426950408889634)
# log 2 in two parts: the first has few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH = f32(0.693359375)
_LN2_LOW = f32(-2.12194440e-4)


@compiled_inline
def fast_exp(x: Any) -> Any:
    """Return e^x, relative error below 3e-7; flat beyond -87 and 88."""
    x = min(max(x, f32(-87.0)), f32(88.0))
    n = np.floor(x * _LOG2_E + f32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW  # |r| <= log(2) / 2
    # The Taylor polynomial of degree 7, with Horner's rule.
    p = f32(1 / 5040)
    p = p * r + f32(1 / 720)
    p = p * r + f32(1 / 120)
    p = p * r + f32(1 / 24)
    p = p * r + f32(1 / 6)
    p = p * r + f32(0.5)
    p = (p * r) * r + r + f32(1.0)
    # 2^n, by writing its exponent
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
