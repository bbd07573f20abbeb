"""Losses and accuracies for the reader of a simulation: not private.

They are computed on the devices' own rows, and no guarantee covers them. Each value is
the mean over a device's own rows, then over the devices that have any, as in the paper.
"""

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.data.dataset import all_rows
from fedbudget.data.features import Numeric
from fedbudget.losses import Floats, Labels, Loss
from fedbudget.metrics import class_metrics, value_metrics
from fedbudget.simulation.kernels.layouts import LANE_BLOCK, RUN, Single
from fedbudget.simulation.kernels.runs import (
    LOSS_CODES,
    layout_key,
    loss_constant,
    num_threads,
)
from fedbudget.simulation.packing import MeasuredRows, measured_rows

_COMPILED = ("logistic", "hinge", "smooth_hinge", "huber", "softmax")
_TASK = 32 * LANE_BLOCK  # rows that a thread takes at a time
_TASKS = 256  # at most, per group of models
_SHORT = 8 * _TASK  # rows times models (at most 4) that one thread measures alone
_PATIENCE = 300_000  # looks at another thread's task, of which each takes a nanosecond


def measure(data: Dataset, loss: Loss, theta: Array) -> dict[str, float]:
    """Return the loss on every part, and the accuracy on validation and test rows."""
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    measured = {}
    for name, part in parts.items():
        if len(part) == 0:
            continue
        scores = loss.scores(theta, part.x)
        measured[f"{name}_loss"] = device_mean(part, loss.losses(scores, part.y))
        if data.classes is not None and name != "train":
            correct = loss.predictions(scores) == part.y
            measured[f"{name}_accuracy"] = device_mean(part, correct.astype(np.float64))
    return measured


def hits(loss: Loss, scores: Floats, y: Labels, threshold: float = 0.5) -> Array:
    """Return 1 for each row whose class is predicted, else 0.

    Args:
        loss: It says what the scores are.
        scores: Shape (n,) or (n, C).
        y: Class indices.
        threshold: Of two classes, the probability above which it is the second.
    """
    if threshold == 0.5:
        return np.asarray(loss.predictions(scores) == y, dtype=np.float64)
    margin = scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores
    cut = log(threshold / (1 - threshold))
    return np.asarray((margin > cut) == y, dtype=np.float64)


def measure_new(
    data: Dataset, loss: Loss, theta: Array, *, threshold: float = 0.5
) -> dict[str, float]:
    """Measure a model on all rows of devices that never trained; not private.

    Returns:
        "new_loss" and, for classes, "new_accuracy": means as those of `measure`.
    """
    part = all_rows(data)
    scores = loss.scores(theta, part.x)
    measured = {"new_loss": device_mean(part, loss.losses(scores, part.y))}
    if data.classes is not None:
        correct = hits(loss, scores, part.y, threshold)
        measured["new_accuracy"] = device_mean(part, correct)
    return measured


def measure_details(
    data: Dataset, loss: Loss, theta: Array, *, threshold: float = 0.5
) -> dict[str, float]:
    """Return the metrics of a model on the test rows; not private.

    Returns:
        "test_auc", "test_recall/CLASS", "test_rmse" and so on: those of `metrics`, over
        the test rows of all devices together, numbers in the label's unit. Beside them
        those of a constant answer, "constant_test_accuracy" or "constant_test_rmse".
        With another threshold than 0.5, also the accuracies.
    """
    test, labels = data.test, data.train.y
    if len(test) == 0:
        return {}
    scores = loss.scores(theta, test.x)
    if data.classes is None:
        scale, middle = label_scale(data)
        truth = middle + scale * test.y
        guess = np.full(len(test), middle + scale * float(np.mean(labels)))
        own = value_metrics(np.asarray(middle + scale * scores, np.float64), truth)
        constant = value_metrics(guess, truth)
        measured = {f"test_{name}": value for name, value in own.items()}
        names = ("mae", "rmse")
        return measured | {f"constant_test_{name}": constant[name] for name in names}
    cut = log(threshold / (1 - threshold))
    own = class_metrics(loss.name, scores, test.y, data.classes, cut=cut)
    measured = {f"test_{name}": value for name, value in own.items()}
    frequent = np.bincount(labels, minlength=len(data.classes)).argmax()
    constant_hits = (test.y == frequent).astype(np.float64)
    measured["constant_test_accuracy"] = device_mean(test, constant_hits)
    if threshold != 0.5:
        measured |= accuracies(data, loss, theta, threshold)
    return measured


def accuracies(
    data: Dataset, loss: Loss, theta: Array, threshold: float
) -> dict[str, float]:
    """Return the accuracies of decisions by a threshold between two classes."""
    measured = {}
    for name, part in (("validation", data.validation), ("test", data.test)):
        if len(part) == 0:
            continue
        scores = loss.scores(theta, part.x)
        correct = hits(loss, scores, part.y, threshold)
        measured[f"{name}_accuracy"] = device_mean(part, correct)
    return measured


def label_scale(data: Dataset) -> tuple[float, float]:
    """Return half the width and the middle of the label's public bounds."""
    target = None if data.schema is None else data.schema.target
    if not isinstance(target, Numeric):
        return 1.0, 0.0
    middle, top = target.decode(np.array([0.0, 1.0]))
    return float(top - middle), float(middle)


def measure_all(
    data: Dataset, loss: Loss, thetas: Array, *, side_by_side: bool = True
) -> dict[str, Array]:
    """Measure many models, shape (n, params), as `measure` does; shape (n,) each.

    Compiled, with scores in single precision: losses differ from those of `measure` by
    about 1e-7 of a score. Models are measured side by side, or one by one, which is
    faster for up to three; the results differ by rounding.
    """
    if loss.name not in _COMPILED:
        models = [measure(data, loss, theta) for theta in thetas]
        return {name: np.array([m[name] for m in models]) for name in models[0]}
    # Compiled losses are for finite scores; models that are not finite get NaN.
    finite = np.asarray(np.isfinite(thetas).all(axis=1))
    thetas = np.where(finite[:, None], thetas, 0.0)
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    measured = {}
    for name, part in parts.items():
        if len(part) == 0:
            continue
        rows = measured_rows(part, loss)
        losses, correct = _measured(rows, loss, thetas, side_by_side)
        measured[f"{name}_loss"] = losses
        if data.classes is not None and name != "train":
            measured[f"{name}_accuracy"] = correct
    return {name: np.where(finite, x, np.nan) for name, x in measured.items()}


def _measured(
    part: MeasuredRows, loss: Loss, thetas: Array, side_by_side: bool
) -> tuple[Array, Array]:
    """Return the mean losses and the shares of correct predictions of all models."""
    from fedbudget.simulation.kernels import measures
    from fedbudget.simulation.kernels.sharing import compiled_here, shared

    outputs = loss.num_outputs
    if side_by_side or outputs > 1:
        per_group = max(1, RUN // outputs)  # models
        lanes = -(-per_group * outputs // RUN) * RUN
    else:
        per_group = lanes = 1
    models = measures.Models(
        theta=_in_lanes(thetas.reshape(len(thetas), outputs, -1), per_group, lanes),
        lanes=lanes,
        loss=LOSS_CODES[loss.name],
        threshold=loss_constant(loss),
        num_outputs=outputs,
    )
    pieces = _pieces(part, len(models.theta), lanes)
    spare = int(getattr(part.rows, "table_size", 0)) + RUN

    def task(_: int, pieces: Any = pieces) -> None:
        scores, losses, labels, table = (
            np.zeros(size + RUN, dtype=np.float32)
            for size in (LANE_BLOCK * lanes, LANE_BLOCK, LANE_BLOCK, spare)
        )
        order = np.arange(LANE_BLOCK, dtype=np.uint32)
        totals = np.empty((2, lanes))
        buffers = measures.Buffers(totals, scores, order, losses, labels, table)
        measures.work_on_measures(part.rows, models, pieces, buffers, _PATIENCE)

    short = len(part.rows.y) * len(models.theta) * min(lanes, 4) <= _SHORT
    key = measures.Models, layout_key(part.rows)
    compiled_here(key, lambda: task(0, pieces._replace(done=pieces.done[:0])))
    shared(task, 1 if short else num_threads())
    sums = pieces.sums.reshape(len(models.theta), -1, 2, lanes).sum(axis=1)
    losses, correct = sums[:, :, :per_group].swapaxes(0, 1).reshape(2, -1)
    return losses[: len(thetas)], correct[: len(thetas)]


def _pieces(part: MeasuredRows, groups: int, lanes: int) -> Any:
    """Return the pieces that threads share: ranges of rows, for each group."""
    from fedbudget.simulation.kernels.measures import Pieces

    num_rows = len(part.rows.y)
    rows = max(_TASK, -(-num_rows // _TASKS // LANE_BLOCK) * LANE_BLOCK)
    starts = np.arange(0, num_rows, rows)
    return Pieces(
        rows=rows,
        first=np.searchsorted(part.offsets, starts, side="right") - 1,
        weights=part.weights,
        offsets=part.offsets,
        sums=np.empty((groups * len(starts), 2, lanes)),
        claims=np.zeros(1, dtype=np.int64),
        done=np.zeros(groups * len(starts), dtype=np.int64),
    )


def _in_lanes(models: Array, per_group: int, lanes: int) -> Single:
    """Return models, shape (n, outputs, dim), as groups of lanes: see `Models`.

    Parameters are padded: dense rows to whole runs, one-hot rows with a spare column.
    """
    count, outputs, dim = models.shape
    groups = -(-count // per_group)
    padded = np.zeros((groups, -(-(dim + 1) // RUN) * RUN, lanes), dtype=np.float32)
    for i in range(count):
        first = i % per_group * outputs
        padded[i // per_group, :dim, first : first + outputs] = models[i].T
    return padded.reshape(groups, -1)


def measure_devices(
    data: Dataset, loss: Loss, theta: Array, *, threshold: float = 0.5
) -> dict[str, Array]:
    """Measure one model, or one per device, on every device's own rows; not private.

    Returns:
        "validation_loss", "test_accuracy" and so on, shape (M,) each; nan for a device
        without such rows.
    """
    measured = {}
    for name, part in (("validation", data.validation), ("test", data.test)):
        scores = _scores(part, loss, theta)
        measured[f"{name}_loss"] = device_means(part, loss.losses(scores, part.y))
        if data.classes is not None:
            correct = hits(loss, scores, part.y, threshold)
            measured[f"{name}_accuracy"] = device_means(part, correct)
    return measured


def means(per_device: Mapping[str, Array]) -> dict[str, float]:
    """Return means over the devices that have rows, as `measure` does."""
    return {
        name: float(np.nanmean(values))
        for name, values in per_device.items()
        if not np.isnan(values).all()
    }


def _scores(part: Part, loss: Loss, theta: Array) -> Floats:
    if theta.ndim == 1:
        return loss.scores(theta, part.x)
    per_device = [
        loss.scores(theta[m], part.device(m)[0]) for m in range(part.num_devices)
    ]
    return np.concatenate(per_device)


def device_means(part: Part, values: Floats) -> Array:
    """Average the values of each device's rows; nan for a device without any."""
    # A device's sum is a difference of cumulative sums: 0 for a device without rows.
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])[part.offsets]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.diff(sums) / part.sizes)


def device_mean(part: Part, values: Floats) -> float:
    """Average the values of each device's rows, then the devices that have any."""
    return float(np.nanmean(device_means(part, values)))
