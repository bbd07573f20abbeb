"""The five figures, each as in the paper and as planned here, and their captions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedbudget.paper import drawing, searching
from fedbudget.paper.cases import FIRST_COST, FIRST_EPSILON, LONGEST_TAU, Scale
from fedbudget.paper.findings import Findings
from fedbudget.paper.statistics import LEVEL
from fedbudget.reporting.style import drawing as with_style, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure on disk."""

    name: str  # of its files, without the ending
    title: str
    caption: str


def draw_all(found: Findings, folder: Path, *, vehicle: str | None) -> list[Drawn]:
    """Draw every figure as SVG, PDF and PNG, and return them with their captions."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = []
    with with_style():
        for drawn, draw in _figures(found, vehicle):
            save(draw(), folder / drawn.name)
            finished.append(drawn)
    return finished


def described(found: Findings, *, vehicle: str | None) -> list[Drawn]:
    """Return the figures that `draw_all` draws, without drawing them."""
    return [drawn for drawn, _ in _figures(found, vehicle)]


def _figures(
    found: Findings, vehicle: str | None
) -> Iterator[tuple[Drawn, Callable[[], "Figure"]]]:
    scale, runs, rates = found.scale, found.runs, found.rates
    cases = scale.cases
    told = ", ".join(f"{rate:g} on {case}" for case, rate in rates.items())
    ends = _ending(scale, vehicle)
    yield (
        Drawn(
            name="figure1",
            title="Accuracy against resource cost",
            caption="Figure 1 (fig:efficiency). Accuracy against resource cost, round "
            f"by round, at eps = {FIRST_EPSILON:g}, C = {FIRST_COST:g}. Top: as in the "
            f"paper, both at the case's one learning rate ({told}). Bottom: each at "
            "its own best learning rate, picked on validation rows, and the joint "
            f"plan, which picked nothing on private rows. {ends}",
        ),
        lambda: drawing.efficiency(cases, runs, rates, vehicle),
    )
    for kind, (_, planner, name) in searching.KINDS.items():
        grid = (
            "best K for every tau at the case's one learning rate, 1/M weights, zCDP"
            if kind == "paper"
            else "best K, learning rate, momentum, weights and drift control for "
            "every tau, exact accounting"
        )
        yield (
            Drawn(
                name=f"figure2-{kind}",
                title=f"Every tau, {name}",
                caption=f"Figure 2 (fig:baseline_proposed), {name}: {grid}, picked on "
                f"validation rows. Stars: what the planner `{planner}` chose. Dotted: "
                f"tau = {LONGEST_TAU}, where the paper's search ends. Points are "
                "picked for their accuracy, and some have a large loss: what is far "
                f"off is cut. {ends}",
            ),
            partial(searching.search_figure, kind, cases, runs, scale, vehicle),
        )
    for number, over, other in ((3, "cost", "privacy"), (4, "epsilon", "cost")):
        by_cost = over == "cost"
        label = "resource" if by_cost else "privacy"
        yield (
            Drawn(
                name=f"figure{number}",
                title=f"Accuracy against the {label} budget",
                caption=f"Figure {number} (fig:tradeoff_{label}_acc). Accuracy against "
                f"the {label} budget, a line for each {other} budget. Top: the paper's "
                "planner at the case's one learning rate. Bottom: the joint planner. "
                "Grey: what needs no federation, as lines, or in words where it is far "
                f"off. Points are drawn a little apart. {ends}",
            ),
            partial(
                drawing.trade_off,
                cases,
                runs,
                found.tables.baselines,
                over=over,
                ticks=scale.line_costs if by_cost else scale.line_epsilons,
                lines=scale.epsilons if by_cost else scale.panel_costs,
                vehicle=vehicle,
            ),
        )
    yield (
        Drawn(
            name="figure5",
            title="The chosen tau",
            caption="Figure 5 (fig:c_e_tau). The tau that the planner chooses, over "
            "both budgets. Top: the paper's planner at the case's one learning rate. "
            f"Bottom: joint.{synthetic(scale, vehicle)}",
        ),
        partial(
            drawing.chosen_tau,
            cases,
            runs,
            costs=scale.line_costs,
            epsilons=scale.epsilons,
            vehicle=vehicle,
        ),
    )


def _ending(scale: Scale, vehicle: str | None) -> str:
    ends = f"Bars and bands: {LEVEL:.0%} intervals over repeats."
    return ends + synthetic(scale, vehicle)


def synthetic(scale: Scale, vehicle: str | None) -> str:
    """Return a sentence on rows that are not real, where there are any."""
    if any(case.synthetic(vehicle) for case in scale.cases):
        return " The Vehicle cases are a SYNTHETIC stand-in, not the real data."
    return ""
