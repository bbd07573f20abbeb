"""How far planners fall short of a grid search that reads private validation rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array
from fedbudget.paper.cases import Scale
from fedbudget.paper.planners import PLANNERS, READS
from fedbudget.paper.results import Runs, paired
from fedbudget.paper.statistics import Estimate, mean_interval
from fedbudget.paper.store import Row


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
