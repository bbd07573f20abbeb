"""One table per device, and data sets from Hugging Face and Flower."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedbudget as fb
from fedbudget.errors import DataError

SCHEMA = {
    "label": {"name": "alarm", "values": [0, 1]},
    "features": {"volts": {"low": 0, "high": 5}},
}


def columns(rows: int = 60) -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    volts = (5 * rng.random(rows)).round(3)
    return {"volts": volts.tolist(), "alarm": (volts > 2.5).astype(int).tolist()}


def same(first: fb.Dataset, second: fb.Dataset) -> bool:
    parts: Any = ((first.train, second.train), (first.test, second.test))
    return all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in parts)


def test_a_list_and_a_dict_of_tables() -> None:
    frame = pd.DataFrame(columns())
    halves = [frame[:20], frame[20:]]
    listed = fb.from_partitions(halves, label="alarm", schema=SCHEMA)
    assert listed.device_names == ("0", "1")
    sizes = listed.train.sizes + listed.validation.sizes + listed.test.sizes
    assert sizes.tolist() == [20, 40]
    named = {"north": halves[0], "south": halves[1]}
    data = fb.from_partitions(named, label="alarm", schema=SCHEMA)
    assert data.device_names == ("north", "south")
    assert same(data, listed)


def test_tables_per_device_equal_one_table_with_a_device_column() -> None:
    frame = pd.DataFrame(columns())
    frame["id"] = np.arange(len(frame)) // 20
    one = fb.from_table(frame, label="alarm", device="id", schema=SCHEMA)
    tables = {str(name): rows.drop(columns="id") for name, rows in frame.groupby("id")}
    assert same(fb.from_partitions(tables, label="alarm", schema=SCHEMA), one)


def test_a_hugging_face_data_set_is_a_table() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    table = columns() | {"id": [i % 3 for i in range(60)]}
    dataset = datasets.Dataset.from_dict(table)
    options: dict[str, Any] = {"label": "alarm", "device": "id", "schema": SCHEMA}
    assert same(
        fb.from_table(dataset, **options),
        fb.from_table(pd.DataFrame(table), **options),
    )
    # A selection is a view with indices into all rows.
    selection = fb.from_table(dataset.select(range(30)), **options)
    assert selection.train.sizes.sum() == 24


def test_partitions_of_flower_are_devices() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    reason = "flwr-datasets is not installed"
    partitioner = pytest.importorskip("flwr_datasets.partitioner", reason=reason)
    partitions = partitioner.IidPartitioner(num_partitions=4)
    partitions.dataset = datasets.Dataset.from_dict(columns())
    data = fb.from_partitions(partitions, label="alarm", schema=SCHEMA)
    assert data.num_devices == 4
    listed = [partitions.load_partition(m) for m in range(4)]
    assert same(data, fb.from_partitions(listed, label="alarm", schema=SCHEMA))


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ([], "is empty"),
        ("rows.csv", "is a str"),
        (7, "is a int"),
        ([{"volts": [1], "alarm": [0]}, {"volts": [1]}], "device '1' has columns"),
        ([{"volts": [1], "alarm": [0]}, {"volts": ["x"], "alarm": [0]}], "types"),
    ],
)
def test_refusals(partitions: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fb.from_partitions(partitions, label="alarm", schema=SCHEMA)
