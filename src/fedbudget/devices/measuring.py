"""Losses and accuracies for the reader of a simulation: not private.

They are read off the devices' own rows, and no guarantee covers them. A figure is the
mean over each device's own rows, then over the devices that have any, as in the paper.
"""

import numpy as np

from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.models import Floats, Loss


def measure(data: Dataset, loss: Loss, theta: Array) -> dict[str, float]:
    """Return the loss on every part, and the accuracy on those not trained on."""
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    found = {}
    for name, part in parts.items():
        if len(part) == 0:
            continue
        scores = loss.scores(theta, part.x)
        found[f"{name}_loss"] = device_mean(part, loss.losses(scores, part.y))
        if data.classes is not None and name != "train":
            right = loss.predictions(scores) == part.y
            found[f"{name}_accuracy"] = device_mean(part, right.astype(np.float64))
    return found


def device_mean(part: Part, values: Floats) -> float:
    """Average the values of each device's rows, then the devices that have any."""
    # Sums up to each row; a device's own are a difference (none for an empty one).
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])[part.offsets]
    some = part.sizes > 0
    return float(np.mean(np.diff(sums)[some] / part.sizes[some]))
