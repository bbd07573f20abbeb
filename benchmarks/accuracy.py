"""What the budgets buy in accuracy: `python benchmarks/accuracy.py [--quick]`.

Prints three Markdown tables, in points of accuracy: means over devices' own test rows.

    distance   of the released model from centralised training without privacy, over
               splits of the four cases, cost 1000
    regret     of the joint plan against the best of a grid over tau, rounds, learning
               rate, momentum and weights, chosen on private validation rows, on data
               sets for which no constant of the planner was fitted
    tails      what averaging the models of the last rounds would add to a planned run

No private number goes back into a plan.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

import fedbudget as fb
from fedbudget.baselines import centralised
from fedbudget.privacy import GDP

DELTA, PRICES = 1e-4, fb.Prices(communication=100, computation=1)
EPSILONS, COSTS = (1, 2, 4, 10), (500, 1000)
TAUS, SHARES = (1, 2, 4, 8, 16, 32, 64), (0.35, 0.65, 1.0)
RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
MOMENTA, POWERS = (0.0, 0.5, 0.8), (0.0, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, dealt out to devices anew for every seed."""

    name: str
    load: Callable[[int], fb.Dataset]
    loss: str
    most: tuple[float, float, float] = (np.nan,) * 3  # points, at epsilon 1, 4, 10


def adult(split: str) -> Callable[[int], fb.Dataset]:
    return lambda seed: fb.load("adult", split=split, seed=seed)


def vehicle(split: str) -> Callable[[int], fb.Dataset]:
    return lambda seed: fb.load("vehicle", split=split, seed=seed)


def digits(seed: int) -> fb.Dataset:
    found = load_digits()
    frame = pd.DataFrame(found.data, columns=[f"p{i}" for i in range(64)])
    features = {name: {"low": 0, "high": 16} for name in frame}  # grey levels
    return dealt_out(frame, found.target, features, range(10), "dirichlet:8:0.5", seed)


def breast_cancer(seed: int) -> fb.Dataset:
    found = load_breast_cancer()
    frame = pd.DataFrame(found.data, columns=[f"f{i}" for i in range(30)])
    # Bounds that are public: the data set's own description gives each feature's range.
    features = {
        name: {"low": 0, "high": float(f"{top:.1g}") * 1.2}
        for name, top in frame.max().items()
    }
    return dealt_out(frame, found.target, features, range(2), "dirichlet:4:1", seed)


def dealt_out(
    frame: pd.DataFrame,
    target: np.ndarray,
    features: dict[str, dict[str, float]],
    classes: Sequence[int],
    partition: str,
    seed: int,
) -> fb.Dataset:
    label = {"name": "label", "values": [str(c) for c in classes]}
    return fb.from_table(
        frame.assign(label=target.astype(str)),
        label="label",
        schema={"label": label, "features": features},
        partition=partition,
        seed=seed,
    )


CASES = (
    Case(name="Adult-1", load=adult("by-education"), loss="logistic", most=(3, 1.2, 1)),
    Case(name="Adult-2", load=adult("iid"), loss="logistic", most=(1.2, 0.6, 0.4)),
    Case(
        name="Vehicle-1 (synthetic)",
        load=vehicle("by-sensor"),
        loss="hinge",
        most=(1.5, 0.8, 0.5),
    ),
    Case(
        name="Vehicle-2 (synthetic)",
        load=vehicle("iid"),
        loss="hinge",
        most=(1.5, 0.8, 0.5),
    ),
)
UNSEEN = (
    Case(name="digits, Dirichlet 0.5", load=digits, loss="softmax"),
    Case(name="breast cancer, Dirichlet 1", load=breast_cancer, loss="logistic"),
)


def distances(splits: int) -> Iterator[str]:
    """Yield a line per case: central accuracy, and how far below it runs end."""
    yield "| case | centralised | epsilon 1 | epsilon 4 | epsilon 10 | at most |"
    yield "|---|---|---|---|---|---|"
    for case in CASES:
        central, below = [], []
        for seed in range(splits):
            data = case.load(seed)
            best = centralised(data, loss=case.loss).measured["test_accuracy"]
            plans = [planned(data, case.loss, e, 1000) for e in (1, 4, 10)]
            found = fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"]
            central.append(best)
            below.append(100 * (best - found[:, 0]))
        mean, error = np.mean(below, 0), np.std(below, 0, ddof=1) / np.sqrt(splits)
        cells = [f"{m:.2f} +- {e:.2f}" for m, e in zip(mean, error, strict=True)]
        limits = " / ".join(f"{limit:g}" for limit in case.most)
        yield (
            f"| {case.name} | {np.mean(central):.4f} | {' | '.join(cells)} | {limits} |"
        )


def regrets(seeds: int) -> Iterator[str]:
    """Yield a line per data set: mean and worst regret over eight budgets."""
    yield "| data set | plans in the grid | best on the grid | mean regret | worst |"
    yield "|---|---|---|---|---|"
    for case in UNSEEN:
        regret, best_accuracies, count = [], [], 0
        for epsilon in EPSILONS:
            for cost in COSTS:
                validation, test = [], []
                for seed in range(seeds):
                    data = case.load(seed)
                    ours = planned(data, case.loss, epsilon, cost)
                    plans = [*grid(data, ours, epsilon, cost), ours]
                    found = fb.sweep(data, plans, seeds=[seed]).measured
                    validation.append(found["validation_accuracy"][:, 0])
                    test.append(found["test_accuracy"][:, 0])
                best = int(np.argmax(np.mean(validation, 0)[:-1]))
                accuracy, count = np.mean(test, 0), len(plans) - 1
                best_accuracies.append(accuracy[best])
                regret.append(100 * (accuracy[best] - accuracy[-1]))
        yield (
            f"| {case.name} | {count} | {np.mean(best_accuracies):.4f} | "
            f"{np.mean(regret):.2f} | {np.max(regret):.2f} |"
        )


def tails(splits: int) -> Iterator[str]:
    """Yield a line per case and price of a round: the gain of averaging over a tail."""
    yield "| case | price of a round | epsilon | tau x rounds | last 1/4 | last 1/2 |"
    yield "|---|---|---|---|---|---|"
    for case, communication in itertools.product(CASES[:3], (100, 5)):
        prices = replace(PRICES, communication=communication)
        for epsilon in (1, 10):
            found = []
            for seed in range(splits):
                data = case.load(seed)
                plan = planned(data, case.loss, epsilon, 1000, prices)
                found.append(
                    [tail_accuracy(data, plan, seed, t) for t in (0, 0.25, 0.5)]
                )
            gain = 100 * (np.array(found)[:, 1:] - np.array(found)[:, :1])
            mean, error = gain.mean(0), gain.std(0, ddof=1) / np.sqrt(splits)
            cells = [f"{m:+.2f} +- {e:.2f}" for m, e in zip(mean, error, strict=True)]
            yield (
                f"| {case.name} | {communication} | {epsilon} | "
                f"{plan.tau} x {plan.rounds} | {' | '.join(cells)} |"
            )


def tail_accuracy(data: fb.Dataset, plan: fb.Plan, seed: int, tail: float) -> float:
    devices = fb.SimulatedDevices(data, seed=seed)
    return fb.train(plan, devices, tail_average=tail).measured["test_accuracy"]


def planned(
    data: fb.Dataset,
    loss: str,
    epsilon: float,
    cost: float,
    prices: fb.Prices = PRICES,
) -> fb.Plan:
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=cost)
    return fb.plan(data.problem(loss=loss), budget, prices)


def grid(
    data: fb.Dataset, ours: fb.Plan, epsilon: float, cost: float
) -> Iterator[fb.Plan]:
    """Yield plans of all combinations that the cost budget pays for."""
    sizes = data.num_samples.astype(float)
    for tau in TAUS:
        most = int(cost // (100 + tau))
        for rounds in sorted({max(1, round(share * most)) for share in SHARES}):
            noise = GDP.noise_std(
                lipschitz=ours.lipschitz,
                batch_size=data.num_samples,
                epsilon=epsilon,
                delta=DELTA,
                steps=tau * rounds,
            )
            for rate in RATES:
                for momentum in MOMENTA if rounds > 2 else MOMENTA[:1]:
                    for power in POWERS:
                        yield replace(
                            ours,
                            tau=tau,
                            rounds=rounds,
                            learning_rate=rate,
                            momentum=momentum,
                            drift_control=False,
                            noise_std=noise,
                            weights=sizes**power / np.sum(sizes**power),
                            epsilon=np.full(len(sizes), float(epsilon)),
                            cost=np.full(len(sizes), rounds * (100.0 + tau)),
                        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 splits, 1 seed")
    quick = parser.parse_args().quick
    for line in distances(2 if quick else 20):
        print(line, flush=True)
    print()
    for line in regrets(1 if quick else 3):
        print(line, flush=True)
    print()
    for line in tails(2 if quick else 20):
        print(line, flush=True)


if __name__ == "__main__":
    main()
