import builtins
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedbudget.data import Categorical, Numeric, Schema, from_table, infer_schema
from fedbudget.errors import (
    DataError,
    DataWarning,
    InvalidInputError,
    MissingExtraError,
)
from tests.data.examples import SCHEMA, frame

BAD_TABLES: dict[str, tuple[Callable[[pd.DataFrame], Any], str]] = {
    "not a table": (lambda df: 7, "source is a int: pass a path"),
    "empty": (lambda df: df[:0], "the table is empty, 0 rows"),
    "no label": (lambda df: df.rename(columns={"alarm": "alarms"}), "mean 'alarms'"),
    "no device": (lambda df: df.drop(columns="sensor"), "'sensor' is not in the table"),
    "one class": (lambda df: df.assign(alarm="no"), "'alarm' has one class, 'no'"),
    "infinite": (lambda df: df.assign(volts=np.inf), "'volts' holds inf in row 0"),
    "infinite label": (lambda df: df.assign(alarm=-np.inf), "'alarm' holds -inf"),
    "no feature": (lambda df: df[["sensor", "alarm"]], "no feature column besides"),
    "empty device": (
        lambda df: df.assign(sensor=np.array([np.nan] + [1] * 59)),
        "'sensor' has 1 empty cells, the first in row 0",
    ),
    "mixed objects": (
        lambda df: df.assign(volts=[1, "a"] * 30),
        "mixes types .*volts.*: give each column one type",
    ),
    "mixed text": (
        lambda df: df.assign(volts=["broken", *map(str, range(59))]),
        "'volts' mixes numbers and text, 'broken' in row 0",
    ),
    "times without a date": (
        lambda df: df.assign(clock=datetime.time(10, 30)),
        r"'clock' has type time64.* neither number, text nor truth",
    ),
    "a list": (lambda df: [1, 2], "source is a list: pass a path"),
    "bytes as device": (
        lambda df: df.assign(sensor=[b"1", b"2"] * 30),
        "'sensor' has type binary, which cannot name a device",
    ),
    "too wide": (
        lambda df: df.assign(volts=[1.7e308, -1.7e308] * 30),
        "'volts' ranges from .* too wide to scale",
    ),
    "capital letter": (lambda df: df.rename(columns={"alarm": "ALARM"}), "n 'ALARM'"),
    "two of a name": (
        lambda df: pa.Table.from_pandas(df).rename_columns(
            ["sensor", "volts", "volts", "indoor", "alarm"]
        ),
        "'volts' occurs twice",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_refused_in_one_line(case: str) -> None:
    change, message = BAD_TABLES[case]
    with pytest.raises(DataError, match=message) as caught:
        from_table(change(frame()), label="alarm", device="sensor")
    assert "\n" not in str(caught.value)


def test_too_many_categories_are_refused() -> None:
    names = [f"row {j}" for j in range(1200)]
    df = frame(1200).assign(room=names)
    with pytest.raises(DataError, match="'room' holds 1200 distinct texts"):
        from_table(df, label="alarm", device="sensor")
    df = frame(1200).assign(alarm=names)
    with pytest.raises(DataError, match="'alarm' has 1200 distinct texts"):
        from_table(df, label="alarm", device="sensor")


@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
def test_a_word_among_numbers_is_warned_of_with_its_row() -> None:
    volts = [1, None, 2, "2x", 3, 3]
    table = {"volts": [None if v is None else str(v) for v in volts]}
    table |= {"y": list("ababab"), "id": list("aabbcc")}
    with pytest.warns(
        DataWarning, match=r"'volts' holds .* in 4 rows but '2x' in row 3"
    ):
        schema = infer_schema(table, label="y", device="id")
    assert schema.features["volts"] == Categorical(("1", "2", "2x", "3"))
    with pytest.warns(DataWarning, match=r"label 'y' holds .* but 'no' in row 2"):
        infer_schema({"v": [1, 2, 3, 4], "y": ["0", "1", "no", "1"]}, label="y")


@pytest.mark.filterwarnings("error::fedbudget.DataWarning")
@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
def test_words_with_a_few_numbers_are_categories() -> None:
    table = {"room": ["1", "attic", "cellar"], "y": ["0", "1", "1"]}
    schema = infer_schema(table, label="y")
    assert schema.features["room"] == Categorical(("1", "attic", "cellar"))


@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
@pytest.mark.parametrize("kind", [list, np.array])
def test_classes_and_bounds_are_those_of_all_rows(kind: Callable[..., Any]) -> None:
    # The only row of class 1 has an empty cell in another column.
    table = {"v": kind([1.0, 2.0, np.nan]), "w": [1, 2, 9], "y": [0, 0, 1]}
    schema = infer_schema(table, label="y")
    assert schema.classes == ("0", "1")
    assert schema.features == {"v": Numeric(1, 2), "w": Numeric(1, 9)}
    data = from_table(table, label="y", partition="iid:1", missing="drop")
    assert data.classes == ("0", "1")
    with pytest.raises(DataError, match="no row is complete"):
        infer_schema({"v": [None, None], "y": [0, 1]}, label="y")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": "alarm", "device": "sensor"}
    with pytest.raises(DataError, match=r"nowhere\.csv' does not exist"):
        from_table(tmp_path / "nowhere.csv", **options)
    for name, message in (
        ("t.xlsx", r"suffix '\.xlsx', .* use \.csv or"),
        ("t.csv", "has no header line"),
        ("t.parquet", "damaged"),
        ("t.csv.gz", "has no header line"),
    ):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=message):
            from_table(tmp_path / name, **options)
    (tmp_path / "t.csv.gz").write_bytes(b"not packed")
    with pytest.raises(DataError, match="cannot be read"):
        from_table(tmp_path / "t.csv.gz", **options)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(DataError, match=r"row 3 of file '.*t\.csv' .* has 1 cell, and"):
        from_table(tmp_path / "t.csv", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither device nor partition is given"),
        ({"device": "a", "partition": "column:b"}, "disagree"),
        ({"device": "sensor", "partition": "iid:3"}, "'sensor' and .*'iid:3' disagree"),
        ({"device": "sensor", "partition": "size:30,30"}, "'size:30,30' disagree"),
        ({"device": "sensor", "partition": "dirichlet:3:0.5"}, ":3:0.5' disagree"),
        ({"partition": 3}, "partition must be a text, got 3: write iid:16"),
        ({"label": None, "device": "sensor"}, "label must name a column, got None"),
        ({"device": 3}, "device must name a column, got 3"),
        ({"device": "sensor", "schema": {}}, "it lacks 'label' and 'features'"),
        ({"device": "sensor", "schema": 3}, "schema is a int, 3: pass a Schema"),
        ({"device": "sensor", "schema": "s.json"}, "schema is a str, 's.json': pass"),
        ({"device": "sensor", "missing": []}, r"missing \[\] is not known"),
        ({"partition": "even:4"}, "not known: write"),
        ({"device": "alarm"}, "both 'alarm'"),
        ({"device": "sensor", "missing": "fill"}, "choose one of error, drop"),
        ({"device": "sensor", "label": "room", "schema": SCHEMA}, "describes 'alarm'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        from_table(frame(), **{"label": "alarm", **options})
    assert "\n" not in str(caught.value)


def test_a_draft_needs_the_names_of_columns() -> None:
    with pytest.raises(InvalidInputError, match="label must name a column, got None"):
        infer_schema(frame(), label=None)  # type: ignore[arg-type]


def test_a_missing_package_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] in ("pyarrow", "scipy"):
            raise ImportError(name)
        return real(name, *args, **options)

    df = frame()
    wide = Schema(
        features={"room": Categorical([*"abcdefgh", "hall"])},
        label="alarm",
        target=SCHEMA.target,
    )
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pyarrow.*\.\[lab\]"):
        from_table(df, label="alarm", device="sensor")
    with pytest.raises(MissingExtraError, match=r"scipy.*\.\[lab\]"):
        wide.encode({"room": ["hall"]})
