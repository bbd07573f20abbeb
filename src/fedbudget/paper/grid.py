"""The grid searches: their points, and their selection on validation rows.

Both grids are complete products. `paper_grid` varies what the paper's search varies
(tau, and every K that the budget pays for) and the learning rate, with the paper's
accountant and weights. `full_grid` varies everything that the joint planner plans: also
momentum, weights and drift correction. Both leave out points whose learning rate times
K is so small that the model hardly moves, or so large that noise dominates.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedbudget.checks import Array
from fedbudget.paper.cases import Maker, Point, Scale, max_rounds
from fedbudget.paper.lab import PICKING, Entry, Lab, Row

# Learning rate times K: from hardly any progress to nothing but noise.
_PROGRESS = 4.0, 8192.0
# Momentum acts from the third round on.
_MOMENTUM_ROUNDS = 3


def paper_grid(scale: Scale) -> list[Point]:
    """Return the points of the paper's search: epsilon, tau, every K, rate."""
    cost = max(scale.costs)
    pairs = [
        (tau, rounds)
        for tau in scale.taus
        for rounds in range(1, max_rounds(tau, cost) + 1)
    ]
    for tau in scale.far_taus:
        pairs += [(tau, rounds) for rounds in _some_rounds(tau, scale, {1, 2})]
    return [
        Point(epsilon=epsilon, tau=tau, rounds=rounds, learning_rate=rate)
        for epsilon in scale.epsilons
        for tau, rounds in pairs
        for rate in scale.rates
        if _moves(rate * tau * rounds)
    ]


def full_grid(scale: Scale, *, iid: bool) -> list[Point]:
    """Return the points of a search over everything that the joint planner plans.

    Args:
        scale: The values to combine.
        iid: Devices hold random shares of equal size. Weights by size are then uniform,
            and there is no drift to correct.
    """
    powers = scale.powers[:1] if iid else scale.powers
    controls = scale.controls[:1] if iid else scale.controls
    few = {1, 2, 3, 5, 7}
    return [
        Point(
            epsilon=epsilon,
            tau=tau,
            rounds=rounds,
            learning_rate=rate,
            momentum=momentum,
            power=power,
            drift_correction=control,
        )
        for tau in scale.full_taus
        for rounds in _some_rounds(tau, scale, few if tau <= 50 else {1, 2})
        for momentum in scale.momenta
        for control in controls
        if momentum == 0 or rounds >= _MOMENTUM_ROUNDS
        if not control
        or (tau > 1 and rounds > 1)  # it acts on local steps after round 1
        for epsilon in scale.epsilons
        for rate in scale.rates
        for power in powers
        if _moves(rate * tau * rounds)
    ]


def _moves(progress: float) -> bool:
    return _PROGRESS[0] <= progress <= _PROGRESS[1]


def _some_rounds(tau: int, scale: Scale, few: set[int]) -> list[int]:
    """Return these numbers of rounds, and the largest that each cost pays for."""
    edges = {max_rounds(tau, cost) for cost in scale.costs}
    return sorted((few | edges) & set(range(1, max(edges) + 1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """Points that were run, and their accuracy on validation rows."""

    points: list[Point]
    accuracy: Array  # on validation rows, mean over the repeats; shape (points,)
    seconds: float  # time of all runs

    def ranked(
        self,
        epsilon: float,
        cost: float,
        where: Callable[[Point], bool] = lambda point: True,
    ) -> list[Point]:
        """Return the points that a budget pays for, best first, then cheapest first."""
        fitting = [
            (-self.accuracy[i], point.cost, i)
            for i, point in enumerate(self.points)
            if point.epsilon == epsilon and point.cost <= cost and where(point)
        ]
        return [self.points[i] for _, _, i in sorted(fitting)]


def search(
    lab: Lab, part: str, points: Sequence[Point], *, accountant: str, repeats: range
) -> Search:
    """Run every point and measure it on validation rows."""
    maker = Maker(lab.problem, accountant)
    entries = [
        Entry(plan=maker.plan(p), labels={"point": i}) for i, p in enumerate(points)
    ]
    rows = lab.run(part, entries, repeats=repeats, noise=PICKING)
    return Search(
        points=list(points),
        accuracy=_means(rows, len(points)),
        seconds=sum(row["seconds"] for row in rows),
    )


def _means(rows: Sequence[Row], count: int) -> Array:
    sums: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        sums[row["point"]].append(row["validation_accuracy"])
    return np.array([np.mean(sums[i]) for i in range(count)])


Key = TypeVar("Key")


def by_budget(search: Search, scale: Scale) -> dict[tuple[float, float], list[Point]]:
    """Return the best points of every budget."""
    return {
        budget: search.ranked(*budget)[: scale.finalists]
        for budget in (*scale.budgets, *scale.short_budgets)
    }


def by_tau(
    search: Search, scale: Scale, *, rate: float | None
) -> dict[tuple[float, float, int], list[Point]]:
    """Return the best points of every budget and tau, at one rate or at any."""
    taus = sorted({point.tau for point in search.points})
    return {
        (epsilon, cost, tau): search.ranked(
            epsilon,
            cost,
            lambda p, tau=tau: (  # type: ignore[misc]
                p.tau == tau and rate in (None, p.learning_rate)
            ),
        )[: scale.tau_finalists]
        for epsilon, cost in scale.budgets
        for tau in taus
    }


def paper_search(lab: Lab, scale: Scale) -> Search:
    """Run the paper's grid with its accounting."""
    points, repeats = paper_grid(scale), range(scale.screens)
    return search(lab, "paper-grid", points, accountant="zcdp", repeats=repeats)


def full_search(lab: Lab, scale: Scale) -> Search:
    """Run the full grid with exact accounting."""
    points = full_grid(scale, iid=lab.case.split == "iid")
    repeats = range(scale.screens)
    return search(lab, "full-grid", points, accountant="gdp", repeats=repeats)


def finals(
    lab: Lab,
    part: str,
    ranked: dict[Key, list[Point]],
    *,
    accountant: str,
    repeats: range,
) -> tuple[dict[Key, Point], float]:
    """Run the points again; return the best of every list, and the time in seconds.

    An empty list has no best point. If every list has at most one point, nothing runs.
    """
    ranked = {key: points for key, points in ranked.items() if points}
    points = list(dict.fromkeys(p for few in ranked.values() for p in few))
    if all(len(few) == 1 for few in ranked.values()):
        return {key: few[0] for key, few in ranked.items()}, 0.0
    again = search(lab, part, points, accountant=accountant, repeats=repeats)
    merit = dict(zip(points, again.accuracy.tolist(), strict=True))
    selected = {
        key: min(few, key=lambda point: (-merit[point], point.cost))
        for key, few in ranked.items()
    }
    return selected, again.seconds
