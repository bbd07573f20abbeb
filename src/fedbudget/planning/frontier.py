"""What more budget would buy: the predicted loss over epsilon and cost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, floats, within
from fedbudget.planning.affordable import max_rounds
from fedbudget.planning.planner import plan
from fedbudget.planning.plans import Plan
from fedbudget.problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Frontier:
    """Predicted loss and plan over a grid; rows are epsilons, columns are costs.

    Where a cost does not pay for one round, the predicted loss is NaN.
    """

    epsilons: Array  # shape (E,)
    costs: Array  # shape (C,)
    plans: tuple[tuple[Plan | None, ...], ...]  # E rows of C plans

    def _grid(self, name: str) -> Array:
        return np.array(
            [
                [np.nan if plan is None else float(getattr(plan, name)) for plan in row]
                for row in self.plans
            ]
        )

    @property
    def predicted_loss(self) -> Array:
        """Above the best model's loss; shape (E, C)."""
        return self._grid("predicted_loss")

    @property
    def epsilon_price(self) -> Array:
        """Predicted loss saved per unit of more epsilon; shape (E, C)."""
        return self._grid("epsilon_price")

    @property
    def cost_price(self) -> Array:
        """Predicted loss saved per unit of more cost; shape (E, C)."""
        return self._grid("cost_price")

    @property
    def tau(self) -> Array:
        """Local steps per round; shape (E, C)."""
        return self._grid("tau")

    @property
    def rounds(self) -> Array:
        """Uploads; shape (E, C)."""
        return self._grid("rounds")

    def to_dict(self) -> dict[str, Any]:
        """Return the frontier as plain lists; None where nothing is affordable."""
        grids = ("predicted_loss", "epsilon_price", "cost_price", "tau", "rounds")
        return {
            "epsilons": self.epsilons.tolist(),
            "costs": self.costs.tolist(),
            **{name: _without_nan(getattr(self, name)) for name in grids},
            "binding": [
                [None if plan is None else list(plan.binding) for plan in row]
                for row in self.plans
            ],
        }


def _without_nan(grid: Array) -> list[list[float | None]]:
    return [[None if np.isnan(x) else float(x) for x in row] for row in grid]


def frontier(
    problem: Problem,
    prices: Prices,
    *,
    epsilons: ArrayLike = (0.5, 1, 2, 4, 7, 10),
    costs: ArrayLike | None = None,
    delta: float = 1e-4,
    on_point: Callable[[], None] | None = None,
    **how: Any,
) -> Frontier:
    """Plan for every pair of an epsilon and a cost.

    Args:
        problem: As for `plan`.
        prices: As for `plan`.
        epsilons: Privacy budgets to try.
        costs: Cost budgets to try; by default 2 to 10 times a round with one step.
        delta: The same everywhere.
        on_point: Called after each point, to show progress.
        **how: `planner`, `accountant`, `weights`, ... as for `plan`.

    >>> problem = Problem(num_samples=[1628] * 16, dim=102)
    >>> prices = Prices(communication=100, computation=1)
    >>> found = frontier(problem, prices, epsilons=[1, 4], costs=[50, 1000])
    >>> found.predicted_loss.shape
    (2, 2)
    """
    if costs is None:
        one = prices.run_cost(rounds=1, tau=1, batch_size=problem.num_samples)
        costs = np.array([2, 3, 5, 8, 10]) * (float(one.max()) or 1.0)
    eps_axis = np.unique(floats(within("epsilons", epsilons, above=0, of="")))
    cost_axis = np.unique(floats(within("costs", costs, above=0, of="")))
    rows = []
    for epsilon in eps_axis:
        row: list[Plan | None] = []
        for cost in cost_axis:
            budget = Budget(epsilon=epsilon, delta=delta, cost=cost)
            batch = 1 if how.get("batch_size") is None else how["batch_size"]
            pays = max_rounds(budget, prices, tau=1, batch_size=batch) > 0
            row.append(plan(problem, budget, prices, **how) if pays else None)
            if on_point is not None:
                on_point()
        rows.append(tuple(row))
    return Frontier(epsilons=eps_axis, costs=cost_axis, plans=tuple(rows))
