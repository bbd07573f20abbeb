"""What the rows of an evaluation say: means over repeats, intervals, and regret.

Regret is how far a planner falls short of a grid search that reads private validation
rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array
from fedbudget.paper.cases import FIRST_COST, FIRST_EPSILON, Scale
from fedbudget.paper.lab import Row
from fedbudget.paper.planners import PLANNERS, READS

LEVEL = 0.95
_KEYS = ("case", "scheme", "epsilon", "cost")


class Runs:
    """Scored runs, found by case, scheme and budgets; one value per repeat."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            self._found[tuple(row[name] for name in _KEYS)].append(row)

    def rows(
        self, case: str, scheme: str, epsilon: float, cost: float, **only: Any
    ) -> list[Row]:
        """Return the rows of a setting, those with these values only."""
        found = self._found.get((case, scheme, float(epsilon), float(cost)), [])
        return [row for row in found if all(row[name] == only[name] for name in only)]

    def values(
        self,
        case: str,
        scheme: str,
        epsilon: float,
        cost: float,
        *,
        measure: str = "test_accuracy",
        **only: Any,
    ) -> Array:
        """Return one value per repeat, in their order; empty where nothing was run."""
        found = self.rows(case, scheme, epsilon, cost, **only)
        return np.array(
            [row[measure] for row in sorted(found, key=lambda row: int(row["repeat"]))]
        )

    def distinct(
        self, name: str, case: str, scheme: str, epsilon: float, cost: float
    ) -> list[Any]:
        """Return the different values of a column in a setting, in order."""
        return sorted({row[name] for row in self.rows(case, scheme, epsilon, cost)})

    def best(
        self,
        name: str,
        case: str,
        scheme: str,
        epsilon: float,
        cost: float,
        *,
        among: Sequence[Any] | None = None,
        **only: Any,
    ) -> Any:
        """Return the value of a column that did best on validation rows, or None."""
        options = self.distinct(name, case, scheme, epsilon, cost)
        merits = [
            (float(np.mean(values)), option)
            for option in options
            if among is None or option in among
            for values in [
                self.values(
                    case,
                    scheme,
                    epsilon,
                    cost,
                    measure="validation_accuracy",
                    **{name: option},
                    **only,
                )
            ]
            if len(values)
        ]
        # On ties the smaller one: fewer local steps, or a smaller rate.
        return max(merits, key=lambda pair: (pair[0], -pair[1]))[1] if merits else None


def paired(first: Array, second: Array) -> Array:
    """Return the differences over the repeats that both have."""
    count = min(len(first), len(second))
    return np.asarray(first[:count] - second[:count])


def fixed_rates(searches: Iterable[Row]) -> dict[str, float]:
    """Return each case's one learning rate."""
    return {row["case"]: row["learning_rate"] for row in searches}


def own_rate(runs: Runs, case: str, tau: int) -> float:
    """Return the learning rate that suits this tau best, on validation rows."""
    at = case, f"tau={tau}", FIRST_EPSILON, FIRST_COST
    last = max(runs.distinct("rounds", *at))
    return float(runs.best("learning_rate", *at, rounds=last))


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


@dataclass(frozen=True, kw_only=True)
class Regret:
    """Accuracy of the grid's pick less that of a planner's choice, in points."""

    planner: str
    mean: Estimate  # over all cases and budgets
    worst: float
    where: str  # the worst was
    by_case: dict[str, float]
    worst_by_case: dict[str, float]
    seconds: float  # to plan once, on average
    reads: bool  # private rows


def regrets(runs: Runs, plans: Sequence[Row], scale: Scale) -> list[Regret]:
    """Compare every planner with the best point of the full grid."""
    return [_regret(runs, plans, scale, planner) for planner in PLANNERS]


def _regret(runs: Runs, plans: Sequence[Row], scale: Scale, planner: str) -> Regret:
    lost: dict[tuple[str, float, float], Array] = {}
    for case in scale.cases:
        for epsilon, cost in scale.budgets:
            best = runs.values(case.name, "grid-full", epsilon, cost)
            mine = runs.values(case.name, planner, epsilon, cost)
            lost[case.name, epsilon, cost] = 100 * paired(best, mine)
    worst = max(lost, key=lambda key: float(lost[key].mean()))
    means = {
        case.name: [v.mean() for key, v in lost.items() if key[0] == case.name]
        for case in scale.cases
    }
    together = np.mean(list(lost.values()), axis=0)
    taken = [row["seconds"] for row in plans if row["scheme"] == planner]
    return Regret(
        planner=planner,
        mean=mean_interval(together),
        worst=float(lost[worst].mean()),
        where=f"{worst[0]}, eps = {worst[1]:g}, C = {worst[2]:g}",
        by_case={name: float(np.mean(each)) for name, each in means.items()},
        worst_by_case={name: float(np.max(each)) for name, each in means.items()},
        seconds=float(np.mean(taken)),
        reads=READS[planner],
    )
