"""Means over repeats, and intervals for them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its interval, which is nan where there is one value only."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval leaves no doubt, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def mean_interval(values: ArrayLike) -> Estimate:
    """Return the mean and its 95% interval by Student's t.

    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    if len(x) < 2:
        return Estimate(mean=mean, low=float("nan"), high=float("nan"))
    half = float(
        stats.t.ppf((1 + LEVEL) / 2, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5
    )
    return Estimate(mean=mean, low=mean - half, high=mean + half)
