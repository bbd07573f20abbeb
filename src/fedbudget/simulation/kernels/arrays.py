"""Arrays of the compiled steps: the work of a round, scratch memory, batches."""

from typing import Any, NamedTuple

import numpy as np

from fedbudget.simulation.kernels.layouts import LANE_BLOCK, RUN, aligned_zeros
from fedbudget.simulation.kernels.random import (
    BATCHES,
    SHUFFLE,
    draw_poisson,
    draw_subset,
    restore,
    stream,
)
from fedbudget.simulation.kernels.simd import (
    add,
    compiled,
    compiled_inline,
    load,
    splat,
    store,
)

LOGISTIC, HINGE, HUBER, SOFTMAX, SMOOTH_HINGE = 0, 1, 2, 3, 4
FULL, FIXED, POISSON, CYCLIC = 0, 1, 2, 3
DEALT = 4  # cyclic, of rows that lie in the order of their batches: see `deal_rows`
_UP = 1 + 2.0**-23  # covers the rounding to single precision


class Work(NamedTuple):
    """The work of all devices in a round of one run, as numbers and arrays.

    L is the number of lanes, 1 in this class. M is the number of devices.
    """

    loss: int
    threshold: Any  # float32: see `runs.loss_constant`
    sampling: int
    tau: int
    dim: int  # columns of a row
    num_outputs: int  # scores per row: lane l is output l % num_outputs of its plan
    l2: Any  # float32, shape (L,)
    learning_rate: Any  # float32, shape (L,)
    momentum: Any  # float64, shape (L,): of the server's averaged update
    server_rate: Any  # float64, shape (L,): a factor of that update
    batch_size: Any  # int64, shape (M, L)
    noise_std: Any  # float32, shape (M, L): of the first round of a run
    noise_decay: Any  # float64, shape (L,): its factor from round to round
    weights: Any  # float64, shape (M, L)
    takes_part: Any  # bool, shape (M,): whether any weight is not zero
    smallest: Any  # int64, shape (M,): the smallest batch of all lanes
    largest: Any  # int64, shape (M,): the largest
    noisy: Any  # bool, shape (M,): whether any noise is not zero
    upload_noise: Any  # float64, shape (L,): std of the noise in the mean of a round
    clip: Any  # float64, shape (L,): largest norm of a device's move; infinite: any
    drift_corrected: bool  # see `algorithm.next_shift`
    noise_falls: bool  # whether any noise_decay is below 1


class LaneWork(Work):
    """`Work` for L lanes side by side: L plans, or the outputs of several plans.

    A separate type: kernels are compiled for one lane and for many.
    """


class Scratch(NamedTuple):
    """One thread's working memory, so that loops do not allocate.

    Buffers over parameters hold L lanes per parameter and are padded to whole runs.
    """

    theta: Any  # float32, over parameters
    gradient: Any  # float32, over parameters
    noise: Any  # float32, over parameters
    shift: Any  # float32, over parameters: added to theta in every step
    order: Any  # uint32, over rows of the largest device: 0, 1, 2, .. between steps
    picks: Any  # uint32, over rows
    shuffled: Any  # uint32, over rows: the order of cyclic batches
    labels: Any  # float32, over rows of the batch
    scores: Any  # float32, over rows of the batch: scores, then slopes
    table: Any  # float32, over one-hot codes: filled from theta before each step
    sums: Any  # float32, twice over one-hot codes: slopes summed by code
    factors: Any  # float32, over lanes: see `lanes.step_factors`


def new_memory(
    dim: int, longest: int, lanes: int, table_size: int, num_workers: int
) -> Scratch:
    """Return the memory of all threads: `Scratch` with a first axis over workers."""
    # Dense rows are padded to whole runs; one-hot rows have one spare column.
    params = (dim + 2 * RUN) // RUN * RUN * lanes
    entries = (table_size + RUN - 1) // RUN * RUN + RUN
    indices = np.arange(longest + RUN, dtype=np.uint32)

    def zeros(count: int) -> Any:
        return aligned_zeros((num_workers, -(-count // RUN) * RUN))

    return Scratch(
        theta=zeros(params),
        gradient=zeros(params),
        noise=zeros(params),
        shift=zeros(params),
        order=np.tile(indices, (num_workers, 1)),
        picks=np.tile(indices, (num_workers, 1)),
        shuffled=np.tile(indices, (num_workers, 1)),
        labels=zeros(longest + RUN),
        scores=zeros(max(longest, LANE_BLOCK * lanes) + RUN),
        table=zeros(entries),
        sums=zeros(2 * entries),
        factors=zeros(3 * lanes + RUN),
    )


@compiled_inline
def scratch_of(memory: Any, worker: Any) -> Any:
    """Return one thread's part of the memory."""
    return Scratch(
        memory.theta[worker],
        memory.gradient[worker],
        memory.noise[worker],
        memory.shift[worker],
        memory.order[worker],
        memory.picks[worker],
        memory.shuffled[worker],
        memory.labels[worker],
        memory.scores[worker],
        memory.table[worker],
        memory.sums[worker],
        memory.factors[worker],
    )


@compiled_inline
def noise_of(work: Any, device: Any, lane: Any, round: Any) -> Any:
    """Return a device's noise in a round of the run, counted from 0.

    Rounded up, as `noise_std` is: never less than accounted for.
    """
    first = work.noise_std[device, lane]
    if not work.noise_falls:
        return first
    later = np.float64(first) * work.noise_decay[lane] ** round
    return np.float32(later * _UP)


@compiled_inline
def clear(buffer: Any) -> None:
    """Set a buffer of whole runs to zero."""
    zero = splat(np.float32(0.0))
    for i in range(0, len(buffer), RUN):
        store(buffer, i, zero)


@compiled_inline
def add_shift(theta: Any, shift: Any) -> None:
    """Add each lane's shift to its theta."""
    for i in range(0, len(theta), RUN):
        store(theta, i, add(load(theta, i), load(shift, i)))


@compiled_inline
def gather(source: Any, first: Any, rows: Any, size: Any, out: Any) -> None:
    """Copy source[first + rows] to out, so that the next loop reads contiguously."""
    for i in range(size):
        out[i] = source[np.uint64(first) + rows[i]]


@compiled_inline
def shuffle_rows(rows: Any, device: Any, seed: Any, work: Any, scratch: Any) -> None:
    """Shuffle a device's rows for its cyclic batches, equally in all rounds of a run.

    It is repeated in every round, if there is no memory for all rows in this order.
    """
    if work.sampling == CYCLIC:
        num_samples = rows.offsets[device + 1] - rows.offsets[device]
        shuffle(scratch.shuffled, scratch.picks, num_samples, device, seed)


@compiled_inline
def shuffle(order: Any, picks: Any, count: Any, device: Any, seed: Any) -> None:
    """Write a device's rows in the order of its cyclic batches."""
    for i in range(count):
        order[i] = np.uint32(i)
    state, gamma = stream(seed, device, 0, SHUFFLE)
    draw_subset(order, picks, count, count, state, gamma)


@compiled
def deal_rows(offsets: Any, seed: Any, picks: Any, order: Any) -> None:
    """Write the order of all devices' rows; each device's begin with 0 .. n - 1."""
    for device in range(len(offsets) - 1):
        first, last = offsets[device], offsets[device + 1]
        shuffle(order[first:last], picks, last - first, device, seed)


@compiled_inline
def first_row(rows: Any, device: Any, step: Any, work: Any) -> Any:
    """Return the row that `scratch.order` counts from, in a step."""
    first = rows.offsets[device]
    if work.sampling == DEALT:
        size = work.largest[device]
        first += step % ((rows.offsets[device + 1] - first) // size) * size
    return first


@compiled_inline
def draw_batch(
    rows: Any, device: Any, step: Any, seed: Any, work: Any, scratch: Any
) -> Any:
    """Write a step's rows into scratch.order; return their number and the divisor."""
    num_samples = rows.offsets[device + 1] - rows.offsets[device]
    size = work.largest[device]
    if work.sampling == FULL or (work.sampling == FIXED and size >= num_samples):
        return num_samples, num_samples
    if work.sampling == DEALT:
        return size, size
    if work.sampling == CYCLIC:
        first = step % (num_samples // size) * size
        for i in range(size):
            scratch.order[i] = scratch.shuffled[first + i]
        return size, size
    state, gamma = stream(seed, device, step, BATCHES)
    if work.sampling == POISSON:
        return draw_poisson(scratch.order, num_samples, size, state, gamma), size
    draw_subset(scratch.order, scratch.picks, size, num_samples, state, gamma)
    return size, size


@compiled_inline
def undo_batch(rows: Any, device: Any, drawn: Any, work: Any, scratch: Any) -> None:
    """Reset scratch.order to 0, 1, 2, .. after a step."""
    num_samples = rows.offsets[device + 1] - rows.offsets[device]
    if work.sampling == FIXED and drawn < num_samples:
        restore(scratch.order, scratch.picks, drawn, num_samples)
