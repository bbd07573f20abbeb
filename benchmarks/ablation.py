"""The gain of every part of the default plan: `python benchmarks/ablation.py`.

Three Markdown tables, in points of test accuracy (means over devices' own test rows),
at cost 1000. Every cell is a mean difference over splits, one run each with the same
noise, and its 95% interval (Student's t). All plans keep the same epsilon and cost.

`parts`: the default plan minus the best plan without one part; above zero, the part
helps.

    weights uniform, size   weights not planned: the same for all devices, or by rows
    no momentum             of the server
    no drift correction
    constant noise          in all rounds, which costs as much as noise that falls
    zcdp                    the paper's accounting, which needs more noise
    tau 1                   one local step per round
    batches of 256          drawn again in every step, all counted, as in the paper

`falling`: noise that falls from round to round against constant noise, where a round
costs 5 instead of 100, so that plans have many.

`beyond`: other things that can be planned, against plans without them.

    personal budgets   half of the devices have epsilon 10, half 1; against all at 1
    measured           dissimilarity measured with noise, charged to the budgets;
                       against the stated one
    re-planned         a third of the devices is lost after a third of the rounds, and
                       the others are planned again; against continuing the plan
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def with_options(**options: Any) -> Plans:
    """Return a planner with these options."""
    return lambda problem, budget: fb.plan(problem, budget, PRICES, **options)


@contextmanager
def no_momentum() -> Iterator[None]:
    """Make plans without momentum; `plan` has no option for it."""
    combinations = spectral.combinations

    def none(pairs: Any, rates: Any, momenta: Any, server_rates: Any = None) -> Any:
        del momenta
        return combinations(pairs, rates, np.zeros(1), server_rates)

    with patch.object(joint, "combinations", none):
        yield


def without_momentum(problem: fb.Problem, budget: fb.Budget) -> fb.Plan:
    """Plan without momentum."""
    with no_momentum():
        plan = fb.plan(problem, budget, PRICES)
    if plan.momentum:
        raise RuntimeError(f"momentum {plan.momentum} was planned, expected 0")
    return plan


def small_batches(problem: fb.Problem, budget: fb.Budget) -> fb.Plan:
    batch = np.minimum(256, problem.num_samples)
    return fb.plan(problem, budget, PRICES, batch_size=batch, sampling="fixed")


PARTS: dict[str, Plans] = {
    "weights uniform": with_options(weights="uniform"),
    "weights by size": with_options(weights="size"),
    "no momentum": without_momentum,
    "no drift correction": with_options(drift_correction=False),
    "constant noise": with_options(noise_schedule=False),
    "zcdp": with_options(accountant="zcdp"),
    "tau 1": single_steps,
    "batches of 256": small_batches,
}


class Memory:
    """Finished plans by their inputs: sizes repeat over splits."""

    def __init__(self) -> None:
        self._plans: dict[Any, fb.Plan] = {}

    def plan(self, name: str, plans: Plans, data: fb.Dataset, request: Any) -> fb.Plan:
        """Return the plan of one variant for the sizes of one split."""
        loss, epsilon = request
        key = name, loss, str(epsilon), data.num_samples.tobytes(), data.dissimilarity
        if key not in self._plans:
            budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
            self._plans[key] = plans(data.problem(loss=loss), budget)
        return self._plans[key]


def parts(splits: int) -> Iterator[str]:
    """Yield a line per case and epsilon: the default plan minus the others."""
    yield from header(["case", "epsilon", "default", *PARTS])
    memory, verdicts = Memory(), Counter[tuple[str, str]]()
    variants = {"default": with_options()} | PARTS
    for case in CASES:
        accuracies: dict[int, list[Any]] = {epsilon: [] for epsilon in EPSILONS}
        for seed in range(splits):
            data = case.load(seed)
            for epsilon in EPSILONS:
                request = case.loss, float(epsilon)
                plans = [memory.plan(n, v, data, request) for n, v in variants.items()]
                measured = fb.sweep(data, plans, seeds=[seed]).measured
                accuracies[epsilon].append(100 * measured["test_accuracy"][:, 0])
        for epsilon, each in accuracies.items():
            table = np.array(each)
            gains = [mean_interval(table[:, 0] - other) for other in table[:, 1:].T]
            verdicts.update((n, word(g)) for n, g in zip(PARTS, gains, strict=True))
            cells = [f"{table[:, 0].mean():.1f}", *map(difference, gains)]
            yield row([case.name, epsilon, *cells])
    yield ""
    for name in PARTS:
        counts = [f"{verdicts[name, word]} {word}" for word in WORDS]
        yield f"- {name}: {', '.join(counts)}"


def word(gain: Estimate) -> str:
    """Return the verdict of an interval."""
    if gain.low == gain.high == 0:
        return "the same"
    return {1: "ahead", 0: "undecided", -1: "behind"}[gain.sign]


MANY_ROUNDS = fb.Prices(communication=5, computation=1)
FALLING: dict[str, tuple[str, Callable[[int], fb.Dataset]]] = {
    "Adult-1": ("logistic", lambda s: fb.load("adult", split="by-education", seed=s)),
    "Adult-2": ("logistic", lambda s: fb.load("adult", split="iid", seed=s)),
    "smartwatches": ("softmax", lambda s: fb.load("wisdm", seed=s)),
}


def falling(splits: int) -> Iterator[str]:
    """Yield a line per case and epsilon: falling less constant noise."""
    yield from header(
        [
            "case",
            "epsilon",
            "rounds x tau",
            "noise, first to last round",
            "accuracy, points",
            "training loss saved, thousandths",
        ]
    )
    for name, (loss, load) in FALLING.items():
        for epsilon in (1, 4, 10):
            gains: list[Any] = []
            for seed in range(splits):
                data = load(seed)
                budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
                falls, constant = (
                    fb.plan(
                        data.problem(loss=loss), budget, MANY_ROUNDS, noise_schedule=on
                    )
                    for on in (True, False)
                )
                measured = fb.sweep(data, [falls, constant], seeds=[seed]).measured
                accuracy, remaining = measured["test_accuracy"], measured["train_loss"]
                gains.append([gain(accuracy[:, 0]), 10 * -gain(remaining[:, 0])])
            first, last = falls.noise_factors[[0, -1]]
            yield row(
                [
                    name,
                    epsilon,
                    f"{falls.rounds} x {falls.tau}",
                    f"{first:.2f} to {last:.2f}",
                    *(difference(mean_interval(g)) for g in np.transpose(gains)),
                ]
            )


class Losing(fb.SimulatedDevices):
    """Simulated devices; some are lost after a number of rounds."""

    lost: tuple[int, ...] = ()
    after: int = 0

    def run_round(self, order: Order) -> Replies:
        """Run a round without the lost devices, which are charged nothing."""
        if order.number <= self.after:
            return super().run_round(order)
        weights = order.plan.weights.copy()
        weights[list(self.lost)] = 0
        rest = replace(order.plan, weights=weights / weights.sum())
        return super().run_round(replace(order, plan=rest))


def personal_budgets(data: fb.Dataset, loss: str, epsilon: float, seed: int) -> float:
    """Return the gain of larger budgets on every second device."""
    limits = np.where(np.arange(data.num_devices) % 2, epsilon, 10.0)
    plans = [
        fb.plan(
            data.problem(loss=loss),
            fb.Budget(epsilon=limit, delta=DELTA, cost=COST),
            PRICES,
        )
        for limit in (limits, epsilon)
    ]
    return gain(fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"][:, 0])


def measured_dissimilarity(
    data: fb.Dataset, loss: str, epsilon: float, seed: int
) -> float:
    problem = data.problem(loss=loss)
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
    devices = fb.SimulatedDevices(data, seed=seed + 1000)
    measured = measure_dissimilarity(devices, problem, budget, PRICES)
    remaining = replace(budget, cost=COST - query_cost(problem, PRICES))
    plans = [fb.plan(measured, remaining, PRICES), fb.plan(problem, budget, PRICES)]
    return gain(fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"][:, 0])


def replanned(data: fb.Dataset, loss: str, epsilon: float, seed: int) -> float:
    problem = data.problem(loss=loss)
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=COST)
    plan = fb.plan(problem, budget, PRICES)
    count, after = data.num_devices // 3, max(1, plan.rounds // 3)
    rng = np.random.default_rng([seed, 7])
    lost = tuple(map(int, rng.choice(data.num_devices, count, replace=False)))
    losing = Losing(data, seed=seed, budget=budget, prices=PRICES)
    losing.lost, losing.after = lost, after
    plain = fb.train(plan, losing)
    devices = fb.SimulatedDevices(data, seed=seed, budget=budget, prices=PRICES)
    first = fb.train(plan, devices, stop=lambda latest: latest.number >= after)
    rest = fb.replan(first, problem, budget, PRICES, gone=lost)
    again = fb.train(rest, devices, after=first)
    return gain([run.measured["test_accuracy"] for run in (again, plain)])


def gain(accuracies: Any) -> float:
    """Return the first minus the second, in points."""
    return 100 * float(accuracies[0] - accuracies[1])


BEYOND: dict[str, tuple[Callable[..., float], tuple[float, ...]]] = {
    "personal budgets": (personal_budgets, (1,)),
    "measured": (measured_dissimilarity, EPSILONS),
    "re-planned": (replanned, EPSILONS),
}


def beyond(splits: int) -> Iterator[str]:
    """Yield a line per case: gains over plans without the part."""
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
    differences = [
        BEYOND[name][0](case.load(seed), case.loss, epsilon, seed)
        for seed in range(splits)
    ]
    return difference(mean_interval(differences))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--only", choices=["parts", "falling", "beyond"])
    add_option(parser)
    options = parser.parse_args()
    started = time.perf_counter()
    makers = {"parts": parts, "falling": falling, "beyond": beyond}
    for name, make in makers.items():
        if options.only in (None, name):
            show(f"ablation-{name}", make(options.splits), options.tables)
            print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
