"""Scores and gradients of one-hot rows, which are stored as codes."""

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


def code(word: Any, index: Any) -> Any:
    """Return one of the four codes in a word."""
    raise NotImplementedError


@overload(code, jit_options={"forceinline": True})
def _code(word: Any, index: Any) -> Any:
    """Set the width of a code by the type of the word, at compile time."""
    bits = word.bitwidth // 4
    mask = np.uint64((1 << bits) - 1)

    def select(word: Any, index: Any) -> Any:
        return (np.uint64(word) >> np.uint64(bits * index)) & mask

    return select


@compiled_inline
def entries(word: Any, table: Any) -> Any:
    """Return the sum of the table's entries for the four codes of a word."""
    left = table[code(word, 0)] + table[code(word, 1)]
    right = table[code(word, 2)] + table[code(word, 3)]
    return left + right


@compiled_inline
def look_up(
    words: Any, width: Any, order: Any, size: Any, table: Any, scores: Any
) -> None:
    """Write the scores of the rows' first words."""
    for b in range(size):
        scores[b] = entries(words[order[b] * width], table)


@compiled_inline
def add_look_up(
    words: Any, width: Any, order: Any, size: Any, table: Any, scores: Any
) -> None:
    """Add the scores of the rows' further words."""
    for b in range(size):
        scores[b] += entries(words[order[b] * width], table)


@compiled_inline
def add_by_code(
    words: Any, width: Any, order: Any, size: Any, scores: Any, sums: Any
) -> None:
    """Add each row's slope to the sums of its four codes.

    Rows alternate between two copies of the sums: consecutive rows often share a code,
    and the second would wait for the store of the first.
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

    Entries past the end of a group hold sums of other columns; no code refers to them.
    """
    value = splat(rows.value)
    if len(rows.pairs) == 0:
        for i in range(0, rows.table_size - 1, RUN):
            store(table, i, multiply(value, load(theta, i)))
        table[rows.table_size - 1] = f32(0.0)
        return
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, position = rows.pairs[p]
        for i in range(first, first + num_first):
            base = splat(theta[i])
            for j in range(second, second + num_second, RUN):
                store(table, position, multiply(value, add(base, load(theta, j))))
                position += RUN


@compiled_inline
def sum_table(rows: Any, sums: Any, gradient: Any) -> None:
    """Turn sums by code into the gradient: the transpose of `fill_table`."""
    value = splat(rows.value)
    half = len(sums) // 2
    if len(rows.pairs) == 0:
        for i in range(0, rows.table_size - 1, RUN):
            both = add(load(sums, i), load(sums, half + i))
            store(gradient, i, multiply(value, both))
        return
    clear(gradient)
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, position = rows.pairs[p]
        for i in range(first, first + num_first):
            row_sum = splat(f32(0.0))
            for j in range(second, second + num_second, RUN):
                both = add(load(sums, position), load(sums, half + position))
                both = multiply(value, both)
                row_sum = add(row_sum, both)
                store(gradient, j, add(load(gradient, j), both))
                position += RUN
            gradient[i] += total(row_sum)
