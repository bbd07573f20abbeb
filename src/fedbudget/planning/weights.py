"""How much each device counts: noise against bias from the target objective.

Noise adds sum p_m^2 v_m to the variance; weights other than the target's t_m pull the
average away from what is to be minimised, by sum (p_m - t_m)^2. For a price kappa of
the second in units of the first, the best weights have a closed form:

    minimise  sum p^2 v + kappa sum (p - t)^2   subject to  sum p = 1
    p = (kappa t + nu) / (v + kappa),  nu >= 0 such that they sum to 1

kappa = 0 weighs by inverse variance, kappa = infinity by the target. nu is never
negative, because t / (1 + v / kappa) sums to at most 1: no weight is ever negative.
"""

from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array, choice
from fedbudget.errors import InvalidInputError
from fedbudget.problem import Problem

TARGETS = ("uniform", "size")
WEIGHTS = ("auto", *TARGETS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighting:
    """Candidate weights, summed up; the weights themselves are made when chosen."""

    kappa: Array  # shape (candidates,); infinite is the target itself
    noise: Array  # sum p^2 v
    sampling: Array  # sum p^2 u, u the variance of a device's batch mean
    bias: Array  # sum (p - t)^2


def check_target(weights: str, target: str) -> None:
    """Raise unless the weights are known and may aim at the target."""
    choice("weights", weights, WEIGHTS)
    choice("target", target, TARGETS)
    if weights not in ("auto", target) and target != TARGETS[0]:
        raise InvalidInputError(
            f"weights {weights!r} are their own target, not {target!r}: leave one of "
            "them out"
        )


def target_weights(problem: Problem, weights: str, target: str = "uniform") -> Array:
    """Return the weights of the objective (paper: problem).

    Uniform weighs every device alike, as the paper does; size weighs every sample.
    """
    aim = target if weights == "auto" else weights
    size = problem.num_samples if aim == "size" else np.ones(problem.num_devices)
    return np.asarray(size / size.sum())


def balanced(kappa: float, target: Array, variance: Array) -> Array:
    """Return the best weights for one price of bias.

    >>> balanced(0.0, np.array([0.5, 0.5]), np.array([1.0, 3.0]))
    array([0.75, 0.25])
    """
    if np.isinf(kappa):
        return target
    scale = 1 / (variance + kappa)
    nu = (1 - np.sum(kappa * target * scale)) / np.sum(scale)
    return np.asarray((kappa * target + nu) * scale)


def candidate_weights(
    target: Array, variance: Array, sampling: Array, *, planned: bool
) -> Weighting:
    """Sum up the candidates: only the target, or a range of kappa around `variance`."""
    middle = float(np.median(variance))
    kappas = [np.inf]
    if planned and np.ptp(variance) > 1e-9 * middle:
        kappas += [0.0, *(middle * 10.0 ** np.linspace(-3, 4, 15))]
    sums = []
    for kappa in kappas:
        p = balanced(kappa, target, variance)
        sums.append([p @ (p * variance), p @ (p * sampling), np.sum((p - target) ** 2)])
    noise, batch, bias = np.array(sums).T
    return Weighting(kappa=np.array(kappas), noise=noise, sampling=batch, bias=bias)
