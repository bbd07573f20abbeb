"""A device's personal model: the released model, adapted to its own rows, with NumPy.

The model never leaves the device, so it costs no privacy. It is the same idea as
`simulation.personal`, with fewer candidates: the released model, and fits of the own
rows that are regularised towards it, at several strengths. Cross-validation weighs
them: a candidate's weight falls exponentially with its total loss on rows that it has
not seen. So few rows change little, and many rows much.
"""

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.losses import Loss, SmoothHinge

STRENGTHS = (1.0, 0.1, 0.01, 1e-3)  # of the regularisation towards the released model
TEMPERATURE = 5.0  # a total loss higher by this much has 1/e of the weight
_FOLDS = 5
_FIT_WIDTH = 0.1  # of the kink of hinge, rounded for a gradient
_STEPS = 300  # of accelerated gradient descent, for each fit


def adapted(loss: Loss, theta: Array, rows: ExactRows) -> Array:
    """Return the personal model of these rows.

    Raises:
        InvalidInputError: There are too few rows for cross-validation.
    """
    if len(rows) < 2 * _FOLDS:
        raise InvalidInputError(
            f"{len(rows)} rows are too few to adapt a model: {2 * _FOLDS} are needed"
        )
    smooth = SmoothHinge(width=_FIT_WIDTH) if loss.name == "hinge" else loss
    fold = np.arange(len(rows)) % _FOLDS
    totals = np.zeros(1 + len(STRENGTHS))
    for number in range(_FOLDS):
        seen, held_out = _part(rows, fold != number), _part(rows, fold == number)
        for index, model in enumerate(_candidates(smooth, theta, seen)):
            scores = loss.scores(model, held_out.x)
            totals[index] += float(np.sum(loss.losses(scores, held_out.y)))
    weights = np.exp(-(totals - totals.min()) / TEMPERATURE)
    models = np.stack(_candidates(smooth, theta, rows))
    return np.asarray(weights / weights.sum() @ models)


def _candidates(loss: Loss, theta: Array, rows: ExactRows) -> list[Array]:
    """Return the released model and the fits, the strongest regularisation first."""
    models = [theta]
    for strength in STRENGTHS:
        models.append(_fit(loss, theta, models[-1], rows, strength))
    return models


def _fit(
    loss: Loss, centre: Array, start: Array, rows: ExactRows, strength: float
) -> Array:
    """Minimise the loss plus strength / 2 times the squared distance to the centre."""
    x, y = rows.x.astype(np.float64), rows.y
    step = 1 / (loss.curvature + strength)
    ratio = np.sqrt(strength * step)
    momentum = (1 - ratio) / (1 + ratio)  # Nesterov's, for strongly convex functions
    model, last = start, start
    for _ in range(_STEPS):
        ahead = model + momentum * (model - last)
        slope = loss.gradient(ahead, x, y) + strength * (ahead - centre)
        last, model = model, ahead - step * slope
    return np.asarray(model)


def _part(rows: ExactRows, mask: NDArray[np.bool_]) -> ExactRows:
    return ExactRows(x=rows.x[mask], y=rows.y[mask])
