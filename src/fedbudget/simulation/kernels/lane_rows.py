"""Scores and gradients of a block of rows, 16 lanes at a time, for each layout."""

from typing import Any

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.compiled import compiled_inline
from fedbudget.simulation.kernels.layouts import DenseRows, OneHotRows, SparseRows
from fedbudget.simulation.kernels.one_hot import code
from fedbudget.simulation.kernels.simd import (
    RUN,
    add,
    load,
    multiply,
    multiply_add,
    splat,
    store,
)

f32 = np.float32


def add_scores(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Write the scores of a block of the batch: scratch.scores, shape (count, L)."""
    raise NotImplementedError


def add_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Add a block's slopes times its rows to scratch.gradient."""
    raise NotImplementedError


@compiled_inline
def one_hot_scores(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Look up and add, 16 lanes at a time."""
    theta, scores = scratch.theta, scratch.scores
    value = splat(rows.value)
    for b in range(count):
        row = rows.offsets[device] + np.int64(scratch.order[start + b])
        for lane in range(0, lanes, RUN):
            score = splat(f32(0.0))
            for k in range(row * rows.width, (row + 1) * rows.width):
                c0, c1, c2, c3 = code_places(rows.words[np.uint64(k)], lanes, lane)
                left = add(load(theta, c0), load(theta, c1))
                right = add(load(theta, c2), load(theta, c3))
                score = add(score, add(left, right))
            store(scores, b * lanes + lane, multiply(value, score))


@compiled_inline
def one_hot_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Add slopes by code, 16 lanes at a time."""
    gradient, scores = scratch.gradient, scratch.scores
    value = splat(rows.value)
    for b in range(count):
        row = rows.offsets[device] + np.int64(scratch.order[start + b])
        for lane in range(0, lanes, RUN):
            slope = multiply(value, load(scores, b * lanes + lane))
            for k in range(row * rows.width, (row + 1) * rows.width):
                c0, c1, c2, c3 = code_places(rows.words[np.uint64(k)], lanes, lane)
                store(gradient, c0, add(load(gradient, c0), slope))
                store(gradient, c1, add(load(gradient, c1), slope))
                store(gradient, c2, add(load(gradient, c2), slope))
                store(gradient, c3, add(load(gradient, c3), slope))


@compiled_inline
def code_places(word: Any, lanes: Any, lane: Any) -> Any:
    """Return where the lanes of a word's four codes start."""
    return (
        np.int64(code(word, 0)) * lanes + lane,
        np.int64(code(word, 1)) * lanes + lane,
        np.int64(code(word, 2)) * lanes + lane,
        np.int64(code(word, 3)) * lanes + lane,
    )


@compiled_inline
def sparse_scores(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Multiply and add the non-zeros, 16 lanes at a time."""
    theta, scores = scratch.theta, scratch.scores
    columns, values, starts = rows.columns, rows.values, rows.starts
    for b in range(count):
        row = rows.offsets[device] + np.int64(scratch.order[start + b])
        for lane in range(0, lanes, RUN):
            score = splat(f32(0.0))
            for k in range(starts[row], starts[row + 1]):
                part = load(theta, np.int64(columns[k]) * lanes + lane)
                score = multiply_add(splat(values[k]), part, score)
            store(scores, b * lanes + lane, score)


@compiled_inline
def sparse_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Add slopes times the non-zeros, 16 lanes at a time."""
    gradient, scores = scratch.gradient, scratch.scores
    columns, values, starts = rows.columns, rows.values, rows.starts
    for b in range(count):
        row = rows.offsets[device] + np.int64(scratch.order[start + b])
        for lane in range(0, lanes, RUN):
            slope = load(scores, b * lanes + lane)
            for k in range(starts[row], starts[row + 1]):
                place = np.int64(columns[k]) * lanes + lane
                moved = multiply_add(splat(values[k]), slope, load(gradient, place))
                store(gradient, place, moved)


@compiled_inline
def row_place(rows: Any, device: Any, order: Any, place: Any, last: Any) -> Any:
    """Return where the row at `place` of the batch starts; past the end, the last."""
    row = rows.offsets[device] + np.int64(order[min(place, last)])
    return row * rows.width


@compiled_inline
def dense_scores(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Multiply four rows with 16 lanes of theta at a time."""
    theta, scores, x, order = scratch.theta, scratch.scores, rows.x, scratch.order
    last = start + count - 1
    dim = rows.width
    for b in range(0, count, 4):
        p0 = row_place(rows, device, order, start + b, last)
        p1 = row_place(rows, device, order, start + b + 1, last)
        p2 = row_place(rows, device, order, start + b + 2, last)
        p3 = row_place(rows, device, order, start + b + 3, last)
        for lane in range(0, lanes, RUN):
            s0 = s1 = s2 = s3 = splat(f32(0.0))
            for i in range(dim):
                t = load(theta, i * lanes + lane)
                s0 = multiply_add(splat(x[p0 + i]), t, s0)
                s1 = multiply_add(splat(x[p1 + i]), t, s1)
                s2 = multiply_add(splat(x[p2 + i]), t, s2)
                s3 = multiply_add(splat(x[p3 + i]), t, s3)
            at = b * lanes + lane
            store(scores, at, s0)
            store(scores, at + lanes, s1)
            store(scores, at + 2 * lanes, s2)
            store(scores, at + 3 * lanes, s3)


@compiled_inline
def dense_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Add slopes times four rows, 16 lanes at a time."""
    gradient, scores, x = scratch.gradient, scratch.scores, rows.x
    order, last = scratch.order, start + count - 1
    dim = rows.width
    for i in range(count * lanes, (count + 3) // 4 * 4 * lanes):
        scores[i] = f32(0.0)  # rows that fill up the last four count nothing
    for b in range(0, count, 4):
        p0 = row_place(rows, device, order, start + b, last)
        p1 = row_place(rows, device, order, start + b + 1, last)
        p2 = row_place(rows, device, order, start + b + 2, last)
        p3 = row_place(rows, device, order, start + b + 3, last)
        for lane in range(0, lanes, RUN):
            at = b * lanes + lane
            a0, a1 = load(scores, at), load(scores, at + lanes)
            a2, a3 = load(scores, at + 2 * lanes), load(scores, at + 3 * lanes)
            for i in range(dim):
                left = load(gradient, i * lanes + lane)
                left = multiply_add(splat(x[p0 + i]), a0, left)
                left = multiply_add(splat(x[p1 + i]), a1, left)
                right = multiply(splat(x[p2 + i]), a2)
                right = multiply_add(splat(x[p3 + i]), a3, right)
                store(gradient, i * lanes + lane, add(left, right))


_SCORES = {
    DenseRows: dense_scores,
    OneHotRows: one_hot_scores,
    SparseRows: sparse_scores,
}
_SLOPES = {
    DenseRows: dense_slopes,
    OneHotRows: one_hot_slopes,
    SparseRows: sparse_slopes,
}


@overload(add_scores, jit_options={"forceinline": True})
def _add_scores(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> Any:
    chosen = _SCORES[rows.instance_class]

    def call(
        rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
    ) -> None:
        chosen(rows, device, start, count, lanes, scratch)

    return call


@overload(add_slopes, jit_options={"forceinline": True})
def _add_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> Any:
    chosen = _SLOPES[rows.instance_class]

    def call(
        rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
    ) -> None:
        chosen(rows, device, start, count, lanes, scratch)

    return call
