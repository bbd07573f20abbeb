"""What rows that are not private say about the loss, mode by mode.

A mode is an eigenvector v of the sample's second moment, E x x^T, with eigenvalue l.
At theta = 0, the curvature of the loss along v is c l, for a constant c of the loss
(logistic 1/4, softmax 1/C, huber 1; for hinge, HINGE_CURVATURE), and the gradient is
g = E s (x v), s the slope. A quadratic with that slope and curvature h gains
g^2 / (2 h) along v: the part of the initial gap that lies in this mode.

The mean of n rows has a squared gradient that is too large by its own variance,
Var(s (x v)) / n, which is subtracted. What is then not above its sampling error is
noise, and counts as zero.
"""

from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Floats, Labels, Loss

# A squared gradient below this multiple of its sampling variance counts as zero: for a
# gradient that is pure noise, 1 in 22 is above it.
_SIGNIFICANT = 4.0
# The mean curvature of hinge between zero and the optimum, over that of a square: by
# benchmarks/fit_spectrum.py. At zero itself it is flat.
HINGE_CURVATURE = 0.43
_SMALLEST = 1e-9  # eigenvalue, relative to the largest one


@dataclass(frozen=True, kw_only=True, eq=False)
class Modes:
    """Modes of a public sample, steepest first; arrays have one entry per mode."""

    num_rows: int
    eigenvalue: Array  # of the rows' second moment
    gap: Array  # of the loss, along the mode; summed over a softmax's classes
    loss_at_zero: float
    gradient_variance: float  # of one row, summed over the parameters
    label_spread: float  # root mean square label; of use for regression

    def constants(self, model: Loss, *, share: float) -> dict[str, float]:
        """Return the constants of a problem that these modes replace.

        `share` is the mean curvature up to the optimum, over that at zero.
        """
        smooth = np.isfinite(model.curvature)
        steepest = float(self.eigenvalue[0]) * (model.curvature if smooth else 1.0)
        values = {
            "smoothness": steepest + model.l2,
            "hessian_trace": share
            * curvature_at_zero(model)
            * max(1, model.num_outputs - 1)
            * float(self.eigenvalue.sum()),
            "gradient_variance": self.gradient_variance,
            "spike_share": float(self.eigenvalue[0] / self.eigenvalue.sum()),
        }
        if model.name == "huber":
            values["label_spread"] = min(self.label_spread / model.label_bound, 1.0)  # type: ignore[attr-defined]
        if self.gap.sum() > 0:
            share = float(self.gap.sum()) / max(self.loss_at_zero, 1e-9)
            values["learnable_share"] = float(np.clip(share, *_LEARNABLE))
            values["spike_gap"] = float(self.gap[0] / self.gap.sum())
        return values


_LEARNABLE = (0.05, 0.95)  # a smaller or larger share is an error of a small sample


def measure_sample(model: Loss, x: Floats, y: Labels) -> Modes:
    """Measure curvature, gap and gradients on public rows in the unit ball."""
    labels = _checked(model, x, y)
    rows = x.astype(np.float64)
    eigenvalues, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    order = np.argsort(-eigenvalues)
    order = order[eigenvalues[order] > _SMALLEST * eigenvalues[order[0]]]
    eigenvalues, along = eigenvalues[order], rows @ vectors[:, order]
    slopes = model.slopes(np.zeros((len(x), model.num_outputs)), labels)
    if model.num_outputs == 1:
        slopes = model.slopes(np.zeros(len(x)), labels)[:, None]
    # Shape (outputs, modes): the mean gradient along every mode, and its variance.
    gradient = slopes.T @ along / len(x)
    variance = np.maximum((slopes**2).T @ along**2 / len(x) - gradient**2, 0)
    squared, noise = (gradient**2).sum(0), variance.sum(0) / len(x)
    signal = np.where(squared > _SIGNIFICANT * noise, squared - noise, 0.0)
    curvature = curvature_at_zero(model) * eigenvalues
    at_zero = model.losses(
        np.zeros((len(x), model.num_outputs))
        if model.num_outputs > 1
        else np.zeros(len(x)),
        labels,
    )
    return Modes(
        num_rows=len(x),
        eigenvalue=eigenvalues,
        gap=signal / (2 * curvature),
        loss_at_zero=float(np.mean(at_zero)),
        gradient_variance=float(variance.sum()),
        label_spread=float(np.sqrt(np.mean(np.square(labels, dtype=np.float64)))),
    )


def curvature_at_zero(model: Loss) -> float:
    """Return the second derivative by a score at theta = 0; for hinge, a mean."""
    if model.num_outputs > 1:
        return 1 / model.num_outputs
    return model.curvature if np.isfinite(model.curvature) else HINGE_CURVATURE


def _checked(model: Loss, x: Floats, y: Labels) -> Labels:
    """Return the labels; refuse rows outside the unit ball, and unknown classes."""
    if len(x) < 2 or y.shape != (len(x),):
        raise InvalidInputError(
            f"the public sample has {len(x)} rows and labels of shape {y.shape}: give "
            "at least 2 rows and one label each"
        )
    longest = float(np.linalg.norm(x, axis=1).max())
    if not 0 < longest <= 1 + 1e-6:
        raise InvalidInputError(
            f"the longest row of the public sample has norm {longest:g}, not above 0 "
            "and at most 1: scale each row into the unit ball, as the private rows are"
        )
    if model.name == "huber":
        return y
    classes = max(2, model.num_outputs)
    if not np.isin(y, np.arange(classes)).all():
        raise InvalidInputError(
            f"labels of the public sample must be 0 .. {classes - 1}, got {y.min()} .. "
            f"{y.max()}"
        )
    return y.astype(np.int64)
