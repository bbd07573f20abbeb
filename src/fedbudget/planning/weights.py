"""How much each device counts: noise against bias from the target objective.

Noise adds sum p_m^2 v_m to the variance; weights other than the target's t_m pull the
average away from what is to be minimised, by sum (p_m - t_m)^2. For a price kappa of
the second in units of the first, the best weights have a closed form:

    minimise  sum p^2 v + kappa sum (p - t)^2   subject to  sum p = 1
    p = (kappa t + nu) / (v + kappa),  nu >= 0 such that they sum to 1

kappa = 0 weighs by inverse variance, kappa = infinity by the target. nu is never
negative, because t / (1 + v / kappa) sums to at most 1: no weight is ever negative.

Devices may leave before the end. Rounds are common to all devices, and the poorest
could end a run for everybody. Instead a device may take part in the first rounds, as
many as it can pay for, and leave; the others go on, with their weights renormalised.
Its noise is for its own steps alone, so that a device which leaves early adds less of
it while it is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, one_of
from fedbudget.errors import InvalidInputError
from fedbudget.ledger import Bools
from fedbudget.planning.settings import rounds_each
from fedbudget.problem import Problem

TARGETS = ("uniform", "size")
WEIGHTS = ("auto", *TARGETS)

# A weight below this share of its target changes nothing but that device's spending.
TRIFLE = 0.01
_MANY = 20_000  # devices; of more, a sample stands for all, and less is tried
_FEW = 10  # ends of a run: so many are all tried, of more some
_PHASES = 6  # of a run, between which devices leave, that are told apart


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighting:
    """Candidate weights, summed up; the weights themselves are made when chosen."""

    kappa: Array  # shape (candidates,); infinite is the target itself
    noise: Array  # sum p^2 v
    sampling: Array  # sum p^2 u, u the variance of a device's batch mean
    bias: Array  # sum (p - t)^2


def check_target(weights: str, target: str) -> None:
    """Raise unless the weights are known and may aim at the target."""
    one_of("weights", weights, WEIGHTS)
    one_of("target", target, TARGETS)
    if weights not in ("auto", target) and target != TARGETS[0]:
        raise InvalidInputError(
            f"weights {weights!r} are their own target, not {target!r}: leave one of "
            "them out",
            argument="weights",
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaving:
    """One way to go on after the poorest devices have left."""

    tau: int
    rounds: int
    last_round: NDArray[np.int64]  # shape (M,)

    def variance(self, unit_variance: Array) -> Array:
        """Return the noise of each device as if it spread over all rounds' steps."""
        return np.asarray(unit_variance * self.last_round / self.rounds)


def ways_to_leave(
    budget: Budget, prices: Prices, *, batch_size: NDArray[np.int64]
) -> Iterator[Leaving]:
    """Yield candidates whose last rounds only some devices pay for."""
    num_devices = len(batch_size)
    few = num_devices > _MANY
    taus = (1, 4, 16, 64) if few else (1, 3, 7, 15, 30, 60, 120)
    shares = (0.5, 1.0) if few else (0.3, 0.7, 1.0)
    for tau in taus:
        each = rounds_each(budget, prices, tau=tau, batch_size=batch_size)
        if each.min() < 1 or each.min() == each.max():
            continue
        ends = np.unique(each)
        if few or len(ends) > _FEW:
            ends = np.unique(np.quantile(each, shares, method="lower"))
        for rounds in ends:
            if rounds > each.min():
                last = np.broadcast_to(np.minimum(each, rounds), (num_devices,))
                yield Leaving(tau=tau, rounds=int(rounds), last_round=last)


def weigh_leaving(
    way: Leaving, target: Array, variance: Array, sampling: Array, *, planned: bool
) -> Weighting:
    """Sum up candidate weights, renormalised over whoever is still there.

    Noise and sampling are means over the rounds; the bias is the worst phase's, since
    a model forgets what the rounds before the last ones pulled it to.
    """
    last_round, part = way.last_round, 1.0
    if len(target) > _MANY:
        every = slice(None, None, -(-len(target) // _MANY))
        last_round, variance = last_round[every], variance[every]
        sampling = sampling[every]
        # Sums of squared weights fall as one over the number of devices.
        part = len(last_round) / len(target)
        target = target[every] / target[every].sum()
    middle = float(np.median(variance))
    kappas = [np.inf]
    if planned:
        kappas += [0.0, *(middle * 10.0 ** np.array([-2.0, -1, 0, 1, 2]))]
    ends = np.unique(last_round)
    if len(ends) > _PHASES:
        ends = np.unique(np.quantile(ends, np.linspace(0, 1, _PHASES), method="lower"))
    shares = np.diff(np.concatenate([[0], ends])) / ends[-1]
    sums = []
    for kappa in kappas:
        p = balanced(kappa, target, variance)
        phases = []
        for end in ends:
            w = np.where(last_round >= end, p, 0.0)
            w = w / w.sum()
            bias = np.sum((w - target) ** 2)
            phases.append([w @ (w * variance), w @ (w * sampling), bias])
        noise, batch, bias = np.array(phases).T
        sums.append([shares @ noise, shares @ batch, bias.max()])
    columns = part * np.array(sums).T
    return Weighting(
        kappa=np.array(kappas), noise=columns[0], sampling=columns[1], bias=columns[2]
    )


def without_trifles(weights: Array, target: Array, *, needed: Bools) -> Array:
    """Set weights that change nothing to zero: such a device need not spend anything.

    >>> weights, nobody = np.array([0.5, 0.499, 0.001]), np.zeros(3, dtype=bool)
    >>> without_trifles(weights, np.full(3, 1 / 3), needed=nobody).round(3)
    array([0.501, 0.499, 0.   ])
    """
    kept = np.where((weights < TRIFLE * target) & ~needed, 0.0, weights)
    return np.asarray(kept / kept.sum())
