"""Attack: one private value decides public counts, or which device holds other rows.

The guarantee is for replacing one row while the numbers of rows and the places of all
other rows stay. Where a private cell decides about those, the data set must say that no
guarantee covers it, and must not depend on the rows in saying so.
"""

import warnings
from typing import Any

import numpy as np
import pytest

from fedbudget.data import Dataset, from_table
from fedbudget.data.dataset import hold_out
from fedbudget.data.partitions import Partition, parse_partition
from fedbudget.errors import NotPrivateWarning

SCHEMA = {
    "label": {"name": "alarm", "values": ["no", "yes"]},
    "features": {"volts": {"low": 0, "high": 5}},
}
VOLTS: list[float | None] = [i % 5 for i in range(40)]
ALARMS = ["yes" if i % 3 else "no" for i in range(40)]
SITES = [f"s{i % 4}" for i in range(40)]


def read(
    volts: Any = VOLTS, alarms: Any = ALARMS, schema: Any = SCHEMA, **options: Any
) -> Dataset:
    table = {"volts": volts, "alarm": alarms, "site": SITES}
    if "partition" in options:
        del table["site"]
    else:
        options["device"] = "site"
    return from_table(table, label="alarm", schema=schema, **options)


def warned(match: str, **options: Any) -> Dataset:
    with pytest.warns(NotPrivateWarning, match=match) as caught:
        data = read(**options)
    assert len(caught) == 1 and caught[0].filename == __file__
    return data


def test_a_dropped_row_moves_a_public_count_and_the_data_say_so() -> None:
    neighbour = [None, *VOLTS[1:]]
    full = warned("private cells decide the numbers of rows", missing="drop")
    less = warned("private cells decide", missing="drop", volts=neighbour)
    assert full.num_samples.tolist() != less.num_samples.tolist()
    assert full.caveats == less.caveats  # which one it is, is private
    (caveat,) = full.caveats
    assert caveat.startswith("NOT covered: the numbers of rows")


def test_a_label_moves_other_rows_and_the_data_say_so() -> None:
    partition = parse_partition("dirichlet:4:0.3")
    y = np.array([alarm == "yes" for alarm in ALARMS]).astype(int)
    other = np.array([1 - y[0], *y[1:]])
    moved = partition.device_ids(y)[1:] != partition.device_ids(other)[1:]
    assert moved.any()
    data = warned("one private label decides", partition="dirichlet:4:0.3")
    (caveat,) = data.caveats
    assert caveat.startswith("NOT covered: which rows a device holds")


@pytest.mark.parametrize("partition", ["iid:4", "size:0.7,0.3"])
def test_other_partitions_do_not_look_at_labels(partition: str) -> None:
    division = parse_partition(partition)
    same = division.device_ids(np.zeros(40, int)) == division.device_ids(np.arange(40))
    assert same.all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(partition=partition).caveats == ()


def test_a_table_with_its_devices_and_a_public_schema_has_no_caveat() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read().caveats == ()
    assert Partition(kind="column", column="site").caveat == ""


def test_bounds_that_were_read_from_rows_are_a_caveat() -> None:
    data = warned("bounds and categories", schema=None)
    assert data.caveats == (
        "NOT covered: the bounds and categories, which were read from the rows",
    )


def test_caveats_stay_with_a_part_of_the_devices() -> None:
    data = warned("private cells", missing="drop")
    for part in hold_out(data, count=1):
        assert part.caveats == data.caveats
