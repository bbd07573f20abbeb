"""The local steps of one device for many plans side by side, or for several outputs.

Theta has L lanes per parameter, L a multiple of 16, so that one load gives the same
parameter of 16 plans. All lanes use the same batch and the same normals, scaled by
their own step size and noise: common random numbers. A lane with a smaller batch takes
the first rows of the common one, which are a uniform subset, too.

`fast_exp` is exp in single precision without branches. A call into the C library would
prevent vectorisation; adds, multiplies, selects and bit operations allow a loop to
process 16 numbers at a time. `simd.exponential` is the same for a single run.
"""

from typing import Any

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import (
    FULL,
    HINGE,
    LOGISTIC,
    SMOOTH_HINGE,
    SOFTMAX,
    add_shift,
    clear,
    draw_batch,
    gather,
    noise_of,
    shuffle_rows,
    undo_batch,
)
from fedbudget.simulation.kernels.layouts import (
    LANE_BLOCK,
    RUN,
    DenseRows,
    OneHotRows,
    SparseRows,
)
from fedbudget.simulation.kernels.one_hot import code
from fedbudget.simulation.kernels.random import NOISE, fill_normals, stream
from fedbudget.simulation.kernels.simd import (
    add,
    compiled,
    compiled_inline,
    load,
    multiply,
    multiply_add,
    never_inline,
    splat,
    store,
)

f32 = np.float32
u64 = np.uint64
_LOG2_E = f32(1.4426950408889634)
# log 2 in two parts: the first has few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH = f32(0.693359375)
_LN2_LOW = f32(-2.12194440e-4)


@compiled_inline
def fast_exp(x: Any) -> Any:
    """Return e^x, relative error below 3e-7; constant outside of -87 .. 88."""
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
                c0, c1, c2, c3 = code_starts(rows.words[np.uint64(k)], lanes, lane)
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
                c0, c1, c2, c3 = code_starts(rows.words[np.uint64(k)], lanes, lane)
                store(gradient, c0, add(load(gradient, c0), slope))
                store(gradient, c1, add(load(gradient, c1), slope))
                store(gradient, c2, add(load(gradient, c2), slope))
                store(gradient, c3, add(load(gradient, c3), slope))


@compiled_inline
def code_starts(word: Any, lanes: Any, lane: Any) -> Any:
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
                position = np.int64(columns[k]) * lanes + lane
                moved = multiply_add(splat(values[k]), slope, load(gradient, position))
                store(gradient, position, moved)


@compiled_inline
def row_start(rows: Any, device: Any, order: Any, b: Any, last: Any) -> Any:
    """Return where row b of the batch starts; past the end, the last row."""
    row = rows.offsets[device] + np.int64(order[min(b, last)])
    return u64(row * rows.width)  # an unsigned index is not checked for its sign


@compiled_inline
def dense_scores(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Multiply four rows with 16 lanes of theta at a time."""
    theta, scores, x, order = scratch.theta, scratch.scores, rows.x, scratch.order
    last = start + count - 1
    dim = rows.width
    for b in range(0, count, 4):
        p0 = row_start(rows, device, order, start + b, last)
        p1 = row_start(rows, device, order, start + b + 1, last)
        p2 = row_start(rows, device, order, start + b + 2, last)
        p3 = row_start(rows, device, order, start + b + 3, last)
        for lane in range(0, lanes, RUN):
            s0 = s1 = s2 = s3 = splat(f32(0.0))
            for i in range(dim):
                t = load(theta, i * lanes + lane)
                s0 = multiply_add(splat(x[p0 + u64(i)]), t, s0)
                s1 = multiply_add(splat(x[p1 + u64(i)]), t, s1)
                s2 = multiply_add(splat(x[p2 + u64(i)]), t, s2)
                s3 = multiply_add(splat(x[p3 + u64(i)]), t, s3)
            first = b * lanes + lane
            store(scores, first, s0)
            store(scores, first + lanes, s1)
            store(scores, first + 2 * lanes, s2)
            store(scores, first + 3 * lanes, s3)


@compiled_inline
def dense_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> None:
    """Add slopes times four rows, 16 lanes at a time."""
    gradient, scores, x = scratch.gradient, scratch.scores, rows.x
    order, last = scratch.order, start + count - 1
    dim = rows.width
    for i in range(count * lanes, (count + 3) // 4 * 4 * lanes):
        scores[i] = f32(0.0)  # padding of the last four rows has weight 0
    for b in range(0, count, 4):
        p0 = row_start(rows, device, order, start + b, last)
        p1 = row_start(rows, device, order, start + b + 1, last)
        p2 = row_start(rows, device, order, start + b + 2, last)
        p3 = row_start(rows, device, order, start + b + 3, last)
        for lane in range(0, lanes, RUN):
            first = b * lanes + lane
            a0, a1 = load(scores, first), load(scores, first + lanes)
            a2, a3 = load(scores, first + 2 * lanes), load(scores, first + 3 * lanes)
            for i in range(dim):
                left = load(gradient, i * lanes + lane)
                left = multiply_add(splat(x[p0 + u64(i)]), a0, left)
                left = multiply_add(splat(x[p1 + u64(i)]), a1, left)
                right = multiply(splat(x[p2 + u64(i)]), a2)
                right = multiply_add(splat(x[p3 + u64(i)]), a3, right)
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
    kernel = _SCORES[rows.instance_class]

    def call(
        rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
    ) -> None:
        kernel(rows, device, start, count, lanes, scratch)

    return call


@overload(add_slopes, jit_options={"forceinline": True})
def _add_slopes(
    rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
) -> Any:
    kernel = _SLOPES[rows.instance_class]

    def call(
        rows: Any, device: Any, start: Any, count: Any, lanes: Any, scratch: Any
    ) -> None:
        kernel(rows, device, start, count, lanes, scratch)

    return call


@compiled_inline
def lane_slopes(work: Any, scores: Any, labels: Any, start: Any, count: Any) -> None:
    """Replace the scores of a block of rows by d loss / d score, in every lane."""
    lanes = len(work.learning_rate)
    if work.loss == SOFTMAX:
        softmax_slopes(work.num_outputs, lanes, scores, labels, start, count)
        return
    for b in range(count):
        line = scores[b * lanes : (b + 1) * lanes]
        y = labels[start + b]
        if work.loss == LOGISTIC:
            logistic_line(line, y)
        elif work.loss == HINGE:
            hinge_line(line, y)
        elif work.loss == SMOOTH_HINGE:
            smooth_hinge_line(line, y, work.threshold)
        else:
            huber_line(line, y, work.threshold)


@compiled_inline
def logistic_line(line: Any, y: Any) -> None:
    """Replace one row's scores by their slopes."""
    for i in range(len(line)):
        line[i] = -y / (f32(1.0) + fast_exp(y * line[i]))


@compiled_inline
def hinge_line(line: Any, y: Any) -> None:
    """Replace one row's scores by their slopes."""
    for i in range(len(line)):
        line[i] = -y if y * line[i] < f32(1.0) else f32(0.0)


@compiled_inline
def smooth_hinge_line(line: Any, y: Any, curvature: Any) -> None:
    """Replace one row's scores by their slopes."""
    for i in range(len(line)):
        shortfall = (f32(1.0) - y * line[i]) * curvature
        line[i] = -y * min(max(shortfall, f32(0.0)), f32(1.0))


@compiled_inline
def huber_line(line: Any, y: Any, threshold: Any) -> None:
    """Replace one row's scores by their slopes."""
    for i in range(len(line)):
        line[i] = min(max(line[i] - y, -threshold), threshold)


@compiled_inline
def softmax_slopes(
    num_outputs: Any, lanes: Any, scores: Any, labels: Any, start: Any, count: Any
) -> None:
    """Replace scores by softmax probabilities, minus 1 for the row's own class."""
    for b in range(count):
        for first in range(b * lanes, (b + 1) * lanes - num_outputs + 1, num_outputs):
            top = scores[first]
            for i in range(first + 1, first + num_outputs):
                top = max(top, scores[i])
            total = f32(0.0)
            for i in range(first, first + num_outputs):
                scores[i] = fast_exp(scores[i] - top)
                total += scores[i]
            for i in range(first, first + num_outputs):
                scores[i] /= total
            scores[first + np.int64(labels[start + b])] -= f32(1.0)


@compiled_inline
def mask_slopes(work: Any, device: Any, scores: Any, start: Any, count: Any) -> None:
    """Set slopes to zero past the end of the batch in lanes with a smaller batch."""
    lanes = len(work.learning_rate)
    smallest = work.smallest[device]
    for b in range(max(0, smallest - start), count):
        for i in range(lanes):
            if start + b >= work.batch_size[device, i]:
                scores[b * lanes + i] = f32(0.0)


@compiled_inline
def step_factors(
    device: Any, num_samples: Any, round: Any, work: Any, factors: Any
) -> None:
    """Write the lanes' factors of theta, gradient and noise: 3 times L values."""
    lanes = len(work.learning_rate)
    for i in range(lanes):
        eta = work.learning_rate[i]
        size = num_samples if work.sampling == FULL else work.batch_size[device, i]
        factors[i] = f32(1.0) - eta * work.l2[i]
        factors[lanes + i] = -eta / f32(size)
        factors[2 * lanes + i] = -eta * noise_of(work, device, i, round)


@compiled_inline
def update(noisy: Any, work: Any, scratch: Any) -> None:
    """Take the step in every lane: theta -= eta (gradient + noise + l2 theta)."""
    theta, gradient, factors = scratch.theta, scratch.gradient, scratch.factors
    dim, lanes = work.dim, len(work.learning_rate)
    for lane in range(0, lanes, RUN):
        keep, scale = load(factors, lane), load(factors, lanes + lane)
        for i in range(dim):
            position = i * lanes + lane
            moved = multiply(keep, load(theta, position))
            moved = multiply_add(scale, load(gradient, position), moved)
            store(theta, position, moved)
    if noisy and work.num_outputs == 1:
        share_noise(dim, lanes, scratch)
    elif noisy:
        share_output_noise(dim, lanes, work.num_outputs, scratch)


@compiled_inline
def share_noise(dim: Any, lanes: Any, scratch: Any) -> None:
    """Add the same normals to all lanes, times each lane's noise factor."""
    theta, noise = scratch.theta, scratch.noise
    for lane in range(0, lanes, RUN):
        spread = load(scratch.factors, 2 * lanes + lane)
        for i in range(dim):
            position = i * lanes + lane
            moved = multiply_add(spread, splat(noise[i]), load(theta, position))
            store(theta, position, moved)


@compiled_inline
def share_output_noise(dim: Any, lanes: Any, num_outputs: Any, scratch: Any) -> None:
    """Add noise where a plan has several outputs, each with its own normals."""
    theta, noise, factors = scratch.theta, scratch.noise, scratch.factors
    for output in range(num_outputs):
        for lane in range(output, lanes, num_outputs):
            spread = factors[2 * lanes + lane]
            for i in range(dim):
                theta[i * lanes + lane] += spread * noise[i * num_outputs + output]


@compiled
def lane_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any
) -> None:
    """Take tau steps from scratch.theta in place, the first `noisy` with noise."""
    never_inline()
    seed, first_step, round = key
    lanes = len(work.learning_rate)
    num_samples = rows.offsets[device + 1] - rows.offsets[device]
    step_factors(device, num_samples, round, work, scratch.factors)
    shuffle_rows(rows, device, seed, work, scratch)
    uneven = work.smallest[device] < work.largest[device]
    for step in range(first_step, first_step + work.tau):
        drawn, _ = draw_batch(rows, device, step, seed, work, scratch)
        gather(rows.y, rows.offsets[device], scratch.order, drawn, scratch.labels)
        clear(scratch.gradient)
        for start in range(0, drawn, LANE_BLOCK):
            count = min(LANE_BLOCK, drawn - start)
            add_scores(rows, device, start, count, lanes, scratch)
            lane_slopes(work, scratch.scores, scratch.labels, start, count)
            if uneven:
                mask_slopes(work, device, scratch.scores, start, count)
            add_slopes(rows, device, start, count, lanes, scratch)
        undo_batch(rows, device, drawn, work, scratch)
        add_noise = work.noisy[device] and step < first_step + noisy
        if add_noise:
            state, gamma = stream(seed, device, step, NOISE)
            fill_normals(scratch.noise, work.dim * work.num_outputs, state, gamma)
        update(add_noise, work, scratch)
        if work.drift_corrected:
            add_shift(scratch.theta, scratch.shift)
