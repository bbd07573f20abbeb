"""When not to federate: compare federated training with two simple baselines.

The spectral model predicts the excess loss on a device's own rows for all three:

    federated    the plan's predicted loss, plus the loss of sharing one model between
                 heterogeneous (unlike) devices
    local only   a fit to the device's own N_m rows: its estimation error
    constant     all that can be learned, except along the steepest direction

Local-only training is advised wherever it is predicted to be as good. A constant is
advised only where local-only training is not predicted to be better than it, either.
Like the predicted loss, this is a model's estimate: benchmarks/regret.py counts how
often it is wrong, and docs/explanation/planning.md has the counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.metrics import ORDERED
from fedbudget.planning.spectral import Spectrum
from fedbudget.problem import Problem

# The accuracy of the model: a smaller relative difference counts as equal.
_EQUAL = 0.1
# Negligible differences: of a measured accuracy, and of a loss as a share of it.
_POINTS, _SHARE = 0.005, 0.02


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted excess losses over the best model of each device's own data."""

    federated: float
    local_only: float
    constant: float

    @property
    def text(self) -> str:
        """One line if federating is not predicted to pay, otherwise empty."""
        useless = self.constant * (1 - _EQUAL)
        if self.federated >= useless and self.local_only >= useless:
            return (
                "federating may not pay: a constant guess is predicted to be as good "
                f"(excess loss {self.constant:.3g}, federated "
                f"{self.federated:.3g}); raise epsilon or cost"
            )
        if self.federated >= self.local_only * (1 - _EQUAL):
            return (
                "federating may not pay: local-only training is predicted to be as "
                f"good on each device's own rows (excess loss {self.local_only:.3g}, "
                f"federated {self.federated:.3g}); compare with personal models "
                "(personal=True, --personal)"
            )
        return ""


def advise(problem: Problem, predicted_loss: float) -> Forecast:
    """Predict the loss of federated training, local-only training and a constant."""
    spectrum = Spectrum.of(problem)
    learnable = spectrum.learnable
    # The excess loss of a common model on a device's own rows. Devices differ most in
    # how frequent their classes are, so that it is a share of the whole loss.
    mismatch = problem["dissimilarity"] ** 2 * problem["initial_gap"]
    return Forecast(
        federated=predicted_loss + mismatch,
        local_only=float(
            np.mean(
                local_only_loss(
                    spectrum, problem.num_samples, dispersion=_dispersion(problem)
                )
            )
        ),
        constant=learnable * (1 - problem["spike_gap"]),
    )


def _dispersion(problem: Problem) -> float:
    """Return the variance of the slopes at the optimum, over the curvature.

    It is 1 for a likelihood. For a square it is that of the residuals, twice the loss
    that cannot be learned.
    """
    if problem.model.name != "huber":
        return 1.0
    rest = 1 - min(problem["learnable_share"], 1.0)
    return 2 * rest * problem["initial_gap"]


def local_only_loss(
    spectrum: Spectrum, num_samples: NDArray[np.int64], *, dispersion: float = 1.0
) -> Array:
    """Predict the excess loss of a fit to N rows over a fit to infinitely many rows.

    Along a mode of curvature h, a fit with an L2 term of weight s has two errors. The
    bias is (s / (h + s))^2 of the gap. The variance is D h^2 / (2 N (h + s)^2), where
    the variance of the gradient is D times the curvature: for a likelihood, D = 1. s is
    the best one.
    """
    h, n, gap = spectrum.curvature, spectrum.count, spectrum.gap
    sizes, inverse = np.unique(num_samples, return_inverse=True)
    strengths = np.geomspace(1e-7, 10, 60)[:, None]
    shrinkage = (strengths / (h + strengths)) ** 2
    spread = 0.5 * dispersion * (h / (h + strengths)) ** 2
    bias, variance = shrinkage @ (n * gap), spread @ n  # shape (strengths,)
    best = np.min(bias[:, None] + variance[:, None] / sizes, axis=0)
    return np.asarray(best[inverse])


def better(metric: str, one: float, other: float) -> bool:
    """Return whether a measurement is better by more than a negligible difference.

    >>> better("test_accuracy", 0.83, 0.82), better("test_accuracy", 0.823, 0.82)
    (True, False)
    """
    if metric.endswith("accuracy"):
        return one - other > _POINTS
    return other - one > _SHARE * abs(other)


def advice_of(measured: Mapping[str, float]) -> str | None:
    """Return a line if federating did not pay, as measured with `personal=True`.

    Empty if it paid, None if it was not measured. Measurements are not private.
    """
    metric = "test_accuracy" if "alone_test_accuracy" in measured else "test_loss"
    if f"alone_{metric}" not in measured:
        return None
    names = ("", "personal_", "alone_", "constant_")
    federated, personal, local_only, constant = (
        measured[f"{n}{metric}"] for n in names
    )

    label, shown = metric.replace("_", " "), f"{federated:.4f}"
    if not better(metric, federated, constant):
        if measured.get("test_auc", 0.0) >= ORDERED:
            return ""  # a rare class: accuracies tell nothing, and cautions say it
        return (
            f"federating did not pay: {label} {shown}, no better than a constant "
            f"guess, {constant:.4f}"
        )
    if better(metric, federated, local_only):
        return ""
    if better(metric, personal, local_only):
        return (
            f"federating pays only with personal models: {label} {personal:.4f} "
            f"after adapting, against {local_only:.4f} local only and {shown} of "
            "the global model"
        )
    return (
        f"federating did not pay: {label} {shown} ({personal:.4f} after adapting), no "
        f"better than local-only training, {local_only:.4f}"
    )
