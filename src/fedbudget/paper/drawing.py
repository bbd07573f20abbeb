"""Figures 1, 3, 4 and 5: cases side by side, the paper above, our plans below."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.paper.cases import (
    DP_PASGD,
    DP_SGD,
    FIRST_COST,
    FIRST_EPSILON,
    PASGD_TAU,
    SGD_TAU,
    Case,
)
from fedbudget.paper.planners import JOINT, TUNED
from fedbudget.paper.results import Runs, own_rate
from fedbudget.paper.statistics import mean_interval
from fedbudget.paper.store import Row
from fedbudget.reporting.style import GREY, LINES, Line, legend_below, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AS_PAPER, AS_PLANNED = "as in the paper", "as fedbudget plans it"
_WIDTH = 2.75  # inches of a panel
_ASIDE = 0.1  # between lines, as a share of the distance between two ticks
_REACH = 0.6  # how far off a reference is drawn, as a share of the curves' height


def title(case: Case, vehicle: str | None) -> str:
    """Return a panel's title; what is not real says so."""
    return case.label(vehicle).replace(" (", "\n(")


def two_rows(
    cases: Sequence[Case], vehicle: str | None
) -> tuple["Figure", list[list["Axes"]]]:
    """Return panels: a column per case, the paper above, our plans below."""
    size = (_WIDTH * len(cases) + 0.6, 5.4)
    figure, axes = panels(2, len(cases), size=size, sharex=True, sharey="col")
    for column, case in enumerate(cases):
        axes[0][column].set_title(title(case, vehicle))
    for row, name in zip(axes, (AS_PAPER, AS_PLANNED), strict=True):
        row[0].set_ylabel(f"{name}\n\ntest accuracy")
    return figure, axes


def curve(
    axes: "Axes", x: Sequence[float], runs: Sequence[Array], line: Line, label: str
) -> None:
    """Draw means over repeats with their 95% intervals."""
    found = [mean_interval(values) for values in runs]
    axes.errorbar(
        x,
        [each.mean for each in found],
        yerr=[np.nan_to_num(each.half) for each in found],
        label=label,
        elinewidth=0.8,
        **line.options(),
    )


def band(
    axes: "Axes", x: Sequence[float], runs: Sequence[Array], line: Line, label: str
) -> None:
    """Draw means with their 95% intervals as a band, where bars would be too many."""
    found = [mean_interval(values) for values in runs]
    means = [each.mean for each in found]
    axes.plot(x, means, label=label, **line.options(markersize=3))
    halves = np.nan_to_num([each.half for each in found])
    axes.fill_between(
        x, means - halves, means + halves, color=line.color, alpha=0.13, linewidth=0
    )


def efficiency(
    cases: Sequence[Case], runs: Runs, rates: dict[str, float], vehicle: str | None
) -> "Figure":
    """Accuracy against cost, round by round (the paper's fig:efficiency)."""
    figure, axes = two_rows(cases, vehicle)
    at = FIRST_EPSILON, FIRST_COST
    for column, case in enumerate(cases):
        for tau, line, name in (
            (SGD_TAU, LINES[1], DP_SGD),
            (PASGD_TAU, LINES[0], DP_PASGD),
        ):
            own = own_rate(runs, case.name, tau)
            for row, rate in ((0, rates[case.name]), (1, own)):
                _rounds(
                    axes[row][column],
                    runs,
                    (case.name, f"tau={tau}", *at),
                    rate,
                    line,
                    name,
                )
        _rounds(
            axes[1][column],
            runs,
            (case.name, "joint-rounds", *at),
            None,
            LINES[2],
            "joint plan",
        )
        axes[1][column].set_xlabel("resource cost spent")
    axes[0][0].set_ylabel(f"{AS_PAPER}:\none learning rate\n\ntest accuracy")
    axes[1][0].set_ylabel("own learning rates,\nand the joint plan\n\ntest accuracy")
    legend_below(figure, [axes[1][0]], columns=3)
    return figure


def _rounds(
    axes: "Axes",
    runs: Runs,
    at: tuple[str, str, float, float],
    rate: float | None,
    line: Line,
    label: str,
) -> None:
    only: dict[str, Any] = {} if rate is None else {"learning_rate": rate}
    found = runs.rows(*at, **only)
    rounds = sorted({row["rounds"] for row in found})
    costs = {row["rounds"]: row["spent_cost"] for row in found}
    values = [runs.values(*at, rounds=count, **only) for count in rounds]
    curve(axes, [costs[count] for count in rounds], values, line, label)


def trade_off(
    cases: Sequence[Case],
    runs: Runs,
    baselines: Sequence[Row],
    *,
    over: str,
    ticks: Sequence[float],
    lines: Sequence[float],
    vehicle: str | None,
) -> "Figure":
    """Accuracy against one budget, a line for each value of the other.

    The paper's fig:tradeoff_resource_acc with over="cost", and its
    fig:tradeoff_privacy_acc with over="epsilon".
    """
    figure, axes = two_rows(cases, vehicle)
    other = "eps" if over == "cost" else "C"
    aside = _ASIDE * float(np.diff(sorted(ticks)).min())
    for column, case in enumerate(cases):
        for row, scheme in enumerate((TUNED, JOINT)):
            for number, fixed in enumerate(lines):
                pairs = [(fixed, t) if over == "cost" else (t, fixed) for t in ticks]
                found = [runs.values(case.name, scheme, *pair) for pair in pairs]
                there = [i for i, values in enumerate(found) if len(values)]
                curve(
                    axes[row][column],
                    # A little apart, for their bars to be seen.
                    [ticks[i] + aside * (number - (len(lines) - 1) / 2) for i in there],
                    [found[i] for i in there],
                    LINES[number],
                    f"{other} = {fixed:g}",
                )
        references([each[column] for each in axes], case, baselines)
        axes[1][column].set_xlabel(
            "cost budget C" if over == "cost" else "privacy budget eps"
        )
    legend_below(figure, [axes[0][0]], columns=max(3, 2 * len(cases) - 1))
    return figure


def references(column: Sequence["Axes"], case: Case, baselines: Sequence[Row]) -> None:
    """Draw what needs no federation, as thin grey lines; what is far off, in words."""
    low, high = column[0].get_ylim()
    far = []
    for name, dash in (
        ("centralised", (0, (8, 2))),
        ("local only", (0, (3, 2))),
        ("constant", (0, (1, 2))),
    ):
        found = [
            row["test_accuracy"]
            for row in baselines
            if row["case"] == case.name and row["baseline"] == name
        ]
        if not found:
            continue
        mean, reach = float(np.mean(found)), _REACH * (high - low)
        if not low - reach <= mean <= high + reach:  # it would squeeze the curves
            far.append(f"{name} {mean:.3f}, {'above' if mean > high else 'below'}")
            continue
        for axes in column:
            label = {"centralised": "centralised, not private"}.get(name, name)
            axes.axhline(mean, color=GREY, linestyle=dash, linewidth=1.0, label=label)
    for axes in column if far else ():
        axes.text(
            *(0.98, 0.03, "\n".join(far)),
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=7,
            color=GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )


def chosen_tau(
    cases: Sequence[Case],
    runs: Runs,
    *,
    costs: Sequence[float],
    epsilons: Sequence[float],
    vehicle: str | None,
) -> "Figure":
    """The chosen tau over both budgets (the paper's fig:c_e_tau)."""
    from matplotlib.colors import LogNorm

    size = (_WIDTH * len(cases) + 1.0, 3.9)
    figure, axes = panels(2, len(cases), size=size, sharex=True, sharey=True)
    image = None
    for row, (scheme, name) in enumerate(((TUNED, AS_PAPER), (JOINT, AS_PLANNED))):
        for column, case in enumerate(cases):
            panel = axes[row][column]
            taus = _taus(runs, case, scheme, costs, epsilons)
            image = panel.imshow(
                taus,
                norm=LogNorm(1, 1000),
                cmap="cividis",
                aspect="auto",
                origin="lower",
            )
            for i, j in np.ndindex(*taus.shape):
                dark = taus[i, j] < 30
                panel.text(
                    j,
                    i,
                    f"{taus[i, j]:.0f}" if np.isfinite(taus[i, j]) else "",
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color="white" if dark else "black",
                )
            panel.grid(visible=False)
            panel.set_xticks(range(len(costs)), [f"{c:g}" for c in costs], rotation=90)
            panel.set_yticks(range(len(epsilons)), [f"{e:g}" for e in epsilons])
            if row == 0:
                panel.set_title(title(case, vehicle))
            else:
                panel.set_xlabel("cost budget C")
        axes[row][0].set_ylabel(f"{name}\n\nprivacy budget eps")
    if image is not None:
        flat = [panel for row_ in axes for panel in row_]
        figure.colorbar(image, ax=flat, label="tau (log scale)", shrink=0.9)
    return figure


def _taus(
    runs: Runs,
    case: Case,
    scheme: str,
    costs: Sequence[float],
    epsilons: Sequence[float],
) -> Array:
    found = [
        [runs.distinct("tau", case.name, scheme, epsilon, cost) for cost in costs]
        for epsilon in epsilons
    ]
    return np.array(
        [[t[0] if t else np.nan for t in row] for row in found], dtype=float
    )
