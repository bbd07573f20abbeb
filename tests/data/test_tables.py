from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedbudget.data import (
    Categorical,
    Dataset,
    Numeric,
    Schema,
    from_table,
    infer_schema,
)
from fedbudget.errors import DataError, NotPrivateWarning
from tests.data.examples import SCHEMA, frame, inferred


def same(a: Dataset, b: Dataset) -> bool:
    return a.device_names == b.device_names and all(
        np.array_equal(
            getattr(getattr(a, part), field), getattr(getattr(b, part), field)
        )
        for part in ("train", "validation", "test")
        for field in ("x", "y", "offsets")
    )


SOURCES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "polars": lambda df, _: pl.from_pandas(df),
    "polars categories": lambda df, _: pl.from_pandas(df).with_columns(
        pl.col("room", "alarm").cast(pl.Categorical)
    ),
    "pandas categories": lambda df, _: df.astype(
        {"room": "category", "sensor": "int8"}
    ),
    "pandas, odd index": lambda df, _: df.set_index(pd.Index(np.arange(len(df)) * 7)),
    "arrow": lambda df, _: pa.Table.from_pandas(df),
    "dictionary": lambda df, _: df.to_dict(orient="list"),
    "csv": lambda df, path: _written(path / "t.csv", df.to_csv, index=False),
    "csv.gz": lambda df, path: str(_written(path / "t.csv.gz", df.to_csv, index=False)),
    "parquet": lambda df, path: _written(path / "t.parquet", df.to_parquet),
}


def _written(path: Path, write: Any, **options: Any) -> Path:
    write(path, **options)
    return path


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_data_set(kind: str, tmp_path: Path) -> None:
    df = frame()
    source = SOURCES[kind](df, tmp_path)
    options: dict[str, Any] = {"label": "alarm", "device": "sensor", "seed": 3}
    expected = from_table(df, schema=SCHEMA, **options)
    assert expected.device_names == ("8", "9", "10", "11")  # by number, not by text
    assert expected.dim == 1 + 3 + 2 + 1
    assert same(from_table(source, schema=SCHEMA, **options), expected)
    assert same(inferred(source, **options), inferred(df, **options))


def test_a_file_gives_the_name(tmp_path: Path) -> None:
    path = _written(tmp_path / "plant.csv.gz", frame().to_csv, index=False)
    options: dict[str, Any] = {"label": "alarm", "device": "sensor", "schema": SCHEMA}
    assert from_table(path, **options).name == "plant"
    assert from_table(path, name="mine", **options).name == "mine"


def test_without_a_schema_the_warning_names_the_columns_and_the_remedy() -> None:
    with pytest.warns(NotPrivateWarning) as caught:
        data = from_table(frame(), label="alarm", device="sensor")
    message = str(caught[0].message)
    for word in (
        "no privacy guarantee",
        "'volts'",
        "'room'",
        "'alarm'",
        "schema=Schema(",
    ):
        assert word in message
    assert "NOT PRIVATE" not in message  # the warning's own name says it
    assert caught[0].filename == __file__
    with pytest.warns(NotPrivateWarning) as caught:
        schema = infer_schema(frame(), label="alarm", device="sensor")
    assert caught[0].filename == __file__
    assert schema.features["room"] == SCHEMA.features["room"]
    assert schema.target == SCHEMA.target
    again = from_table(frame(), label="alarm", device="sensor", schema=schema)
    assert same(data, again)


def test_a_schema_makes_no_warning_and_ignores_other_columns() -> None:
    df = frame().assign(secret=[f"person {j}" for j in range(60)])
    data = from_table(df, label="alarm", device="sensor", schema=SCHEMA)
    assert data.feature_names == SCHEMA.feature_names
    assert data.dissimilarity == "mild"


def test_the_intercept_can_be_left_out() -> None:
    data = inferred(frame(), label="alarm", device="sensor", intercept=False)
    assert "intercept" not in data.feature_names


@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
@pytest.mark.parametrize(
    ("partition", "devices", "dissimilarity"),
    [
        ("iid:7", 7, "iid"),
        ("size:10,20,30", 3, "iid"),
        ("dirichlet:5:0.5", 5, "strong"),
        ("column:sensor", 4, "mild"),
    ],
)
def test_rows_can_be_partitioned(
    partition: str, devices: int, dissimilarity: str
) -> None:
    data = from_table(frame(), label="alarm", schema=SCHEMA, partition=partition)
    assert data.num_devices == devices == len(data.device_names)
    assert data.dissimilarity == dissimilarity


def test_a_device_column_may_also_be_the_partition() -> None:
    options: dict[str, Any] = {"label": "alarm", "schema": SCHEMA}
    both = from_table(frame(), device="sensor", partition="column:sensor", **options)
    assert same(both, from_table(frame(), device="sensor", **options))


def test_a_schema_may_be_a_plain_dict() -> None:
    options: dict[str, Any] = {"label": "alarm", "device": "sensor"}
    plain = from_table(frame(), schema=SCHEMA.to_dict(), **options)
    assert same(plain, from_table(frame(), schema=SCHEMA, **options))


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (np.arange(60) % 3, ("0", "1", "2")),
        (np.arange(60) % 2 == 0, ("false", "true")),
        (np.arange(60) % 20, tuple(map(str, range(20)))),
        (np.arange(60) % 21, None),
        (np.linspace(0, 1, 60), None),
    ],
)
def test_labels_are_classes_or_numbers(
    label: Any, classes: tuple[str, ...] | None
) -> None:
    data = inferred(frame().assign(alarm=label), label="alarm", device="sensor")
    assert data.classes == classes
    if classes is None:
        assert data.train.y.dtype == np.float64
        assert np.abs(data.train.y).max() <= 1
        assert data.problem().model.name == "huber"
    else:
        assert data.train.y.dtype == np.int64


def with_gaps() -> pd.DataFrame:
    df = frame()
    df["room"] = df["room"].astype(object)
    df.loc[[3, 9], "room"] = None
    df.loc[5, "volts"] = np.nan
    return df


@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
@pytest.mark.parametrize("kind", ["arrow", "csv", "parquet", "polars"])
def test_empty_cells_are_refused_by_name_count_and_row(
    kind: str, tmp_path: Path
) -> None:
    source = SOURCES[kind](with_gaps(), tmp_path)
    options: dict[str, Any] = {"label": "alarm", "device": "sensor", "schema": SCHEMA}
    with pytest.raises(
        DataError, match=r"'volts' has 1 empty .* row 5 .*1 more column"
    ):
        from_table(source, **options)
    data = from_table(source, missing="drop", **options)
    complete = frame().drop(index=[3, 5, 9])
    assert same(data, from_table(complete, **options))


def test_a_schema_may_have_values_for_empty_cells() -> None:
    schema = Schema.from_dict(
        {
            "label": {"name": "alarm", "values": ["no", "yes"]},
            "features": {
                "volts": {"low": 0, "high": 5, "missing": 2.5},
                "room": {"values": ["attic", "cellar", "hall", "?"], "missing": "?"},
                "indoor": {"values": ["true"], "other": "ignore"},
            },
        }
    )
    data = from_table(with_gaps(), label="alarm", device="sensor", schema=schema)
    parts = (data.train, data.validation, data.test)
    column = data.feature_names.index("room=?")
    assert sum(int((np.asarray(p.x)[:, column] > 0).sum()) for p in parts) == 2


@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
def test_a_device_without_complete_rows_is_dropped() -> None:
    df = frame()
    df["volts"] = df["volts"].where(df["sensor"] != 9)
    options: dict[str, Any] = {"label": "alarm", "device": "sensor", "schema": SCHEMA}
    data = from_table(df, missing="drop", **options)
    assert data.device_names == ("8", "10", "11")
    with pytest.raises(DataError, match="no row is complete, 60 would be dropped"):
        from_table(df.assign(volts=np.nan), missing="drop", **options)


def test_a_million_devices() -> None:
    n = 1_500_000
    rng = np.random.default_rng(0)
    ids = rng.permutation(n) % 1_000_000
    table = pa.table({"id": ids, "volts": rng.random(n), "alarm": rng.random(n) < 0.5})
    schema = Schema(
        features={"volts": Numeric(0, 1)},
        label="alarm",
        target=Categorical(("false", "true")),
    )
    data = from_table(table, label="alarm", device="id", schema=schema)
    assert data.num_devices == 1_000_000
    assert data.device_names[123_456] == "123456"
    assert data.num_samples.sum() == 1_000_000


def test_a_big_parquet_file_keeps_exact_device_numbers(tmp_path: Path) -> None:
    big = 2**62 + np.arange(4)  # float64 would round them to one number
    df = frame(4).assign(sensor=big, alarm=["no", "yes", "no", "yes"])
    pq.write_table(pa.Table.from_pandas(df), tmp_path / "t.parquet")
    data = from_table(
        tmp_path / "t.parquet", label="alarm", device="sensor", schema=SCHEMA
    )
    assert data.device_names == tuple(map(str, big))
