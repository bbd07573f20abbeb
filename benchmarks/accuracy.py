"""What the budgets buy in accuracy: `python benchmarks/accuracy.py [--quick]`.

Prints two Markdown tables, in points of accuracy: means over devices' own test rows.

    distance   of the released model from centralised training without privacy, over
               splits of the four cases, cost 1000
    regret     of the joint plan against the best of a grid over tau, rounds, learning
               rate, momentum, weights and drift correction, selected on private
               validation rows, on data sets for which no constant was fitted

`--only regret` prints one of them. No private number goes back into a plan.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from searching import regret_table
from sklearn.datasets import load_breast_cancer, load_digits
from tables import add_option, header, row, show, standard_error

import fedbudget as fb
from fedbudget.reporting.baselines import centralised

DELTA, PRICES = 1e-4, fb.Prices(communication=100, computation=1)
EPSILONS = (1, 4, 10)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, partitioned over devices again for every seed."""

    name: str
    load: Callable[[int], fb.Dataset]
    loss: str
    most: tuple[float, float, float] = (np.nan,) * 3  # points, at epsilon 1, 4, 10


def adult(split: str) -> Callable[[int], fb.Dataset]:
    return lambda seed: fb.load("adult", split=split, seed=seed)


def vehicle(split: str) -> Callable[[int], fb.Dataset]:
    return lambda seed: fb.load("vehicle", split=split, seed=seed)


def digits(seed: int) -> fb.Dataset:
    digits_data = load_digits()
    frame = pd.DataFrame(digits_data.data, columns=[f"p{i}" for i in range(64)])
    features = {name: {"low": 0.0, "high": 16.0} for name in frame}  # grey levels
    target = digits_data.target
    return partitioned(frame, target, features, range(10), "dirichlet:8:0.5", seed)


def breast_cancer(seed: int) -> fb.Dataset:
    cancer = load_breast_cancer()
    frame = pd.DataFrame(cancer.data, columns=[f"f{i}" for i in range(30)])
    # Bounds that are public: the data set's own description gives each feature's range.
    features = {
        name: {"low": 0, "high": float(f"{top:.1g}") * 1.2}
        for name, top in frame.max().items()
    }
    return partitioned(frame, cancer.target, features, range(2), "dirichlet:4:1", seed)


def partitioned(
    frame: pd.DataFrame,
    target: np.ndarray,
    features: dict[str, dict[str, float]],
    classes: Sequence[int],
    partition: str,
    seed: int,
) -> fb.Dataset:
    label = {"name": "label", "values": [str(c) for c in classes]}
    with warnings.catch_warnings():
        # Public rows: that labels decide which device holds a row reveals nothing.
        warnings.simplefilter("ignore", fb.NotPrivateWarning)
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
    """Yield a line per case, and then the goals that are missed or barely met."""
    yield from header(
        ["case", "centralised", *(f"epsilon {e}" for e in EPSILONS), "at most"]
    )
    near = []
    for case in CASES:
        central, below = [], []
        for seed in range(splits):
            data = case.load(seed)
            best = centralised(data, loss=case.loss).measured["test_accuracy"]
            plans = [planned(data, case.loss, e, 1000) for e in EPSILONS]
            accuracies = fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"]
            central.append(best)
            below.append(100 * (best - accuracies[:, 0]))
        mean, error = np.mean(below, 0), standard_error(below)
        cells = [f"{m:.2f} +- {e:.2f}" for m, e in zip(mean, error, strict=True)]
        limits = " / ".join(f"{limit:g}" for limit in case.most)
        yield row([case.name, f"{np.mean(central):.4f}", *cells, limits])
        near += [
            f"- {case.name}, epsilon {epsilon}: {cell}, at most {limit:g}, "
            + ("is missed" if m > limit else "is met by less than one standard error")
            for epsilon, cell, limit, m, e in zip(
                EPSILONS, cells, case.most, mean, error, strict=True
            )
            if m + e > limit
        ]
    if near:
        yield ""
        yield from near


def planned(
    data: fb.Dataset,
    loss: str,
    epsilon: float,
    cost: float,
    prices: fb.Prices = PRICES,
) -> fb.Plan:
    budget = fb.Budget(epsilon=epsilon, delta=DELTA, cost=cost)
    return fb.plan(data.problem(loss=loss), budget, prices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 splits")
    parser.add_argument("--only", choices=["distance", "regret"])
    parser.add_argument("--splits", type=int, help="20, and 10 for the regret")
    add_option(parser)
    options = parser.parse_args()
    splits = 2 if options.quick else options.splits
    tables: dict[str, Callable[[], Iterator[str]]] = {
        "distance": lambda: distances(splits or 20),
        "regret": lambda: regret_table(UNSEEN, planned, splits or 10),
    }
    for name, make in tables.items():
        if options.only in (None, name):
            show(name, make(), options.tables)


if __name__ == "__main__":
    main()
