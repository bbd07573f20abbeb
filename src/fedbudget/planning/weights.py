"""The weight of each device: a trade-off between noise and bias.

Noise adds sum p_m^2 v_m to the variance of the average. Weights p_m other than the
target's t_m bias the average, by sum (p_m - t_m)^2. For a price kappa of the bias in
units of the variance, the best weights have a closed form:

    minimise  sum p^2 v + kappa sum (p - t)^2   subject to  sum p = 1
    p = (kappa t + nu) / (v + kappa),  nu >= 0 such that they sum to 1

kappa = 0 weighs by inverse variance, kappa = infinity by the target. nu is never
negative, because t / (1 + v / kappa) sums to at most 1: no weight is ever negative.

If devices share the noise of a sum, it is that of the device that needs most: the
largest p_m^2 v_m. See `capped`.

Devices may stop before the last round. All devices share the rounds, so the device with
the smallest budget would end the run for all. Instead, a device may take part in the
first rounds, as many as it can pay for, and stop. The others continue, with their
weights renormalised. The noise of a device suits its own number of steps: a device that
stops early adds less noise per round.
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

# A weight below this share of its target has no effect but that device's spending.
NEGLIGIBLE = 0.01
_MAX_DEVICES = 20_000  # above this number, a sample of devices and fewer candidates
_MAX_ENDS = 10  # numbers of rounds to try; of more, some quantiles
_MAX_PHASES = 6  # of a run, at whose ends devices stop; of more, some quantiles


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighting:
    """Summary sums of candidate weights; `balanced` returns the weights themselves."""

    # Shape (candidates,): the price of bias, or the level of `capped` in a sum;
    # infinity stands for the target.
    kappa: Array
    noise: Array  # variance of the averaged noise, for one step or one round
    sampling: Array  # sum p^2 u, u the variance of a device's batch mean
    bias: Array  # sum (p - t)^2

    def only(self, index: int) -> "Weighting":
        """Return one of the candidates alone."""
        return Weighting(
            kappa=self.kappa[[index]],
            noise=self.noise[[index]],
            sampling=self.sampling[[index]],
            bias=self.bias[[index]],
        )


def check_target(weights: str, target: str) -> None:
    """Raise unless the weights and the target are valid together."""
    one_of("weights", weights, WEIGHTS)
    one_of("target", target, TARGETS)
    if weights not in ("auto", target) and target != TARGETS[0]:
        raise InvalidInputError(
            f"weights {weights!r} are their own target, not {target!r}: leave out one "
            "of them",
            argument="weights",
        )


def target_weights(problem: Problem, weights: str, target: str = "uniform") -> Array:
    """Return the weights of the objective (paper: problem).

    `uniform` gives every device the same weight, as in the paper; `size`, every sample.
    """
    objective = target if weights == "auto" else weights
    size = problem.num_samples if objective == "size" else np.ones(problem.num_devices)
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


def capped(level: float, target: Array, variance: Array) -> Array:
    """Return the weights next to the target that need at most this noise in a sum.

    All devices share one noise, that of the largest p_m sqrt(v_m). So no weight is
    above its cap, level / sqrt(v_m), and what is cut off there is spread evenly: this
    is the projection of the target on such weights. The least level that has any is
    1 / sum(1 / sqrt(v)); there every weight is at its cap, in proportion to X_m mu_m.

    >>> capped(0.1, np.array([0.5, 0.5]), np.array([0.01, 0.09]))
    array([0.66666667, 0.33333333])
    """
    if np.isinf(level):
        return target
    caps = level / np.sqrt(variance)
    if caps.sum() <= 1:  # the least level, or one that rounding put below it
        return np.asarray(caps / caps.sum())
    # Device m is at its cap once the common addition reaches its room.
    room = caps - target
    order = np.argsort(room)
    at_cap = np.concatenate([[0.0], np.cumsum(caps[order])])[:-1]
    below = np.cumsum(target[order][::-1])[::-1]
    addition = (1 - at_cap - below) / np.arange(len(target), 0, -1)
    first = int(np.argmax(addition <= room[order]))
    weights = np.minimum(target + addition[first], caps)
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, kw_only=True)
class OwnNoise:
    """Every device adds the noise that it needs itself: the server sees its upload."""

    def kappas(self, target: Array, variance: Array, powers: Array) -> list[float]:
        """Return prices of bias around the median variance; none if all are equal."""
        del target
        median = float(np.median(variance))
        if np.ptp(variance) <= 1e-9 * median:
            return []
        return [0.0, *(median * 10.0**powers)]

    def weights(self, kappa: float, target: Array, variance: Array) -> Array:
        """Return the weights of one candidate."""
        return balanced(kappa, target, variance)

    def noise(self, weights: Array, variance: Array, present: Bools) -> float:
        """Return the variance of the noise in the average over the present devices."""
        w = np.where(present, weights, 0.0)
        return float(w @ (w * variance)) / float(w.sum()) ** 2

    def allows(self, at_the_end: int) -> bool:
        """Return whether so few devices may take part in the last round."""
        return at_the_end > 0

    def among(self, at_the_end: int, part: float) -> tuple["OwnNoise", float]:
        """Return the rule for a part of the devices, and what the noise of all is.

        That is a factor: sums of squared weights fall as one over their number.
        """
        del at_the_end
        return self, part


@dataclass(frozen=True, kw_only=True)
class SharedNoise(OwnNoise):
    """Devices share the noise of a sum, which is that of the device that needs most.

    A share is for the least number of honest answers. Where more arrive, all of their
    shares are in the sum.
    """

    least_answers: int | None  # t; None: of all devices that take part to the end
    colluders: int

    def kappas(self, target: Array, variance: Array, powers: Array) -> list[float]:
        """Return levels between the least noise and that of the target."""
        std = np.sqrt(variance)
        least, most = 1 / float(np.sum(1 / std)), float(np.max(target * std))
        if most - least <= 1e-9 * most:
            return []
        return list(np.geomspace(least, most, len(powers) + 2)[:-1])

    def weights(self, kappa: float, target: Array, variance: Array) -> Array:
        """Return the weights of one candidate."""
        return capped(kappa, target, variance)

    def noise(self, weights: Array, variance: Array, present: Bools) -> float:
        """Return the variance of the noise in a sum that all of them answer.

        Divided by their weights: devices that stopped early are missing in both.
        """
        honest = max(self._least(int(present.sum())) - self.colluders, 1)
        needed = float(np.max(weights**2 * variance))
        carried = needed * int(present.sum()) / honest
        return carried / float(weights[present].sum()) ** 2

    def _least(self, taking_part: int) -> int:
        return taking_part if self.least_answers is None else self.least_answers

    def allows(self, at_the_end: int) -> bool:
        """Return whether so few devices may take part in the last round."""
        return at_the_end >= self._least(1) and at_the_end > self.colluders

    def among(self, at_the_end: int, part: float) -> tuple[OwnNoise, float]:
        """Return the rule for a part of the devices, and what the noise of all is.

        That is a factor: the square of the largest weight.
        """
        least = self._least(round(at_the_end / part))
        rule = SharedNoise(
            least_answers=max(1, round(least * part)),
            colluders=round(self.colluders * part),
        )
        return rule, part**2


OWN_NOISE = OwnNoise()


def candidate_weights(
    target: Array,
    variance: Array,
    sampling: Array,
    *,
    planned: bool,
    rule: OwnNoise = OWN_NOISE,
) -> Weighting:
    """Return the target alone, or also candidates that need less noise."""
    kappas = [np.inf]
    if planned:
        kappas += rule.kappas(target, variance, np.linspace(-3, 4, 15))
    sums, everybody = [], np.ones(len(target), dtype=np.bool_)
    for kappa in kappas:
        p = rule.weights(kappa, target, variance)
        noise = rule.noise(p, variance, everybody)
        sums.append([noise, p @ (p * sampling), np.sum((p - target) ** 2)])
    noises, batch, bias = np.array(sums).T
    return Weighting(kappa=np.array(kappas), noise=noises, sampling=batch, bias=bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class EarlyStops:
    """A schedule in which some devices stop before the last round."""

    tau: int
    rounds: int
    last_round: NDArray[np.int64]  # shape (M,)

    def variance(self, unit_variance: Array) -> Array:
        """Return each device's noise variance, spread over the steps of all rounds."""
        return np.asarray(unit_variance * self.last_round / self.rounds)


def early_stop_candidates(
    budget: Budget,
    prices: Prices,
    *,
    batch_size: NDArray[np.int64],
    rule: OwnNoise = OWN_NOISE,
) -> Iterator[EarlyStops]:
    """Yield schedules whose last rounds only some devices can pay for."""
    num_devices = len(batch_size)
    fewer = num_devices > _MAX_DEVICES
    taus = (1, 4, 16, 64) if fewer else (1, 3, 7, 15, 30, 60, 120)
    shares = (0.5, 1.0) if fewer else (0.3, 0.7, 1.0)
    for tau in taus:
        each = rounds_each(budget, prices, tau=tau, batch_size=batch_size)
        if each.min() < 1 or each.min() == each.max():
            continue
        ends = np.unique(each)
        if fewer or len(ends) > _MAX_ENDS:
            ends = np.unique(np.quantile(each, shares, method="lower"))
        for rounds in ends:
            if rounds > each.min():
                last = np.broadcast_to(np.minimum(each, rounds), (num_devices,))
                if rule.allows(int((last == rounds).sum())):
                    yield EarlyStops(tau=tau, rounds=int(rounds), last_round=last)


def candidate_weights_with_stops(
    stops: EarlyStops,
    target: Array,
    variance: Array,
    sampling: Array,
    *,
    planned: bool,
    rule: OwnNoise = OWN_NOISE,
) -> Weighting:
    """Return candidate weights, renormalised over the devices still taking part.

    Noise and sampling are means over the rounds. The bias is that of the worst phase,
    since later rounds undo the bias of earlier ones.
    """
    last_round, part = stops.last_round, 1.0
    if len(target) > _MAX_DEVICES:
        sample = slice(None, None, -(-len(target) // _MAX_DEVICES))
        last_round, variance = last_round[sample], variance[sample]
        sampling = sampling[sample]
        # Sums of squared weights fall as one over the number of devices.
        part = len(last_round) / len(target)
        target = target[sample] / target[sample].sum()
    ends = np.unique(last_round)
    rule, noise_part = rule.among(int((last_round == ends[-1]).sum()), part)
    kappas = [np.inf]
    if planned:
        kappas += rule.kappas(target, variance, np.array([-2.0, -1, 0, 1, 2]))
    if len(ends) > _MAX_PHASES:
        ends = np.unique(
            np.quantile(ends, np.linspace(0, 1, _MAX_PHASES), method="lower")
        )
    shares = np.diff(np.concatenate([[0], ends])) / ends[-1]
    sums = []
    for kappa in kappas:
        p = rule.weights(kappa, target, variance)
        phases = []
        for end in ends:
            present = last_round >= end
            w = np.where(present, p, 0.0)
            w = w / w.sum()
            bias = np.sum((w - target) ** 2)
            noise = rule.noise(p, variance, present)
            phases.append([noise, w @ (w * sampling), bias])
        noises, batch, biases = np.array(phases).T
        sums.append([shares @ noises, shares @ batch, biases.max()])
    noises, batch, biases = np.array(sums).T
    return Weighting(
        kappa=np.array(kappas),
        noise=noise_part * noises,
        sampling=part * batch,
        bias=part * biases,
    )


def drop_negligible(weights: Array, target: Array, *, needed: Bools) -> Array:
    """Set negligible weights to 0, so that these devices spend nothing.

    >>> weights, needed = np.array([0.5, 0.499, 0.001]), np.zeros(3, dtype=bool)
    >>> drop_negligible(weights, np.full(3, 1 / 3), needed=needed).round(3)
    array([0.501, 0.499, 0.   ])
    """
    nonzero = np.where((weights < NEGLIGIBLE * target) & ~needed, 0.0, weights)
    return np.asarray(nonzero / nonzero.sum())
