"""The local steps of one device, compiled: one score per row."""

from typing import Any

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import (
    DEALT,
    FULL,
    HINGE,
    LOGISTIC,
    SMOOTH_HINGE,
    add_shift,
    clear,
    draw_batch,
    first_row,
    gather,
    noise_of,
    shuffle_rows,
    undo_batch,
)
from fedbudget.simulation.kernels.layouts import RUN, DenseRows, OneHotRows, SparseRows
from fedbudget.simulation.kernels.one_hot import (
    add_by_code,
    add_look_up,
    fill_table,
    look_up,
    sum_table,
)
from fedbudget.simulation.kernels.random import (
    NOISE,
    fill_normals,
    stream,
)
from fedbudget.simulation.kernels.simd import (
    add,
    compiled,
    compiled_inline,
    hinge_slopes,
    huber_slopes,
    load,
    logistic_slopes,
    multiply,
    multiply_add,
    never_inline,
    prefetch,
    smooth_hinge_slopes,
    splat,
    store,
    total,
)

f32 = np.float32
u64 = np.uint64
AHEAD = 16  # rows between the prefetch of a dense row and its use


@compiled_inline
def slopes(
    loss: Any, threshold: Any, scores: Any, y: Any, start: Any, stop: Any
) -> None:
    """Replace scores[start:stop] by d loss / d score, up to the end of the last run.

    The loop is over runs: for a short batch, the compiler's own vectorised loop takes
    three times as long, mostly for its prologue and its remainder.
    """
    if loss == LOGISTIC:
        for i in range(start, stop, RUN):
            store(scores, i, logistic_slopes(load(y, i), load(scores, i)))
    elif loss == HINGE:
        for i in range(start, stop, RUN):
            store(scores, i, hinge_slopes(load(y, i), load(scores, i)))
    elif loss == SMOOTH_HINGE:
        curvature = splat(threshold)
        for i in range(start, stop, RUN):
            slope = smooth_hinge_slopes(load(y, i), load(scores, i), curvature)
            store(scores, i, slope)
    else:
        limit = splat(threshold)
        for i in range(start, stop, RUN):
            store(scores, i, huber_slopes(load(y, i), load(scores, i), limit))


def add_gradient(rows: Any, first: Any, size: Any, work: Any, scratch: Any) -> None:
    """Write the sum of the gradients of the batch first + scratch.order[:size].

    The result is in scratch.gradient.
    """
    raise NotImplementedError


@compiled_inline
def dense_gradient(rows: Any, first: Any, size: Any, work: Any, scratch: Any) -> None:
    """Sum the gradients of dense rows, four rows at a time.

    Four rows share each load of theta, and each load and store of the gradient. Blocks
    of rows fit into the cache: both passes read them from memory once.
    """
    x, labels, scores = rows.x, scratch.labels, scratch.scores
    width, order = rows.width, scratch.order
    gather(rows.y, first, order, size, labels)
    clear(scratch.gradient)
    block = max(4, min(32, 8192 // width // 4 * 4))
    for start in range(0, size, block):
        stop = min(start + block, size)
        for b in range(start, stop, 4):
            current = four_rows(first, order, b, stop, width)
            ahead = four_rows(first, order, b + AHEAD, size, width)
            dense_scores(x, current, ahead, scratch.theta, width, scores, b)
        slopes(work.loss, work.threshold, scores, labels, start, stop)
        for b in range(start, stop, 4):
            current = four_rows(first, order, b, stop, width)
            for i in range(stop, b + 4):
                scores[i] = f32(0.0)  # padding of the last four rows has weight 0
            dense_add(x, current, scores, b, scratch.gradient, width)


@compiled_inline
def four_rows(first: Any, order: Any, b: Any, stop: Any, width: Any) -> Any:
    """Return where four rows of the batch start; past its end, repeat the last row."""
    last = stop - 1
    return (
        (first + np.int64(order[min(b, last)])) * width,
        (first + np.int64(order[min(b + 1, last)])) * width,
        (first + np.int64(order[min(b + 2, last)])) * width,
        (first + np.int64(order[min(b + 3, last)])) * width,
    )


@compiled_inline
def dense_scores(
    x: Any, starts: Any, ahead: Any, theta: Any, width: Any, scores: Any, b: Any
) -> None:
    """Write scores[b : b + 4] of the rows that start at x[starts].

    Rows are drawn at random, which hardware prefetching cannot predict: rows further
    `ahead` are prefetched explicitly.
    """
    p0, p1, p2, p3 = starts
    q0, q1, q2, q3 = ahead
    s0 = s1 = s2 = s3 = splat(f32(0.0))
    for i in range(0, width, RUN):
        t = load(theta, i)
        prefetch(x, q0 + i)
        prefetch(x, q1 + i)
        prefetch(x, q2 + i)
        prefetch(x, q3 + i)
        s0 = multiply_add(load(x, p0 + i), t, s0)
        s1 = multiply_add(load(x, p1 + i), t, s1)
        s2 = multiply_add(load(x, p2 + i), t, s2)
        s3 = multiply_add(load(x, p3 + i), t, s3)
    scores[b] = total(s0)
    scores[b + 1] = total(s1)
    scores[b + 2] = total(s2)
    scores[b + 3] = total(s3)


@compiled_inline
def dense_add(
    x: Any, starts: Any, scores: Any, b: Any, gradient: Any, width: Any
) -> None:
    """Add scores[b : b + 4] times the rows that start at x[starts] to the gradient."""
    p0, p1, p2, p3 = starts
    a0, a1 = splat(scores[b]), splat(scores[b + 1])
    a2, a3 = splat(scores[b + 2]), splat(scores[b + 3])
    for i in range(0, width, RUN):
        left = multiply_add(a0, load(x, p0 + i), load(gradient, i))
        left = multiply_add(a1, load(x, p1 + i), left)
        right = multiply(a2, load(x, p2 + i))
        right = multiply_add(a3, load(x, p3 + i), right)
        store(gradient, i, add(left, right))


@compiled_inline
def one_hot_gradient(rows: Any, first: Any, size: Any, work: Any, scratch: Any) -> None:
    """Sum the gradients of one-hot rows: look up scores, add up slopes by code."""
    order, scores, sums = scratch.order, scratch.scores, scratch.sums
    words, width = rows.words[first * rows.width :], u64(rows.width)
    fill_table(rows, scratch.theta, scratch.table)
    if work.sampling == FULL or work.sampling == DEALT:
        for i in range(size):  # a copy, not a look-up: it vectorises
            scratch.labels[i] = rows.y[first + i]
    else:
        gather(rows.y, first, order, size, scratch.labels)
    look_up(words, width, order, size, scratch.table, scores)
    for w in range(1, rows.width):
        add_look_up(words[w:], width, order, size, scratch.table, scores)
    slopes(work.loss, work.threshold, scores, scratch.labels, 0, size)
    clear(sums)
    for w in range(rows.width):
        add_by_code(words[w:], width, order, size, scores, sums)
    sum_table(rows, sums, scratch.gradient)


@compiled_inline
def sparse_gradient(rows: Any, first: Any, size: Any, work: Any, scratch: Any) -> None:
    """Sum the gradients of compressed sparse rows."""
    theta, gradient, scores = scratch.theta, scratch.gradient, scratch.scores
    columns, values = rows.columns, rows.values
    order = scratch.order
    gather(rows.y, first, order, size, scratch.labels)
    for b in range(size):
        row = np.uint64(first) + order[b]
        score = f32(0.0)
        for k in range(rows.starts[row], rows.starts[row + np.uint64(1)]):
            score += values[k] * theta[columns[k]]
        scores[b] = score
    slopes(work.loss, work.threshold, scores, scratch.labels, 0, size)
    clear(gradient)
    for b in range(size):
        row = np.uint64(first) + order[b]
        slope = scores[b]
        for k in range(rows.starts[row], rows.starts[row + np.uint64(1)]):
            gradient[columns[k]] += slope * values[k]


@overload(add_gradient, jit_options={"forceinline": True})
def _add_gradient(rows: Any, first: Any, size: Any, work: Any, scratch: Any) -> Any:
    """Select by the layout of the rows, at compile time."""
    gradient_kernel = {
        DenseRows: dense_gradient,
        OneHotRows: one_hot_gradient,
        SparseRows: sparse_gradient,
    }[rows.instance_class]

    def call(rows: Any, first: Any, size: Any, work: Any, scratch: Any) -> None:
        gradient_kernel(rows, first, size, work, scratch)

    return call


@compiled_inline
def draw_noise(device: Any, step: Any, last: Any, key: Any, work: Any, out: Any) -> Any:
    """Write the normals of a step before `last`; return their scale, 0 without noise.

    `add_mean_noise` may draw the last step's noise instead, once for the mean.
    """
    if step < last and work.noisy[device]:
        state, gamma = stream(key[0], device, step, NOISE)
        fill_normals(out, work.dim, state, gamma)
        return noise_of(work, device, 0, key[2])
    return f32(0.0)


@compiled_inline
def move(noise_std: Any, divisor: Any, work: Any, scratch: Any) -> None:
    """Take the step: theta -= eta (gradient / divisor + noise + l2 theta)."""
    theta, gradient, noise = scratch.theta, scratch.gradient, scratch.noise
    eta = work.learning_rate[0]
    keep = splat(f32(1.0) - eta * work.l2[0])
    on_gradient, on_noise = splat(-eta / f32(divisor)), splat(-eta * noise_std)
    for i in range(0, len(theta), RUN):
        moved = multiply_add(
            on_gradient, load(gradient, i), multiply(keep, load(theta, i))
        )
        store(theta, i, multiply_add(on_noise, load(noise, i), moved))
    if work.drift_corrected:
        add_shift(theta, scratch.shift)


@compiled
def single_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any
) -> None:
    """Take tau steps from scratch.theta in place, the first `noisy` of them with noise.

    The noise is drawn while the processor waits for the batch.
    """
    never_inline()
    shuffle_rows(rows, device, key[0], work, scratch)
    for step in range(key[1], key[1] + work.tau):
        size, divisor = draw_batch(rows, device, step, key[0], work, scratch)
        sigma = draw_noise(device, step, key[1] + noisy, key, work, scratch.noise)
        first = first_row(rows, device, step, work)
        add_gradient(rows, first, size, work, scratch)
        undo_batch(rows, device, size, work, scratch)
        move(sigma, divisor, work, scratch)
