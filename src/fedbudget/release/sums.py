"""Exact sums of a batch's gradients, compiled.

A row's gradient is an outer product of its slopes and its entries. The entries are
whole numbers over 2^23, with norm at most 2^23 (`exact_steps.ExactRows`); slopes are
rounded to whole numbers over 2^bits, with norm at most G 2^bits. Both are functions of
the row, its label and theta alone: scores and slopes may be computed in single
precision and in any order, but never from another row. The sum over rows is a sum of
whole numbers and has no rounding error: float64 holds partial sums below 2^53, int64
the total. So replacing one row moves the sum by at most 2 G 2^(23 + bits), exactly,
whatever theta is, and neither threads nor the order of rows change a bit of it.

`exact_steps.gradient_sum` is the reference: its sums are exact, too, but its slopes are
computed in double precision and may differ by a unit or two.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fedbudget.fleet.device.exact_steps import BLOCK, ROW_BITS
from fedbudget.simulation.kernels.lanes import fast_exp
from fedbudget.simulation.kernels.layouts import RUN, DenseRows, OneHotRows, SparseRows
from fedbudget.simulation.kernels.one_hot import (
    add_by_code,
    add_look_up,
    fill_table,
    look_up,
)
from fedbudget.simulation.kernels.simd import add_multiples, compiled_inline
from fedbudget.simulation.kernels.steps import AHEAD, dense_scores, four_rows, slopes

f32, f64, i64, u64 = np.float32, np.float64, np.int64, np.uint64
ROW_UNIT = 2.0**ROW_BITS
STRIDE = BLOCK + RUN  # between the scores of two outputs


class Work(NamedTuple):
    """A plan's local steps as numbers and arrays, M the number of devices."""

    loss: int
    threshold: Any  # float32: see `runs.loss_constant`
    sampling: int
    dim: int  # columns of a row
    num_outputs: int  # scores per row
    l2: float
    learning_rate: float
    batch_size: Any  # int64, shape (M,)
    inclusion: Any  # uint64, shape (M,): 2^32 times the probability of Poisson batches
    slope_scale: Any  # float64, shape (M,): 2^bits
    slope_bound: Any  # float64, shape (M,): of a whole slope
    unit: Any  # float64, shape (M,): of a sum
    grid_step: Any  # float64, shape (M,): see `exact_steps.NoiseGrid`


class Scratch(NamedTuple):
    """One thread's working memory; with a first axis over threads, that of all."""

    theta: Any  # float32, `padded` entries per output
    order: Any  # uint32, over rows of the largest device: 0, 1, 2, .. between steps
    picks: Any  # uint32, over rows
    labels: Any  # float32, over rows of a block
    scores: Any  # float32, STRIDE per output
    slopes: Any  # float64, STRIDE per output: whole numbers
    table: Any  # float32, over one-hot codes: filled from theta before each step
    by_code: Any  # float64, twice over one-hot codes per output: slopes, summed
    partial: Any  # float64, `padded` entries per output: sums of a block
    sums: Any  # int64, over parameters


def new_memory(packed: Any, table_size: int, num_workers: int) -> Scratch:
    """Return the memory of all threads."""
    outputs, dim = packed.loss.num_outputs, packed.dim
    # Dense rows are padded to whole runs; one-hot rows have one spare column.
    padded = (dim + 2 * RUN) // RUN * RUN
    entries = -(-table_size // RUN) * RUN + RUN
    longest = int(packed.num_samples.max()) + RUN
    indices = np.tile(np.arange(longest, dtype=np.uint32), (num_workers, 1))

    def zeros(count: int, dtype: Any = np.float32) -> Any:
        return np.zeros((num_workers, count), dtype=dtype)

    return Scratch(
        theta=zeros(outputs * padded),
        order=indices,
        picks=indices.copy(),
        labels=zeros(STRIDE),
        scores=zeros(outputs * STRIDE),
        slopes=zeros(outputs * STRIDE, np.float64),
        table=zeros(entries),
        by_code=zeros(outputs * 2 * entries, np.float64),
        partial=zeros(outputs * padded, np.float64),
        sums=zeros(outputs * dim, np.int64),
    )


@compiled_inline
def scratch_of(memory: Any, worker: Any) -> Any:
    """Return one thread's part of the memory."""
    return Scratch(
        memory.theta[worker],
        memory.order[worker],
        memory.picks[worker],
        memory.labels[worker],
        memory.scores[worker],
        memory.slopes[worker],
        memory.table[worker],
        memory.by_code[worker],
        memory.partial[worker],
        memory.sums[worker],
    )


@compiled_inline
def load_theta(theta: Any, work: Any, scratch: Any) -> Any:
    """Copy a model in single precision; return the entries between two outputs."""
    padded = len(scratch.theta) // work.num_outputs
    for c in range(work.num_outputs):
        for i in range(work.dim):
            scratch.theta[c * padded + i] = f32(theta[c * work.dim + i])
    return padded


@compiled_inline
def whole_slopes(device: Any, count: Any, work: Any, scratch: Any) -> None:
    """Replace scores by whole slopes within the loss's bound; NaN becomes a bound."""
    if work.num_outputs > 1:
        softmax_slopes(work.slope_scale[device], count, work.num_outputs, scratch)
        return
    slopes(work.loss, work.threshold, scratch.scores, scratch.labels, 0, count)
    scale, bound = work.slope_scale[device], work.slope_bound[device]
    for b in range(count):
        whole = np.rint(f64(scratch.scores[b]) * scale)
        whole = whole if whole >= -bound else -bound
        scratch.slopes[b] = whole if whole <= bound else bound


@compiled_inline
def softmax_slopes(scale: Any, count: Any, outputs: Any, scratch: Any) -> None:
    """Write whole slopes of the softmax loss, truncated towards zero.

    The slopes of the other classes are at least 0 and sum to at most `scale`, and so
    does the label's, negated. So their norm is at most sqrt(2) `scale`, exactly, even
    if the probabilities have rounding errors.
    """
    scores = scratch.scores
    for b in range(count):
        top = scores[b]
        for c in range(1, outputs):
            top = max(top, scores[c * STRIDE + b])
        total = f32(0.0)
        for c in range(outputs):
            e = fast_exp(scores[c * STRIDE + b] - top)
            scores[c * STRIDE + b] = e
            total += e
        label, left = i64(scratch.labels[b]), scale
        for c in range(outputs):
            p = f64(scores[c * STRIDE + b]) / f64(total)
            limit = scale if c == label else left
            whole = np.floor((1.0 - p if c == label else p) * scale)
            whole = whole if whole >= 0.0 else 0.0  # also for NaN
            whole = whole if whole <= limit else limit
            if c == label:
                scratch.slopes[c * STRIDE + b] = -whole
            else:
                left -= whole
                scratch.slopes[c * STRIDE + b] = whole


@compiled_inline
def load_labels(rows: Any, device: Any, start: Any, count: Any, scratch: Any) -> None:
    """Copy the labels of a block of the batch."""
    first = u64(rows.offsets[device])
    for b in range(count):
        scratch.labels[b] = rows.y[first + scratch.order[start + b]]


@compiled_inline
def clear(buffer: Any) -> None:
    """Set all entries to zero."""
    for i in range(len(buffer)):
        buffer[i] = 0


@compiled_inline
def dense_sums(
    rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
) -> None:
    """Sum the gradients of dense rows, four rows at a time.

    Small blocks fit into the first cache. BLOCK rows of them fit 53 bits; then their
    sum is added to the total.
    """
    padded = load_theta(theta, work, scratch)
    clear(scratch.sums)
    block = max(4, min(32, 8192 // rows.width // 4 * 4))
    for first in range(0, size, BLOCK):
        last = min(first + BLOCK, size)
        clear(scratch.partial)
        for start in range(first, last, block):
            stop = min(start + block, last)
            add_dense(rows, device, (start, stop, size), padded, work, scratch)
        for c in range(work.num_outputs):
            for i in range(work.dim):
                whole = i64(scratch.partial[c * padded + i] * ROW_UNIT)
                scratch.sums[c * work.dim + i] += whole


@compiled_inline
def add_dense(
    rows: Any, device: Any, block: Any, padded: Any, work: Any, scratch: Any
) -> None:
    """Add a block's gradients to scratch.partial."""
    start, stop, size = block
    x, width, first_row, order = rows.x, rows.width, rows.offsets[device], scratch.order
    load_labels(rows, device, start, stop - start, scratch)
    for c in range(work.num_outputs):
        theta, scores = scratch.theta[c * padded :], scratch.scores[c * STRIDE :]
        for b in range(start, stop, 4):
            current = four_rows(first_row, order, b, stop, width)
            ahead = four_rows(first_row, order, b + AHEAD, size, width)
            dense_scores(x, current, ahead, theta, width, scores, b - start)
    whole_slopes(device, stop - start, work, scratch)
    for c in range(work.num_outputs):
        whole = scratch.slopes[c * STRIDE :]
        for i in range(stop - start, (stop - start + 3) // 4 * 4):
            whole[i] = 0.0  # padding of the last four rows
        for b in range(start, stop, 4):
            p = four_rows(first_row, order, b, stop, width)
            k = b - start
            factors = (whole[k], whole[k + 1], whole[k + 2], whole[k + 3])
            for i in range(0, width, RUN):
                starts = (p[0] + i, p[1] + i, p[2] + i, p[3] + i)
                add_multiples(scratch.partial, c * padded + i, x, starts, factors)


@compiled_inline
def one_hot_sums(
    rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
) -> None:
    """Sum the gradients of one-hot rows: look up scores, add up slopes by code.

    All entries have the same value, so it multiplies the sums once, at the end.
    """
    padded = load_theta(theta, work, scratch)
    words, width = rows.words[rows.offsets[device] * rows.width :], u64(rows.width)
    half = len(scratch.by_code) // 2 // work.num_outputs
    clear(scratch.by_code)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        order = scratch.order[start:]
        load_labels(rows, device, start, count, scratch)
        for c in range(work.num_outputs):
            if start == 0 or work.num_outputs > 1:
                fill_table(rows, scratch.theta[c * padded :], scratch.table)
            scores = scratch.scores[c * STRIDE :]
            look_up(words, width, order, count, scratch.table, scores)
            for w in range(1, rows.width):
                add_look_up(words[w:], width, order, count, scratch.table, scores)
        whole_slopes(device, count, work, scratch)
        for c in range(work.num_outputs):
            by_code = scratch.by_code[2 * half * c : 2 * half * (c + 1)]
            for w in range(rows.width):
                whole = scratch.slopes[c * STRIDE :]
                add_by_code(words[w:], width, order, count, whole, by_code)
    for c in range(work.num_outputs):
        by_code = scratch.by_code[2 * half * c : 2 * half * (c + 1)]
        sums = scratch.sums[c * work.dim : (c + 1) * work.dim]
        sum_codes(rows, by_code, sums)


@compiled_inline
def sum_codes(rows: Any, by_code: Any, sums: Any) -> None:
    """Turn sums by code into sums by column: the transpose of `fill_table`."""
    value, half = i64(f64(rows.value) * ROW_UNIT), len(by_code) // 2
    if len(rows.pairs) == 0:
        for i in range(len(sums)):
            sums[i] = value * i64(by_code[i] + by_code[half + i])
        return
    clear(sums)
    for p in range(len(rows.pairs)):
        first, num_first, second, num_second, position = rows.pairs[p]
        for i in range(first, first + num_first):
            row_sum = 0.0
            for j in range(num_second):
                both = by_code[position + j] + by_code[half + position + j]
                row_sum += both
                sums[second + j] += value * i64(both)
            sums[i] += value * i64(row_sum)
            position += (num_second + RUN - 1) // RUN * RUN


@compiled_inline
def sparse_sums(
    rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
) -> None:
    """Sum the gradients of compressed sparse rows."""
    padded = load_theta(theta, work, scratch)
    columns, values, starts = rows.columns, rows.values, rows.starts
    first_row, order = u64(rows.offsets[device]), scratch.order
    clear(scratch.sums)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        load_labels(rows, device, start, count, scratch)
        for b in range(count):
            row = first_row + order[start + b]
            for c in range(work.num_outputs):
                score = f32(0.0)
                for k in range(starts[row], starts[row + u64(1)]):
                    score += values[k] * scratch.theta[c * padded + columns[k]]
                scratch.scores[c * STRIDE + b] = score
        whole_slopes(device, count, work, scratch)
        for b in range(count):
            row = first_row + order[start + b]
            for c in range(work.num_outputs):
                whole = scratch.slopes[c * STRIDE + b] * ROW_UNIT
                for k in range(starts[row], starts[row + u64(1)]):
                    product = i64(whole * f64(values[k]))
                    scratch.sums[c * work.dim + columns[k]] += product


def add_sums(
    rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
) -> None:
    """Write the sum of the gradients of the batch scratch.order[:size].

    The result is in scratch.sums, in units of work.unit.
    """
    raise NotImplementedError


@overload(add_sums, jit_options={"forceinline": True})
def _add_sums(
    rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
) -> Any:
    """Select by the layout of the rows, at compile time."""
    kernel = {
        DenseRows: dense_sums,
        OneHotRows: one_hot_sums,
        SparseRows: sparse_sums,
    }[rows.instance_class]

    def call(
        rows: Any, device: Any, size: Any, theta: Any, work: Any, scratch: Any
    ) -> None:
        kernel(rows, device, size, theta, work, scratch)

    return call
