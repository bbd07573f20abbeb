"""When not to federate: a comparison with doing nothing together, before any data.

The spectral model answers for all three, in the loss on a device's own rows:

    federated   the plan's predicted loss, plus what a common model costs unlike devices
    alone       a fit of N_m rows: what they cannot tell yet, less with every row
    constant    everything there is to learn but the first, steepest direction

It is a model's answer like the predicted loss itself: good for a warning, no proof.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.planning.spectral import Spectrum
from fedbudget.problem import Problem

# The model is not better than this: what is closer counts as equal.
_EQUAL = 0.1
# A difference in a measured accuracy that is not worth a word, and the same for a loss,
# as a share of it.
_POINTS, _SHARE = 0.005, 0.02


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted losses above the best that each device could have on its own rows."""

    federated: float
    alone: float
    constant: float

    @property
    def text(self) -> str:
        """One line if federating is not predicted to pay; empty if it is."""
        if self.federated >= self.constant * (1 - _EQUAL):
            return (
                "federating may not pay: a constant guess is predicted to be as good "
                f"(loss {self.constant:.3g} above the best, against "
                f"{self.federated:.3g}); raise epsilon or cost"
            )
        if self.federated >= self.alone * (1 - _EQUAL):
            return (
                "federating may not pay: devices that train alone and send nothing are "
                f"predicted to be as good on their own rows (loss {self.alone:.3g} "
                f"above the best, against {self.federated:.3g}); compare with "
                "personal models (personal=True, --personal)"
            )
        return ""


def advise(problem: Problem, predicted_loss: float) -> Forecast:
    """Predict what federating, staying alone and guessing would come to."""
    spectrum = Spectrum.of(problem)
    learnable = float(np.sum(spectrum.count * spectrum.gap))
    # A common model is off each device's own optimum by its dissimilarity's share.
    apart = problem["dissimilarity"] ** 2 * learnable
    return Forecast(
        federated=predicted_loss + apart,
        alone=float(np.mean(loss_alone(spectrum, problem.num_samples))),
        constant=learnable - float(spectrum.gap[0]),
    )


def loss_alone(spectrum: Spectrum, num_samples: NDArray[np.int64]) -> Array:
    """Predict the loss of a fit of N rows above that of one with endless rows.

    A fit with an L2 term of weight s keeps s / (h + s) of the gap along a mode of
    curvature h, and adds h^2 / (2 N (h + s)^2) for the rows it has not seen: for a
    likelihood, a gradient varies by as much as the loss curves. The best s is taken.
    """
    h, n, gap = spectrum.curvature, spectrum.count, spectrum.gap
    sizes, places = np.unique(num_samples, return_inverse=True)
    strengths = np.geomspace(1e-7, 10, 60)[:, None]
    kept = (strengths / (h + strengths)) ** 2
    spread = 0.5 * (h / (h + strengths)) ** 2
    bias, variance = kept @ (n * gap), spread @ n  # shape (strengths,)
    best = np.min(bias[:, None] + variance[:, None] / sizes, axis=0)
    return np.asarray(best[places])


def better(metric: str, one: float, other: float) -> bool:
    """Say whether a measured number is better by enough to be worth a word.

    >>> better("test_accuracy", 0.83, 0.82), better("test_accuracy", 0.823, 0.82)
    (True, False)
    """
    if metric.endswith("accuracy"):
        return one - other > _POINTS
    return other - one > _SHARE * abs(other)


def advice_of(measured: Mapping[str, float]) -> str | None:
    """Say whether federating paid, by what a run measured with `personal=True`.

    Empty if it did, None if that was not measured. Measurements are not private.
    """
    what = "test_accuracy" if "alone_test_accuracy" in measured else "test_loss"
    if f"alone_{what}" not in measured:
        return None
    names = ("", "personal_", "alone_", "constant_")
    reached, personal, alone, constant = (measured[f"{n}{what}"] for n in names)

    word, shown = what.replace("_", " "), f"{reached:.4f}"
    if not better(what, reached, constant):
        return (
            f"federating did not pay: {word} {shown}, no better than a constant "
            f"guess, {constant:.4f}"
        )
    if better(what, reached, alone):
        return ""
    if better(what, personal, alone):
        return (
            f"federating pays only with personal models: {word} {personal:.4f} "
            f"after adapting, against {alone:.4f} of devices alone and {shown} of "
            "the global model"
        )
    return (
        f"federating did not pay: {word} {shown} ({personal:.4f} after adapting), no "
        f"better than devices alone, {alone:.4f}"
    )
