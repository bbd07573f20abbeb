"""Figure 2: loss and accuracy for every tau, and the planner's tau as one marker."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbudget.checks import Array
from fedbudget.losses import loss_named
from fedbudget.paper.cases import LONGEST_TAU, Case, Scale
from fedbudget.paper.drawing import AS_PAPER, AS_PLANNED, band, title
from fedbudget.paper.planners import JOINT, TUNED
from fedbudget.paper.results import Runs
from fedbudget.paper.store import Row
from fedbudget.reporting.style import GREY, LINES, Line, legend_below, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = (("test_accuracy", "test accuracy"), ("train_loss", "training loss"))
KINDS = {
    "paper": ("curve-fixed", TUNED, AS_PAPER),
    "fedbudget": ("curve-full", JOINT, AS_PLANNED),
}


def search_figure(
    kind: str, cases: Sequence[Case], runs: Runs, scale: Scale, vehicle: str | None
) -> "Figure":
    """Draw the grid search's best run for every tau (fig:baseline_proposed).

    Args:
        kind: `paper` or `fedbudget`; both have the same axes.
        cases: A row each.
        runs: Scored runs.
        scale: Which budgets.
        vehicle: The real data, if there are any.
    """
    scheme, planner, name = KINDS[kind]
    columns = [(measure, cost) for measure in MEASURES for cost in scale.costs]
    size = (2.6 * len(columns) + 0.6, 2.05 * len(cases) + 1.0)
    figure, axes = panels(len(cases), len(columns), size=size, sharex=True)
    for row, case in zip(axes, cases, strict=True):
        for panel, ((measure, _), cost) in zip(row, columns, strict=True):
            for line, epsilon in zip(LINES, scale.epsilons, strict=False):
                at = case.name, scheme, epsilon, cost
                taus = runs.distinct("tau", *at)
                found = [runs.values(*at, measure=measure, tau=tau) for tau in taus]
                band(panel, taus, found, line, f"grid, eps = {epsilon:g}")
                # Of the splits that the curves are of.
                chosen = [
                    row
                    for row in runs.rows(case.name, planner, epsilon, cost)
                    if row["repeat"] < scale.curve_repeats
                ]
                _marker(panel, chosen, measure, line, f"{planner}, eps = {epsilon:g}")
            panel.set_xscale("log")
            panel.set_ylim(*limits(runs, case, measure, scale))
            panel.axvline(LONGEST_TAU + 0.5, color=GREY, linewidth=0.7, linestyle=":")
        row[0].set_ylabel(f"{title(case, vehicle)}\n{MEASURES[0][1]}")
        for panel, ((_, label), _) in zip(row[1:], columns[1:], strict=True):
            panel.set_ylabel(label)
    for panel, ((_, _), cost) in zip(axes[0], columns, strict=True):
        panel.set_title(f"C = {cost:g}")
    for panel in axes[-1]:
        panel.set_xlabel("tau")
    figure.suptitle(name, fontsize=11)
    legend_below(figure, axes[0][:1], columns=len(scale.epsilons))
    return figure


def _marker(
    panel: "Axes", chosen: Sequence[Row], measure: str, line: Line, label: str
) -> None:
    """Draw what a planner chose as one star."""
    if chosen:
        panel.plot(
            [chosen[0]["tau"]],
            [float(np.mean([row[measure] for row in chosen]))],
            marker="*",
            markersize=11,
            linestyle="none",
            markerfacecolor=line.color,
            markeredgecolor="black",
            markeredgewidth=0.6,
            zorder=5,
            label=label,
        )


def limits(runs: Runs, case: Case, measure: str, scale: Scale) -> tuple[float, float]:
    """Return limits for both kinds; losses far above the rest are cut off."""
    means = np.array([float(np.mean(v)) for v in _all(runs, case, measure, scale)])
    low, high = float(means.min()), float(means.max())
    if measure.endswith("loss"):
        # Above the loss of not training at all, nothing is worth a look.
        untrained = loss_named(case.loss).loss_at_zero
        high = min(float(np.quantile(means, 0.9)), 1.05 * untrained)
    margin = 0.06 * (high - low) + 1e-3
    return low - margin, high + margin


def _all(runs: Runs, case: Case, measure: str, scale: Scale) -> Iterable[Array]:
    for scheme, planner, _ in KINDS.values():
        for epsilon, cost in scale.budgets:
            for name in (scheme, planner):
                at = case.name, name, epsilon, cost
                for tau in runs.distinct("tau", *at):
                    yield runs.values(*at, measure=measure, tau=tau)
