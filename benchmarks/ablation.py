"""What every part of the default plan is worth: `python benchmarks/ablation.py`.

Two Markdown tables, in points of test accuracy (means over devices' own test rows), at
cost 1000. Every cell is a mean difference over splits, one run each with the same
noise, and its 95% interval (Student's t). All plans keep the same epsilon and cost.

`parts`: the default plan less the best plan without one part; above zero, it pays.

    weights uniform, size   weights planned no more: every device alike, or by rows
    no momentum             of the server
    no drift control
    zcdp                    the paper's accounting, which needs more noise
    tau 1                   one local step per round
    batches of 256          drawn anew in every step, all counted, as in the paper

`beyond`: what else can be planned, against doing without.

    personal budgets   half of the devices have epsilon 10, half 1; against all at 1
    measured           dissimilarity measured with noise, paid for out of the budgets;
                       against what was stated
    re-planned         a third of the devices is lost after a third of the rounds, and
                       the rest is planned again; against going on without them
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from accuracy import CASES, DELTA, EPSILONS, PRICES, Case
from methods import single_steps
from tables import add_option, difference, header, row, show

import fedbudget as fb
from fedbudget.paper.results import Estimate, mean_interval
from fedbudget.planning import joint, spectral
from fedbudget.simulation.dissimilarity import measure_dissimilarity, query_cost
from fedbudget.training import Order, Replies

COST = 1000
WORDS = ("ahead", "behind", "undecided", "the same")
Plans = Callable[[fb.Problem, fb.Budget], fb.Plan]


def without(**how: Any) -> Plans:
    """Return a planner that was told to do without something."""
    return lambda problem, budget: fb.plan(problem, budget, PRICES, **how)


def without_momentum(problem: fb.Problem, budget: fb.Budget) -> fb.Plan:
    """Plan everything else anew: `plan` has no switch for momentum."""
    every = spectral.combinations

    def none(pairs: Any, rates: Any, momenta: Any) -> Any:
        del momenta
        return every(pairs, rates, np.zeros(1))

    with patch.object(joint, "combinations", none):
        plan = fb.plan(problem, budget, PRICES)
    if plan.momentum:
        raise RuntimeError(f"momentum {plan.momentum} was planned nevertheless")
    return plan


def small_batches(problem: fb.Problem, budget: fb.Budget) -> fb.Plan:
    batch = np.minimum(256, problem.num_samples)
    return fb.plan(problem, budget, PRICES, batch_size=batch, sampling="fixed")


PARTS: dict[str, Plans] = {
    "weights uniform": without(weights="uniform"),
    "weights by size": without(weights="size"),
    "no momentum": without_momentum,
    "no drift control": without(drift_control=False),
    "zcdp": without(accountant="zcdp"),
    "tau 1": single_steps,
    "batches of 256": small_batches,
}


class Memory:
    """Plans that were made, by what they were made from: sizes repeat over splits."""

    def __init__(self) -> None:
        self._plans: dict[Any, fb.Plan] = {}

    def plan(self, name: str, plans: Plans, data: fb.Dataset, asked: Any) -> fb.Plan:
        """Return the plan of one way for one split's sizes."""
        loss, epsilon = asked
        key = name, loss, str(epsilon), data.num_samples.tobytes(), data.dissimilarity
        if key not in self._plans:
            budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
            self._plans[key] = plans(data.problem(loss=loss), budget)
        return self._plans[key]


def parts(splits: int) -> Iterator[str]:
    """Yield a line per case and epsilon: the default plan less that without a part."""
    yield from header(["case", "epsilon", "default", *PARTS])
    memory, verdicts = Memory(), Counter[tuple[str, str]]()
    ways = {"default": without()} | PARTS
    for case in CASES:
        found: dict[int, list[Any]] = {epsilon: [] for epsilon in EPSILONS}
        for seed in range(splits):
            data = case.load(seed)
            for epsilon in EPSILONS:
                asked = case.loss, float(epsilon)
                plans = [memory.plan(n, way, data, asked) for n, way in ways.items()]
                measured = fb.sweep(data, plans, seeds=[seed]).measured
                found[epsilon].append(100 * measured["test_accuracy"][:, 0])
        for epsilon, each in found.items():
            table = np.array(each)
            worth = [mean_interval(table[:, 0] - other) for other in table[:, 1:].T]
            verdicts.update((n, word(w)) for n, w in zip(PARTS, worth, strict=True))
            told = [f"{table[:, 0].mean():.1f}", *map(difference, worth)]
            yield row([case.name, epsilon, *told])
    yield ""
    for name in PARTS:
        counts = [f"{verdicts[name, word]} {word}" for word in WORDS]
        yield f"- {name}: {', '.join(counts)}"


def word(worth: Estimate) -> str:
    """Return what an interval says of a part."""
    if worth.low == worth.high == 0:
        return "the same"
    return {1: "ahead", 0: "undecided", -1: "behind"}[worth.sign]


class Losing(fb.SimulatedDevices):
    """Devices of which some are lost after so many rounds."""

    lost: tuple[int, ...] = ()
    after: int = 0

    def run_round(self, order: Order) -> Replies:
        """Run a round without those that are lost: they are charged nothing."""
        if order.number <= self.after:
            return super().run_round(order)
        weights = order.plan.weights.copy()
        weights[list(self.lost)] = 0
        rest = replace(order.plan, weights=weights / weights.sum())
        return super().run_round(replace(order, plan=rest))


def personal_budgets(data: fb.Dataset, loss: str, epsilon: float, seed: int) -> float:
    """Return what larger budgets of every second device add (epsilon is the least)."""
    each = np.where(np.arange(data.num_devices) % 2, epsilon, 10.0)
    plans = [
        fb.plan(
            data.problem(loss=loss),
            fb.Budget(epsilon=limit, delta=DELTA, cost=COST),
            PRICES,
        )
        for limit in (each, epsilon)
    ]
    return gain(fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"][:, 0])


def measured_dissimilarity(
    data: fb.Dataset, loss: str, epsilon: float, seed: int
) -> float:
    problem = data.problem(loss=loss)
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
    known = measure_dissimilarity(data, problem, budget, seed=seed + 1000)
    left = replace(budget, cost=COST - query_cost(problem, PRICES))
    plans = [fb.plan(known, left, PRICES), fb.plan(problem, budget, PRICES)]
    return gain(fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"][:, 0])


def replanned(data: fb.Dataset, loss: str, epsilon: float, seed: int) -> float:
    problem = data.problem(loss=loss)
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
    plan = fb.plan(problem, budget, PRICES)
    count, after = data.num_devices // 3, max(1, plan.rounds // 3)
    rng = np.random.default_rng([seed, 7])
    lost = tuple(map(int, rng.choice(data.num_devices, count, replace=False)))
    going_on = Losing(data, seed=seed, budget=budget, prices=PRICES)
    going_on.lost, going_on.after = lost, after
    plain = fb.train(plan, going_on)
    devices = fb.SimulatedDevices(data, seed=seed, budget=budget, prices=PRICES)
    first = fb.train(plan, devices, stop=lambda latest: latest.number >= after)
    rest = fb.replan(first, problem, budget, PRICES, gone=lost)
    again = fb.train(rest, devices, after=first)
    return gain([run.measured["test_accuracy"] for run in (again, plain)])


def gain(accuracies: Any) -> float:
    """Return the first less the second, in points."""
    return 100 * float(accuracies[0] - accuracies[1])


BEYOND: dict[str, tuple[Callable[..., float], tuple[float, ...]]] = {
    "personal budgets": (personal_budgets, (1,)),
    "measured": (measured_dissimilarity, EPSILONS),
    "re-planned": (replanned, EPSILONS),
}


def beyond(splits: int) -> Iterator[str]:
    """Yield a line per case: gains over doing without."""
    columns = [(name, e) for name, (_, every) in BEYOND.items() for e in every]
    yield from header(
        [
            "case",
            *(f"{n}, 1 and 10" if n[0] == "p" else f"{n}, {e}" for n, e in columns),
        ]
    )
    for case in CASES:
        yield row([case.name, *(gains(case, n, e, splits) for n, e in columns)])


def gains(case: Case, name: str, epsilon: float, splits: int) -> str:
    found = [
        BEYOND[name][0](case.load(seed), case.loss, epsilon, seed)
        for seed in range(splits)
    ]
    return difference(mean_interval(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--only", choices=["parts", "beyond"])
    add_option(parser)
    asked = parser.parse_args()
    started = time.perf_counter()
    for name, make in (("parts", parts), ("beyond", beyond)):
        if asked.only in (None, name):
            show(f"ablation-{name}", make(asked.splits), asked.tables)
            print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
