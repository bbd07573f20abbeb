"""Runs of 16 floats as one value inside compiled functions.

Two NumPy arrays may overlap: a vectorised loop must first compare their addresses, and
needs a second loop for the remainder. For a hundred numbers that costs more than the
work itself. A run states that 16 numbers are one value; LLVM maps it to the registers
of the processor. Bounds are not checked: arrays that are read in runs are padded to
whole runs.

`Lanes` represents 16 numbers in generated code: adding two of them emits one addition.
So a formula is ordinary Python, always has this width, and needs no call into the C
library. The tests bound the error of each function by a few units in the last place.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

from fedbudget.errors import needed
from fedbudget.simulation.kernels.layouts import RUN

with needed("the fast simulator", "numba"):
    from numba import njit

    from fedbudget.simulation.kernels.machine_code import keep_on_disk

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused, so that they vectorise. Infinities and NaNs keep
# their meaning, so that a diverging run is detected.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
# No reference counting: the kernels allocate nothing, their Python callers hold every
# array, and counting took a third of the time.
_LEAN = {"_nrt": False}


def compiled(function: F) -> F:
    """Compile for the calling thread; the machine code is cached on disk."""
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy", **_LEAN}
    options["nogil"] = True  # Python threads may run it in parallel
    return cast(F, keep_on_disk(njit(**options)(function)))


def compiled_inline(function: F) -> F:
    """Compile into every caller.

    The tuples of a run's arrays are passed as hundreds of numbers: for a function that
    is called in every step, that costs more than the work on a small batch.
    """
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy", **_LEAN}
    options["forceinline"] = True
    return cast(F, keep_on_disk(njit(nogil=True, **options)(function)))


def compiled_exact(function: F) -> F:
    """Compile into every caller without reordering, for the bits of NumPy.

    A product and a sum in one loop may still be fused.
    """
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": True, **_LEAN}
    return cast(F, keep_on_disk(njit(nogil=True, **options)(function)))


_FLOATS = ir.VectorType(ir.FloatType(), RUN)
_INTS = ir.VectorType(ir.IntType(32), RUN)
_WORDS = ir.VectorType(ir.IntType(64), RUN)
_DOUBLES = ir.VectorType(ir.DoubleType(), RUN)
_FLAGS = ("contract", "reassoc", "nsz")
_HALF_SQRT_BITS = 0x3F3504F3  # sqrt(1/2), as the bits of a float
_LN2 = 0.6931471805599453
# log 2 in two parts: the first has few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4

_declared: Callable[..., Any] = get_or_insert_function
Number: TypeAlias = "Lanes | float | int"


class Lanes:
    """16 floats, 16 integers of 32 bits or 16 words of 64, in generated code."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @classmethod
    def of_words(cls, builder: Any, word: Any) -> "Lanes":
        """Return 16 copies of a word."""
        zero, none = ir.Constant(ir.IntType(32), 0), ir.Constant(_WORDS, ir.Undefined)
        one = builder.insert_element(none, word, zero)
        return cls(builder, builder.shuffle_vector(one, one, ir.Constant(_INTS, None)))

    @classmethod
    def indices(cls, builder: Any) -> "Lanes":
        """Return the words 0 .. 15."""
        return cls(builder, ir.Constant(_WORDS, list(range(RUN))))

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
        """Shift right, filling with zeros."""
        return self._emit("lshr", bits)

    def arithmetic_shift(self, bits: int) -> "Lanes":
        """Shift right, filling with the sign: divide by 2^bits, rounding down."""
        return self._emit("ashr", bits)

    def below(self, other: Number) -> "Lanes":
        """Return which numbers are below the other, for `select`."""
        compare = self.builder.fcmp_ordered if self._is_float else None
        compare = compare or self.builder.icmp_signed
        return Lanes(self.builder, compare("<", self.value, self._operand(other)))

    def select(self, yes: "Lanes", no: Number) -> "Lanes":
        """Return `yes` where this comparison holds, else `no`."""
        selected = self.builder.select(self.value, yes.value, yes._operand(no))
        return Lanes(self.builder, selected)

    def clipped(self, low: Number, high: Number) -> "Lanes":
        """Return the numbers, clipped to low .. high."""
        below = self.below(high).select(self, high)
        return Lanes(self.builder, below._operand(low)).below(below).select(below, low)

    def lower_half(self) -> "Lanes":
        """Return the lower 32 bits of words, as integers."""
        return Lanes(self.builder, self.builder.trunc(self.value, _INTS))

    def as_bits(self) -> "Lanes":
        """Return the bits of floats."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _INTS))

    def as_float(self) -> "Lanes":
        """Return the floats with these bits."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _FLOATS))

    def to_float(self) -> "Lanes":
        """Return integers converted to floats."""
        return Lanes(self.builder, self.builder.sitofp(self.value, _FLOATS))

    def to_int(self) -> "Lanes":
        """Return floats truncated to integers."""
        return Lanes(self.builder, self.builder.fptosi(self.value, _INTS))

    def call(self, name: str) -> "Lanes":
        """Return the result of an LLVM intrinsic function of floats."""
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        function = _declared(self.builder.module, kind, f"llvm.{name}.v{RUN}f32")
        return Lanes(self.builder, self.builder.call(function, [self.value]))

    def interleaved(self, other: "Lanes") -> tuple["Lanes", "Lanes"]:
        """Return self[0], other[0], self[1], .. in two parts."""
        parts = []
        for first in (0, RUN // 2):
            order = [first + i // 2 + RUN * (i % 2) for i in range(RUN)]
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
        return ir.Constant(self.value.type, [other] * RUN)

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
    """Return e^x, relative error below 3e-7; constant outside of -87 .. 87."""
    x = x.clipped(-87.0, 87.0)
    n = (x * 1.4426950408889634 + 0.5).call("floor")
    r = x - n * _LN2_HIGH - n * _LN2_LOW  # |r| <= log(2) / 2
    p = polynomial(r, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5)  # Taylor's
    p = (p * r) * r + r + 1.0
    return p * ((n.to_int() + 127) << 23).as_float()  # 2^n, by writing its exponent


def logarithm(x: Lanes) -> Lanes:
    """Return log x for a positive normal x, error below 3e-7 (relative or absolute)."""
    # Split x = m 2^e with m in [sqrt(1/2), sqrt(2)), by its bits.
    bits = x.as_bits() - _HALF_SQRT_BITS
    e = bits.arithmetic_shift(23).to_float()
    z = ((bits & 0x7FFFFF) + _HALF_SQRT_BITS).as_float() - 1.0
    # log(1 + z) = z - z^2/2 + z^3 p(z), with the coefficients of Moshier's Cephes
    # (logf). No division: it would take longer than all the rest.
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

    A guess from the bits has an error of 12 %; each of Newton's steps squares it. Three
    steps take a fifth of the time of a division.
    """
    guess = ((x.as_bits() * -1) + 0x7EF311C7).as_float()
    for _ in range(3):
        guess = guess * (x * guess * -1.0 + 2.0)
    return guess


def mixed(z: Lanes) -> Lanes:
    """Return SplitMix64's scrambling of words: `random.mix`, 16 at a time."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def two_normals(word: Lanes) -> tuple[Lanes, Lanes]:
    """Return two standard normals for each random word: Box-Muller.

    The upper half is the radius, with 31 bits, so that tails reach 6.6 standard
    deviations; the lower half is the angle.
    """
    # Small numbers are exact as floats, and they make the tail.
    upper = (word >> 33).lower_half().to_float() + 0.5
    radius = (logarithm(upper * 2.0**-31) * -2.0).call("sqrt")
    # The two lowest bits select a quadrant, the others an angle inside of it.
    lower = word.lower_half()
    angle = lower.to_float() * 2.0**-31
    cos_part, sin_part = radius * cosine(angle), radius * sine(angle)
    cos_part = (cos_part.as_bits() ^ ((lower & 2) << 30)).as_float()  # its sign
    even = (lower & 1).below(1)
    return even.select(cos_part, sin_part), even.select(sin_part, cos_part)


def logistic_slope(y: Lanes, score: Lanes) -> Lanes:
    """Return d/ds log(1 + e^(-y s))."""
    return y * -1.0 * reciprocal(exponential(y * score) + 1.0)


def hinge_slope(y: Lanes, score: Lanes) -> Lanes:
    """Return d/ds max(0, 1 - y s)."""
    return (y * score).below(1.0).select(y * -1.0, 0.0)


def smooth_hinge_slope(y: Lanes, score: Lanes, curvature: Lanes) -> Lanes:
    """Return the slope of hinge with its kink rounded over a width of 1 / curvature."""
    shortfall = (y * score * -1.0 + 1.0) * curvature
    return y * -1.0 * shortfall.clipped(0.0, 1.0)


def huber_slope(y: Lanes, score: Lanes, threshold: Lanes) -> Lanes:
    """Return the slope of Huber's loss: the difference, clipped to the threshold."""
    return (score - y).clipped(threshold * -1.0, threshold)


def logistic_loss(y: Lanes, score: Lanes) -> Lanes:
    """Return log(1 + e^(-y s)): for a positive margin, log(1 + e^-margin)."""
    margin = y * score
    size = margin.below(0.0).select(margin, margin * -1.0)  # -|margin|
    return margin.clipped(-3e38, 0.0) * -1.0 + logarithm(exponential(size) + 1.0)


def hinge_loss(y: Lanes, score: Lanes) -> Lanes:
    """Return max(0, 1 - y s)."""
    return (y * score * -1.0 + 1.0).clipped(0.0, 3e38)


def smooth_hinge_loss(y: Lanes, score: Lanes, curvature: Lanes) -> Lanes:
    """Return the hinge loss with its kink rounded over a width of 1 / curvature."""
    shortfall = (y * score * -1.0 + 1.0).clipped(0.0, 3e38)
    share = (shortfall * curvature).clipped(0.0, 1.0)  # of the width
    # With s the shortfall and w the width: s^2 / 2w inside, s - w/2 beyond.
    beyond = shortfall - reciprocal(curvature) * 0.5
    return share.below(1.0).select(share * shortfall * 0.5, beyond)


def huber_loss(y: Lanes, score: Lanes, threshold: Lanes) -> Lanes:
    """Return r^2/2 up to |r| = threshold, then linear."""
    difference = score - y
    size = difference.below(0.0).select(difference * -1.0, difference)
    inside = size.below(threshold).select(size, threshold)
    return inside * (size - inside * 0.5)


class _RunType(types.Type):
    """The type of a run inside compiled functions."""

    def __init__(self) -> None:
        super().__init__(name=f"Run{RUN}")


_run = _RunType()


@register_model(_RunType)
class _RunModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)  # type: ignore[no-untyped-call]


def _vector_code(generator: Callable[..., Any]) -> Any:
    """Turn a code generator into a function for compiled code."""
    return intrinsic(generator)


def _address(
    context: Any, builder: Any, array: Any, index: Any, run: Any = _FLOATS
) -> Any:
    """Return the address of a run; array and index are pairs (type, value)."""
    data = context.make_array(array[0])(context, builder, array[1]).data
    offset = context.cast(builder, index[1], index[0], types.intp)
    return builder.bitcast(builder.gep(data, [offset]), run.as_pointer())


@_vector_code
def load(typing: Any, array: Any, i: Any) -> Any:
    """Return array[i:i+16]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, i = zip(signature.args, args, strict=True)
        return builder.load(_address(context, builder, array, i), align=4)

    return _run(array, i), generate


@_vector_code
def store(typing: Any, array: Any, i: Any, run: Any) -> Any:
    """array[i:i+16] = run."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, i, run = zip(signature.args, args, strict=True)
        builder.store(run[1], _address(context, builder, array, i), align=4)
        return context.get_dummy_value()

    return types.void(array, i, run), generate


@_vector_code
def splat(typing: Any, number: Any) -> Any:
    """Return a run of 16 copies of the number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = context.cast(builder, args[0], signature.args[0], types.float32)
        zero = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), single, zero)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), RUN), [0] * RUN)
        return builder.shuffle_vector(one, one, mask)

    return _run(number), generate


def _formula(formula: Callable[..., Lanes], count: int) -> Any:
    """Return the code generator of a formula over `count` runs."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return formula(*(Lanes(builder, value) for value in args)).value

    return _run(*[_run] * count), generate


@_vector_code
def add(typing: Any, a: Any, b: Any) -> Any:
    """Return a + b."""
    return _formula(lambda a, b: a + b, 2)


@_vector_code
def multiply(typing: Any, a: Any, b: Any) -> Any:
    """Return a * b."""
    return _formula(lambda a, b: a * b, 2)


@_vector_code
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, fused."""
    return _formula(lambda a, b, c: a * b + c, 3)


@_vector_code
def logistic_slopes(typing: Any, y: Any, scores: Any) -> Any:
    """Return d loss / d score of 16 rows."""
    return _formula(logistic_slope, 2)


@_vector_code
def hinge_slopes(typing: Any, y: Any, scores: Any) -> Any:
    """Return d loss / d score of 16 rows."""
    return _formula(hinge_slope, 2)


@_vector_code
def smooth_hinge_slopes(typing: Any, y: Any, scores: Any, curvature: Any) -> Any:
    """Return d loss / d score of 16 rows."""
    return _formula(smooth_hinge_slope, 3)


@_vector_code
def huber_slopes(typing: Any, y: Any, scores: Any, threshold: Any) -> Any:
    """Return d loss / d score of 16 rows."""
    return _formula(huber_slope, 3)


@_vector_code
def logistic_losses(typing: Any, y: Any, scores: Any) -> Any:
    """Return the losses of 16 scores."""
    return _formula(logistic_loss, 2)


@_vector_code
def hinge_losses(typing: Any, y: Any, scores: Any) -> Any:
    """Return the losses of 16 scores."""
    return _formula(hinge_loss, 2)


@_vector_code
def smooth_hinge_losses(typing: Any, y: Any, scores: Any, curvature: Any) -> Any:
    """Return the losses of 16 scores."""
    return _formula(smooth_hinge_loss, 3)


@_vector_code
def huber_losses(typing: Any, y: Any, scores: Any, threshold: Any) -> Any:
    """Return the losses of 16 scores."""
    return _formula(huber_loss, 3)


@_vector_code
def store_normals(typing: Any, out: Any, i: Any, state: Any, gamma: Any) -> Any:
    """out[i:i+32] = normals from the words mix(state + k gamma), k = 0 .. 15."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, i = list(zip(signature.args, args, strict=True))[:2]
        state, gamma = (Lanes.of_words(builder, word) for word in args[2:])
        word = mixed(state + Lanes.indices(builder) * gamma)
        first, second = two_normals(word)
        address = _address(context, builder, out, i)
        for part in first.interleaved(second):
            builder.store(part.value, address, align=4)
            address = builder.gep(address, [ir.Constant(ir.IntType(64), 1)])
        return context.get_dummy_value()

    return types.void(out, i, types.uint64, types.uint64), generate


@_vector_code
def total(typing: Any, run: Any) -> Any:
    """Return the sum of a run."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _FLOATS])
        name = f"llvm.vector.reduce.fadd.v{RUN}f32"
        reduce = _declared(builder.module, kind, name)
        zero = ir.Constant(ir.FloatType(), np.float32(0.0))
        return builder.call(reduce, [zero, args[0]], fastmath=("reassoc",))

    return types.float32(_run), generate


@_vector_code
def add_multiples(
    typing: Any, out: Any, position: Any, x: Any, starts: Any, factors: Any
) -> Any:
    """out[position:position+16] += the sum of factor * x[start:start+16], in float64.

    `starts` and `factors` are tuples of the same length; `x` is of float32.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        typed = list(zip(signature.args, args, strict=True))
        address = _address(context, builder, typed[0], typed[1], _DOUBLES)
        zero, none = ir.Constant(ir.IntType(32), 0), ir.Constant(_DOUBLES, ir.Undefined)
        total = builder.load(address, align=8)
        for k in range(signature.args[3].count):
            start = types.int64, builder.extract_value(args[3], k)
            row = builder.load(_address(context, builder, typed[2], start), align=4)
            one = builder.insert_element(none, builder.extract_value(args[4], k), zero)
            factor = builder.shuffle_vector(one, one, ir.Constant(_INTS, None))
            product = builder.fmul(builder.fpext(row, _DOUBLES), factor, flags=_FLAGS)
            total = builder.fadd(total, product, flags=_FLAGS)
        builder.store(total, address, align=8)
        return context.get_dummy_value()

    return types.void(out, position, x, starts, factors), generate


@_vector_code
def prefetch(typing: Any, array: Any, i: Any) -> Any:
    """Prefetch the cache line of array[i]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, i = zip(signature.args, args, strict=True)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        call = _declared(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(_address(context, builder, array, i), byte)
        read, keep, data = (
            ir.Constant(word, 0),
            ir.Constant(word, 3),
            ir.Constant(word, 1),
        )
        builder.call(call, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, i), generate


@_vector_code
def never_inline(typing: Any) -> Any:
    """Never inline the calling function: it is optimised best on its own."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate
