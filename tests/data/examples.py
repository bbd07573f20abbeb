"""A small table and a small MATLAB file that several tests read."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from fedbudget.data import Categorical, Dataset, Numeric, Schema, from_table
from fedbudget.errors import NotPrivateWarning

SCHEMA = Schema(
    features={
        "volts": Numeric(0, 5),
        "room": Categorical(("attic", "cellar", "hall")),
        "indoor": Categorical(("false", "true")),
    },
    label="alarm",
    target=Categorical(("no", "yes")),
)


def frame(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "sensor": rng.integers(8, 12, n),
            "volts": rng.random(n).round(6) * 5,
            "room": np.array(["attic", "cellar", "hall"])[rng.integers(0, 3, n)],
            "indoor": rng.random(n) < 0.5,
            "alarm": np.where(rng.random(n) < 0.5, "yes", "no"),
        }
    )


def inferred(source: Any, **options: Any) -> Dataset:
    with pytest.warns(NotPrivateWarning):
        return from_table(source, **options)


def cells(parts: list[Any]) -> Any:
    column = np.empty((len(parts), 1), dtype=object)
    column[:, 0] = parts
    return column


def write_mat(path: Path) -> Path:
    """Write a file like the real vehicle.mat, of three sensors with few rows."""
    rng = np.random.default_rng(0)
    x = [5 + rng.normal(size=(n, 100)) for n in (30, 20, 10)]
    y = [np.where(rng.random((len(part), 1)) < 0.5, -1, 1) for part in x]
    savemat(path, {"X": cells(x), "Y": cells(y)})
    return path
