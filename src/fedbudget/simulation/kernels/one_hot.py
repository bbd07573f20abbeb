"""One-hot rows as codes: look up a table of theta, add up slopes by code."""

from typing import Any

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import clear
from fedbudget.simulation.kernels.layouts import RUN
from fedbudget.simulation.kernels.simd import (
    add,
    compiled_inline,
    load,
    multiply,
    splat,
    store,
    total,
)

f32 = np.float32
u64 = np.uint64


def code(word: Any, place: Any) -> Any:
    """Return one of the four codes in a word of one-hot rows."""
    raise NotImplementedError


@overload(code, jit_options={"forceinline": True})
def _code(word: Any, place: Any) -> Any:
    """Choose a code's bits by the kind of the word, when the caller is compiled."""
    bits = word.bitwidth // 4
    mask = np.uint64((1 << bits) - 1)

    def select(word: Any, place: Any) -> Any:
        return (np.uint64(word) >> np.uint64(bits * place)) & mask

    return select


@compiled_inline
def entries(word: Any, table: Any) -> Any:
    """Return the sum of the entries of a word's four codes."""
    left = table[code(word, 0)] + table[code(word, 1)]
    right = table[code(word, 2)] + table[code(word, 3)]
    return left + right


@compiled_inline
def look_up(
    words: Any, width: Any, order: Any, size: Any, table: Any, scores: Any
) -> None:
    """Write the rows' scores by their first word."""
    for b in range(size):
        scores[b] = entries(words[order[b] * width], table)


@compiled_inline
def look_up_more(
    words: Any, width: Any, order: Any, size: Any, table: Any, scores: Any
) -> None:
    """Add what further words bring."""
    for b in range(size):
        scores[b] += entries(words[order[b] * width], table)


@compiled_inline
def add_by_code(
    words: Any, width: Any, order: Any, size: Any, scores: Any, sums: Any
) -> None:
    """Add each row's slope to the sums of its four codes.

    Two copies of the sums by turns: rows in a row often share a code, and the second
    would wait for the first to be stored.
    """
    half = u64(len(sums) // 2)
    for b in range(size):
        copy = u64(b & 1) * half
        slope = scores[b]
        word = words[order[b] * width]
        sums[copy + code(word, 0)] += slope
        sums[copy + code(word, 1)] += slope
        sums[copy + code(word, 2)] += slope
        sums[copy + code(word, 3)] += slope


@compiled_inline
def fill_table(rows: Any, theta: Any, table: Any) -> None:
    """Fill the table of one-hot codes from theta, scaled by the rows' value.

    Entries past the end of a group hold a neighbour's sum, and no code points there.
    """
    value = splat(rows.value)
    if len(rows.pairs) == 0:
        for i in range(0, rows.table_size - 1, RUN):
            store(table, i, multiply(value, load(theta, i)))
        table[rows.table_size - 1] = f32(0.0)
        return
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, place = rows.pairs[p]
        for i in range(first, first + num_first):
            base = splat(theta[i])
            for j in range(second, second + num_second, RUN):
                store(table, place, multiply(value, add(base, load(theta, j))))
                place += RUN


@compiled_inline
def sum_table(rows: Any, sums: Any, gradient: Any) -> None:
    """Turn sums by code into the gradient: the reverse of `fill_table`."""
    value = splat(rows.value)
    half = len(sums) // 2
    if len(rows.pairs) == 0:
        for i in range(0, rows.table_size - 1, RUN):
            both = add(load(sums, i), load(sums, half + i))
            store(gradient, i, multiply(value, both))
        return
    clear(gradient)
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, place = rows.pairs[p]
        for i in range(first, first + num_first):
            line = splat(f32(0.0))
            for j in range(second, second + num_second, RUN):
                both = add(load(sums, place), load(sums, half + place))
                both = multiply(value, both)
                line = add(line, both)
                store(gradient, j, add(load(gradient, j), both))
                place += RUN
            gradient[i] += total(line)
