"""What the evaluation says, in words and tables; every number comes from its rows.

It also compares planners with a grid search and with baselines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array
from fedbudget.paper import planners
from fedbudget.paper.blocks import (
    Block,
    Bullets,
    Cell,
    Heading,
    Marked,
    Paragraph,
    Table,
    interval,
)
from fedbudget.paper.cases import (
    DELTA,
    FIRST_COST,
    FIRST_EPSILON,
    PASGD_TAU,
    PRICES,
    SGD_TAU,
    Scale,
    most_rounds,
)
from fedbudget.paper.claims import (
    APART,
    FACTOR,
    HOLDS,
    IN_PART,
    MOST,
    SOME,
    UNDECIDED,
    Claim,
    Findings,
    pasgd_gain,
)
from fedbudget.paper.evaluation import Tables
from fedbudget.paper.figures import Drawn
from fedbudget.paper.planners import PRINTED
from fedbudget.paper.results import LEVEL, Regret, Runs, mean_interval, paired

TITLE = "The paper's evaluation, run again"
_KINDS = {HOLDS: "good", IN_PART: "fair", UNDECIDED: "fair"}
_NEAR = 0.005  # accuracies that differ by less are called alike


@dataclass(frozen=True, kw_only=True)
class About:
    """What the reader should know of the run itself."""

    version: str
    seconds: float
    cores: int
    command: str
    vehicle: str | None


def document(found: Findings, drawn: Sequence[Drawn], about: About) -> list[Block]:
    """Return the whole report."""
    scale, tables, runs = found.scale, found.tables, found.runs
    return [
        *_short(found, about),
        *_what_was_run(scale, found.rates, about),
        *_claims(found.claims),
        *_reasons(runs, tables, found.rates, scale),
        *_regret_blocks(found.regrets, runs, tables, scale),
        Heading("The figures"),
        Paragraph(
            "The paper's source holds captions but no figures: there is nothing to lay "
            "these over. Each is drawn twice, as in the paper and as fedbudget plans "
            "it."
        ),
        *drawn,
        *_baseline_blocks(runs, tables, scale),
        *_printed_blocks(runs, scale),
    ]


def _short(found: Findings, about: About) -> Iterator[Block]:
    scale, searches = found.scale, found.tables.searches
    joint = next(each for each in found.regrets if each.planner == planners.JOINT)
    searching = sum(row["seconds"] for row in searches if row["search"] == "full")
    budgets = len(scale.budgets) * len(scale.cases)
    least = min(scale.epsilons)
    spent = _printed_epsilon(found.runs, scale, least)
    if any(case.synthetic(about.vehicle) for case in scale.cases):
        yield Paragraph(
            "The Vehicle cases are a SYNTHETIC stand-in, drawn from a plain model: "
            "their numbers say nothing about the real sensors. Give the real file with "
            "`--vehicle vehicle.mat`.",
            "note",
        )
    yield Heading("In short")
    yield Bullets(
        [
            "The joint planner, which reads no private row (a few of its constants "
            "were once fitted on Adult and on the stand-in), falls "
            f"{interval(joint.mean)} points of accuracy short of the best point of a "
            "full grid search tuned on private validation rows (below zero it would be "
            f"better; mean over {budgets} budgets and cases; worst {joint.worst:.1f}, "
            f"{joint.where}). It plans in {joint.seconds:.2f} s; the search took "
            f"{searching / budgets:.0f} s for each budget. At C = "
            f"{', '.join(f'{cost:g}' for cost in scale.short_costs)}, which pays for "
            "one round, it does not do as well where devices are unlike: see below.",
            *(
                f"The paper claims: {claim.claim}. As it states it, that "
                f"{claim.verdict} ({claim.holds} of {claim.total} settings)."
                for claim in found.claims
                if "a" in claim.number
            ),
            "With the noise corrected, what the paper calls epsilon is epsilon. The "
            f"noise it prints would spend {spent:.1f} where it says {least:g}: see the "
            "end.",
        ]
    )


def _what_was_run(
    scale: Scale, rates: dict[str, float], about: About
) -> Iterator[Block]:
    told = ", ".join(f"{case} {rate:g}" for case, rate in rates.items())
    yield Heading("What was run")
    yield Bullets(
        [
            f"`{about.command}`, fedbudget {about.version}, {about.seconds / 60:.1f} "
            f"minutes of runs on {about.cores} core{'s' * (about.cores > 1)} (parts "
            "that were kept count with the time they took).",
            "Cases as in the paper: Adult by education (Adult-1) and in even shares "
            "(Adult-2), logistic loss, categorical columns; Vehicle by sensor "
            "(Vehicle-1) and in even shares (Vehicle-2), hinge loss. 80/10/10 on every "
            f"device, c1 = {PRICES.communication:g}, c2 = {PRICES.computation:g}, "
            f"delta = {DELTA:g}, full batches. Accuracy is the mean over the devices' "
            "own test rows.",
            f"{scale.repeats} repeats ({scale.curve_repeats} for every tau's curve), "
            f"each with its own split and its own noise. Intervals are {LEVEL:.0%}, by "
            "Student's t; differences are paired by repeat. They are about other "
            "splits and noise of these same rows, not about new rows.",
            "As in the paper: 1/M weights, zCDP accounting, the noise with the root "
            "that is private (erratum 1), and one learning rate for each case. The "
            "paper does not say which; here it is the one with which its planner does "
            f"best over all budgets, on validation rows: {told}. Its planner is told "
            "that rate and assumes, as the paper does, that it is small enough for the "
            "step-size condition.",
            "As fedbudget plans it: everything from the joint planner with its default "
            "constants and exact accounting; it reads no row.",
            f"The paper's grid: tau = {scale.taus[0]}..{scale.taus[-1]} with every K "
            f"that C pays for, and {', '.join(map(str, scale.far_taus))} with some; "
            f"learning rates {', '.join(f'{r:g}' for r in scale.rates)}. The full "
            f"grid: tau = {', '.join(map(str, scale.full_taus))}, the same rates, "
            f"momentum {', '.join(f'{m:g}' for m in scale.momenta)}, weights by rows "
            f"to the power {', '.join(f'{p:g}' for p in scale.powers)}, without and "
            "with drift control (the last two where devices are unlike); each budget's "
            f"best {scale.finalists} points run {scale.final_repeats} times again "
            "before one is picked"
            + (
                f", and of each tau the best {scale.tau_finalists}, "
                f"{scale.tau_repeats} times"
                if scale.tau_finalists > 1
                else ""
            )
            + ". Points are picked on validation rows and scored on test rows with "
            "other noise. Which tau of a curve is the best (claims 2 and 3), and which "
            "learning rate suits a tau (claim 1b, Figure 1), is told by the validation "
            "rows of the scored runs.",
            "Not as in the paper: two classes are one logistic loss, not a softmax "
            "over two (half the parameters, the same model).",
        ]
    )


def _claims(found: Sequence[Claim]) -> Iterator[Block]:
    yield Heading("The claims")
    yield Paragraph(
        f"A claim holds if it does in {MOST:.0%} of the settings; in part if in "
        f"{SOME:.0%} of them, or on average beyond doubt, in more than the reverse "
        "does, and if the average does not say the reverse. For accuracies a setting "
        "counts only where its interval excludes zero; the rest are ties. A best tau "
        "is partly chance: claim 3 is undecided unless its effect, an interval over "
        f"the settings, excludes zero. Taus are close if at most {APART} apart or "
        f"within a factor of {FACTOR:g}."
    )
    yield Table(
        [
            "",
            "claim",
            "reading",
            "answer",
            "settings: yes / reverse / all",
            "effect",
            "",
        ],
        [
            [
                claim.number,
                claim.claim,
                claim.reading,
                Marked(claim.verdict, _KINDS.get(claim.verdict, "bad")),
                f"{claim.holds} / {claim.against} / {claim.total}",
                interval(claim.effect),
                claim.unit,
            ]
            for claim in found
        ],
        numbers=(4, 5),
    )


def _reasons(
    runs: Runs, tables: Tables, rates: dict[str, float], scale: Scale
) -> Iterator[Block]:
    yield Heading("Why", level=3)
    many, few = (tau * most_rounds(tau, FIRST_COST) for tau in (PASGD_TAU, SGD_TAU))
    yield Paragraph(
        f"Claim 1 is about the learning rate. At one rate, tau = {PASGD_TAU} moves the "
        f"model {many / few:.2g} times as far within the budget as tau = {SGD_TAU} "
        f"(progress depends on the rate times K: {many} steps against {few}). With a "
        "small rate DP-SGD has hardly left its start; with a larger one it catches up, "
        f"and local steps on unlike devices drift apart. {_drift(runs, rates)} "
        f"Accuracy of tau = {PASGD_TAU} less that of tau = {SGD_TAU}, in points, at "
        f"eps = {FIRST_EPSILON:g}, C = {FIRST_COST:g}:"
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
    near, count = _flatness(runs, scale)
    yield Paragraph(
        "Claims 2 and 3 are about a best tau, and mostly there is none: with its best "
        f"K and rate, {near:.0f} of {count:.0f} taus (median over the settings) come "
        f"within {100 * _NEAR:g} points of the best one. So a planner can be far from "
        "the grid's tau and lose little accuracy, and which tau wins is partly chance. "
        "What the planners themselves choose is in 3c and 3d."
    )
    yield Paragraph(_saturation(runs, tables, scale) + _fall(runs, scale))


def _drift(runs: Runs, rates: dict[str, float]) -> str:
    """Say what is left of claim 1 without any noise: drift, not privacy."""
    gains = []
    for case, rate in rates.items():
        fast = runs.values(case, "pasgd-no-noise", np.inf, FIRST_COST)
        slow = runs.values(case, "sgd-no-noise", np.inf, FIRST_COST)
        gain = mean_interval(100 * paired(fast, slow)).mean
        gains.append(f"{gain:+.1f} on {case} (rate {rate:g})")
    return f"Without any noise the difference is {', '.join(gains)}."


def _saturation(runs: Runs, tables: Tables, scale: Scale) -> str:
    """Say how near to all there is to gain the smallest budgets come."""
    few, low = min(scale.epsilons), min(scale.line_costs)
    gaps = []
    for case in scale.cases:
        best = [
            row["test_accuracy"]
            for row in tables.baselines
            if (row["case"], row["baseline"]) == (case.name, "centralised")
        ]
        mine = runs.values(case.name, planners.JOINT, few, low)
        gap = 100 * float(np.mean(paired(np.array(best), mine)))
        gaps.append(f"{gap:.1f} on {case.name}")
    return (
        "Claim 4 stops where the model is as good as it gets. At the smallest budgets "
        f"of all, eps = {few:g} and C = {low:g}, the joint plan is this many points of "
        f"accuracy below centralised training without privacy: {', '.join(gaps)}. More "
        "budget cannot buy more than that."
    )


def _fall(runs: Runs, scale: Scale) -> str:
    """Say where accuracy falls most although epsilon grows, and what changed there."""
    falls = [
        (
            float(
                np.mean(
                    paired(runs.values(*at, low, cost), runs.values(*at, high, cost))
                )
            ),
            (*at, low, high, cost),
        )
        for case in scale.cases
        for at in [(case.name, planners.TUNED)]
        for cost in scale.panel_costs
        for low, high in pairwise(sorted(scale.line_epsilons))
    ]
    most, (case_name, scheme, low, high, cost) = max(falls)
    taus = [runs.distinct("tau", case_name, scheme, e, cost)[0] for e in (low, high)]
    if most < _NEAR or taus[0] == taus[1]:
        return ""
    return (
        " Where accuracy falls although epsilon grows, the paper's planner has changed "
        f"its tau: most of all on {case_name} at C = {cost:g}, where it goes from "
        f"{taus[0]} to {taus[1]} between eps = {low:g} and {high:g} and loses "
        f"{100 * most:.1f} points; its bound has no term for drift."
    )


def _signed_cell(differences: Array) -> Cell:
    found = mean_interval(differences)
    kind = {1: "good", -1: "bad"}.get(found.sign)
    text = f"{found.mean:+.1f}"
    return Marked(text, kind) if kind else text


def _flatness(runs: Runs, scale: Scale) -> tuple[float, float]:
    """Return how many taus come near the best one, and how many there are: medians."""
    near, counts = [], []
    for case in scale.cases:
        for epsilon, cost in scale.budgets:
            at = case.name, "curve-own", epsilon, cost
            means = [
                float(np.mean(runs.values(*at, tau=tau)))
                for tau in runs.distinct("tau", *at)
            ]
            near.append(sum(mean >= max(means) - _NEAR for mean in means))
            counts.append(len(means))
    return float(np.median(near)), float(np.median(counts))


def _regret_blocks(
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


def _baseline_blocks(runs: Runs, tables: Tables, scale: Scale) -> Iterator[Block]:
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


def _printed_blocks(runs: Runs, scale: Scale) -> Iterator[Block]:
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
        spent = _printed_epsilon(runs, scale, epsilon)
        rows.append([f"{epsilon:g}", Marked(f"{spent:.1f}", "bad"), *cells])
    yield Table(
        ["eps asked for", "eps really spent", *names],
        rows,
        numbers=range(len(names) + 2),
    )


def _printed_epsilon(runs: Runs, scale: Scale, epsilon: float) -> float:
    """Return the most that the printed noise really spends where it says epsilon."""
    return max(
        float(row["spent_epsilon"])
        for case in scale.cases
        for row in runs.rows(case.name, PRINTED, epsilon, FIRST_COST)
    )
