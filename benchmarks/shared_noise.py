"""What sharing the noise buys: `python benchmarks/shared_noise.py`, about 30 minutes.

Prints two Markdown tables over five cases, with standard errors over splits:

    sums           test accuracy of default plans with trust "uploads" and "sum",
                   between a constant and centralised training without privacy
    sums-methods   the default sum against a grid of sums, output perturbation in one
                   round, and DP-FedAvg with clipping and secure aggregation, at equal
                   epsilon, delta and cost

The cases are people with smartwatches (46 devices; 5 people more are a public pilot,
which gives the columns' bounds and is left out), Adult over 16 devices by education and
at random, over 200, and over 2,000 with the device as the unit. Plans read no row. The
settings of the three other methods are those with the highest mean accuracy on the
validation rows of some splits: they are not private, and an advantage that no plan has.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product

import numpy as np
from tables import add_option, header, row, show, standard_error

import fedbudget as fb
from fedbudget.data.dataset import split_rows
from fedbudget.data.features import Numeric
from fedbudget.data.schema import Schema
from fedbudget.data.windows import statistics
from fedbudget.data.wisdm import CHANNELS, SCHEMA
from fedbudget.planning.settings import longest_tau
from fedbudget.planning.shared_noise import SumSchedule, shared_noise_plan
from fedbudget.planning.weights import capped
from fedbudget.privacy import Trust, Unit
from fedbudget.privacy.runs import TRUSTS
from fedbudget.reporting.baselines import centralised, constant

SPLITS = 20
SELECTING = 5  # splits of the selection of settings
SELECTION_SEED = 1000  # noise by which settings are selected is not that of the scores
PRICES = fb.Prices(communication=100, computation=1)
PILOT = 5  # people who publish their windows

TAUS_AND_ROUNDS = ((1, 1.0), (3, 1.0), (10, 1.0), (25, 1.0), (10, 0.5))
FEW_ROUNDS = (1, 4)  # with as many steps as the cost pays for, or
MOST_STEPS = 500  # in all
MOMENTA, SERVER_RATES = (0.5, 0.8), (1.0, 2.0)  # with more than two rounds
RATES = (0.5, 1.0)  # shares of 2 over the smoothness
LEVELS = (0.0, 0.25)  # from the weights of least noise towards those of the target
CLIPS = (0.03, 0.1, 0.3)  # shares of the longest move that the loss allows
STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2)  # weights of an L2 term

Loader = Callable[[int], fb.Dataset]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows by split, and budgets."""

    name: str
    load: Loader
    epsilons: tuple[float, ...]
    cost: float = 1000
    delta: float = 1e-4
    unit: Unit = "sample"

    def budget(self, epsilon: float, trust: Trust) -> fb.Budget:
        """Return the budget of one row of a table."""
        return fb.Budget(
            epsilon=epsilon,
            delta=self.delta,
            cost=self.cost,
            trust=trust,
            unit=self.unit,
        )


@cache
def watch_columns() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return the 51 statistics of every window, its activity and its person."""
    path = files("fedbudget.data") / "files" / "wisdm_watch.npz"
    with path.open("rb") as file, np.load(file) as arrays:
        readings = arrays["x"].astype(np.float64)
        y, people = arrays["y"].astype(np.int64), arrays["device"]
    channels = {axis: readings[:, k] for k, axis in enumerate(CHANNELS)}
    owners = np.unique(people, return_inverse=True)[1]
    return statistics(channels, CHANNELS, magnitude=True), y, owners


def watches(split: int) -> fb.Dataset:
    """Return the windows of all people but the pilot's, whose quantiles are bounds."""
    columns, y, owners = watch_columns()
    people = np.random.default_rng(PILOT).permutation(owners.max() + 1)
    public = np.isin(owners, people[:PILOT])
    bounds = {}
    for name, values in columns.items():
        low, high = np.quantile(values[public], (0.01, 0.99))
        bounds[name] = Numeric(float(low), float(high))
    schema = Schema(features=bounds, label=SCHEMA.label, target=SCHEMA.target)
    rows = schema.encode({name: values[~public] for name, values in columns.items()})
    devices = np.unique(owners[~public], return_inverse=True)[1]
    train, validation, test = split_rows(rows, y[~public], devices, seed=split)
    return fb.Dataset(
        name="smartwatches",
        train=train,
        validation=validation,
        test=test,
        device_names=tuple(map(str, range(train.num_devices))),
        feature_names=schema.feature_names,
        classes=schema.classes,
        dissimilarity="mild",
        schema=schema,
    )


def adult(partition: str, devices: int | None = None) -> Loader:
    """Return a loader of Adult."""
    return lambda split: fb.load(
        "adult", split=partition, num_devices=devices, seed=split
    )


CASES = (
    Case(name="smartwatches", load=watches, epsilons=(1, 4, 10), cost=5500, delta=1e-5),
    Case(name="Adult, 200 devices", load=adult("iid", 200), epsilons=(0.1, 1, 4)),
    Case(name="Adult-1", load=adult("by-education"), epsilons=(1,)),
    Case(name="Adult-2", load=adult("iid"), epsilons=(1,)),
    Case(
        name="Adult, 2,000 devices, unit device",
        load=adult("iid", 2000),
        epsilons=(4, 10),
        delta=1e-5,
        unit="device",
    ),
)


def pairs(budget: fb.Budget) -> Iterator[tuple[int, int]]:
    """Yield local steps and rounds that the cost pays for."""
    for tau, share in TAUS_AND_ROUNDS:
        rounds = int(share * float(np.max(budget.cost)) / (100 + tau))
        yield tau, max(1, min(rounds, MOST_STEPS // tau))
    for rounds in FEW_ROUNDS:
        longest = longest_tau(budget, PRICES, rounds=rounds, batch_size=1)
        yield min(longest, MOST_STEPS // rounds), rounds


def schedules(problem: fb.Problem, budget: fb.Budget) -> Iterator[SumSchedule]:
    """Yield the schedules of the grid, without weights, unit and clip."""
    limit = 2 / problem.model.smoothness
    for tau, rounds in sorted(set(pairs(budget))):
        served = list(product(MOMENTA, SERVER_RATES)) if rounds > 2 else [(0.0, 1.0)]
        for share, (momentum, server_rate) in product(RATES, served):
            yield SumSchedule(
                tau=tau,
                rounds=rounds,
                learning_rate=share * limit,
                momentum=momentum,
                server_rate=server_rate,
            )


def grid(problem: fb.Problem, budget: fb.Budget) -> list[fb.Plan]:
    """Return sums of many schedules, weights and clips."""
    target = np.full(problem.num_devices, 1 / problem.num_devices)
    rows = problem.num_samples if budget.unit == "sample" else np.ones(len(target))
    least, most = 1 / rows.sum(), float(np.max(target / rows))
    levels = LEVELS if most > 1.1 * least else (1.0,)
    weights = [capped(least * (most / least) ** x, target, 1 / rows**2) for x in levels]
    clips = (*CLIPS, None) if budget.unit == "device" else (None,)
    return [
        shared_noise_plan(problem, budget, PRICES, _clipped(each, problem, clip, w))
        for each in schedules(problem, budget)
        for w in weights
        for clip in clips
        for each in [replace(each, unit=budget.unit)]
    ]


def fed_avg(problem: fb.Problem, budget: fb.Budget) -> list[fb.Plan]:
    """Return DP-FedAvg: its noise covers the clipped move of a whole device."""
    ones = np.ones(problem.num_devices)
    return [
        shared_noise_plan(problem, budget, PRICES, _clipped(each, problem, clip, ones))
        for each in schedules(problem, budget)
        for clip in CLIPS
        for each in [replace(each, unit="device")]
    ]


def one_shot(problem: fb.Problem, budget: fb.Budget) -> list[list[fb.Plan]]:
    """Return output perturbation: one round, an L2 term, one list per weight of it."""
    plans = []
    for l2 in STRENGTHS:
        regular = fb.Problem(
            num_samples=problem.num_samples,
            dim=problem.dim,
            loss=problem.model.name,
            num_classes=problem.model.num_outputs
            if problem.model.num_outputs > 1
            else None,
            l2=l2,
        )
        tau = min(longest_tau(budget, PRICES, rounds=1, batch_size=1), MOST_STEPS)
        rows = problem.num_samples if budget.unit == "sample" else None
        schedule = SumSchedule(
            tau=tau,
            rounds=1,
            learning_rate=1.99 / regular.model.smoothness,
            unit=budget.unit,
            weights=rows,
        )
        plans.append([shared_noise_plan(regular, budget, PRICES, schedule)])
    return plans


def _clipped(
    schedule: SumSchedule, problem: fb.Problem, share: float | None, weights: np.ndarray
) -> SumSchedule:
    """Return the schedule with weights, and with a clip as a share of its move."""
    longest = problem["lipschitz"] * schedule.learning_rate * schedule.tau
    clip = None if share is None else share * longest
    return replace(schedule, clip=clip, weights=weights)


def best_of(case: Case, groups: list[list[fb.Plan]], data: list[fb.Dataset]) -> fb.Plan:
    """Return the plan with the best validation accuracy; a group has one loss."""
    scored = []
    for plans in groups:
        accuracy = [
            fb.sweep(d, plans, seeds=[SELECTION_SEED + s]).measured
            for s, d in enumerate(data)
        ]
        means = np.mean([a["validation_accuracy"].mean(1) for a in accuracy], axis=0)
        scored.append((float(means.max()), plans[int(means.argmax())]))
    return max(scored, key=lambda pair: pair[0])[1]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Accuracies of one case and epsilon in points; arrays over the splits."""

    case: Case
    epsilon: float
    points: dict[str, np.ndarray]

    def cell(self, name: str) -> str:
        """Return a mean and its standard error."""
        values = self.points[name]
        return f"{values.mean():.1f} +- {standard_error(values):.1f}"

    def versus(self, name: str) -> str:
        """Return how far the default sum is below, with the error of the pairs."""
        gaps = self.points[name] - self.points["sum"]
        return f"{gaps.mean():.2f} +- {standard_error(gaps):.2f}"


def measure(case: Case, splits: int, methods: bool) -> list[Result]:
    """Run all plans of a case on all splits."""
    data = [case.load(split) for split in range(splits)]
    loss = "softmax" if (data[0].num_classes or 0) > 2 else "logistic"
    plans: dict[tuple[float, str], fb.Plan] = {}
    problem = data[0].problem(loss=loss)
    for epsilon in case.epsilons:
        for trust in TRUSTS:
            budget = case.budget(epsilon, trust)
            plans[epsilon, trust] = fb.plan(problem, budget, PRICES)
        if methods:
            few = data[:SELECTING]
            plans[epsilon, "grid"] = best_of(case, [grid(problem, budget)], few)
            plans[epsilon, "fed-avg"] = best_of(case, [fed_avg(problem, budget)], few)
            plans[epsilon, "one-shot"] = best_of(case, one_shot(problem, budget), few)
    scores: dict[tuple[float, str], list[float]] = {key: [] for key in plans}
    references: dict[str, list[float]] = {"constant": [], "centralised": []}
    for split, d in enumerate(data):
        for key, value in _scores(d, plans, split).items():
            scores[key].append(value)
        for name, fit in (("constant", constant), ("centralised", centralised)):
            accuracy = fit(d, loss=loss).measured["test_accuracy"]
            references[name].append(100 * accuracy)
    return [
        Result(
            case=case,
            epsilon=epsilon,
            points={name: np.array(x) for name, x in references.items()}
            | {key[1]: np.array(x) for key, x in scores.items() if key[0] == epsilon},
        )
        for epsilon in case.epsilons
    ]


def _scores(
    data: fb.Dataset, plans: dict[tuple[float, str], fb.Plan], split: int
) -> dict[tuple[float, str], float]:
    """Return the test accuracy of every plan in points; a sweep has one loss."""
    scores: dict[tuple[float, str], float] = {}
    for l2 in {plan.l2 for plan in plans.values()}:
        keys = [key for key, plan in plans.items() if plan.l2 == l2]
        own = [plans[key] for key in keys]
        accuracy = fb.sweep(data, own, seeds=[split]).measured
        values = 100 * accuracy["test_accuracy"].mean(1)
        scores |= dict(zip(keys, values, strict=True))
    return scores


def sums(results: list[Result]) -> Iterator[str]:
    """Yield a line per case and epsilon."""
    names = ("constant", "uploads", "sum", "centralised")
    yield from header(["case", "epsilon", *names, "sum below centralised"])
    for each in results:
        cells = [each.cell(name) for name in names]
        below = each.versus("centralised")
        yield row([each.case.name, f"{each.epsilon:g}", *cells, below])


def methods_table(results: list[Result]) -> Iterator[str]:
    """Yield a line per case and epsilon, and the mean regret."""
    names = ("sum", "grid", "one-shot", "fed-avg")
    yield from header(
        [
            "case",
            "epsilon",
            "default sum",
            "grid, tuned",
            "one round, tuned",
            "DP-FedAvg, tuned",
            "regret to the grid",
        ]
    )
    for each in results:
        cells = [each.cell(name) for name in names]
        yield row([each.case.name, f"{each.epsilon:g}", *cells, each.versus("grid")])
    gaps = np.mean([each.points["grid"] - each.points["sum"] for each in results], 0)
    mean = f"{gaps.mean():.2f} +- {standard_error(gaps):.2f}"
    yield row(["mean", "", "", "", "", "", mean])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--case", action="append", help="only this case")
    parser.add_argument("--only", choices=["sums", "sums-methods"])
    add_option(parser)
    options = parser.parse_args()
    cases = [case for case in CASES if case.name in (options.case or [case.name])]
    for name, make in (("sums", sums), ("sums-methods", methods_table)):
        if options.only in (None, name):
            methods = name == "sums-methods"
            results = [
                result
                for case in cases
                for result in measure(case, options.splits, methods)
            ]
            show(name, make(results), options.tables)


if __name__ == "__main__":
    main()
