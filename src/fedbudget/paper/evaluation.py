"""The whole evaluation, case by case; finished parts are cached on disk."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedbudget.data import Dataset
from fedbudget.paper import grid, planners
from fedbudget.paper.cases import (
    DELTA,
    FIRST_COST,
    FIRST_EPSILON,
    PASGD_TAU,
    SGD_TAU,
    Case,
    Maker,
    Point,
    Scale,
    first_rounds,
    max_rounds,
)
from fedbudget.paper.lab import SCORING, STEP_SECONDS, Entry, Lab, Row, Store
from fedbudget.paper.planners import PRINTED, printed_noise
from fedbudget.planning import Plan
from fedbudget.reporting import baselines


@dataclass(kw_only=True)
class Tables:
    """All numbers of an evaluation, as plain rows."""

    runs: list[Row] = field(default_factory=list)  # scored runs, one row per repeat
    searches: list[Row] = field(default_factory=list)  # points and time of a search
    plans: list[Row] = field(default_factory=list)  # the planners' plans, and time
    baselines: list[Row] = field(default_factory=list)
    cached_seconds: float = 0.0  # run time of the parts that were on disk


def evaluate(
    scale: Scale,
    store: Store,
    *,
    vehicle: str | None = None,
    on_work: Callable[[float, str], None] = lambda seconds, task: None,
) -> Tables:
    """Run all cases and return their numbers.

    Args:
        scale: How much to run.
        store: The finished parts; they are not run again.
        vehicle: The real ``vehicle.mat``, if there is one.
        on_work: Called with the share of `expected_work` that was done, in seconds, and
            its name.
    """
    tables = Tables()
    for case in scale.cases:
        lab = Lab(case=case, store=store, vehicle=vehicle, on_work=on_work)
        _evaluate_case(lab, scale, tables)
        tables.cached_seconds += lab.cached_seconds
    return tables


def _evaluate_case(lab: Lab, scale: Scale, tables: Tables) -> None:
    paper = grid.paper_search(lab, scale)
    rate = planners.fixed_rate(lab, scale)
    full = grid.full_search(lab, scale)
    first = scale.screens
    selected, final_seconds = grid.finals(
        lab,
        "full-grid-finals",
        grid.by_budget(full, scale),
        accountant="gdp",
        repeats=range(first, first + scale.final_repeats),
    )
    tables.searches += [
        {
            "case": lab.case.name,
            "search": name,
            "points": len(each.points),
            "seconds": seconds,
            "learning_rate": rate,
        }
        for name, each, seconds in (
            ("paper", paper, paper.seconds),
            ("full", full, full.seconds + final_seconds),
        )
    ]
    entries = list(_planned(lab, scale, rate, tables))
    entries += _first_figure(lab, scale, rate, entries)
    entries += _without_noise(lab, rate)
    entries += _printed(entries)
    entries += [
        Entry(
            plan=Maker(lab.problem, "gdp").plan(point),
            labels=_labels("grid-full", epsilon, cost),
        )
        for (epsilon, cost), point in selected.items()
    ]
    repeats = range(scale.repeats)
    tables.runs += lab.run("planned", entries, repeats=repeats, noise=SCORING)
    curves = list(_curves(lab, scale, paper, full, rate))
    tables.runs += lab.run(
        "curves", curves, repeats=range(scale.curve_repeats), noise=SCORING
    )
    tables.baselines += baseline_rows(lab, scale)


def _labels(scheme: str, epsilon: float, cost: float) -> Row:
    return {"scheme": scheme, "epsilon": float(epsilon), "cost": float(cost)}


def _planned(lab: Lab, scale: Scale, rate: float, tables: Tables) -> Iterator[Entry]:
    """Plan with every planner; two of them for all budgets of the figures."""
    budgets = {
        name: scale.line_budgets
        if name in (planners.JOINT, planners.TUNED)
        else scale.budgets
        for name in planners.PLANNERS
    }
    for name, pairs in budgets.items():
        for epsilon, cost in pairs:
            timed = planners.make_plan(name, lab.problem, epsilon, cost, rate=rate)
            entry = Entry(plan=timed.plan, labels=_labels(name, epsilon, cost))
            tables.plans.append(
                entry.row() | {"case": lab.case.name, "seconds": timed.seconds}
            )
            yield entry
        lab.on_work(0, f"{lab.case.name}: planning")


def _first_figure(
    lab: Lab, scale: Scale, rate: float, planned: Sequence[Entry]
) -> Iterator[Entry]:
    """DP-SGD and DP-PASGD at every learning rate, and the joint plan; every round."""
    maker = Maker(lab.problem, "zcdp")
    for tau in (SGD_TAU, PASGD_TAU):
        rounds = max_rounds(tau, FIRST_COST)
        for eta in sorted({*scale.rates, rate}):
            point = Point(
                epsilon=FIRST_EPSILON, tau=tau, rounds=rounds, learning_rate=eta
            )
            yield from _rounds(
                maker.plan(point), f"tau={tau}", FIRST_EPSILON, FIRST_COST
            )
    for entry in planned:
        if entry.labels == _labels(planners.JOINT, FIRST_EPSILON, FIRST_COST):
            yield from _rounds(entry.plan, "joint-rounds", FIRST_EPSILON, FIRST_COST)


def _rounds(plan: Plan, scheme: str, epsilon: float, cost: float) -> Iterator[Entry]:
    for rounds in range(1, plan.rounds + 1):
        labels = _labels(scheme, epsilon, cost)
        yield Entry(plan=first_rounds(plan, rounds), labels=labels)


def _without_noise(lab: Lab, rate: float) -> Iterator[Entry]:
    """PASGD and distributed SGD: the same runs without noise."""
    maker = Maker(lab.problem, "zcdp")
    for tau, scheme in ((SGD_TAU, "sgd-no-noise"), (PASGD_TAU, "pasgd-no-noise")):
        point = Point(
            epsilon=FIRST_EPSILON,
            tau=tau,
            rounds=max_rounds(tau, FIRST_COST),
            learning_rate=rate,
        )
        bare = maker.plan(point).without_privacy()
        yield Entry(plan=bare, labels=_labels(scheme, np.inf, FIRST_COST))


def _printed(planned: Sequence[Entry]) -> list[Entry]:
    """Return the paper's plans with the noise that it prints and the real epsilon."""
    entries = []
    for entry in planned:
        labels = entry.labels
        if labels["scheme"] == planners.TUNED and labels["cost"] == FIRST_COST:
            plan = printed_noise(entry.plan, epsilon=labels["epsilon"])
            entries.append(Entry(plan=plan, labels={**labels, "scheme": PRINTED}))
    return entries


def _curves(
    lab: Lab, scale: Scale, paper: grid.Search, full: grid.Search, rate: float
) -> Iterator[Entry]:
    """Yield every tau's best point: at the fixed rate, at any, of the full grid."""
    kinds = (
        ("curve-fixed", "zcdp", paper, rate),
        ("curve-own", "zcdp", paper, None),
        ("curve-full", "gdp", full, None),
    )
    first = scale.screens
    for scheme, accountant, search, fixed in kinds:
        maker = Maker(lab.problem, accountant)
        selected, _ = grid.finals(
            lab,
            f"{scheme}-finals",
            grid.by_tau(search, scale, rate=fixed),
            accountant=accountant,
            repeats=range(first, first + scale.tau_repeats),
        )
        for (epsilon, cost, _), point in selected.items():
            labels = _labels(scheme, epsilon, cost)
            yield Entry(plan=maker.plan(point), labels=labels)


def baseline_rows(lab: Lab, scale: Scale) -> list[Row]:
    """Return the accuracies of the baselines, from disk if possible."""
    repeats = range(min(scale.baseline_repeats, scale.repeats))

    def make() -> list[Row]:
        rows = []
        for repeat in repeats:
            started = time.perf_counter()
            fitted = list(baselines_of(lab, lab.data(repeat), scale, repeat))
            seconds = (time.perf_counter() - started) / len(fitted)
            rows += [row | {"seconds": seconds} for row in fitted]
            lab.on_work(0, f"{lab.case.name}: baselines")
        return rows

    rows, _ = lab.cached("baselines", [repr(repeats), repr(scale.epsilons)], make)
    return rows


def baselines_of(lab: Lab, data: Dataset, scale: Scale, repeat: int) -> Iterator[Row]:
    """Fit all baselines on one split."""
    loss = lab.case.loss
    results = [
        (0.0, baselines.constant(data, loss=loss)),
        (0.0, baselines.local_only(data, loss=loss)),
        (np.inf, baselines.one_shot(data, loss=loss)),
        (np.inf, baselines.centralised(data, loss=loss)),
    ]
    for epsilon in scale.epsilons:
        one = baselines.one_shot(
            data, epsilon=epsilon, delta=DELTA, loss=loss, seed=repeat
        )
        (central,) = baselines.centralised_private(
            data, epsilon=epsilon, delta=DELTA, loss=loss, seeds=[repeat]
        )
        results += [(epsilon, one), (epsilon, central)]
    for epsilon, each in results:
        yield {
            "case": lab.case.name,
            "baseline": each.name,
            "epsilon": float(epsilon),
            "repeat": repeat,
            "test_accuracy": each.measured["test_accuracy"],
        }


def expected_work(scale: Scale) -> float:
    """Estimate the whole work in seconds of one core, to show the remaining time."""
    return sum(_expected(case, scale) for case in scale.cases)


def _expected(case: Case, scale: Scale) -> float:
    iid = case.split == "iid"
    steps = scale.screens * sum(p.steps for p in grid.paper_grid(scale))
    full = grid.full_grid(scale, iid=iid)
    steps += scale.screens * sum(p.steps for p in full)
    budgets = len(scale.budgets)
    steps += budgets * scale.finalists * 150 * scale.final_repeats
    if scale.tau_finalists > 1:
        taus = 2 * (len(scale.taus) + len(scale.far_taus)) + len(scale.full_taus)
        steps += budgets * taus * scale.tau_finalists * 100 * scale.tau_repeats
    steps += len(scale.line_budgets) * 250 * scale.repeats
    curves = len(scale.taus) * 120 + len(scale.far_taus) * 800
    steps += budgets * curves * scale.curve_repeats
    return steps * STEP_SECONDS[case.data]
