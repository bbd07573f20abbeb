"""Tables for fitting and judging the planner: `--cases FOLDER`.

They are not part of this project. A folder holds NAME.npz per table: `x` (rows in the
unit ball), `y`, `ids` (the device of each row) and `meta` (JSON: loss, classes, recipe:
"column" for the table's own devices, else iid:M or dirichlet:M:alpha); and best.json,
the score of the best plan known for each budget.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import fedbudget as fb
from fedbudget.data.dataset import split_rows
from fedbudget.data.partitions import Partition, parse_partition
from fedbudget.reporting.baselines import constant

VARIABLE = "FEDBUDGET_CASES"


@dataclass(frozen=True)
class KnownBest:
    """A budget, and the score of the best plan known for it."""

    budget: fb.Budget
    prices: fb.Prices
    points: float


@dataclass(frozen=True)
class Case:
    """One table."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.stem

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """The arrays of the file."""
        with np.load(self.path) as stored:
            arrays = {name: stored[name] for name in ("x", "y", "ids")}
            return arrays | {"meta": json.loads(str(stored["meta"]))}

    @property
    def loss(self) -> str:
        """The loss of the table."""
        return str(self.arrays["meta"]["loss"])

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers."""
        return self.loss == "huber"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.arrays["y"])

    @cached_property
    def best(self) -> list[KnownBest]:
        """The budgets of this case."""
        known = json.loads((self.path.parent / "best.json").read_text())
        return [
            KnownBest(
                fb.Budget(**{k: each[k] for k in ("epsilon", "delta", "cost")}),
                fb.Prices(**{k: each[k] for k in ("communication", "computation")}),
                each["points"],
            )
            for each in known[self.name]["best"]
        ]

    def load(self, split: int) -> fb.Dataset:
        """Return the rows, split 80/10/10 within each device; drawn by the split."""
        return _load(self.path, split)

    def sample(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows at random, as if they were public."""
        rows = np.random.default_rng((7, seed)).permutation(self.rows)[:count]
        return self.arrays["x"][rows], self.arrays["y"][rows]

    def scores(
        self, data: fb.Dataset, plans: list[fb.Plan], seeds: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return points and training losses of every plan, means over seeds.

        Points are those of accuracy, or 100 (1 - loss / the constant's loss).
        """
        measured = fb.sweep(data, plans, seeds=seeds).measured
        if self.is_regression:
            guess = constant(data, loss=self.loss).measured["test_loss"]
            points = 100 * (1 - measured["test_loss"] / guess)
        else:
            points = 100 * measured["test_accuracy"]
        return points.mean(1), measured["train_loss"].mean(1)


@lru_cache(maxsize=64)
def _load(path: Path, split: int) -> fb.Dataset:
    arrays = Case(path).arrays
    meta, y = arrays["meta"], arrays["y"]
    if meta["recipe"] == "column":
        partition = Partition(kind="column")
        devices = np.unique(arrays["ids"], return_inverse=True)[1]
    else:
        partition = parse_partition(meta["recipe"])
        devices = partition.device_ids(y, seed=split)
    return split_dataset(
        path.stem,
        (arrays["x"], y, devices),
        classes=meta["classes"],
        partition=partition,
        seed=split,
    )


def split_dataset(
    name: str,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    classes: int | None,
    partition: Partition,
    seed: int,
) -> fb.Dataset:
    """Return rows (x, y and their devices) as a data set, split by the seed."""
    train, validation, test = split_rows(*rows, seed=seed)
    return fb.Dataset(
        name=name,
        train=train,
        validation=validation,
        test=test,
        device_names=tuple(map(str, range(train.num_devices))),
        feature_names=tuple(map(str, range(train.x.shape[1]))),
        classes=None if classes is None else tuple(map(str, range(classes))),
        dissimilarity=partition.dissimilarity,
    )


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the folder."""
    parser.add_argument(
        "--cases",
        type=Path,
        default=os.environ.get(VARIABLE),
        help=f"folder of tables; by default the environment variable {VARIABLE}",
    )


def read_cases(folder: Path | str | None) -> list[Case]:
    """Return the tables of a folder; ends the program if there are none."""
    if folder is None:
        sys.exit(f"no tables: give --cases FOLDER, or set {VARIABLE}")
    paths = sorted(Path(folder).glob("*.npz"))
    if not paths:
        sys.exit(f"{folder} holds no NAME.npz: give the folder of the tables")
    return [Case(path) for path in paths]
