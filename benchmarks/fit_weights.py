"""Fit the planner's weights to runs: `python benchmarks/fit_weights.py --cases FOLDER`.

The constants of the spectrum are medians over tables: benchmarks/fit_spectrum.py. Those
here weigh the terms of the predicted loss, and only the results of plans can tell them.
Each is varied alone. Every table is planned and run with every value, on the same
splits, public rows and noise, so that values are compared by paired differences.

    weights            points of test accuracy that a value gains over the one in use:
                       means over tables, and their standard errors
    weights-left-out   the values that the other tables select if one is left out, and
                       what they gain on that one

Classifiers only: the tables of the folder, Adult by education and in even shares (left
out together), smartwatches, and with `--more beijing_air.npz` Beijing's air, which is
not part of the project. Without a sample and with 200 public rows. `--quick`: one split
and half of the budgets.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cases as tables_of
import numpy as np
from cases import read_cases, split_dataset
from fit_spectrum import with_intercept
from regret import planned
from tables import add_option, header, row, show, standard_error

import fedbudget as fb
from fedbudget import public_sample
from fedbudget.data.partitions import Partition
from fedbudget.planning import joint, spectral

PUBLIC_ROWS = (0, 200)
SPLITS = 3
BEIJING_ROWS = 8000
BUDGETS = [
    (
        fb.Budget(epsilon=epsilon, delta=1e-4, cost=1000),
        fb.Prices(communication=price, computation=1),
    )
    for epsilon in (0.5, 2.0, 10.0)
    for price in (100, 5)
]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows over devices, split again for every number of a split."""

    name: str
    rows_of: str  # tables of the same rows are left out together
    loss: str
    load: Callable[[int], fb.Dataset]

    def problem(self, split: int, public: int) -> fb.Problem:
        """Return what the planner knows; a public sample is drawn by the split."""
        data = self.load(split)
        problem = data.problem(loss=self.loss)
        if not public:
            return problem
        train = data.train
        some = np.random.default_rng((7, split)).permutation(len(train.y))[:public]
        return problem.with_public_sample(train.x[some], train.y[some])


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A constant of the planner, and other values to try."""

    name: str
    module: Any
    values: Sequence[Any]  # in order, with the one in use
    samples: Sequence[int] = PUBLIC_ROWS  # numbers of public rows with which it acts

    @property
    def label(self) -> str:
        """The constant, as documents name it."""
        return f"`{self.name}`"

    @property
    def in_use(self) -> Any:
        """The value in use; that of a mapping is its entry for logistic losses."""
        value = getattr(self.module, self.name)
        value = value["logistic"] if isinstance(value, Mapping) else value
        if value not in self.values:
            sys.exit(f"{self.name} is {value}: add that to the values to try")
        return value

    def set_to(self, value: Any) -> AbstractContextManager[Any]:
        """Return a context in which the planner uses this value."""
        old = getattr(self.module, self.name)
        if isinstance(old, Mapping):
            value = {k: v if k == "huber" else value for k, v in old.items()}
        return patch.object(self.module, self.name, value)


WEIGHTS = (
    Weight(name="NOISE_WEIGHT", module=spectral, values=(0.2, 0.35, 0.5, 0.7, 1.0)),
    Weight(name="DRIFT", module=spectral, values=(6.0, 12.0, 24.0, 48.0)),
    Weight(name="OFF_TARGET", module=spectral, values=(1.5, 3.0, 6.0, 12.0)),
    Weight(name="_CORRECTION_SPEED", module=spectral, values=(1, 2, 3, 4)),
    Weight(name="_MIN_CORRECTION_GAIN", module=spectral, values=(0.0, 0.1, 0.3)),
    Weight(
        name="FAMILY",
        module=spectral,
        values=((1.0,), (1.0, 0.6, 1.4), (1.0, 0.3, 1.7), (1.0, 0.1, 1.9)),
        samples=(0,),
    ),
    Weight(
        name="PRIOR_PART",
        module=spectral,
        values=(0.2, 0.4, 0.6, 0.8, 1.0),
        samples=(200,),
    ),
    Weight(
        name="_SIGNIFICANT",
        module=public_sample,
        values=(1.0, 2.0, 4.0, 8.0),
        samples=(200,),
    ),
    Weight(name="_MIN_SCHEDULE_GAIN", module=joint, values=(0.0, 0.005, 0.02)),
    Weight(name="_TIE", module=joint, values=(0.0, 0.002, 0.01)),
)
Key = tuple[str, Any]  # a weight and a value


def own_tables(more: Sequence[Path]) -> Iterator[Table]:
    """Yield the tables that are not in the folder."""
    for split in ("by-education", "iid"):
        yield Table(
            name=f"adult {split}",
            rows_of="adult",
            loss="logistic",
            load=partial(adult, split),
        )
    yield Table(
        name="wisdm",
        rows_of="wisdm",
        loss="softmax",
        load=wisdm,
    )
    for path in more:
        yield Table(
            name="beijing",
            rows_of="beijing",
            loss="logistic",
            load=partial(beijing, path),
        )


def adult(split: str, seed: int) -> fb.Dataset:
    return fb.load("adult", split=split, seed=seed)


def wisdm(seed: int) -> fb.Dataset:
    return fb.load("wisdm", seed=seed)


def beijing(path: Path, seed: int) -> fb.Dataset:
    """Return hours of weather at 12 stations, and whether the air is polluted."""
    with np.load(path) as stored:
        x, y, stations = (stored[name] for name in ("x", "y", "device"))
    some = np.random.default_rng(0).choice(len(x), BEIJING_ROWS, replace=False)
    rows = with_intercept(x[some].astype(np.float64), x.min(0), x.max(0))
    devices = np.unique(stations[some], return_inverse=True)[1]
    labels = y[some].astype(np.int64)
    return split_dataset(
        "beijing",
        (rows, labels, devices),
        classes=2,
        partition=Partition(kind="column"),
        seed=seed,
    )


def variants(
    table: Table, split: int, public: int, budgets: Sequence[Any]
) -> dict[Key, list[fb.Plan]]:
    """Return the plans of all budgets with every value of every weight."""
    in_use = planned(table.problem(split, public), budgets)
    plans = {}
    for weight in WEIGHTS:
        for value in weight.values if public in weight.samples else ():
            if value == weight.in_use:
                plans[weight.name, value] = in_use
                continue
            with weight.set_to(value):
                plans[weight.name, value] = planned(
                    table.problem(split, public), budgets
                )
    return plans


def run_settings(plan: fb.Plan) -> tuple[Any, ...]:
    """Return what decides a run: plans that predict different losses may be equal."""
    return (
        *(plan.tau, plan.rounds, plan.learning_rate, plan.momentum),
        *(plan.drift_correction, plan.noise_decay),
        *(plan.weights.tobytes(), plan.noise_std.tobytes()),
    )


def scores(
    table: Table, public: int, splits: int, budgets: Sequence[Any]
) -> dict[Key, np.ndarray]:
    """Return the points of every value, of shape (splits,): means over budgets."""
    results: dict[Key, list[float]] = {}
    memory: dict[tuple[int, bytes], dict[Key, list[fb.Plan]]] = {}
    for split in range(splits):
        inputs = split if public else 0, table.load(split).num_samples.tobytes()
        if inputs not in memory:
            memory[inputs] = variants(table, split, public, budgets)
        plans = memory[inputs]
        distinct = {
            run_settings(plan): plan for each in plans.values() for plan in each
        }
        seeds = [split, 100 + split]
        runs = fb.sweep(table.load(split), list(distinct.values()), seeds=seeds)
        accuracy = 100 * runs.measured["test_accuracy"].mean(1)
        points = dict(zip(distinct, accuracy, strict=True))
        for key, each in plans.items():
            mean = np.mean([points[run_settings(plan)] for plan in each])
            results.setdefault(key, []).append(float(mean))
    return {key: np.array(values) for key, values in results.items()}


class Gains:
    """What every value gains over the one in use, per table."""

    def __init__(self, tables: Sequence[Table], splits: int, budgets: Sequence[Any]):
        self.tables = tables
        self.by_public = {
            public: [scores(table, public, splits, budgets) for table in tables]
            for public in PUBLIC_ROWS
        }

    def of(self, weight: Weight, value: Any, public: int) -> np.ndarray:
        """Return points over the value in use; shape (tables,), means over splits."""
        return np.array(
            [
                np.mean(each[weight.name, value] - each[weight.name, weight.in_use])
                for each in self.by_public[public]
            ]
        )

    def curve(self) -> Iterator[str]:
        """Yield a line per weight and value."""
        yield from header(["weight", "value", *map(_sample, PUBLIC_ROWS)])
        for weight in WEIGHTS:
            for value in weight.values:
                cells = [self._cell(weight, value, public) for public in PUBLIC_ROWS]
                yield row([weight.label, _value(value), *cells])

    def _cell(self, weight: Weight, value: Any, public: int) -> str:
        if value == weight.in_use:
            return "in use"
        if public not in weight.samples:
            return ""
        gain = self.of(weight, value, public)
        return f"{gain.mean():+.2f} +- {standard_error(gain):.2f}"

    def left_out(self) -> Iterator[str]:
        """Yield a line per weight and kind of sample."""
        names = ["selected without one table", "its gain on that table"]
        yield from header(["weight", "in use", "sample", *names])
        groups = np.array([table.rows_of for table in self.tables])
        for weight in WEIGHTS:
            for public in weight.samples:
                values = weight.values
                gains = np.array([self.of(weight, v, public) for v in values])
                selected, on_left_out = Counter[Any](), []
                for group in dict.fromkeys(groups):
                    best = int(np.argmax(gains[:, groups != group].mean(1)))
                    selected[values[best]] += 1
                    on_left_out.append(gains[best, groups == group].mean())
                shown = ", ".join(
                    f"{_value(value)} ({count})"
                    for value, count in selected.most_common()
                )
                error = standard_error(on_left_out)
                cell = f"{np.mean(on_left_out):+.2f} +- {error:.2f}"
                sample = _sample(public)
                yield row([weight.label, _value(weight.in_use), sample, shown, cell])


def _value(value: Any) -> str:
    return " ".join(f"{part:g}" for part in np.atleast_1d(value))


def _sample(public: int) -> str:
    return f"{public} public rows" if public else "no sample"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables_of.add_option(parser)
    parser.add_argument("--more", type=Path, action="append", default=[], help="a file")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--quick", action="store_true", help="one split, few budgets")
    add_option(parser)
    options = parser.parse_args()
    tables = [
        Table(name=case.name, rows_of=case.name, loss=case.loss, load=case.load)
        for case in read_cases(options.cases)
        if not case.is_regression
    ]
    tables += own_tables(options.more)
    splits, budgets = options.splits, BUDGETS
    if options.quick:
        splits, budgets = 1, BUDGETS[::2]
    gains = Gains(tables, splits, budgets)
    show("weights", gains.curve(), options.tables)
    show("weights-left-out", gains.left_out(), options.tables)


if __name__ == "__main__":
    main()
