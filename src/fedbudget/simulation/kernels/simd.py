"""Runs of 16 floats as one value inside compiled functions.

Two NumPy arrays might overlap, so before it vectorises a loop the compiler must compare
their addresses, and then handle what is left over. For a hundred numbers that costs
more than the work. A run says outright that 16 numbers are one value; LLVM maps it to
whatever registers the processor has. Nothing checks bounds: arrays that are read in
runs are padded to whole runs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

from fedbudget.simulation.kernels import formulas
from fedbudget.simulation.kernels.formulas import LANES, Lanes

RUN = LANES
_VECTOR = ir.VectorType(ir.FloatType(), RUN)


class _RunType(types.Type):
    """The type of a run inside compiled functions."""

    def __init__(self) -> None:
        super().__init__(name=f"Run{RUN}")


_run = _RunType()


@register_model(_RunType)
class _RunModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


def _vector_code(generator: Callable[..., Any]) -> Any:
    """Make a function for compiled code out of one that generates its code."""
    return intrinsic(generator)


def _address(context: Any, builder: Any, array: Any, index: Any) -> Any:
    """Return where a run starts; array and index come as (type, value)."""
    data = context.make_array(array[0])(context, builder, array[1]).data
    at = context.cast(builder, index[1], index[0], types.intp)
    return builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer())


_declared: Callable[..., Any] = get_or_insert_function


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
    """Return a run of 16 times the number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = context.cast(builder, args[0], signature.args[0], types.float32)
        zero = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), single, zero)
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
    return _formula(formulas.logistic_slope, 2)


@_vector_code
def hinge_slopes(typing: Any, y: Any, scores: Any) -> Any:
    """Return d loss / d score of 16 rows."""
    return _formula(formulas.hinge_slope, 2)


@_vector_code
def huber_slopes(typing: Any, y: Any, scores: Any, threshold: Any) -> Any:
    """Return d loss / d score of 16 rows."""
    return _formula(formulas.huber_slope, 3)


@_vector_code
def store_normals(typing: Any, out: Any, i: Any, state: Any, gamma: Any) -> Any:
    """out[i:i+32] = normals, of the words mix(state + k gamma), k = 0 .. 15."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, i = list(zip(signature.args, args, strict=True))[:2]
        state, gamma = (Lanes.of_words(builder, word) for word in args[2:])
        word = formulas.mixed(state + Lanes.places(builder) * gamma)
        first, second = formulas.two_normals(word)
        place = _address(context, builder, out, i)
        for part in first.interleaved(second):
            builder.store(part.value, place, align=4)
            place = builder.gep(place, [ir.Constant(ir.IntType(64), 1)])
        return context.get_dummy_value()

    return types.void(out, i, types.uint64, types.uint64), generate


@_vector_code
def total(typing: Any, run: Any) -> Any:
    """Return the sum of a run."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _VECTOR])
        name = f"llvm.vector.reduce.fadd.v{RUN}f32"
        reduce = _declared(builder.module, kind, name)
        zero = ir.Constant(ir.FloatType(), np.float32(0.0))
        return builder.call(reduce, [zero, args[0]], fastmath=("reassoc",))

    return types.float32(_run), generate


@_vector_code
def prefetch(typing: Any, array: Any, i: Any) -> Any:
    """Ask for the cache line of array[i], to be read soon."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, i = zip(signature.args, args, strict=True)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        call = _declared(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(_address(context, builder, array, i), byte)
        read, keep, data = (
            ir.Constant(word, 0),
            ir.Constant(word, 3),
            ir.Constant(word, 1),
        )
        builder.call(call, [place, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, i), generate


@_vector_code
def keep_apart(typing: Any) -> Any:
    """Keep the calling function out of its callers: it is optimised best alone."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate
