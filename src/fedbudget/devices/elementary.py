"""exp, log, sine and cosine in single precision, as straight lines of arithmetic.

A call into the C library would keep a loop from vectorising. Everything here is adds,
multiplies, selects and moves of bits, so that a loop over an array runs 8 or 16 numbers
at a time. The tests hold each to a few units in the last place.
"""

from typing import Any

import numpy as np

from fedbudget.devices.compiled import compiled_inline

f32 = np.float32
_LOG2_E = f32(1.4426950408889634)
# log 2 in two parts: the first has few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH = f32(0.693359375)
_LN2_LOW = f32(-2.12194440e-4)
_LN2 = f32(0.6931471805599453)
_HALF_SQRT_BITS = np.int32(0x3F3504F3)  # sqrt(1/2)


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


@compiled_inline
def fast_log(x: Any) -> Any:
    """Return log x for a positive normal x, error below 3e-7 (relative or absolute)."""
    # Split x = m 2^e with m in [sqrt(1/2), sqrt(2)), by its bits.
    bits = np.int32(np.float32(x).view(np.int32) - _HALF_SQRT_BITS)
    e = np.int32(bits >> np.int32(23))
    m = np.int32((bits & np.int32(0x7FFFFF)) + _HALF_SQRT_BITS).view(np.float32)
    # log m = 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...), |s| <= 0.1716
    s = (m - f32(1.0)) / (m + f32(1.0))
    q = s * s
    p = f32(2 / 9)
    p = p * q + f32(2 / 7)
    p = p * q + f32(2 / 5)
    p = p * q + f32(2 / 3)
    return f32(e) * _LN2 + (s * f32(2.0) + (p * q) * s)


@compiled_inline
def fast_sine(t: Any) -> Any:
    """Return sin(pi t / 4) for t in [-1, 1]."""
    a = t * f32(np.pi / 4)
    q = a * a
    p = f32(1 / 362880)
    p = p * q - f32(1 / 5040)
    p = p * q + f32(1 / 120)
    p = p * q - f32(1 / 6)
    return a + (p * q) * a


@compiled_inline
def fast_cosine(t: Any) -> Any:
    """Return cos(pi t / 4) for t in [-1, 1]."""
    a = t * f32(np.pi / 4)
    q = a * a
    p = f32(1 / 40320)
    p = p * q - f32(1 / 720)
    p = p * q + f32(1 / 24)
    p = p * q - f32(0.5)
    return f32(1.0) + p * q
