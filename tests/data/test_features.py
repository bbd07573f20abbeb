"""Categories do not depend on the source: file or frame, text or number."""

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fedbudget.data import Categorical, Dataset, Numeric, Schema, from_table
from fedbudget.data.columns import as_coded, canonical, category_text
from fedbudget.errors import DataError
from tests.data.examples import inferred

N = 40  # rows of every table


def csv(cells: list[Any], path: Path) -> Any:
    pd.DataFrame({"k": cells, **others()}).to_csv(path / "t.csv", index=False)
    return path / "t.csv"


def parquet(cells: list[Any], path: Path) -> Any:
    pd.DataFrame({"k": cells, **others()}).to_parquet(path / "t.parquet")
    return path / "t.parquet"


SOURCES: dict[str, Callable[[list[Any], Path], Any]] = {
    "csv": csv,
    "parquet": parquet,
    "pandas": lambda cells, _: pd.DataFrame({"k": cells, **others()}),
    "pandas categories": lambda cells, _: pd.DataFrame({"k": cells, **others()}).astype(
        {"k": "category"}
    ),
    "polars": lambda cells, _: pl.DataFrame({"k": cells, **others()}),
    "dictionary": lambda cells, _: {"k": cells, **others()},
}


def others() -> dict[str, list[Any]]:
    return {"y": ["a", "b"] * (N // 2), "d": [1] * N}


def described(values: Any, **options: Any) -> Schema:
    plain = {
        "label": {"name": "y", "values": ["a", "b"]},
        "intercept": False,
        "features": {"k": {"values": values, **options}},
    }
    return Schema.from_dict(plain)


def counts(data: Dataset) -> list[int]:
    """Return the number of rows of each category."""
    parts = (data.train, data.validation, data.test)
    return [
        int(c) for c in np.sum([np.asarray(p.x > 0).sum(axis=0) for p in parts], axis=0)
    ]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("values", "cells", "expected"),
    [
        (["01", "02", "NA"], ["01", "02", "NA", "01"], [2, 1, 1]),
        (["1", "01", "001"], ["1", "001", "01", "1"], [2, 1, 1]),
        (["DE", "NA"], ["DE", "NA", "NA", "NA"], [1, 3]),
        (["null", "nan", "x"], ["null", "nan", "x", "x"], [1, 1, 2]),
        ([False, True], [False, True, True, True], [1, 3]),
        (["False", "True"], [False, True, True, True], [1, 3]),
        ([False, True], ["False", "TRUE", "true", "True"], [1, 3]),
        ([0.0, 1.0], [0, 1, 1, 1], [1, 3]),
        ([0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1, 3]),
        ([0, 1], [0.0, 1.0, 1.0, 1.0], [1, 3]),
        (["0.0", "1.0"], [0, 1, 1, 1], [1, 3]),
        (["0", "1"], ["0.0", "1.00", "1", "+1"], [1, 3]),
        ([0.5, 1.5], [0.5, 1.5, 1.5, 1.5], [1, 3]),
        (["01", "02"], [1, 2, 2, 2], [1, 3]),
        ([1e-7, 1e22], ["0.0000001", "1e22", "1e22", "1e+22"], [1, 3]),
        ([2**53, 2**53 + 1], [2**53, *[2**53 + 1] * 3], [1, 3]),
        ([2**70, 2**70 + 1], [str(2**70), *[str(2**70 + 1)] * 3], [1, 3]),
        (["1.1", "1.10"], ["1.1", "1.10", "1.10", "1.10"], [1, 3]),
    ],
)
def test_every_source_finds_the_listed_value(
    source: str,
    values: list[Any],
    cells: list[Any],
    expected: list[int],
    tmp_path: Path,
) -> None:
    table = SOURCES[source](cells * (N // 4), tmp_path)
    schema = described(values, other="ignore")  # a miss would be silent
    data = from_table(table, label="y", device="d", schema=schema)
    assert counts(data) == [N // 4 * count for count in expected]


def test_float32_cells_are_the_numbers_they_show() -> None:
    table = {"k": np.array([0.1, 0.2] * 20, np.float32), **others()}
    data = from_table(table, label="y", device="d", schema=described([0.1, 0.2]))
    assert counts(data) == [20, 20]


def test_decimals_are_numbers_too() -> None:
    cells = [decimal.Decimal("0.00"), decimal.Decimal("1.50")] * 20
    table = pa.table({"k": cells, **others()})
    data = from_table(table, label="y", device="d", schema=described([0, 1.5]))
    assert counts(data) == [20, 20]


@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
def test_an_empty_cell_of_a_file_stays_empty(tmp_path: Path) -> None:
    lines = ["NA,a,1", ",b,1", '"",a,1', " ,b,1", "null,a,1", "DE,b,1"]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["k,y,d", *lines]) + "\n")
    options: dict[str, Any] = {"label": "y", "device": "d"}
    with pytest.raises(DataError, match="'k' has 4 empty cells, the first in row 1"):
        from_table(path, schema=described(["DE", "NA"]), **options)
    data = from_table(path, schema=described(["DE", "NA", "?"], missing="?"), **options)
    assert counts(data) == [1, 1, 4]
    data = from_table(path, schema=described(["DE"], missing="DE"), **options)
    assert counts(data) == [6]  # not listed, so NA is an empty cell as well
    complete = from_table(
        path, missing="drop", schema=described(["DE", "NA"]), **options
    )
    assert counts(complete) == [1, 1]


def test_an_unlisted_value_is_still_refused(tmp_path: Path) -> None:
    for cells in (["01", "3"], ["01", "x"], ["01", "1.5"]):
        table = csv(cells * (N // 2), tmp_path)
        with pytest.raises(DataError, match=f"'k' holds '{cells[1]}' in row 1"):
            from_table(table, label="y", device="d", schema=described(["01", "02"]))


@pytest.mark.parametrize("source", SOURCES)
def test_large_whole_numbers_are_three_classes(source: str, tmp_path: Path) -> None:
    labels = (2**53 + np.arange(N) % 3).tolist()
    classes = tuple(str(2**53 + j) for j in range(3))
    table = SOURCES[source](labels, tmp_path)
    options: dict[str, Any] = {"label": "k", "device": "d"}
    data = inferred(table, **options)
    assert data.classes == classes
    assert sorted(np.unique(data.train.y)) == [0, 1, 2]
    schema = Schema.from_dict(
        {
            "label": {"name": "k", "values": [2**53 + j for j in range(3)]},
            "features": {"y": {"values": ["a", "b"]}},
        }
    )
    again = from_table(table, schema=schema, **options)
    assert np.array_equal(again.train.y, data.train.y)
    assert schema.encode_label(np.array(labels)).tolist() == [j % 3 for j in range(N)]
    assert schema.encode_label(labels).tolist() == [j % 3 for j in range(N)]


def test_classes_that_a_decimal_number_cannot_hold_are_refused(tmp_path: Path) -> None:
    labels = [str(10**20 + j % 2) for j in range(N)]  # beyond int64: read as float64
    with pytest.raises(DataError, match=r"'k' holds numbers up to 1e\+20, .* schema"):
        from_table(csv(labels, tmp_path), label="k", device="d")


def test_devices_of_a_file_keep_their_names(tmp_path: Path) -> None:
    schema = Schema(
        features={"v": Numeric(0, 1)}, label="y", target=Categorical(("a", "b"))
    )

    def names(ids: list[str]) -> tuple[str, ...]:
        path = tmp_path / "t.csv"
        lines = [f"{device},0.5,a" for device in ids]
        path.write_text("\n".join(["d,v,y", *lines]) + "\n")
        return from_table(path, label="y", device="d", schema=schema).device_names

    assert names(["10", "007", "7", "9"]) == ("007", "7", "9", "10")
    assert names([str(2**70), str(2**70 + 1)]) == (str(2**70), str(2**70 + 1))
    assert names(["10.0", "9.0"]) == ("9", "10")
    assert names(["10.0", "10"]) == ("10", "10.0")
    assert names(["b", "10", "9"]) == ("10", "9", "b")
    with pytest.raises(DataError, match="'d' has 1 empty cells"):
        names(["1", "NA"])


def test_a_device_may_be_a_numeric_feature_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("d,y\n1,a\n2,b\n")
    schema = Schema(
        features={"d": Numeric(0, 4)}, label="y", target=Categorical(("a", "b"))
    )
    data = from_table(path, label="y", device="d", schema=schema)
    assert data.device_names == ("1", "2")


@pytest.mark.parametrize("source", SOURCES)
def test_a_label_may_have_a_value_for_empty_cells(source: str, tmp_path: Path) -> None:
    table = SOURCES[source](["no", None, "yes", None] * (N // 4), tmp_path)
    plain: dict[str, Any] = {
        "label": {"name": "k", "values": ["no", "yes"], "missing": "no"},
        "features": {"y": {"values": ["a", "b"]}},
    }
    data = from_table(table, label="k", device="d", schema=plain)
    parts = (data.train, data.validation, data.test)
    assert sum(int(p.y.sum()) for p in parts) == N // 4


def test_only_equal_numbers_and_truth_values_have_one_canonical_form() -> None:
    same = [
        ("1", "1.0"),
        ("-0", "0"),
        ("1e3", "1000"),
        (".5", "0.50"),
        ("TRUE", "true"),
    ]
    assert all(canonical(a) == canonical(b) for a, b in same)
    different = [
        ("1", "-1"),
        ("1", "true"),
        ("1", "1x"),
        ("tRuE", "true"),
        ("1_0", "10"),
        ("nan", "NaN"),
        ("٣", "3"),
        (str(10**40), str(10**40 + 1)),
        ("", "0"),
    ]
    assert not any(canonical(a) == canonical(b) for a, b in different)
    assert category_text(float("nan")) is category_text(None) is None
    assert as_coded(["x", float("nan"), None]).codes.tolist() == [0, -1, -1]
