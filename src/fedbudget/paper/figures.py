"""The figures of the paper, drawn from an evaluation's rows.

Figures 1, 3, 4 and 5 show the cases side by side: the paper above, our plans below.
Figure 2 shows loss and accuracy for every tau; a marker shows the planner's tau.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.losses import loss_named
from fedbudget.paper.cases import (
    DP_PASGD,
    DP_SGD,
    FIRST_COST,
    FIRST_EPSILON,
    LONGEST_TAU,
    PASGD_TAU,
    SGD_TAU,
    Case,
    Scale,
)
from fedbudget.paper.claims import Findings
from fedbudget.paper.lab import Row
from fedbudget.paper.planners import JOINT, TUNED
from fedbudget.paper.results import (
    LEVEL,
    Runs,
    baseline_accuracies,
    mean_interval,
    own_rate,
)
from fedbudget.reporting.style import (
    GREY,
    LINES,
    Line,
    drawing as with_style,
    legend_below,
    panels,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AS_PAPER, AS_PLANNED = "as in the paper", "as fedbudget plans it"
_WIDTH = 2.75  # of a panel, in inches
_OFFSET = 0.1  # between lines, as a share of the distance between two ticks
_REACH = 0.6  # largest distance of a drawn reference, as a share of the y range

MEASURES = (("test_accuracy", "test accuracy"), ("train_loss", "training loss"))
KINDS = {
    "paper": ("curve-fixed", TUNED, AS_PAPER),
    "fedbudget": ("curve-full", JOINT, AS_PLANNED),
}


@dataclass(frozen=True, kw_only=True)
class FigureFile:
    """A figure on disk."""

    name: str  # of its files, without the suffix
    title: str
    caption: str


def draw_all(
    findings: Findings, folder: Path, *, vehicle: str | None
) -> list[FigureFile]:
    """Draw every figure as SVG, PDF and PNG, and return them with their captions."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = []
    with with_style():
        for file, draw in _figures(findings, vehicle):
            save(draw(), folder / file.name)
            finished.append(file)
    return finished


def figure_files(findings: Findings, *, vehicle: str | None) -> list[FigureFile]:
    """Return the figures that `draw_all` draws, without drawing them."""
    return [file for file, _ in _figures(findings, vehicle)]


def _figures(
    findings: Findings, vehicle: str | None
) -> Iterator[tuple[FigureFile, Callable[[], "Figure"]]]:
    scale, runs, rates = findings.scale, findings.runs, findings.rates
    cases = scale.cases
    case_rates = ", ".join(f"{rate:g} on {case}" for case, rate in rates.items())
    ends = _ending(scale, vehicle)
    yield (
        FigureFile(
            name="figure1",
            title="Accuracy against resource cost",
            caption="Figure 1 (fig:efficiency). Accuracy against resource cost, round "
            f"by round, at eps = {FIRST_EPSILON:g}, C = {FIRST_COST:g}. Top: as in the "
            f"paper, both at the learning rate of the case ({case_rates}). Bottom: "
            "each at its own best learning rate, selected on validation rows, and the "
            f"joint plan, which reads no private row. {ends}",
        ),
        lambda: _efficiency(cases, runs, rates, vehicle),
    )
    for kind, (_, planner, name) in KINDS.items():
        grid = (
            "best K for every tau at the learning rate of the case, 1/M weights, zCDP"
            if kind == "paper"
            else "best K, learning rate, momentum, weights and drift correction for "
            "every tau, exact accounting"
        )
        yield (
            FigureFile(
                name=f"figure2-{kind}",
                title=f"Every tau, {name}",
                caption=f"Figure 2 (fig:baseline_proposed), {name}: {grid}, selected "
                f"on validation rows. Stars: the plan of `{planner}`. Dotted: tau = "
                f"{LONGEST_TAU}, where the paper's search ends. Points are selected "
                "by accuracy, and some have a large loss: the largest are cut off. "
                f"{ends}",
            ),
            partial(_search_figure, kind, cases, runs, scale, vehicle),
        )
    for number, over, other in ((3, "cost", "privacy"), (4, "epsilon", "cost")):
        by_cost = over == "cost"
        label = "resource" if by_cost else "privacy"
        yield (
            FigureFile(
                name=f"figure{number}",
                title=f"Accuracy against the {label} budget",
                caption=f"Figure {number} (fig:tradeoff_{label}_acc). Accuracy against "
                f"the {label} budget, a line for each {other} budget. Top: the paper's "
                "planner at the learning rate of the case. Bottom: the joint planner. "
                "Grey: baselines without federation, as lines, or as text where they "
                "are outside the axes. Points are shifted sideways so that bars do not "
                f"overlap. {ends}",
            ),
            partial(
                _trade_off,
                cases,
                runs,
                findings.tables.baselines,
                over=over,
                ticks=scale.line_costs if by_cost else scale.line_epsilons,
                lines=scale.epsilons if by_cost else scale.panel_costs,
                vehicle=vehicle,
            ),
        )
    yield (
        FigureFile(
            name="figure5",
            title="The planned tau",
            caption="Figure 5 (fig:c_e_tau). The tau of the plan over both "
            "budgets. Top: the paper's planner at the learning rate of the case. "
            f"Bottom: the joint planner.{_synthetic(scale, vehicle)}",
        ),
        partial(
            _planned_tau,
            cases,
            runs,
            costs=scale.line_costs,
            epsilons=scale.epsilons,
            vehicle=vehicle,
        ),
    )


def _ending(scale: Scale, vehicle: str | None) -> str:
    ends = f"Bars and bands: {LEVEL:.0%} intervals over repeats."
    return ends + _synthetic(scale, vehicle)


def _synthetic(scale: Scale, vehicle: str | None) -> str:
    """Return a sentence on synthetic rows, if there are any."""
    if any(case.synthetic(vehicle) for case in scale.cases):
        return " The Vehicle cases are a SYNTHETIC stand-in, not the real data."
    return ""


def _efficiency(
    cases: Sequence[Case], runs: Runs, rates: dict[str, float], vehicle: str | None
) -> "Figure":
    """Draw accuracy against cost, round by round (the paper's fig:efficiency)."""
    figure, axes = _two_rows(cases, vehicle)
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
    rows = runs.rows(*at, **only)
    rounds = sorted({row["rounds"] for row in rows})
    costs = {row["rounds"]: row["spent_cost"] for row in rows}
    values = [runs.values(*at, rounds=count, **only) for count in rounds]
    _curve(axes, [costs[count] for count in rounds], values, line, label)


def _search_figure(
    kind: str, cases: Sequence[Case], runs: Runs, scale: Scale, vehicle: str | None
) -> "Figure":
    """Draw the grid search's best run for every tau (fig:baseline_proposed).

    Args:
        kind: `paper` or `fedbudget`; both have the same axes.
        cases: One row of panels each.
        runs: Scored runs.
        scale: The budgets.
        vehicle: The real data, if given.
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
                values = [runs.values(*at, measure=measure, tau=tau) for tau in taus]
                _band(panel, taus, values, line, f"grid, eps = {epsilon:g}")
                # Of the same splits as the curves.
                planned = [
                    row
                    for row in runs.rows(case.name, planner, epsilon, cost)
                    if row["repeat"] < scale.curve_repeats
                ]
                _marker(panel, planned, measure, line, f"{planner}, eps = {epsilon:g}")
            panel.set_xscale("log")
            panel.set_ylim(*_limits(runs, case, measure, scale))
            panel.axvline(LONGEST_TAU + 0.5, color=GREY, linewidth=0.7, linestyle=":")
        row[0].set_ylabel(f"{_title(case, vehicle)}\n{MEASURES[0][1]}")
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
    panel: "Axes", planned: Sequence[Row], measure: str, line: Line, label: str
) -> None:
    """Draw a planner's plan as one star."""
    if planned:
        panel.plot(
            [planned[0]["tau"]],
            [float(np.mean([row[measure] for row in planned]))],
            marker="*",
            markersize=11,
            linestyle="none",
            markerfacecolor=line.color,
            markeredgecolor="black",
            markeredgewidth=0.6,
            zorder=5,
            label=label,
        )


def _limits(runs: Runs, case: Case, measure: str, scale: Scale) -> tuple[float, float]:
    """Return y limits for both kinds; the largest losses are cut off."""
    means = np.array([float(np.mean(v)) for v in _all(runs, case, measure, scale)])
    low, high = float(means.min()), float(means.max())
    if measure.endswith("loss"):
        # A loss above that of the untrained model is of no interest.
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


def _trade_off(
    cases: Sequence[Case],
    runs: Runs,
    baselines: Sequence[Row],
    *,
    over: str,
    ticks: Sequence[float],
    lines: Sequence[float],
    vehicle: str | None,
) -> "Figure":
    """Draw accuracy against one budget, a line for each value of the other.

    The paper's fig:tradeoff_resource_acc with over="cost", and its
    fig:tradeoff_privacy_acc with over="epsilon".
    """
    figure, axes = _two_rows(cases, vehicle)
    other = "eps" if over == "cost" else "C"
    offset = _OFFSET * float(np.diff(sorted(ticks)).min())
    for column, case in enumerate(cases):
        for row, scheme in enumerate((TUNED, JOINT)):
            for number, fixed in enumerate(lines):
                pairs = [(fixed, t) if over == "cost" else (t, fixed) for t in ticks]
                values = [runs.values(case.name, scheme, *pair) for pair in pairs]
                run = [i for i, each in enumerate(values) if len(each)]
                shift = offset * (number - (len(lines) - 1) / 2)
                _curve(
                    axes[row][column],
                    [ticks[i] + shift for i in run],  # so that bars do not overlap
                    [values[i] for i in run],
                    LINES[number],
                    f"{other} = {fixed:g}",
                )
        _references([each[column] for each in axes], case, baselines)
        axes[1][column].set_xlabel(
            "cost budget C" if over == "cost" else "privacy budget eps"
        )
    legend_below(figure, [axes[0][0]], columns=max(3, 2 * len(cases) - 1))
    return figure


def _references(column: Sequence["Axes"], case: Case, baselines: Sequence[Row]) -> None:
    """Draw baselines as thin grey lines, or as text where they are outside the axes."""
    low, high = column[0].get_ylim()
    outside = []
    for name, dash in (
        ("centralised", (0, (8, 2))),
        ("local only", (0, (3, 2))),
        ("constant", (0, (1, 2))),
    ):
        accuracies = baseline_accuracies(baselines, case.name, name)
        if not accuracies:
            continue
        mean, reach = float(np.mean(accuracies)), _REACH * (high - low)
        if not low - reach <= mean <= high + reach:  # it would squeeze the curves
            outside.append(f"{name} {mean:.3f}, {'above' if mean > high else 'below'}")
            continue
        for axes in column:
            label = {"centralised": "centralised, not private"}.get(name, name)
            axes.axhline(mean, color=GREY, linestyle=dash, linewidth=1.0, label=label)
    for axes in column if outside else ():
        axes.text(
            *(0.98, 0.03, "\n".join(outside)),
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=7,
            color=GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )


def _planned_tau(
    cases: Sequence[Case],
    runs: Runs,
    *,
    costs: Sequence[float],
    epsilons: Sequence[float],
    vehicle: str | None,
) -> "Figure":
    """Draw the planned tau over both budgets (the paper's fig:c_e_tau)."""
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
                panel.set_title(_title(case, vehicle))
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
    taus = [
        [runs.distinct("tau", case.name, scheme, epsilon, cost) for cost in costs]
        for epsilon in epsilons
    ]
    return np.array([[t[0] if t else np.nan for t in row] for row in taus], dtype=float)


def _title(case: Case, vehicle: str | None) -> str:
    """Return a panel's title, marked if the rows are synthetic."""
    return case.label(vehicle).replace(" (", "\n(")


def _two_rows(
    cases: Sequence[Case], vehicle: str | None
) -> tuple["Figure", list[list["Axes"]]]:
    """Return panels: a column per case, the paper above, our plans below."""
    size = (_WIDTH * len(cases) + 0.6, 5.4)
    figure, axes = panels(2, len(cases), size=size, sharex=True, sharey="col")
    for column, case in enumerate(cases):
        axes[0][column].set_title(_title(case, vehicle))
    for row, name in zip(axes, (AS_PAPER, AS_PLANNED), strict=True):
        row[0].set_ylabel(f"{name}\n\ntest accuracy")
    return figure, axes


def _curve(
    axes: "Axes", x: Sequence[float], runs: Sequence[Array], line: Line, label: str
) -> None:
    """Draw means over repeats with their 95% intervals."""
    estimates = [mean_interval(values) for values in runs]
    axes.errorbar(
        x,
        [each.mean for each in estimates],
        yerr=[np.nan_to_num(each.half) for each in estimates],
        label=label,
        elinewidth=0.8,
        **line.options(),
    )


def _band(
    axes: "Axes", x: Sequence[float], runs: Sequence[Array], line: Line, label: str
) -> None:
    """Draw means with their 95% intervals as a band, for curves with many points."""
    estimates = [mean_interval(values) for values in runs]
    means = [each.mean for each in estimates]
    axes.plot(x, means, label=label, **line.options(markersize=3))
    halves = np.nan_to_num([each.half for each in estimates])
    axes.fill_between(
        x, means - halves, means + halves, color=line.color, alpha=0.13, linewidth=0
    )
