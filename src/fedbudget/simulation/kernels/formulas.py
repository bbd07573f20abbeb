"""Formulas over 16 numbers at a time, written with Python's operators.

`Lanes` stands for 16 numbers in code that is being generated: adding two of them emits
one addition. So a formula is ordinary Python, is as wide as it says whatever the
compiler thinks of the loop around it, and needs no call into the C library. The tests
hold each function to a few units in the last place.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

LANES = 16
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
_WORDS = ir.VectorType(ir.IntType(64), LANES)
_FLAGS = ("contract", "reassoc", "nsz")
_HALF_SQRT_BITS = 0x3F3504F3  # sqrt(1/2), as the bits of a float
_LN2 = 0.6931471805599453
# log 2 in two parts: the first has few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4

Number: TypeAlias = "Lanes | float | int"


class Lanes:
    """16 floats, 16 integers of 32 bits or 16 words of 64, in generated code."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @classmethod
    def of_words(cls, builder: Any, word: Any) -> "Lanes":
        """Return 16 times the same word."""
        zero, none = ir.Constant(ir.IntType(32), 0), ir.Constant(_WORDS, ir.Undefined)
        one = builder.insert_element(none, word, zero)
        return cls(builder, builder.shuffle_vector(one, one, ir.Constant(_INTS, None)))

    @classmethod
    def places(cls, builder: Any) -> "Lanes":
        """Return the words 0 .. 15."""
        return cls(builder, ir.Constant(_WORDS, list(range(LANES))))

    def __add__(self, other: Number) -> "Lanes":
        return self._either("fadd", "add", other)

    def __sub__(self, other: Number) -> "Lanes":
        return self._either("fsub", "sub", other)

    def __mul__(self, other: Number) -> "Lanes":
        return self._either("fmul", "mul", other)

    def __xor__(self, other: Number) -> "Lanes":
        return self._emit("xor", other)

    def __and__(self, other: Number) -> "Lanes":
        return self._emit("and_", other)

    def __lshift__(self, bits: int) -> "Lanes":
        return self._emit("shl", bits)

    def __rshift__(self, bits: int) -> "Lanes":
        """Shift zeros in."""
        return self._emit("lshr", bits)

    def halved(self, bits: int) -> "Lanes":
        """Shift the sign in: divide by 2^bits, rounding down."""
        return self._emit("ashr", bits)

    def below(self, other: Number) -> "Lanes":
        """Return which numbers are below, for `choose`."""
        compare = self.builder.fcmp_ordered if self._is_float else None
        compare = compare or self.builder.icmp_signed
        return Lanes(self.builder, compare("<", self.value, self._operand(other)))

    def choose(self, yes: "Lanes", no: Number) -> "Lanes":
        """Return `yes` where this comparison holds, else `no`."""
        chosen = self.builder.select(self.value, yes.value, yes._operand(no))
        return Lanes(self.builder, chosen)

    def within(self, least: Number, most: Number) -> "Lanes":
        """Return the numbers moved to the nearer end where they are outside."""
        high = self.below(most).choose(self, most)
        return Lanes(self.builder, high._operand(least)).below(high).choose(high, least)

    def lower_half(self) -> "Lanes":
        """Return the lower 32 bits of words, as integers."""
        return Lanes(self.builder, self.builder.trunc(self.value, _INTS))

    def as_bits(self) -> "Lanes":
        """Return the bits of floats."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _INTS))

    def as_float(self) -> "Lanes":
        """Return the floats that these bits are."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _FLOATS))

    def to_float(self) -> "Lanes":
        """Return integers as floats of the same value."""
        return Lanes(self.builder, self.builder.sitofp(self.value, _FLOATS))

    def to_int(self) -> "Lanes":
        """Return floats without their fraction, as integers."""
        return Lanes(self.builder, self.builder.fptosi(self.value, _INTS))

    def call(self, name: str) -> "Lanes":
        """Return what LLVM's intrinsic function of that name makes of floats."""
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        declare: Callable[..., Any] = get_or_insert_function
        function = declare(self.builder.module, kind, f"llvm.{name}.v{LANES}f32")
        return Lanes(self.builder, self.builder.call(function, [self.value]))

    def interleaved(self, other: "Lanes") -> tuple["Lanes", "Lanes"]:
        """Return self[0], other[0], self[1], .. in two parts."""
        parts = []
        for first in (0, LANES // 2):
            order = [first + i // 2 + LANES * (i % 2) for i in range(LANES)]
            mask = ir.Constant(_INTS, order)
            part = self.builder.shuffle_vector(self.value, other.value, mask)
            parts.append(Lanes(self.builder, part))
        return parts[0], parts[1]

    @property
    def _is_float(self) -> bool:
        return bool(self.value.type == _FLOATS)

    def _operand(self, other: Number) -> Any:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * LANES)

    def _either(self, on_floats: str, on_integers: str, other: Number) -> "Lanes":
        if not self._is_float:
            return self._emit(on_integers, other)
        emit = getattr(self.builder, on_floats)
        return Lanes(self.builder, emit(self.value, self._operand(other), flags=_FLAGS))

    def _emit(self, operation: str, other: Number) -> "Lanes":
        emit = getattr(self.builder, operation)
        return Lanes(self.builder, emit(self.value, self._operand(other)))


def polynomial(x: Lanes, *coefficients: float) -> Lanes:
    """Return a polynomial by Horner's rule, the highest power's coefficient first."""
    total = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        total = (total + coefficient) * x
    return total + coefficients[-1]


def exponential(x: Lanes) -> Lanes:
    """Return e^x, relative error below 3e-7; flat beyond -87 and 87."""
    x = x.within(-87.0, 87.0)
    n = (x * 1.4426950408889634 + 0.5).call("floor")
    r = x - n * _LN2_HIGH - n * _LN2_LOW  # |r| <= log(2) / 2
    p = polynomial(r, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5)  # Taylor's
    p = (p * r) * r + r + 1.0
    return p * ((n.to_int() + 127) << 23).as_float()  # 2^n, by writing its exponent


def logarithm(x: Lanes) -> Lanes:
    """Return log x for a positive normal x, error below 3e-7 (relative or absolute)."""
    # Split x = m 2^e with m in [sqrt(1/2), sqrt(2)), by its bits.
    bits = x.as_bits() - _HALF_SQRT_BITS
    e = bits.halved(23).to_float()
    z = ((bits & 0x7FFFFF) + _HALF_SQRT_BITS).as_float() - 1.0
    # log(1 + z) = z - z^2/2 + z^3 p(z): the coefficients are those of Moshier's Cephes,
    # logf. No division, which would take longer than all the rest.
    p = polynomial(
        z,
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1),
        *(-1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
        *(2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
    return e * _LN2 + (z + (z * z) * (p * z - 0.5))


def sine(t: Lanes) -> Lanes:
    """Return sin(pi t / 4) for t in [-1, 1], by Taylor's series."""
    a = t * (np.pi / 4)
    q = a * a
    return a + (polynomial(q, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6) * q) * a


def cosine(t: Lanes) -> Lanes:
    """Return cos(pi t / 4) for t in [-1, 1], by Taylor's series."""
    a = t * (np.pi / 4)
    q = a * a
    return polynomial(q, 1 / 40320, -1 / 720, 1 / 24, -0.5) * q + 1.0


def reciprocal(x: Lanes) -> Lanes:
    """Return 1 / x for x in 1e-37 .. 1e37, relative error below 3e-7.

    A guess by the bits is off by 12 %; each of Newton's steps squares that. Three of
    them take a fifth of the time of a division.
    """
    guess = ((x.as_bits() * -1) + 0x7EF311C7).as_float()
    for _ in range(3):
        guess = guess * (x * guess * -1.0 + 2.0)
    return guess


def mixed(z: Lanes) -> Lanes:
    """Return SplitMix64's scrambling of words: `random_numbers.mix`, 16 at a time."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def two_normals(word: Lanes) -> tuple[Lanes, Lanes]:
    """Return two standard normals for each random word: Box-Muller.

    The upper half is the radius, with 31 bits, so that tails reach 6.6 standard
    deviations; the lower half is the angle.
    """
    # Small numbers stay exact as floats, and they are what makes the tail.
    upper = (word >> 33).lower_half().to_float() + 0.5
    radius = (logarithm(upper * 2.0**-31) * -2.0).call("sqrt")
    # The two lowest bits choose a quarter turn, the rest a place inside it.
    lower = word.lower_half()
    place = lower.to_float() * 2.0**-31
    along, across = radius * cosine(place), radius * sine(place)
    along = (along.as_bits() ^ ((lower & 2) << 30)).as_float()  # its sign
    straight = (lower & 1).below(1)
    return straight.choose(along, across), straight.choose(across, along)


def logistic_slope(y: Lanes, score: Lanes) -> Lanes:
    """Return d/ds log(1 + e^(-y s))."""
    return y * -1.0 * reciprocal(exponential(y * score) + 1.0)


def hinge_slope(y: Lanes, score: Lanes) -> Lanes:
    """Return d/ds max(0, 1 - y s)."""
    return (y * score).below(1.0).choose(y * -1.0, 0.0)


def huber_slope(y: Lanes, score: Lanes, threshold: Lanes) -> Lanes:
    """Return the slope of Huber's loss: the difference, within the threshold."""
    return (score - y).within(threshold * -1.0, threshold)
