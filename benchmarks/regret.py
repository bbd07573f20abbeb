"""What the default plan loses to the best one known: `python benchmarks/regret.py`.

Prints four Markdown tables. One constant was picked by them: `RANGE`.

    regrets      of the tables in --cases FOLDER, 24 budgets each: without a public
                 sample, and with 200 public rows
    paper        of the paper's four cases, against points of a grid that were selected
                 on validation rows: benchmarks/paper_points.json (--search finds them
                 again, in about 10 minutes); beside it, that of the plans which the
                 planner made before spectra had spikes: benchmarks/earlier_plans.json
    forecasts    predicted and measured excess loss, and how often the range holds it
    advice       how often "a constant is as good" and "alone is as good" are wrong,
                 and how often that advice is missing

Regret is the best score known less that of the plan: points of test accuracy as means
over the devices' own rows; for regression, points of explained loss. `--only NAME`
prints one table; `--splits N` splits per case, each with its own noise;
`--no-momentum` plans without the server's momentum.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import cases as tables_of
import numpy as np
from ablation import no_momentum
from cases import Case, read_cases
from searching import COSTS, EPSILONS, Search
from tables import add_option, header, row, show, standard_error

import fedbudget as fb
from fedbudget.paper.cases import CASES, DELTA, PRICES, Case as PaperCase, Maker, Point
from fedbudget.planning import joint, planner
from fedbudget.planning.settings import DualPrices
from fedbudget.reporting.baselines import Baseline, centralised, constant, local_only

POINTS = Path(__file__).parent / "paper_points.json"
EARLIER = Path(__file__).parent / "earlier_plans.json"
SAMPLES = (0, 200)  # public rows
SPLITS, PAPER_SPLITS, ADVICE_SPLITS = 12, 6, 1
SPLITS_PER_SAMPLE = 3
CLEAR = 1.0  # points by which one answer is better than another


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One case with one number of public rows; arrays over budgets."""

    case: Case
    points: np.ndarray  # shape (splits, budgets)
    loss: np.ndarray  # training loss, shape (splits, budgets)
    plans: list[list[fb.Plan]]  # of every split

    @property
    def regret(self) -> np.ndarray:
        """The best score known less ours; shape (budgets,)."""
        best = np.array([known.points for known in self.case.best])
        return np.asarray(best - self.points.mean(0))

    @property
    def error(self) -> float:
        """The standard error of the mean regret, over the splits."""
        return float(standard_error(self.points.mean(1))) if len(self.points) > 1 else 0


def planned(
    problem: fb.Problem, budgets: Sequence[tuple[fb.Budget, fb.Prices]]
) -> list[fb.Plan]:
    """Return the default plan of every budget, without prices and some reasons.

    Three quarters of the time of a plan go into those, which change nothing in it.
    """
    none = DualPrices(epsilon_price=0.0, cost_price=0.0, binding=(), reason="")
    with (
        patch.object(planner, "_dual_prices", lambda *_: none),
        patch.object(joint, "_robustness", lambda *_: iter(())),
    ):
        return [fb.plan(problem, budget, prices) for budget, prices in budgets]


@cache
def measure(case: Case, public: int, splits: int) -> Measured:
    """Plan and run every budget on some splits.

    Every sample is used for some splits, so that each budget is planned less often.
    """
    points, losses, plans = [], [], []
    memory: dict[tuple[int, bytes], list[fb.Plan]] = {}
    for split in range(splits):
        data = case.load(split)
        sample = split // SPLITS_PER_SAMPLE if public else 0
        key = sample, data.num_samples.tobytes()
        if key not in memory:
            problem = data.problem(loss=case.loss)
            if public:
                problem = problem.with_public_sample(*case.sample(public, sample))
            budgets = [(known.budget, known.prices) for known in case.best]
            memory[key] = planned(problem, budgets)
        scores, loss = case.scores(data, memory[key], [split])
        points.append(scores)
        losses.append(loss)
        plans.append(memory[key])
    return Measured(
        case=case, points=np.array(points), loss=np.array(losses), plans=plans
    )


def regrets(cases: Sequence[Case], splits: int) -> Iterator[str]:
    """Yield a line per table, and the means over the tables."""
    columns = [f"{count} public rows" if count else "no sample" for count in SAMPLES]
    yield from header(["table", "loss", "rows", *columns, "worst budget, no sample"])
    means: dict[bool, list[list[float]]] = {False: [], True: []}
    for case in cases:
        results = [measure(case, count, splits) for count in SAMPLES]
        cells = [
            f"{r.regret.mean():.2f} +- {r.error:.2f} (at most {r.regret.max():.1f})"
            for r in results
        ]
        worst = case.best[int(np.argmax(results[0].regret))]
        budget, prices = worst.budget, worst.prices
        where = (
            f"epsilon {budget.epsilon:g}, cost {budget.cost:g}, "
            f"{prices.communication:g} per round"
        )
        yield row([case.name, case.loss, case.rows, *cells, where])
        means[case.is_regression].append([r.regret.mean() for r in results])
    for regression, name in ((False, "classification"), (True, "regression")):
        if means[regression]:
            values = np.array(means[regression])
            error = (
                standard_error(values) if len(values) > 1 else np.zeros(len(SAMPLES))
            )
            cells = [
                f"{mean:.2f} +- {spread:.2f}"
                for mean, spread in zip(values.mean(0), error, strict=True)
            ]
            yield row([f"mean, {name}", "", "", *cells, ""])


def paper(splits: int, names: Sequence[str]) -> Iterator[str]:
    """Yield a line per case of the paper."""
    columns = ["case", "best of the grid", "default plan", "regret", "worst"]
    yield from header([*columns, "regret of earlier plans"])
    everything = []
    for case in (case for case in CASES if case.name in names):
        best, own, earlier = _paper_points(case, splits)
        regrets = best - own, best - earlier
        everything.append([regret.mean(1) for regret in regrets])
        cells = [_mean_and_error(regret.mean(1)) for regret in regrets]
        worst = f"{regrets[0].mean(0).max():.2f}"
        means = f"{best.mean():.2f}", f"{own.mean():.2f}"
        yield row([case.name, *means, cells[0], worst, cells[1]])
    cells = [_mean_and_error(mean) for mean in np.mean(everything, axis=0)]
    yield row(["mean", "", "", cells[0], "", cells[1]])


def _mean_and_error(by_split: np.ndarray) -> str:
    return f"{by_split.mean():.2f} +- {standard_error(by_split):.2f}"


def _paper_points(
    case: PaperCase, splits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points of the grid's best, of default and earlier plans.

    All have the shape (splits, budgets).
    """
    points = [Point(**p) for p in json.loads(POINTS.read_text())[case.name]]
    earlier = json.loads(EARLIER.read_text())[case.name]
    budgets = [
        (fb.Budget(epsilon=e, delta=DELTA, cost=c), PRICES)
        for e in EPSILONS
        for c in COSTS
    ]
    scores, own_plans, sizes = [], [], np.zeros(0, dtype=np.int64)
    for split in range(splits):
        data = case.load(repeat=split)
        problem = data.problem(loss=case.loss)
        maker = Maker(problem, "gdp")
        if not np.array_equal(sizes, problem.num_samples):
            own_plans, sizes = planned(problem, budgets), problem.num_samples
        plans = [maker.plan(point) for point in points] + own_plans
        for each in earlier:
            weights = np.array(each["weights"])
            plan = maker.plan(Point(**each["point"]))
            plans.append(replace(plan, weights=weights / weights.sum()))
        runs = fb.sweep(data, plans, seeds=[split, 100 + split])
        scores.append(100 * runs.measured["test_accuracy"].mean(1))
    best, own, before = np.split(np.array(scores), 3, axis=1)
    return best, own, before


def search(splits: int = PAPER_SPLITS) -> None:
    """Find the best points of the grid for the paper's cases, and store them."""
    stored = {}
    for case in CASES:
        source = _Loader(name=case.name, loss=case.loss, case=case)
        stored[case.name] = [
            asdict(Search(source, epsilon, cost, splits).best())
            for epsilon in EPSILONS
            for cost in COSTS
        ]
        POINTS.write_text(json.dumps(stored, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class _Loader:
    """A case of the paper, as `Search` loads it."""

    name: str
    loss: str
    case: PaperCase

    def load(self, split: int) -> fb.Dataset:
        """Return the rows of one split."""
        return self.case.load(repeat=split)


def forecasts(cases: Sequence[Case], splits: int) -> Iterator[str]:
    """Yield a line per table: measured excess loss over the predicted one."""
    quantiles = ("least", "10%", "median", "90%", "most")
    yield from header(["table", *quantiles, "within the range"])
    ratios, inside = [], []
    for case in cases:
        result = measure(case, 0, splits)
        least = [_least_loss(case, split) for split in range(min(splits, 2))]
        excess = np.maximum(result.loss.mean(0) - np.mean(least), 1e-6)
        plans = result.plans[0]
        ratio = excess / [plan.predicted_loss for plan in plans]
        low, high = np.array([plan.predicted_range for plan in plans]).T
        within = (low <= excess) & (excess <= high)
        ratios.append(ratio)
        inside.append(within)
        yield _forecast(case.name, ratio, within)
    yield _forecast("all", np.concatenate(ratios), np.concatenate(inside))


def _least_loss(case: Case, split: int) -> float:
    """Return the training loss of one model without privacy, over the devices."""
    data = case.load(split)
    best = centralised(data, loss=case.loss, target="uniform")
    model = data.problem(loss=case.loss).model
    losses = model.losses(model.scores(best.theta, data.train.x), data.train.y)
    sums = np.add.reduceat(losses, data.train.offsets[:-1])
    return float(np.mean(sums / data.train.sizes))


def _forecast(name: str, ratio: np.ndarray, within: np.ndarray) -> str:
    cells = [f"{q:.2g}" for q in np.quantile(ratio, (0, 0.1, 0.5, 0.9, 1))]
    return row([name, *cells, f"{within.mean():.0%}"])


def advice(cases: Sequence[Case], splits: int) -> Iterator[str]:
    """Yield a line per table: how often each advice is given, wrong and missing."""
    yield from header(
        [
            "table",
            "constant: said",
            "wrong",
            "missing",
            "alone: said",
            "wrong",
            "missing",
            "missing by 2 points",
        ]
    )
    total = np.zeros(7, dtype=int)
    for case in cases:
        counts = np.sum(
            [
                _advice(case, split, splits)
                for split in range(min(splits, ADVICE_SPLITS))
            ],
            axis=0,
        )
        total += counts
        yield row([case.name, *counts])
    yield row(["all", *total])
    yield ""
    yield (
        f"Of {min(splits, ADVICE_SPLITS) * sum(len(case.best) for case in cases)} "
        "plans, on one split. Wrong: the plan "
        f"is better by more than {CLEAR:g} point. Missing: it is worse by more."
    )


def _advice(case: Case, split: int, splits: int) -> np.ndarray:
    """Return the counts of one split."""
    result = measure(case, 0, splits)
    data, plans, own = case.load(split), result.plans[split], result.points[split]
    guess, alone = (_points(case, data, maker) for maker in (constant, local_only))
    says_constant = np.array(["a constant guess" in plan.advice for plan in plans])
    says_alone = np.array(["local-only" in plan.advice for plan in plans])
    spoken = says_constant | says_alone
    return np.array(
        [
            says_constant.sum(),
            (says_constant & (own > guess + CLEAR)).sum(),
            (~spoken & (guess > own + CLEAR)).sum(),
            says_alone.sum(),
            (says_alone & (own > alone + CLEAR)).sum(),
            (~spoken & (alone > own + CLEAR)).sum(),
            (~spoken & (alone > own + 2)).sum(),
        ]
    )


def _points(case: Case, data: fb.Dataset, maker: Callable[..., Baseline]) -> float:
    """Return the points of a baseline."""
    measured = maker(data, loss=case.loss).measured
    if not case.is_regression:
        return 100 * measured["test_accuracy"]
    guess = constant(data, loss=case.loss).measured["test_loss"]
    return 100 * (1 - measured["test_loss"] / guess)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables_of.add_option(parser)
    parser.add_argument("--only", choices=["regrets", "paper", "forecasts", "advice"])
    parser.add_argument("--table", action="append", help="only this table or case")
    parser.add_argument("--splits", type=int, help=f"{SPLITS}; fewer for some tables")
    parser.add_argument("--no-momentum", action="store_true")
    parser.add_argument("--search", action="store_true", help="find the points again")
    add_option(parser)
    options = parser.parse_args()
    if options.search:
        search()
    cases = [] if options.only == "paper" else read_cases(options.cases)
    cases = [c for c in cases if c.name in (options.table or [c.name])]
    makers: dict[str, Callable[[], Iterator[str]]] = {
        "regrets": lambda: regrets(cases, options.splits or SPLITS),
        "forecasts": lambda: forecasts(cases, options.splits or SPLITS),
        "paper": lambda: paper(
            options.splits or PAPER_SPLITS,
            options.table or [case.name for case in CASES],
        ),
        "advice": lambda: advice(cases, options.splits or SPLITS),
    }
    with no_momentum() if options.no_momentum else nullcontext():
        for name, make in makers.items():
            if options.only in (None, name):
                show(name, make(), options.tables)


if __name__ == "__main__":
    main()
