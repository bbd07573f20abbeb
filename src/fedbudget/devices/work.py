"""What the compiled steps share: the numbers of a run, memory, batches."""

from typing import Any, NamedTuple

import numpy as np

from fedbudget.devices.compiled import compiled
from fedbudget.devices.random_numbers import (
    BATCHES,
    draw_poisson,
    draw_subset,
    restore,
    stream,
)
from fedbudget.devices.vectors import RUN

LOGISTIC, HINGE, HUBER, SOFTMAX = 0, 1, 2, 3
FULL, FIXED, POISSON = 0, 1, 2
LANE_BLOCK = 64  # rows that the lanes take at a time: their scores stay in L1


class Work(NamedTuple):
    """What devices do in a round, as plain numbers and arrays, for one run.

    L is the number of lanes: 1 here. M is the number of devices.
    """

    loss: int
    threshold: Any  # float32: where Huber's loss turns linear
    sampling: int
    tau: int
    num_outputs: int  # scores per row: lane l is output l % num_outputs of its plan
    l2: Any  # float32, shape (L,)
    learning_rate: Any  # float32, shape (L,)
    batch_size: Any  # int64, shape (M, L)
    noise_std: Any  # float32, shape (M, L)
    weights: Any  # float64, shape (M, L)


class LaneWork(NamedTuple):
    """The same for L lanes side by side: L plans, or the outputs of several plans."""

    loss: int
    threshold: Any
    sampling: int
    tau: int
    num_outputs: int
    l2: Any
    learning_rate: Any
    batch_size: Any
    noise_std: Any
    weights: Any


class Scratch(NamedTuple):
    """One thread's working memory: no allocation inside loops.

    Buffers over parameters hold L lanes per parameter, and are padded to whole runs.
    """

    theta: Any  # float32, over parameters
    gradient: Any  # float32, over parameters
    noise: Any  # float32, over parameters
    order: Any  # uint32, over rows of the largest device: 0, 1, 2, .. between steps
    picks: Any  # uint32, over rows
    labels: Any  # float32, over rows of the batch
    scores: Any  # float32, over rows of the batch: scores, then slopes
    table: Any  # float32, over one-hot codes: filled from theta before each step
    sums: Any  # float32, twice over one-hot codes: slopes summed by code
    factors: Any  # float32, over lanes: see `lanes.step_factors`


@compiled
def new_scratch(dim: Any, longest: Any, lanes: Any, table_size: Any) -> Any:
    """Return one thread's working memory."""
    # Dense rows are padded to whole runs; one-hot rows have a spare column past dim.
    params = (dim + 2 * RUN) // RUN * RUN * lanes
    entries = (table_size + RUN - 1) // RUN * RUN + RUN
    order = np.empty(longest + RUN, dtype=np.uint32)
    for i in range(len(order)):
        order[i] = np.uint32(i)
    return Scratch(
        np.zeros(params, dtype=np.float32),
        np.zeros(params, dtype=np.float32),
        np.zeros(params, dtype=np.float32),
        order,
        np.zeros(longest + RUN, dtype=np.uint32),
        np.zeros(longest + RUN, dtype=np.float32),
        np.zeros(max(longest, LANE_BLOCK * lanes) + RUN, dtype=np.float32),
        np.zeros(entries, dtype=np.float32),
        np.zeros(2 * entries, dtype=np.float32),
        np.zeros(3 * lanes + RUN, dtype=np.float32),
    )


@compiled
def gather(source: Any, first: Any, rows: Any, size: Any, out: Any) -> None:
    """out[i] = source[first + rows[i]], so that the next loop reads without jumps."""
    for i in range(size):
        out[i] = source[np.uint64(first) + rows[i]]


@compiled
def draw_batch(
    rows: Any, device: Any, step: Any, seed: Any, work: Any, scratch: Any
) -> Any:
    """Write the rows of a step into scratch.order; return how many, and the divisor."""
    num_samples = rows.offsets[device + 1] - rows.offsets[device]
    size = work.batch_size[device].max()
    if work.sampling == FULL or (work.sampling == FIXED and size >= num_samples):
        return num_samples, num_samples
    state, gamma = stream(seed, device, step, BATCHES)
    if work.sampling == POISSON:
        return draw_poisson(scratch.order, num_samples, size, state, gamma), size
    draw_subset(scratch.order, scratch.picks, size, num_samples, state, gamma)
    return size, size


@compiled
def undo_batch(rows: Any, device: Any, drawn: Any, work: Any, scratch: Any) -> None:
    """Put scratch.order back to 0, 1, 2, .. after a step."""
    num_samples = rows.offsets[device + 1] - rows.offsets[device]
    if work.sampling == FIXED and drawn < num_samples:
        restore(scratch.order, scratch.picks, drawn, num_samples)
