"""Statistics of an evaluation's rows: means over repeats, intervals and regret.

Regret is the accuracy that a planner loses to a grid search that reads private
validation rows.
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
from fedbudget.paper.planners import PLANNERS, PRINTED, READS_PRIVATE_ROWS

LEVEL = 0.95
_KEYS = ("case", "scheme", "epsilon", "cost")


class Runs:
    """Scored runs by case, scheme and budgets; one value per repeat."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            self._rows[tuple(row[name] for name in _KEYS)].append(row)

    def rows(
        self, case: str, scheme: str, epsilon: float, cost: float, **only: Any
    ) -> list[Row]:
        """Return the rows of a setting that have these values."""
        rows = self._rows.get((case, scheme, float(epsilon), float(cost)), [])
        return [row for row in rows if all(row[name] == only[name] for name in only)]

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
        """Return one value per repeat, in order; empty if nothing was run."""
        rows = self.rows(case, scheme, epsilon, cost, **only)
        return np.array(
            [row[measure] for row in sorted(rows, key=lambda row: int(row["repeat"]))]
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
        """Return the value of a column that is best on validation rows, or None."""
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
        # On ties the smaller value: fewer local steps, or a smaller rate.
        return max(merits, key=lambda pair: (pair[0], -pair[1]))[1] if merits else None


def baseline_accuracies(baselines: Iterable[Row], case: str, name: str) -> list[float]:
    """Return the test accuracies of a baseline without a privacy budget."""
    return [
        row["test_accuracy"]
        for row in baselines
        if (row["case"], row["baseline"]) == (case, name)
    ]


def printed_epsilon(runs: Runs, scale: Scale, epsilon: float) -> float:
    """Return the largest epsilon that the printed noise spends for this budget."""
    return max(
        float(row["spent_epsilon"])
        for case in scale.cases
        for row in runs.rows(case.name, PRINTED, epsilon, FIRST_COST)
    )


def paired(first: Array, second: Array) -> Array:
    """Return the differences over the repeats that both have."""
    count = min(len(first), len(second))
    return np.asarray(first[:count] - second[:count])


def fixed_rates(searches: Iterable[Row]) -> dict[str, float]:
    """Return the learning rate of each case, as in the paper: one per case."""
    return {row["case"]: row["learning_rate"] for row in searches}


def own_rate(runs: Runs, case: str, tau: int) -> float:
    """Return the learning rate that suits this tau best, on validation rows."""
    at = case, f"tau={tau}", FIRST_EPSILON, FIRST_COST
    last = max(runs.distinct("rounds", *at))
    return float(runs.best("learning_rate", *at, rounds=last))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and its interval, which is nan if there is only one value."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """+1 or -1 if the interval excludes zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def mean_interval(values: ArrayLike) -> Estimate:
    """Return the mean and its 95% interval by Student's t.

    >>> estimate = mean_interval([1.0, 2.0, 3.0])
    >>> round(estimate.mean, 3), round(estimate.low, 3), round(estimate.high, 3)
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
    """Accuracy of the grid's selected point minus that of a planner's, in points."""

    planner: str
    mean: Estimate  # over all cases and budgets
    worst: float
    where: str  # case and budget of the worst regret
    by_case: dict[str, float]
    worst_by_case: dict[str, float]
    lower_losses: dict[str, int]  # budgets at which its test loss is below the grid's
    seconds: float  # mean time of one plan
    reads: bool  # whether the planner's choice depends on private rows


def regrets(runs: Runs, plans: Sequence[Row], scale: Scale) -> list[Regret]:
    """Compare every planner with the best point of the full grid."""
    return [_regret(runs, plans, scale, planner) for planner in PLANNERS]


def _regret(runs: Runs, plans: Sequence[Row], scale: Scale, planner: str) -> Regret:
    regret: dict[tuple[str, float, float], Array] = {}
    lower_losses = {case.name: 0 for case in scale.cases}
    for case in scale.cases:
        for budget in scale.budgets:
            grid, planned = (
                (case.name, "grid-full", *budget),
                (case.name, planner, *budget),
            )
            regret[case.name, *budget] = 100 * paired(
                runs.values(*grid), runs.values(*planned)
            )
            saved = paired(
                runs.values(*grid, measure="test_loss"),
                runs.values(*planned, measure="test_loss"),
            )
            lower_losses[case.name] += bool(saved.mean() > 0)
    worst = max(regret, key=lambda key: float(regret[key].mean()))
    means = {
        case.name: [v.mean() for key, v in regret.items() if key[0] == case.name]
        for case in scale.cases
    }
    overall = np.mean(list(regret.values()), axis=0)
    seconds = [row["seconds"] for row in plans if row["scheme"] == planner]
    return Regret(
        planner=planner,
        mean=mean_interval(overall),
        worst=float(regret[worst].mean()),
        where=f"{worst[0]}, eps = {worst[1]:g}, C = {worst[2]:g}",
        by_case={name: float(np.mean(each)) for name, each in means.items()},
        worst_by_case={name: float(np.max(each)) for name, each in means.items()},
        lower_losses=lower_losses,
        seconds=float(np.mean(seconds)),
        reads=READS_PRIVATE_ROWS[planner],
    )
