"""Losses and accuracies of models on the rows of a part, compiled.

Models are side by side in lanes, as in `lanes`: a row is read once for 16 of them. One
or a few are faster one by one, with 16 rows side by side. Pieces are ranges of rows, in
blocks of LANE_BLOCK rows; threads share them as they share the blocks of a round.
Scores are in single precision, sums in double.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import HINGE, LOGISTIC, SMOOTH_HINGE, SOFTMAX
from fedbudget.simulation.kernels.lanes import add_scores, fast_exp
from fedbudget.simulation.kernels.layouts import (
    LANE_BLOCK,
    RUN,
    DenseRows,
    OneHotRows,
    SparseRows,
)
from fedbudget.simulation.kernels.one_hot import add_look_up, fill_table, look_up
from fedbudget.simulation.kernels.sharing import change, claim, peek, unfinished
from fedbudget.simulation.kernels.simd import (
    compiled,
    compiled_inline,
    hinge_losses,
    huber_losses,
    load,
    logistic_losses,
    smooth_hinge_losses,
    splat,
    store,
)
from fedbudget.simulation.kernels.steps import dense_scores, four_rows

f32 = np.float32


class Models(NamedTuple):
    """Models in lanes, and their loss."""

    theta: Any  # float32, shape (groups, parameters * L)
    lanes: int
    loss: int
    threshold: Any  # float32: see `runs.loss_constant`
    num_outputs: int  # lane l is output l % num_outputs of its model


class Pieces(NamedTuple):
    """What the threads share: piece g * tasks + t is task t of group g."""

    rows: int  # of a task; a multiple of LANE_BLOCK
    first: Any  # int64, shape (tasks,): the device of a task's first row
    weights: Any  # float64, shape (M,): of each of a device's rows in the mean
    offsets: Any  # int64, shape (M + 1,): of the devices' rows
    sums: Any  # float64, shape (pieces, 2, L): of losses, of correct predictions
    claims: Any  # int64, shape (1,)
    done: Any  # int64, shape (pieces,)


class Lookup(NamedTuple):
    """What `lanes.add_scores` reads and writes."""

    theta: Any
    scores: Any
    order: Any


class Buffers(NamedTuple):
    """A worker's own memory; the last three are for one model at a time."""

    totals: Any  # float64, shape (2, L)
    scores: Any  # float32, over lanes of a block's rows
    order: Any  # uint32: 0, 1, 2, .. over a block's rows
    losses: Any  # float32, over a block's rows
    labels: Any  # float32, over a block's rows
    table: Any  # float32, over one-hot codes


def fill_codes(rows: Any, theta: Any, table: Any) -> None:
    """Fill the table of one-hot codes from theta; other layouts have none."""
    raise NotImplementedError


def single_scores(rows: Any, first: Any, count: Any, table: Any, lookup: Any) -> None:
    """Write the scores of `count` rows from the first on, of one model."""
    raise NotImplementedError


@compiled_inline
def no_codes(rows: Any, theta: Any, table: Any) -> None:
    """Do nothing."""


@compiled_inline
def single_one_hot(rows: Any, first: Any, count: Any, table: Any, lookup: Any) -> None:
    """Look up the scores of one-hot rows."""
    scores, order, width = lookup.scores, lookup.order, np.uint64(rows.width)
    words = rows.words[first * rows.width :]
    look_up(words, width, order, count, table, scores)
    for w in range(1, rows.width):
        add_look_up(words[w:], width, order, count, table, scores)


@compiled_inline
def single_dense(rows: Any, first: Any, count: Any, table: Any, lookup: Any) -> None:
    """Multiply dense rows, four at a time."""
    width = rows.width
    for b in range(0, count, 4):
        current = four_rows(first, lookup.order, b, count, width)
        dense_scores(rows.x, current, current, lookup.theta, width, lookup.scores, b)


@compiled_inline
def single_sparse(rows: Any, first: Any, count: Any, table: Any, lookup: Any) -> None:
    """Multiply and add the non-zeros of compressed sparse rows."""
    for b in range(count):
        score = f32(0.0)
        for k in range(rows.starts[first + b], rows.starts[first + b + 1]):
            score += rows.values[k] * lookup.theta[rows.columns[k]]
        lookup.scores[b] = score


@overload(fill_codes, jit_options={"forceinline": True})
def _fill_codes(rows: Any, theta: Any, table: Any) -> Any:
    fill = fill_table if rows.instance_class is OneHotRows else no_codes

    def call(rows: Any, theta: Any, table: Any) -> None:
        fill(rows, theta, table)

    return call


@overload(single_scores, jit_options={"forceinline": True})
def _single_scores(rows: Any, first: Any, count: Any, table: Any, lookup: Any) -> Any:
    """Select by the layout of the rows, at compile time."""
    kernel = {
        DenseRows: single_dense,
        OneHotRows: single_one_hot,
        SparseRows: single_sparse,
    }[rows.instance_class]

    def call(rows: Any, first: Any, count: Any, table: Any, lookup: Any) -> None:
        kernel(rows, first, count, table, lookup)

    return call


@compiled
def measure_piece(
    rows: Any, piece: Any, models: Models, pieces: Any, buffers: Any
) -> None:
    """Write the weighted sums of a piece; `buffers` are this worker's own."""
    totals = buffers.totals
    tasks, lanes = len(pieces.first), models.lanes
    task = piece % tasks
    lookup = Lookup(models.theta[piece // tasks], buffers.scores, buffers.order)
    totals[:] = 0.0
    if lanes == 1:
        fill_codes(rows, lookup.theta, buffers.table)
    device = pieces.first[task]
    stop = min((task + 1) * pieces.rows, len(rows.y))
    for first in range(task * pieces.rows, stop, LANE_BLOCK):
        count = min(LANE_BLOCK, stop - first)
        if lanes == 1:
            single_scores(rows, first, count, buffers.table, lookup)
            device = add_rows(rows.y, first, count, device, models, pieces, buffers)
        else:
            add_scores(rows, first // LANE_BLOCK, 0, count, lanes, lookup)
            device = add_lanes(rows.y, first, count, device, models, pieces, buffers)
    for i in range(lanes):
        pieces.sums[piece, 0, i] = totals[0, i]
        pieces.sums[piece, 1, i] = totals[1, i]
    change(pieces.done, piece, 0, 1)


@compiled_inline
def add_lanes(
    y: Any,
    first: Any,
    count: Any,
    device: Any,
    models: Any,
    pieces: Any,
    buffers: Any,
) -> Any:
    """Add the rows of a block to the totals, in lanes; return the last row's device."""
    lanes, totals = models.lanes, buffers.totals
    for b in range(count):
        while first + b >= pieces.offsets[device + 1]:
            device += 1
        line = buffers.scores[b * lanes :]
        weight = pieces.weights[device]
        if models.loss == SOFTMAX:
            add_softmax(line, y[first + b], weight, models, totals)
        else:
            add_correct(line, y[first + b], weight, lanes, totals)
            add_losses(line, y[first + b], weight, models, totals)
    return device


@compiled_inline
def add_rows(
    y: Any,
    first: Any,
    count: Any,
    device: Any,
    models: Any,
    pieces: Any,
    buffers: Any,
) -> Any:
    """Do the same for one model: losses of 16 rows at a time."""
    scores, labels, losses = buffers.scores, buffers.labels, buffers.losses
    for b in range(count):
        labels[b] = y[first + b]
    for i in range(0, count, RUN):
        store(losses, i, losses_of(models, load(labels, i), load(scores, i)))
    start = 0
    while start < count:
        while first + start >= pieces.offsets[device + 1]:
            device += 1
        stop = min(count, pieces.offsets[device + 1] - first)
        total, correct = 0.0, 0
        for b in range(start, stop):
            total += np.float64(losses[b])
            correct += (scores[b] > f32(0.0)) == (labels[b] > f32(0.0))
        buffers.totals[0, 0] += pieces.weights[device] * total
        buffers.totals[1, 0] += pieces.weights[device] * correct
        start = stop
    return device


@compiled_inline
def losses_of(models: Any, y: Any, scores: Any) -> Any:
    """Return the losses of a run of scores, of any loss but softmax."""
    if models.loss == LOGISTIC:
        return logistic_losses(y, scores)
    if models.loss == HINGE:
        return hinge_losses(y, scores)
    if models.loss == SMOOTH_HINGE:
        return smooth_hinge_losses(y, scores, splat(models.threshold))
    return huber_losses(y, scores, splat(models.threshold))


@compiled_inline
def add_correct(line: Any, y: Any, weight: Any, lanes: Any, totals: Any) -> None:
    """Add the weight where the score is on the label's side; a zero is class 0."""
    for i in range(lanes):
        if (line[i] > f32(0.0)) == (y > f32(0.0)):
            totals[1, i] += weight


@compiled_inline
def add_losses(line: Any, y: Any, weight: Any, models: Any, totals: Any) -> None:
    """Replace one row's scores by their losses, and add those to the totals."""
    for i in range(0, models.lanes, RUN):
        store(line, i, losses_of(models, splat(y), load(line, i)))
    for i in range(models.lanes):
        totals[0, i] += weight * np.float64(line[i])


@compiled_inline
def add_softmax(line: Any, y: Any, weight: Any, models: Any, totals: Any) -> None:
    """Add the losses of every model in the lanes, and whether its top class is y."""
    outputs, label = models.num_outputs, np.int64(y)
    for model in range(models.lanes // outputs):
        first = model * outputs
        top = first
        for i in range(first + 1, first + outputs):
            if line[i] > line[top]:
                top = i
        total = f32(0.0)
        for i in range(first, first + outputs):
            total += fast_exp(line[i] - line[top])
        loss = np.log(np.float64(total)) + np.float64(line[top] - line[first + label])
        totals[0, model] += weight * loss
        if top == first + label:
            totals[1, model] += weight


@compiled
def work_on_measures(
    rows: Any, models: Models, pieces: Any, buffers: Any, patience: Any
) -> None:
    """Take pieces until all are done, as one of the workers: see `sharing`."""
    piece = claim(pieces.claims, 0)
    while piece < len(pieces.done):
        measure_piece(rows, piece, models, pieces, buffers)
        piece = claim(pieces.claims, 0)
    looks = 0
    piece = unfinished(pieces.done, 0)
    while piece >= 0:
        while looks < patience and peek(pieces.done, piece) == 0:
            looks += 1
        if peek(pieces.done, piece) == 0:
            measure_piece(rows, piece, models, pieces, buffers)
        piece = unfinished(pieces.done, 0)
