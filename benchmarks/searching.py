"""The best point of a grid, selected on private validation rows, as a reference.

Three stages, each with its own noise, and scores with noise that no stage used: a point
that is scored with the noise by which it was selected looks better than it is.

    screening   a coarse grid, on three splits
    finalists   its best points and their neighbours on the fine grid, on six splits
    last        the best finalists, on all splits

A stage selects the points with the highest mean accuracy on validation rows.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from tables import header, row, standard_error

import fedbudget as fb
from fedbudget.paper.cases import Maker, Point, max_rounds

EPSILONS, COSTS = (1, 2, 4, 10), (500, 1000)

# The fine grid; the coarse one has every second value, from the first.
FINE: dict[str, tuple[Any, ...]] = {
    "tau": (1, 2, 4, 8, 16, 32, 64),
    "share": (1.0, 0.65, 0.35),  # of the rounds that the cost pays for
    "rate": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
    "momentum": (0.0, 0.5, 0.8),
    "power": (0.0, 0.5, 1.0),  # weights as a power of a device's rows
    "drift_correction": (False, True),
}
KEPT = (12, 12)  # of the screening, and of the finalists
SCREENED, COMPARED = 3, 6  # splits
# First noise seeds of the stages and of the scores; a split's number is added.
SCREENING, FINALS, LAST, SCORING = 10_000, 20_000, 30_000, 0
SCORES = 2  # noise draws per split

Planner = Callable[[fb.Dataset, str, float, float], fb.Plan]


class GridIndex(NamedTuple):
    """A point of the fine grid: the indices of its values in `FINE`."""

    tau: int
    share: int
    rate: int
    momentum: int
    power: int
    drift_correction: int

    def point(self, epsilon: float, cost: float) -> Point:
        """Return the values, for one budget."""
        tau, share, rate, momentum, power, drift = (
            values[i] for values, i in zip(FINE.values(), self, strict=True)
        )
        rounds = max(1, round(share * max_rounds(tau, cost)))
        return Point(
            epsilon=epsilon,
            tau=tau,
            rounds=rounds,
            learning_rate=rate,
            momentum=momentum,
            power=power,
            drift_correction=drift,
        )

    def neighbours(self) -> Iterator["GridIndex"]:
        """Yield the point, and its neighbours in one setting."""
        yield self
        for name, values in FINE.items():
            for at in (getattr(self, name) - 1, getattr(self, name) + 1):
                if 0 <= at < len(values):
                    yield self._replace(**{name: at})


def coarse() -> Iterator[GridIndex]:
    """Yield every second value in all combinations; drift correction on and off."""
    steps = [2] * (len(FINE) - 1) + [1]
    ranges = [
        range(0, len(v), step) for v, step in zip(FINE.values(), steps, strict=True)
    ]
    for indices in np.ndindex(*map(len, ranges)):
        yield GridIndex(*(r[i] for r, i in zip(ranges, indices, strict=True)))


class Search:
    """One data set and one budget: runs of points, and the best of them."""

    def __init__(self, case: Any, epsilon: float, cost: float, splits: int) -> None:
        self.case, self.epsilon, self.cost, self.splits = case, epsilon, cost, splits
        self.load = cache(case.load)
        self.tried: set[Point] = set()

    def measure(
        self, points: Sequence[Point], seeds: Callable[[int], list[int]], splits: int
    ) -> dict[str, np.ndarray]:
        """Return accuracies, of shape (splits, points): means over noise draws."""
        self.tried |= set(points)
        accuracies: dict[str, list[np.ndarray]] = {"validation": [], "test": []}
        for split in range(splits):
            data = self.load(split)
            maker = Maker(data.problem(loss=self.case.loss), "gdp")
            plans = [maker.plan(point) for point in points]
            measured = fb.sweep(data, plans, seeds=seeds(split)).measured
            for name, values in accuracies.items():
                values.append(measured[f"{name}_accuracy"].mean(1))
        return {name: np.array(values) for name, values in accuracies.items()}

    def best(self) -> Point:
        """Return the point that the three stages select."""
        best = self._rank(list(coarse()), SCREENING, SCREENED)[: KEPT[0]]
        near = sorted({other for point in best for other in point.neighbours()})
        finalists = self._rank(near, FINALS, COMPARED)[: KEPT[1]]
        last = self._rank(finalists, LAST, self.splits)[0]
        return last.point(self.epsilon, self.cost)

    def _rank(
        self, candidates: list[GridIndex], noise: int, splits: int
    ) -> list[GridIndex]:
        """Return distinct points, best first."""
        by_point = {p.point(self.epsilon, self.cost): p for p in reversed(candidates)}
        points = list(by_point)
        used = min(splits, self.splits)
        accuracies = self.measure(points, lambda split: [noise + split], used)
        order = np.argsort(-accuracies["validation"].mean(0), kind="stable")
        return [by_point[points[i]] for i in order]


def regret_table(cases: Sequence[Any], planner: Planner, splits: int) -> Iterator[str]:
    """Yield a line per data set: mean and worst regret over eight budgets."""
    named = ["data set", "points tried", "best of the grid", "default plan"]
    yield from header([*named, "mean regret", "worst budget", "regret there"])
    for case in cases:
        started = time.perf_counter()
        regret, best_accuracy, own_accuracy, tried, budgets = [], [], [], [], []
        for epsilon in EPSILONS:
            for cost in COSTS:
                search = Search(case, epsilon, cost, splits)
                best = search.best()
                theirs = search.measure([best], scoring, splits)["test"][:, 0]
                ours = np.array(
                    [own_test(search, planner, split) for split in range(splits)]
                )
                regret.append(100 * (theirs - ours))
                best_accuracy.append(theirs.mean())
                own_accuracy.append(ours.mean())
                tried.append(len(search.tried))
                budgets.append(f"epsilon {epsilon}, cost {cost}")
                line = f"{time.perf_counter() - started:.0f} s: {case.name}, {best}"
                print(line, file=sys.stderr, flush=True)
        means, worst = np.mean(regret, 0), int(np.argmax(np.mean(regret, 1)))
        yield row(
            [
                case.name,
                f"{min(tried)} to {max(tried)}",
                f"{100 * np.mean(best_accuracy):.1f}",
                f"{100 * np.mean(own_accuracy):.1f}",
                f"{means.mean():.2f} +- {standard_error(means):.2f}",
                budgets[worst],
                f"{regret[worst].mean():.2f} +- {standard_error(regret[worst]):.2f}",
            ]
        )


def scoring(split: int) -> list[int]:
    """Return the noise seeds of a score: no stage uses them."""
    return [SCORING + 100 * draw + split for draw in range(SCORES)]


def own_test(search: Search, planner: Planner, split: int) -> float:
    """Return the test accuracy of the default plan on one split."""
    data = search.load(split)
    plan = planner(data, search.case.loss, search.epsilon, search.cost)
    result = fb.sweep(data, [plan], seeds=scoring(split))
    return float(result.measured["test_accuracy"].mean())
