"""Local steps without noise, compiled, in double precision: for uploads to a sum.

The reference is `exact_uploads.quiet_steps`, and so is the bound on rounding errors
(`exact_uploads.rounding_error`): it holds for every order of summation and for fused
operations, so sums may be reordered. Slopes are compiled without such liberties: their
error is that of the C library's exp, far below what the bound allows.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import HINGE, LOGISTIC, SMOOTH_HINGE
from fedbudget.simulation.kernels.layouts import RUN, DenseRows, OneHotRows, SparseRows
from fedbudget.simulation.kernels.sharing import claim
from fedbudget.simulation.kernels.simd import (
    compiled,
    compiled_exact,
    compiled_inline,
    never_inline,
)

f64, i64, u64 = np.float64, np.int64, np.uint64


class QuietWork(NamedTuple):
    """A plan's local steps as numbers, M the number of devices."""

    loss: int
    constant: float  # Huber's threshold, or the curvature of the smooth hinge
    dim: int  # columns of a row
    num_outputs: int  # scores per row
    l2: float
    learning_rate: float
    tau: int
    batch_size: Any  # int64, shape (M,)
    cyclic: bool


class QuietScratch(NamedTuple):
    """One thread's working memory; with a first axis over threads, that of all."""

    theta: Any  # float64, `padded` entries per output
    gradient: Any  # float64, of the same shape
    slopes: Any  # float64, one per output: of the current row


def new_memory(dim: int, num_outputs: int, num_workers: int) -> QuietScratch:
    """Return the memory of all threads."""
    # Dense rows are padded to whole runs; one-hot rows have one spare column.
    padded = (dim + 2 * RUN) // RUN * RUN
    return QuietScratch(
        theta=np.zeros((num_workers, num_outputs * padded)),
        gradient=np.zeros((num_workers, num_outputs * padded)),
        slopes=np.zeros((num_workers, num_outputs)),
    )


@compiled_exact
def binary_slope(loss: Any, constant: Any, score: Any, y: Any) -> Any:
    """Return d loss / d score of a row: see `losses`."""
    if loss == LOGISTIC:
        return -y / (1.0 + math.exp(y * score))
    if loss == HINGE:  # for the device as the unit, which needs no smoothness
        return -y if y * score < 1.0 else 0.0
    if loss == SMOOTH_HINGE:
        return -y * min(max((1.0 - y * score) * constant, 0.0), 1.0)
    return min(max(score - y, -constant), constant)


@compiled_exact
def write_slopes(y: Any, work: Any, slopes: Any) -> None:
    """Replace the scores of a row by its slopes."""
    if work.num_outputs == 1:
        slopes[0] = binary_slope(work.loss, work.constant, slopes[0], y)
        return
    top, total = slopes[0], 0.0
    for c in range(1, work.num_outputs):
        top = max(top, slopes[c])
    for c in range(work.num_outputs):
        slopes[c] = math.exp(slopes[c] - top)
        total += slopes[c]
    for c in range(work.num_outputs):
        slopes[c] /= total
    slopes[i64(y)] -= 1.0


def add_row(rows: Any, row: Any, padded: Any, work: Any, scratch: Any) -> None:
    """Add the gradient of one row to scratch.gradient."""
    raise NotImplementedError


@compiled_inline
def add_dense_row(rows: Any, row: Any, padded: Any, work: Any, scratch: Any) -> None:
    """Add the gradient of a row that is an array; its padding is zero."""
    x, width = rows.x[row * rows.width : (row + 1) * rows.width], rows.width
    for c in range(work.num_outputs):
        theta, score = scratch.theta[c * padded : (c + 1) * padded], 0.0
        for i in range(width):
            score += f64(x[i]) * theta[i]
        scratch.slopes[c] = score
    write_slopes(f64(rows.y[row]), work, scratch.slopes)
    for c in range(work.num_outputs):
        gradient = scratch.gradient[c * padded : (c + 1) * padded]
        slope = scratch.slopes[c]
        for i in range(width):
            gradient[i] += slope * f64(x[i])


@compiled_inline
def add_one_hot_row(rows: Any, row: Any, padded: Any, work: Any, scratch: Any) -> None:
    """Add the gradient of a one-hot row: all of its entries have the same value.

    Codes are columns here, four to a word; the spare code is a column of its own, whose
    weight stays zero.
    """
    words = rows.words[row * rows.width : (row + 1) * rows.width]
    bits, value = u64(2 * rows.words.itemsize), f64(rows.value)
    low = (u64(1) << bits) - u64(1)
    for c in range(work.num_outputs):
        theta, score = scratch.theta[c * padded : (c + 1) * padded], 0.0
        for w in range(rows.width):
            word = u64(words[w])
            for _ in range(4):
                score += theta[word & low]
                word >>= bits
        scratch.slopes[c] = value * score
    write_slopes(f64(rows.y[row]), work, scratch.slopes)
    for c in range(work.num_outputs):
        gradient = scratch.gradient[c * padded : (c + 1) * padded]
        slope = value * scratch.slopes[c]
        for w in range(rows.width):
            word = u64(words[w])
            for _ in range(4):
                gradient[word & low] += slope
                word >>= bits


@compiled_inline
def add_sparse_row(rows: Any, row: Any, padded: Any, work: Any, scratch: Any) -> None:
    """Add the gradient of a compressed sparse row."""
    first, stop = rows.starts[row], rows.starts[row + 1]
    for c in range(work.num_outputs):
        score = 0.0
        for k in range(first, stop):
            score += f64(rows.values[k]) * scratch.theta[c * padded + rows.columns[k]]
        scratch.slopes[c] = score
    write_slopes(f64(rows.y[row]), work, scratch.slopes)
    for c in range(work.num_outputs):
        slope = scratch.slopes[c]
        for k in range(first, stop):
            position = c * padded + rows.columns[k]
            scratch.gradient[position] += slope * f64(rows.values[k])


@overload(add_row, jit_options={"forceinline": True})
def _add_row(rows: Any, row: Any, padded: Any, work: Any, scratch: Any) -> Any:
    """Select by the layout of the rows, at compile time."""
    kernel = {
        DenseRows: add_dense_row,
        OneHotRows: add_one_hot_row,
        SparseRows: add_sparse_row,
    }[rows.instance_class]

    def call(rows: Any, row: Any, padded: Any, work: Any, scratch: Any) -> None:
        kernel(rows, row, padded, work, scratch)

    return call


@compiled
def take_steps(
    rows: Any, device: Any, first_step: Any, deal: Any, work: Any, scratch: Any
) -> None:
    """Take tau steps from scratch.theta, in place."""
    never_inline()
    padded, size = len(scratch.theta) // work.num_outputs, work.batch_size[device]
    first = rows.offsets[device]
    blocks = max(i64(1), (rows.offsets[device + 1] - first) // size)
    for step in range(first_step, first_step + work.tau):
        for i in range(len(scratch.gradient)):
            scratch.gradient[i] = 0.0
        for b in range(size):
            row = first + b
            if work.cyclic:
                row = first + i64(deal[row + step % blocks * size])
            add_row(rows, row, padded, work, scratch)
        for c in range(work.num_outputs):
            for i in range(c * padded, c * padded + work.dim):
                mean = scratch.gradient[i] / f64(size)
                decay = work.l2 * scratch.theta[i]
                scratch.theta[i] -= work.learning_rate * (mean + decay)


@compiled
def worker_moves(
    rows: Any,
    worker: Any,
    claims: Any,  # int64, shape (1,): devices that workers have claimed
    devices: Any,
    first_step: Any,
    start: Any,  # float64: the model
    deal: Any,  # uint32, over all rows: the order of cyclic batches
    work: Any,
    memory: Any,
    moves: Any,  # float64, shape (devices, num_params): written
) -> None:
    """Write how far the steps move one device after the other, until all are done."""
    scratch = QuietScratch(
        memory.theta[worker], memory.gradient[worker], memory.slopes[worker]
    )
    padded = len(scratch.theta) // work.num_outputs
    while True:
        j = claim(claims, 0)
        if j >= len(devices):
            return
        for c in range(work.num_outputs):
            for i in range(work.dim):
                scratch.theta[c * padded + i] = start[c * work.dim + i]
        take_steps(rows, devices[j], first_step, deal, work, scratch)
        for c in range(work.num_outputs):
            for i in range(work.dim):
                moved = scratch.theta[c * padded + i] - start[c * work.dim + i]
                moves[j, c * work.dim + i] = moved
