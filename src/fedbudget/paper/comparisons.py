"""Planners against a grid search, baselines, and the noise that the paper prints."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.paper import planners
from fedbudget.paper.blocks import (
    Block,
    Cell,
    Heading,
    Marked,
    Paragraph,
    Table,
    interval,
)
from fedbudget.paper.cases import FIRST_COST, PASGD_TAU, SGD_TAU, Scale
from fedbudget.paper.evaluation import Tables
from fedbudget.paper.printed import PRINTED
from fedbudget.paper.regret import Regret
from fedbudget.paper.results import Runs
from fedbudget.paper.statistics import mean_interval


def regret_blocks(
    lost: Sequence[Regret], runs: Runs, tables: Tables, scale: Scale
) -> Iterator[Block]:
    """How far planners fall short of a full grid search."""
    yield Heading("Planners against a full grid search")
    yield Paragraph(
        "Test accuracy of the full grid's pick less that of the planner's choice, in "
        f"points, over {len(scale.budgets)} budgets and {len(scale.cases)} cases; "
        "below zero, the planner is better. `paper` is the paper's planner with "
        "analytic constants: its step-size condition allows rates so small that "
        "nothing is learned within the budget. `paper-tuned` is told the rate that was "
        "tuned on validation rows. `bound` minimises the paper's bound, made sound. "
        "`joint` reads no row of a case when it plans, but a few of its constants for "
        "unlike devices were fitted on Adult by education, and one for the hinge loss "
        "on the synthetic Vehicle data: these four cases are not new to it. "
        "docs/accuracy.md has its regret on data that had no part in that."
    )
    yield Table(
        [
            "planner",
            "mean",
            *(f"{case.name} (worst)" for case in scale.cases),
            "worst of all at",
            "reads private rows",
            "seconds a plan",
        ],
        [
            [
                f"`{each.planner}`",
                interval(each.mean),
                *(
                    f"{mean:.2f} ({each.worst_by_case[name]:.2f})"
                    for name, mean in each.by_case.items()
                ),
                each.where,
                Marked("yes, at no stated cost", "bad")
                if each.reads
                else Marked("no", "good"),
                f"{each.seconds:.2f}",
            ]
            for each in lost
        ],
        numbers=(*range(1, 2 + len(scale.cases)), 4 + len(scale.cases)),
    )
    yield from _short_blocks(runs, tables, scale)
    yield Paragraph("What the searches took; both read private validation rows:")
    yield Table(
        ["case", "search", "points", "seconds", "seconds a budget"],
        [
            [
                row["case"],
                row["search"],
                f"{row['points']}",
                f"{row['seconds']:.0f}",
                f"{row['seconds'] / len(scale.budgets):.1f}",
            ]
            for row in tables.searches
        ],
        numbers=(2, 3, 4),
    )


def _short_blocks(runs: Runs, tables: Tables, scale: Scale) -> Iterator[Block]:
    """The budgets below those of the table: they pay for one round."""
    costs = ", ".join(f"{cost:g}" for cost in scale.short_costs)
    yield Paragraph(
        f"C = {costs} pays for one round, and is not in that table. There, too, the "
        "joint plan has the lowest predicted loss, but accuracy need not follow: where "
        "devices are unlike, one round may end below the best constant guess. Test "
        "accuracy in percent:"
    )
    constants = {
        case.name: np.mean(
            [
                100 * row["test_accuracy"]
                for row in tables.baselines
                if (row["case"], row["baseline"]) == (case.name, "constant")
            ]
        )
        for case in scale.cases
    }
    schemes = ("grid-full", planners.JOINT, planners.TUNED)
    yield Table(
        ["case", "eps", "full grid", "`joint`", "`paper-tuned`", "constant"],
        [
            [
                case.name,
                f"{epsilon:g}",
                *(
                    _percent(100 * runs.values(case.name, scheme, epsilon, cost))
                    for scheme in schemes
                ),
                f"{constants[case.name]:.1f}",
            ]
            for case in scale.cases
            for epsilon, cost in scale.short_budgets
        ],
        numbers=range(1, 6),
    )


def baseline_blocks(runs: Runs, tables: Tables, scale: Scale) -> Iterator[Block]:
    """What else could be done with the same rows."""
    names = [case.name for case in scale.cases]
    paid = f"C = {FIRST_COST:g}"
    yield Heading("Baselines that the paper leaves out")
    yield Paragraph(
        "Test accuracy in percent, mean over the devices' own test rows. Local only: "
        "every device fits its own rows and nothing is sent. Where that line is above "
        "the joint plan's, federation does not pay in this measure. The first rows are "
        f"over {min(scale.baseline_repeats, scale.repeats)} splits, those from "
        f"distributed SGD on over {scale.repeats}."
    )
    rows: list[list[Cell]] = []
    settings = dict.fromkeys((r["baseline"], r["epsilon"]) for r in tables.baselines)
    for name, epsilon in settings:
        cells = []
        for case in names:
            found = [
                100 * row["test_accuracy"]
                for row in tables.baselines
                if (row["case"], row["baseline"], row["epsilon"])
                == (case, name, epsilon)
            ]
            cells.append(_percent(found))
        private = 0 < epsilon < np.inf
        rows.append([f"{name}, eps = {epsilon:g}" if private else name, *cells])
    for scheme, told in (
        ("sgd-no-noise", f"distributed SGD without noise, tau = {SGD_TAU}, {paid}"),
        ("pasgd-no-noise", f"PASGD without noise, tau = {PASGD_TAU}, {paid}"),
    ):
        bare = [runs.values(c, scheme, np.inf, FIRST_COST) for c in names]
        rows.append([told, *(_percent(100 * each) for each in bare)])
    for epsilon in scale.epsilons:
        found = [
            100 * runs.values(c, planners.JOINT, epsilon, FIRST_COST) for c in names
        ]
        rows.append([f"`joint`, eps = {epsilon:g}, {paid}", *map(_percent, found)])
    yield Table(["", *names], rows, numbers=range(1, 1 + len(names)))


def _percent(values: ArrayLike) -> str:
    found = mean_interval(values)
    spread = "" if np.isnan(found.half) else f" +- {found.half:.1f}"
    return f"{found.mean:.1f}{spread}"


def printed_blocks(runs: Runs, scale: Scale) -> Iterator[Block]:
    """What the printed noise really spends, and buys."""
    names = [case.name for case in scale.cases]
    yield Heading("The noise as the paper prints it")
    yield Paragraph(
        "The paper's `opt_sigma` takes the wrong root (erratum 1). The same plans with "
        f"the printed noise, at C = {FIRST_COST:g}: what they really spend (exact), "
        "and what that buys in points of accuracy over the private noise. If the "
        "paper's plots used it, they show runs without meaningful privacy."
    )
    rows: list[list[Cell]] = []
    for epsilon in scale.epsilons:
        cells = []
        for name in names:
            wrong = runs.values(name, PRINTED, epsilon, FIRST_COST)
            right = runs.values(name, planners.TUNED, epsilon, FIRST_COST)
            cells.append(interval(mean_interval(100 * (wrong - right))))
        spent = printed_epsilon(runs, scale, epsilon)
        rows.append([f"{epsilon:g}", Marked(f"{spent:.1f}", "bad"), *cells])
    yield Table(
        ["eps asked for", "eps really spent", *names],
        rows,
        numbers=range(len(names) + 2),
    )


def printed_epsilon(runs: Runs, scale: Scale, epsilon: float) -> float:
    """Return the most that the printed noise really spends where it says epsilon."""
    return max(
        float(row["spent_epsilon"])
        for case in scale.cases
        for row in runs.rows(case.name, PRINTED, epsilon, FIRST_COST)
    )
