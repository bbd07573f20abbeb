"""The whole evaluation, case by case; every part is kept, so that it can go on."""

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
    most_rounds,
)
from fedbudget.paper.lab import SCORING, STEP_SECONDS, Entry, Lab, Row, Store
from fedbudget.paper.planners import PRINTED, printed_noise
from fedbudget.planning import Plan
from fedbudget.reporting import baselines


@dataclass(kw_only=True)
class Tables:
    """All numbers of an evaluation, as plain rows."""

    runs: list[Row] = field(default_factory=list)  # scored runs, one row per repeat
    searches: list[Row] = field(default_factory=list)  # what a grid search took
    plans: list[Row] = field(default_factory=list)  # what planners chose, and took
    baselines: list[Row] = field(default_factory=list)
    found_seconds: float = 0.0  # that parts took which were there already


def evaluate(
    scale: Scale,
    store: Store,
    *,
    vehicle: str | None = None,
    on_work: Callable[[float, str], None] = lambda seconds, what: None,
) -> Tables:
    """Run all cases and return their numbers.

    Args:
        scale: How much to run.
        store: Where parts are kept; those that are there are not run again.
        vehicle: The real ``vehicle.mat``, if there is one.
        on_work: Told how much of `expected_work` is done, and what it was.
    """
    tables = Tables()
    for case in scale.cases:
        lab = Lab(case=case, store=store, vehicle=vehicle, on_work=on_work)
        _evaluate_case(lab, scale, tables)
        tables.found_seconds += lab.found_seconds
    return tables


def _evaluate_case(lab: Lab, scale: Scale, tables: Tables) -> None:
    found = grid.paper_search(lab, scale)
    rate = planners.fixed_rate(lab, scale)
    full = grid.full_search(lab, scale)
    first = scale.screens
    picked, again = grid.finals(
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
            ("paper", found, found.seconds),
            ("full", full, full.seconds + again),
        )
    ]
    entries = list(_planned(lab, scale, rate, tables))
    entries += _first_figure(lab, scale, rate, entries)
    entries += _without_noise(lab, rate)
    entries += _printed(entries)
    entries += [
        Entry(
            plan=Maker(lab.problem, "gdp").plan(point),
            says=_says("grid-full", epsilon, cost),
        )
        for (epsilon, cost), point in picked.items()
    ]
    repeats = range(scale.repeats)
    tables.runs += lab.run("planned", entries, repeats=repeats, noise=SCORING)
    curves = list(_curves(lab, scale, found, full, rate))
    tables.runs += lab.run(
        "curves", curves, repeats=range(scale.curve_repeats), noise=SCORING
    )
    tables.baselines += baseline_rows(lab, scale)


def _says(scheme: str, epsilon: float, cost: float) -> Row:
    return {"scheme": scheme, "epsilon": float(epsilon), "cost": float(cost)}


def _planned(lab: Lab, scale: Scale, rate: float, tables: Tables) -> Iterator[Entry]:
    """Ask every planner: two of them for all budgets of the figures."""
    budgets = {
        name: scale.line_budgets
        if name in (planners.JOINT, planners.TUNED)
        else scale.budgets
        for name in planners.PLANNERS
    }
    for name, pairs in budgets.items():
        for epsilon, cost in pairs:
            asked = planners.ask(name, lab.problem, epsilon, cost, rate=rate)
            says = _says(name, epsilon, cost)
            entry = Entry(plan=asked.plan, says=says)
            tables.plans.append(
                entry.row() | {"case": lab.case.name, "seconds": asked.seconds}
            )
            yield entry
        lab.on_work(0, f"{lab.case.name}: planning")


def _first_figure(
    lab: Lab, scale: Scale, rate: float, planned: Sequence[Entry]
) -> Iterator[Entry]:
    """DP-SGD and DP-PASGD at every learning rate, and the joint plan; every round."""
    maker = Maker(lab.problem, "zcdp")
    for tau in (SGD_TAU, PASGD_TAU):
        rounds = most_rounds(tau, FIRST_COST)
        for eta in sorted({*scale.rates, rate}):
            point = Point(
                epsilon=FIRST_EPSILON, tau=tau, rounds=rounds, learning_rate=eta
            )
            yield from _rounds(
                maker.plan(point), f"tau={tau}", FIRST_EPSILON, FIRST_COST
            )
    for entry in planned:
        says = entry.says
        if says["scheme"] == planners.JOINT and (says["epsilon"], says["cost"]) == (
            FIRST_EPSILON,
            FIRST_COST,
        ):
            yield from _rounds(entry.plan, "joint-rounds", FIRST_EPSILON, FIRST_COST)


def _rounds(plan: Plan, scheme: str, epsilon: float, cost: float) -> Iterator[Entry]:
    for rounds in range(1, plan.rounds + 1):
        yield Entry(plan=first_rounds(plan, rounds), says=_says(scheme, epsilon, cost))


def _without_noise(lab: Lab, rate: float) -> Iterator[Entry]:
    """PASGD and distributed SGD: the same runs, nothing added."""
    maker = Maker(lab.problem, "zcdp")
    for tau, scheme in ((SGD_TAU, "sgd-no-noise"), (PASGD_TAU, "pasgd-no-noise")):
        point = Point(
            epsilon=FIRST_EPSILON,
            tau=tau,
            rounds=most_rounds(tau, FIRST_COST),
            learning_rate=rate,
        )
        bare = maker.plan(point).without_privacy()
        yield Entry(plan=bare, says=_says(scheme, np.inf, FIRST_COST))


def _printed(planned: Sequence[Entry]) -> list[Entry]:
    """Run the paper's plans with the noise that it prints, and its real epsilon."""
    found = []
    for entry in planned:
        if entry.says["scheme"] == planners.TUNED and entry.says["cost"] == FIRST_COST:
            noisy = printed_noise(entry.plan, epsilon=entry.says["epsilon"])
            says = dict(entry.says) | {"scheme": PRINTED}
            found.append(Entry(plan=noisy, says=says))
    return found


def _curves(
    lab: Lab, scale: Scale, found: grid.Search, full: grid.Search, rate: float
) -> Iterator[Entry]:
    """The best point of every tau: at the fixed rate, at its own, and of everything."""
    kinds = (
        ("curve-fixed", "zcdp", found, rate),
        ("curve-own", "zcdp", found, None),
        ("curve-full", "gdp", full, None),
    )
    first = scale.screens
    for scheme, accountant, searched, only in kinds:
        maker = Maker(lab.problem, accountant)
        picked, _ = grid.finals(
            lab,
            f"{scheme}-finals",
            grid.by_tau(searched, scale, rate=only),
            accountant=accountant,
            repeats=range(first, first + scale.tau_repeats),
        )
        for (epsilon, cost, _), point in picked.items():
            yield Entry(plan=maker.plan(point), says=_says(scheme, epsilon, cost))


def baseline_rows(lab: Lab, scale: Scale) -> list[Row]:
    """Return what the baselines reach, from disk where it is there."""
    repeats = range(min(scale.baseline_repeats, scale.repeats))

    def make() -> list[Row]:
        rows = []
        for repeat in repeats:
            started = time.perf_counter()
            found = list(baselines_of(lab, lab.data(repeat), scale, repeat))
            taken = (time.perf_counter() - started) / len(found)
            rows += [row | {"seconds": taken} for row in found]
            lab.on_work(0, f"{lab.case.name}: baselines")
        return rows

    rows, _ = lab.kept("baselines", [repr(repeats), repr(scale.epsilons)], make)
    return rows


def baselines_of(lab: Lab, data: Dataset, scale: Scale, repeat: int) -> Iterator[Row]:
    """Fit all baselines on one split."""
    loss = lab.case.loss
    found = [
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
        found += [(epsilon, one), (epsilon, central)]
    for epsilon, each in found:
        yield {
            "case": lab.case.name,
            "baseline": each.name,
            "epsilon": float(epsilon),
            "repeat": repeat,
            "test_accuracy": each.measured["test_accuracy"],
        }


def expected_work(scale: Scale) -> float:
    """Estimate the whole work in seconds of one core, for the time that is left."""
    return sum(_expected(case, scale) for case in scale.cases)


def _expected(case: Case, scale: Scale) -> float:
    alike = case.split == "iid"
    steps = scale.screens * sum(p.steps for p in grid.paper_grid(scale))
    full = grid.full_grid(scale, alike=alike)
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
