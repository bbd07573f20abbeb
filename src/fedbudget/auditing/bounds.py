"""What trials on two neighbouring tables say about epsilon, from below.

A trial is reduced to one number T. Two bounds follow, each at a stated confidence:

*Free of assumptions.* For any set S, (epsilon, delta) requires
P(T in S | first) <= e^epsilon P(T in S | second) + delta, so

    epsilon >= log((p - delta) / q),  p <= P(T > t | first), q >= P(T > t | second),

with p and q from Clopper and Pearson's exact interval (1934), and the threshold t
chosen on other trials. It holds for any T; with n trials it cannot exceed about log n.

*Gaussian.* If T is normal with the same standard deviation s on both tables, its mu is
the distance of the means over s. Let d be the distance of the sample means and u an
upper limit of s, from the chi-square interval of the pooled variance. Then

    mu >= d / u - z sqrt(1 / n1 + 1 / n2)

with the probability of both intervals together, and epsilon follows from mu (Dong, Roth
and Su 2022, Corollary 2.13). s is estimated and not taken from the claim: otherwise, an
audit would not notice noise that is too small. That T is normal is what part (b) tests.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import needed
from fedbudget.privacy import epsilon_from_mu

_FOR_THRESHOLD = 0.2  # the share of the trials on which the threshold is chosen
_THRESHOLDS = 400  # candidates
_NO_COUNT = 1e-6  # a smaller expected count is none
# Shares of the error probability. The variance is known far better than the mean.
_FREE, _MEAN, _VARIANCE = 0.5, 0.45, 0.05


def scipy_stats() -> Any:
    """Import scipy.stats, or raise a `MissingExtraError`."""
    with needed("fedbudget audit", "scipy"):
        from scipy import stats
    return stats


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """One number per trial, of runs on both tables."""

    first: Array
    second: Array

    def __len__(self) -> int:
        return len(self.first) + len(self.second)


@dataclass(frozen=True, kw_only=True)
class LowerBounds:
    """What trials say about epsilon, at a delta."""

    trials: int  # on both tables together
    delta: float
    confidence: float  # of both lower bounds together
    free: float  # lower bound without assumptions
    gaussian: float  # lower bound for a normal statistic
    best_fit: float  # the epsilon of the estimated mu: no bound
    mu: float  # estimated

    @property
    def largest(self) -> float:
        """The larger lower bound."""
        return max(self.free, self.gaussian)


def lower_bounds(trials: Trials, *, delta: float, error: float) -> LowerBounds:
    """Return both bounds; with probability at most `error`, one of them is too high."""
    low, mu = _gaussian_mu(trials, mean=_MEAN * error, variance=_VARIANCE * error)
    return LowerBounds(
        trials=len(trials),
        delta=delta,
        confidence=1 - error,
        free=_free_epsilon(trials, delta=delta, error=_FREE * error),
        gaussian=_epsilon(low, delta),
        best_fit=_epsilon(mu, delta),
        mu=mu,
    )


def _epsilon(mu: float, delta: float) -> float:
    return float(epsilon_from_mu(mu, delta)) if mu > 0 else 0.0


def _gaussian_mu(
    trials: Trials, *, mean: float, variance: float
) -> tuple[float, float]:
    """Return a lower limit of mu, and the estimate."""
    stats = scipy_stats()
    distance = float(trials.first.mean() - trials.second.mean())
    freedom = len(trials) - 2
    squares = sum(
        float(np.sum((side - side.mean()) ** 2))
        for side in (trials.first, trials.second)
    )
    upper = math.sqrt(squares / stats.chi2.ppf(variance, freedom))
    spread = math.sqrt(1 / len(trials.first) + 1 / len(trials.second))
    low = distance / upper - float(stats.norm.isf(mean)) * spread
    return low, distance / math.sqrt(squares / freedom)


def _free_epsilon(trials: Trials, *, delta: float, error: float) -> float:
    """Return Clopper and Pearson's bound, at a threshold from other trials."""
    sides = (trials.first, trials.second)
    cuts = [max(2, int(_FOR_THRESHOLD * len(side))) for side in sides]
    threshold = _threshold(
        Trials(first=sides[0][: cuts[0]], second=sides[1][: cuts[1]]),
        counts=[len(side) - cut for side, cut in zip(sides, cuts, strict=True)],
        delta=delta,
        error=error,
    )
    tests = [side[cut:] for side, cut in zip(sides, cuts, strict=True)]
    above = [np.array([float((side > threshold).sum())]) for side in tests]
    bound = _clopper_pearson(above, [len(side) for side in tests], delta, error)
    return float(bound[0])


def _threshold(
    trials: Trials, *, counts: list[int], delta: float, error: float
) -> float:
    """Return the threshold that promises the best bound on `counts` other trials.

    It is chosen as if the statistic were normal. If it is not, the bound may be lower
    than it could be, but it still holds.
    """
    stats = scipy_stats()
    sides = (trials.first, trials.second)
    low, high = trials.second.mean(), trials.first.mean() + 4 * trials.first.std()
    candidates = np.linspace(low, high, _THRESHOLDS)
    expected = [
        count * stats.norm.sf(candidates, side.mean(), max(float(side.std()), 1e-300))
        for count, side in zip(counts, sides, strict=True)
    ]
    bounds = _clopper_pearson(expected, counts, delta, error)
    return float(candidates[int(np.argmax(bounds))])


def _clopper_pearson(
    above: list[Array], counts: list[int], delta: float, error: float
) -> Array:
    """Return log((p - delta) / q), with p from below and q from above; at least 0."""
    beta = scipy_stats().beta
    below = counts[1] - above[1]
    # Expected counts may be tiny: there the quantiles are 0 and 1, and SciPy overflows.
    none, every = above[0] < _NO_COUNT, below < _NO_COUNT
    p = beta.ppf(error / 2, np.where(none, 1.0, above[0]), counts[0] - above[0] + 1)
    q = beta.isf(error / 2, above[1] + 1, np.where(every, 1.0, below))
    p, q = np.where(none, 0.0, p), np.where(every, 1.0, q)
    ratio = np.maximum(p - delta, 0.0) / q
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(ratio), 0.0))
