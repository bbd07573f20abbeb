"""The predicted loss over epsilon and cost.

`frontier` plans for every pair of budgets; `compare_trust` does so for both kinds of
trust, and says which smaller epsilon a sum needs. `predicted_losses` predicts the loss
over many budgets at once, for a map. The response to a schedule depends on neither
budget: it is computed once for each cost, and used for all epsilons. Rates and momenta
are a coarse grid without refinement, so the map is slightly above the joint planner's
loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.budget import Budget, Prices, planned_delta
from fedbudget.checks import Array, floats, within
from fedbudget.planning.planner import plan
from fedbudget.planning.plans import Plan
from fedbudget.planning.settings import (
    Setting,
    affordable_pairs,
    longest_tau,
    max_rounds,
    unit_multiplier,
)
from fedbudget.planning.spectral import (
    Spectrum,
    batch_option,
    combinations,
    predicted_parts,
    respond,
    server_rates,
    stable_rate,
    steepest,
    with_stable_server,
)
from fedbudget.privacy import Trust, Unit, accountant_named
from fedbudget.problem import Counts, Problem

_RATES = np.geomspace(0.04, 1, 6)  # shares of the largest stable rate
_MOMENTA = np.array([0.0, 0.4, 0.6, 0.75, 0.82, 0.9])
EPSILONS = (0.5, 1, 2, 4, 7, 10)  # the default grid
# Epsilons at which sums are compared with uploads: how many, and how far beyond theirs.
_TRIED, _WIDEST = 200, 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Frontier:
    """Plans and predicted losses over a grid: rows are epsilons, columns are costs.

    The predicted loss is NaN if the cost does not pay for one round.
    """

    epsilons: Array  # shape (E,)
    costs: Array  # shape (C,)
    delta: float  # of every plan
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
        """Predicted excess loss over the best linear model; shape (E, C)."""
        return self._grid("predicted_loss")

    @property
    def epsilon_price(self) -> Array:
        """Predicted loss saved per additional unit of epsilon; shape (E, C)."""
        return self._grid("epsilon_price")

    @property
    def cost_price(self) -> Array:
        """Predicted loss saved per additional unit of cost; shape (E, C)."""
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
        """Return the frontier as plain lists; None if no plan is affordable."""
        grids = ("predicted_loss", "epsilon_price", "cost_price", "tau", "rounds")
        return {
            "epsilons": self.epsilons.tolist(),
            "costs": self.costs.tolist(),
            "delta": self.delta,
            **{name: _without_nan(getattr(self, name)) for name in grids},
            "binding": [
                [None if plan is None else list(plan.binding) for plan in row]
                for row in self.plans
            ],
        }


def frontier(
    problem: Problem,
    prices: Prices,
    *,
    epsilons: ArrayLike = EPSILONS,
    costs: ArrayLike | None = None,
    delta: float | None = None,
    trust: Trust = "uploads",
    unit: Unit = "sample",
    least_answers: int | None = None,
    colluders: int = 0,
    on_point: Callable[[], None] | None = None,
    **options: Any,
) -> Frontier:
    """Plan for every pair of an epsilon and a cost.

    The predicted loss never rises with a budget: where the planner's search ends with
    a worse plan than for a smaller budget, that plan is kept.

    Args:
        problem: As for `plan`.
        prices: As for `plan`.
        epsilons: Privacy budgets to try.
        costs: Cost budgets to try; by default 2 to 10 times the price of a round with
            one step.
        delta: The same for all plans; by default, planned from the rows.
        trust: What the server sees, as in `Budget`.
        unit: What epsilon protects, as in `Budget`.
        least_answers: As in `Budget`.
        colluders: As in `Budget`.
        on_point: Called after each point, to show progress.
        **options: `planner`, `accountant`, `weights`, ... as for `plan`.

    >>> problem = Problem(num_samples=[1628] * 16, dim=102)
    >>> prices = Prices(communication=100, computation=1)
    >>> result = frontier(problem, prices, epsilons=[1, 4], costs=[50, 1000])
    >>> result.predicted_loss.shape
    (2, 2)
    """
    delta = planned_delta(problem.num_samples) if delta is None else delta
    if costs is None:
        costs = _usual_costs(problem, prices.for_trust(trust))
    eps_axis = np.unique(floats(within("epsilons", epsilons, above=0, of="")))
    cost_axis = np.unique(floats(within("costs", costs, above=0, of="")))
    rows: list[list[Plan | None]] = []
    for epsilon in eps_axis:
        row: list[Plan | None] = []
        for cost in cost_axis:
            budget = Budget(
                epsilon=epsilon,
                delta=delta,
                cost=cost,
                trust=trust,
                unit=unit,
                least_answers=least_answers,
                colluders=colluders,
            )
            batch = 1 if options.get("batch_size") is None else options["batch_size"]
            paid = prices.for_trust(trust)
            affordable = max_rounds(budget, paid, tau=1, batch_size=batch) > 0
            row.append(plan(problem, budget, prices, **options) if affordable else None)
            if on_point is not None:
                on_point()
        rows.append(row)
    plans = _never_rising(rows)
    return Frontier(epsilons=eps_axis, costs=cost_axis, delta=delta, plans=plans)


def _never_rising(
    rows: Sequence[Sequence[Plan | None]],
) -> tuple[tuple[Plan | None, ...], ...]:
    """Return the plans, a smaller budget's where it is predicted to be better.

    A larger budget pays for it, too: the search over whole numbers has missed it.
    """
    best: list[list[Plan | None]] = []
    for i, row in enumerate(rows):
        best.append([])
        for j, own in enumerate(row):
            smaller = [best[i][j - 1] if j else None, best[i - 1][j] if i else None]
            affordable = [each for each in (own, *smaller) if each is not None]
            least = min(affordable, key=lambda each: each.predicted_loss, default=None)
            best[i].append(least)
    return tuple(map(tuple, best))


@dataclass(frozen=True, kw_only=True, eq=False)
class TrustComparison:
    """What trust buys: plans for both kinds of trust over the same budgets."""

    uploads: Frontier  # the server sees every upload
    sums: Frontier  # it sees only sums
    # With this epsilon a sum is predicted to have the loss that uploads have at the
    # row's epsilon; shape (E, C), NaN if the cost does not pay for one round of each.
    # Above the row's epsilon if sums are worse, infinite if no epsilon is enough.
    equal_epsilon: Array

    def to_dict(self) -> dict[str, Any]:
        """Return both frontiers and the equal epsilons as plain lists."""
        return {
            "uploads": self.uploads.to_dict(),
            "sum": self.sums.to_dict(),
            "equal_epsilon": [
                [float(x) if np.isfinite(x) else None for x in row]
                for row in self.equal_epsilon
            ],
        }


def compare_trust(
    problem: Problem,
    prices: Prices,
    *,
    epsilons: ArrayLike = EPSILONS,
    costs: ArrayLike | None = None,
    delta: float | None = None,
    unit: Unit = "sample",
    least_answers: int | None = None,
    colluders: int = 0,
    on_point: Callable[[], None] | None = None,
    **options: Any,
) -> TrustComparison:
    """Plan for both kinds of trust, and find the epsilons of equal predicted loss.

    The equal epsilons are read off maps (`predicted_losses`) for full batches and
    planned weights.

    Args:
        problem: As for `plan`.
        prices: As for `plan`; sums pay `secure_round`.
        epsilons: As for `frontier`.
        costs: As for `frontier`.
        delta: As for `frontier`.
        unit: As in `Budget`.
        least_answers: Of sums, as in `Budget`.
        colluders: Of sums, as in `Budget`.
        on_point: Called after each of the 2 E C plans, to show progress.
        **options: Of `plan`, for both kinds.

    >>> result = compare_trust(Problem(num_samples=[100] * 50, dim=20),
    ...                        Prices(communication=100, computation=1),
    ...                        epsilons=[2], costs=[1000])
    >>> bool(result.equal_epsilon[0, 0] < 0.5)
    True
    """
    if costs is None:
        costs = _usual_costs(problem, prices)
    grid: dict[str, Any] = {
        "epsilons": epsilons,
        "costs": costs,
        "delta": delta,
        "unit": unit,
    }
    shared: dict[str, Any] = {"least_answers": least_answers, "colluders": colluders}
    uploads = frontier(problem, prices, on_point=on_point, **grid, **options)
    sums = frontier(
        problem, prices, trust="sum", on_point=on_point, **grid, **shared, **options
    )
    affordable = ~np.isnan(uploads.predicted_loss) & ~np.isnan(sums.predicted_loss)
    kinds: dict[str, Any] = {"unit": unit, "delta": uploads.delta}
    equal = np.full(affordable.shape, np.nan)
    for column in np.flatnonzero(affordable.any(axis=0)):
        cost = uploads.costs[[column]]
        own = predicted_losses(
            problem, prices, epsilons=uploads.epsilons, costs=cost, **kinds
        )
        tried = np.geomspace(
            uploads.epsilons[0] / _WIDEST, uploads.epsilons[-1] * _WIDEST, _TRIED
        )
        other = predicted_losses(
            problem, prices, epsilons=tried, costs=cost, trust="sum", **kinds, **shared
        )
        equal[:, column] = _epsilon_of_loss(own[:, 0], tried, other[:, 0])
    return TrustComparison(
        uploads=uploads, sums=sums, equal_epsilon=np.where(affordable, equal, np.nan)
    )


def _epsilon_of_loss(loss: Array, epsilons: Array, losses: Array) -> Array:
    """Return where losses that fall with epsilon reach each loss; infinite if never."""
    reached = np.interp(-np.log(loss), -np.log(losses), np.log(epsilons))
    return np.where(loss < losses[-1], np.inf, np.exp(reached))


def _usual_costs(problem: Problem, prices: Prices) -> Array:
    """Return 2 to 10 times the price of a round with one step."""
    round_cost = prices.run_cost(rounds=1, tau=1, batch_size=problem.num_samples)
    return np.array([2, 3, 5, 8, 10]) * (float(round_cost.max()) or 1.0)


def predicted_losses(
    problem: Problem,
    prices: Prices,
    *,
    epsilons: Array,
    costs: Array,
    delta: float,
    **kinds: Any,
) -> Array:
    """Return the predicted loss of the best full-batch plan; shape (E, C).

    `kinds` are the budget's trust, unit, least_answers and colluders.

    Raises:
        InfeasibleBudgetError: A cost does not pay for a single round.

    >>> loss = predicted_losses(
    ...     Problem(num_samples=[1628] * 16, dim=102),
    ...     Prices(communication=100, computation=1),
    ...     epsilons=np.array([1.0, 4.0]), costs=np.array([200.0, 1000.0]), delta=1e-4)
    >>> bool((np.diff(loss, axis=0) < 0).all() and (np.diff(loss, axis=1) < 0).all())
    True
    """
    accountant, spectrum = accountant_named("gdp"), Spectrum.of(problem)
    batch, start = problem.num_samples, Budget(epsilon=1, delta=delta, cost=1, **kinds)
    prices, is_sum = prices.for_trust(start.trust), start.trust == "sum"
    settings = [
        Setting(
            problem=problem,
            budget=(budget := replace(start, epsilon=epsilon, cost=costs[0])),
            prices=prices,
            accountant=accountant,
            unit_multiplier=unit_multiplier(problem, budget, accountant),
            drift_correction=not is_sum,
        )
        for epsilon in epsilons
    ]
    options = [batch_option(setting, batch) for setting in settings]
    rates = _RATES * stable_rate(settings[0], spectrum)
    loss = np.empty((len(epsilons), len(costs)))
    for j, cost in enumerate(costs):
        budget = Budget(epsilon=epsilons[0], delta=delta, cost=cost)
        pairs = _pairs(budget, prices, batch)
        schedule = combinations(pairs, rates, _MOMENTA, server_rates(settings[0]))
        schedule = with_stable_server(schedule, steepest(settings[0], spectrum))
        response = respond(
            spectrum,
            schedule,
            variance=problem["gradient_variance"],
            per_round=is_sum,
        )
        for i, option in enumerate(options):
            parts, _ = predicted_parts(settings[i], schedule, response, option)
            loss[i, j] = np.nanmin(np.sum(list(parts.values()), axis=0))
    # A larger budget is never worse, but the grids of pairs differ between costs.
    return np.minimum.accumulate(np.minimum.accumulate(loss, axis=0), axis=1)


def _pairs(budget: Budget, prices: Prices, batch: Counts) -> list[tuple[int, int]]:
    """Return the pairs of a search's first pass, and more on the budget's limit."""
    first = affordable_pairs(budget, prices, batch_size=batch)
    max_count = max_rounds(budget, prices, tau=1, batch_size=batch)
    counts = np.unique(
        np.geomspace(1, max_count, num=1 + int(np.log(max_count) / 0.1)).astype(int)
    )
    limit = {
        (longest_tau(budget, prices, rounds=count, batch_size=batch), count)
        for count in counts.tolist()
    }
    return sorted(limit | set(first))


def _without_nan(grid: Array) -> list[list[float | None]]:
    return [[None if np.isnan(x) else float(x) for x in row] for row in grid]
