"""Losses and accuracies for the reader of a simulation: not private.

They are computed on the devices' own rows, and no guarantee covers them. Each value is
the mean over a device's own rows, then over the devices that have any, as in the paper.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.losses import Floats, Loss

_BLOCK = 32  # models measured at a time: their scores take at most ten megabytes


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


def measure_all(data: Dataset, loss: Loss, thetas: Array) -> dict[str, Array]:
    """Measure many models, shape (n, params), as `measure` does; shape (n,) each."""
    if loss.num_outputs > 1:
        models = [measure(data, loss, theta) for theta in thetas]
        return {name: np.array([m[name] for m in models]) for name in models[0]}
    pieces = [thetas[i : i + _BLOCK].T for i in range(0, len(thetas), _BLOCK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy releases the GIL
        blocks = list(pool.map(lambda piece: _measure_block(data, loss, piece), pieces))
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def _measure_block(data: Dataset, loss: Loss, columns: Array) -> dict[str, Array]:
    """Measure one model per column; one product gives all scores of a part."""
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    measured = {}
    for name, part in parts.items():
        if len(part) == 0:
            continue
        scores, y = np.asarray(part.x @ columns), part.y[:, None]
        share = row_shares(part)
        measured[f"{name}_loss"] = np.asarray(share @ loss.losses(scores, y))
        if data.classes is not None and name != "train":
            correct = loss.predictions(scores) == y
            measured[f"{name}_accuracy"] = np.asarray(
                share @ correct.astype(np.float64)
            )
    return measured


def row_shares(part: Part) -> Array:
    """Return each row's share in a mean over devices of the means over their rows."""
    sizes = part.sizes
    shares = np.zeros(len(sizes))
    has_rows = sizes > 0
    shares[has_rows] = 1 / (has_rows.sum() * sizes[has_rows])
    return np.repeat(shares, sizes)


def measure_devices(data: Dataset, loss: Loss, theta: Array) -> dict[str, Array]:
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
            correct = (loss.predictions(scores) == part.y).astype(np.float64)
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
