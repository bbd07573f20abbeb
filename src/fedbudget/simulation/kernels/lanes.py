"""The local steps of one device for many plans side by side, or for several outputs.

Theta has L lanes per parameter, L a multiple of 16, so that one load brings the same
parameter of 16 plans. All lanes see the same batch and the same normals, scaled by
their own step size and noise: common random numbers. A lane with a smaller batch takes
the first rows of the common one, which are a uniform subset too.
"""

from typing import Any

import numpy as np

from fedbudget.simulation.kernels.arrays import (
    FULL,
    HINGE,
    LANE_BLOCK,
    LOGISTIC,
    SOFTMAX,
    add_shift,
    clear,
    deal_rows,
    draw_batch,
    gather,
    undo_batch,
)
from fedbudget.simulation.kernels.compiled import compiled, compiled_inline
from fedbudget.simulation.kernels.elementary import fast_exp
from fedbudget.simulation.kernels.lane_rows import add_scores, add_slopes
from fedbudget.simulation.kernels.random import NOISE, fill_normals, stream
from fedbudget.simulation.kernels.simd import (
    RUN,
    keep_apart,
    load,
    multiply,
    multiply_add,
    splat,
    store,
)

f32 = np.float32


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
def huber_line(line: Any, y: Any, threshold: Any) -> None:
    """Replace one row's scores by their slopes."""
    for i in range(len(line)):
        line[i] = min(max(line[i] - y, -threshold), threshold)


@compiled_inline
def softmax_slopes(
    num_outputs: Any, lanes: Any, scores: Any, labels: Any, start: Any, count: Any
) -> None:
    """Replace scores by softmax probabilities, less 1 for the row's own class."""
    for b in range(count):
        for first in range(b * lanes, (b + 1) * lanes - num_outputs + 1, num_outputs):
            top = scores[first]
            for i in range(first + 1, first + num_outputs):
                top = max(top, scores[i])
            whole = f32(0.0)
            for i in range(first, first + num_outputs):
                scores[i] = fast_exp(scores[i] - top)
                whole += scores[i]
            for i in range(first, first + num_outputs):
                scores[i] /= whole
            scores[first + np.int64(labels[start + b])] -= f32(1.0)


@compiled_inline
def mask_slopes(work: Any, device: Any, scores: Any, start: Any, count: Any) -> None:
    """Drop the rows past the batch of lanes whose batch is smaller than the largest."""
    lanes = len(work.learning_rate)
    smallest = work.smallest[device]
    for b in range(max(0, smallest - start), count):
        for i in range(lanes):
            if start + b >= work.batch_size[device, i]:
                scores[b * lanes + i] = f32(0.0)


@compiled_inline
def step_factors(device: Any, num_samples: Any, work: Any, factors: Any) -> None:
    """Write what each lane multiplies theta, gradient and noise with: 3 times L."""
    lanes = len(work.learning_rate)
    for i in range(lanes):
        eta = work.learning_rate[i]
        size = num_samples if work.sampling == FULL else work.batch_size[device, i]
        factors[i] = f32(1.0) - eta * work.l2[i]
        factors[lanes + i] = -eta / f32(size)
        factors[2 * lanes + i] = -eta * work.noise_std[device, i]


@compiled_inline
def update(noisy: Any, work: Any, scratch: Any) -> None:
    """Take the step in every lane: theta -= eta (gradient + noise + l2 theta)."""
    theta, gradient, factors = scratch.theta, scratch.gradient, scratch.factors
    dim, lanes = work.dim, len(work.learning_rate)
    for lane in range(0, lanes, RUN):
        keep, scale = load(factors, lane), load(factors, lanes + lane)
        for i in range(dim):
            place = i * lanes + lane
            moved = multiply(keep, load(theta, place))
            moved = multiply_add(scale, load(gradient, place), moved)
            store(theta, place, moved)
    if noisy and work.num_outputs == 1:
        share_noise(dim, lanes, scratch)
    elif noisy:
        share_output_noise(dim, lanes, work.num_outputs, scratch)


@compiled_inline
def share_noise(dim: Any, lanes: Any, scratch: Any) -> None:
    """Add the same normals to all lanes, in proportion to their spread."""
    theta, noise = scratch.theta, scratch.noise
    for lane in range(0, lanes, RUN):
        spread = load(scratch.factors, 2 * lanes + lane)
        for i in range(dim):
            place = i * lanes + lane
            moved = multiply_add(spread, splat(noise[i]), load(theta, place))
            store(theta, place, moved)


@compiled_inline
def share_output_noise(dim: Any, lanes: Any, num_outputs: Any, scratch: Any) -> None:
    """The same where a plan has several outputs, each with normals of its own."""
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
    keep_apart()
    seed, first_step = key
    lanes = len(work.learning_rate)
    num_samples = rows.offsets[device + 1] - rows.offsets[device]
    step_factors(device, num_samples, work, scratch.factors)
    deal_rows(rows, device, seed, work, scratch)
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
        noise_now = work.noisy[device] and step < first_step + noisy
        if noise_now:
            state, gamma = stream(seed, device, step, NOISE)
            fill_normals(scratch.noise, work.dim * work.num_outputs, state, gamma)
        update(noise_now, work, scratch)
        if work.controlled:
            add_shift(scratch.theta, scratch.shift)
