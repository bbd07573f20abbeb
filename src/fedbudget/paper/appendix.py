"""The appendix of the report: the long tables, each under a heading of its own."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array
from fedbudget.paper import planners
from fedbudget.paper.blocks import (
    Block,
    Cell,
    Heading,
    Marked,
    Paragraph,
    Table,
    interval,
    listed,
)
from fedbudget.paper.cases import (
    FIRST_COST,
    FIRST_EPSILON,
    PASGD_TAU,
    SGD_TAU,
    Scale,
)
from fedbudget.paper.claims import (
    HOLDS,
    IN_PART,
    UNDECIDED,
    Claim,
    Findings,
    pasgd_gain,
)
from fedbudget.paper.evaluation import Tables
from fedbudget.paper.planners import PRINTED
from fedbudget.paper.results import (
    Regret,
    Runs,
    baseline_accuracies,
    mean_interval,
    printed_epsilon,
)
from fedbudget.privacy import rounded_up

_KINDS = {HOLDS: "good", IN_PART: "fair", UNDECIDED: "fair"}


def appendix(findings: Findings) -> Iterator[Block]:
    """Yield the long tables."""
    scale, tables, runs = findings.scale, findings.tables, findings.runs
    yield from _all_readings(findings.claims)
    yield from _gain_by_rate(runs, scale)
    yield from _regret_by_case(findings.regrets, scale)
    yield from _one_round_blocks(runs, tables, scale)
    yield from _search_blocks(tables, scale)
    yield from _baseline_blocks(runs, tables, scale)
    yield from _printed_blocks(runs, scale)


def _all_readings(claims: Sequence[Claim]) -> Iterator[Block]:
    yield Heading("Every reading of the claims", level=3)
    yield Paragraph(
        "Reading a is the paper's own. Readings marked fair do not fix one learning "
        "rate per case."
    )
    yield Table(
        [
            "",
            "claim",
            "reading",
            "answer",
            "settings: yes / reverse / all",
            "effect",
            "unit",
        ],
        [
            [claim.number, claim.claim, claim.reading, *claim_cells(claim)]
            for claim in claims
        ],
        numbers=(4, 5),
    )


def claim_cells(claim: Claim) -> list[Cell]:
    """Return the answer to a claim: verdict, settings, effect and its unit."""
    return [
        Marked(claim.verdict, _KINDS.get(claim.verdict, "bad")),
        f"{claim.holds} / {claim.against} / {claim.total}",
        interval(claim.effect),
        claim.unit,
    ]


def _gain_by_rate(runs: Runs, scale: Scale) -> Iterator[Block]:
    yield Heading("Claim 1 by learning rate", level=3)
    yield Paragraph(
        f"Accuracy of tau = {PASGD_TAU} minus that of tau = {SGD_TAU}, in points, at "
        f"eps = {FIRST_EPSILON:g}, C = {FIRST_COST:g}. Marked: the interval excludes "
        "zero."
    )
    yield Table(
        ["learning rate", *(case.name for case in scale.cases)],
        [
            [
                f"{rate:g}",
                *(
                    _signed_cell(100 * pasgd_gain(runs, case.name, rate, rate))
                    for case in scale.cases
                ),
            ]
            for rate in scale.rates
        ],
        numbers=range(1, 1 + len(scale.cases)),
    )


def _signed_cell(differences: Array) -> Cell:
    estimate = mean_interval(differences)
    kind = {1: "good", -1: "bad"}.get(estimate.sign)
    text = f"{estimate.mean:+.1f}"
    return Marked(text, kind) if kind else text


def _regret_by_case(regrets: Sequence[Regret], scale: Scale) -> Iterator[Block]:
    yield Heading("Regret by case", level=3)
    yield Paragraph(
        "Mean over the budgets, in points; the worst budget of the case in "
        "parentheses; and at how many budgets the test loss is lower than the grid's."
    )
    budgets = len(scale.budgets)
    yield Table(
        ["planner", *(case.name for case in scale.cases)],
        [
            [
                f"`{each.planner}`",
                *(
                    f"{mean:.2f} ({each.worst_by_case[name]:.2f}); "
                    f"{each.lower_losses[name]} of {budgets}"
                    for name, mean in each.by_case.items()
                ),
            ]
            for each in regrets
        ],
        numbers=range(1, 1 + len(scale.cases)),
    )


def _one_round_blocks(runs: Runs, tables: Tables, scale: Scale) -> Iterator[Block]:
    """Show the budgets that pay for one round; the regret tables leave them out."""
    yield Heading("Budgets that pay for one round", level=3)
    yield Paragraph(
        f"C = {listed(scale.short_costs)} pays for one round and is not part of the "
        "regret above. The joint plan has the lowest predicted loss here, too, but not "
        "always the highest accuracy: on heterogeneous devices one round may end below "
        "the best constant prediction. Test accuracy in percent:"
    )
    constants = {
        case.name: 100
        * np.mean(baseline_accuracies(tables.baselines, case.name, "constant"))
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


def _search_blocks(tables: Tables, scale: Scale) -> Iterator[Block]:
    yield Heading("Duration of the searches", level=3)
    yield Paragraph("Both searches read private validation rows.")
    yield Table(
        ["case", "search", "points", "seconds", "seconds per budget"],
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


def _baseline_blocks(runs: Runs, tables: Tables, scale: Scale) -> Iterator[Block]:
    """Show what other methods reach with the same rows."""
    names = [case.name for case in scale.cases]
    budget = f"C = {FIRST_COST:g}"
    yield Heading("Baselines that the paper leaves out", level=3)
    yield Paragraph(
        "Test accuracy in percent, mean over the devices' own test rows. Local only: "
        "every device fits its own rows and sends nothing. Where local only is above "
        "the joint plan, federation does not pay off by this measure. The first rows "
        f"are over {min(scale.baseline_repeats, scale.repeats)} "
        f"split{'s' * (min(scale.baseline_repeats, scale.repeats) > 1)}, those from "
        f"distributed SGD on over {scale.repeats}."
    )
    rows: list[list[Cell]] = []
    settings = dict.fromkeys((r["baseline"], r["epsilon"]) for r in tables.baselines)
    for name, epsilon in settings:
        cells = []
        for case in names:
            accuracies = [
                100 * row["test_accuracy"]
                for row in tables.baselines
                if (row["case"], row["baseline"], row["epsilon"])
                == (case, name, epsilon)
            ]
            cells.append(_percent(accuracies))
        private = 0 < epsilon < np.inf
        rows.append([f"{name}, eps = {epsilon:g}" if private else name, *cells])
    for scheme, label in (
        ("sgd-no-noise", f"distributed SGD without noise, tau = {SGD_TAU}, {budget}"),
        ("pasgd-no-noise", f"PASGD without noise, tau = {PASGD_TAU}, {budget}"),
    ):
        values = [runs.values(c, scheme, np.inf, FIRST_COST) for c in names]
        rows.append([label, *(_percent(100 * each) for each in values)])
    for epsilon in scale.epsilons:
        values = [runs.values(c, planners.JOINT, epsilon, FIRST_COST) for c in names]
        label = f"`joint`, eps = {epsilon:g}, {budget}"
        rows.append([label, *(_percent(100 * each) for each in values)])
    yield Table(["", *names], rows, numbers=range(1, 1 + len(names)))


def _percent(values: ArrayLike) -> str:
    estimate = mean_interval(values)
    spread = "" if np.isnan(estimate.half) else f" +- {estimate.half:.1f}"
    return f"{estimate.mean:.1f}{spread}"


def _printed_blocks(runs: Runs, scale: Scale) -> Iterator[Block]:
    """Show the epsilon that the printed noise spends, and its gain in accuracy."""
    names = [case.name for case in scale.cases]
    yield Heading("The noise as the paper prints it", level=3)
    yield Paragraph(
        "The paper's `opt_sigma` takes the wrong root (erratum 1). The table has the "
        f"same plans with the printed noise, at C = {FIRST_COST:g}: the epsilon that "
        "they spend (rounded up), and the gain in points of accuracy over the private "
        "noise. If the paper's plots used the printed noise, they show runs without "
        "meaningful privacy."
    )
    rows: list[list[Cell]] = []
    for epsilon in scale.epsilons:
        cells = []
        for name in names:
            printed = runs.values(name, PRINTED, epsilon, FIRST_COST)
            private = runs.values(name, planners.TUNED, epsilon, FIRST_COST)
            cells.append(interval(mean_interval(100 * (printed - private))))
        spent = printed_epsilon(runs, scale, epsilon)
        rows.append(
            [f"{epsilon:g}", Marked(rounded_up(spent, digits=3), "bad"), *cells]
        )
    yield Table(
        ["eps requested", "eps spent", *names],
        rows,
        numbers=range(len(names) + 2),
    )
