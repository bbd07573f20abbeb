"""Find numbers in the rows of an evaluation."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.paper.cases import FIRST_COST, FIRST_EPSILON
from fedbudget.paper.store import Row

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
