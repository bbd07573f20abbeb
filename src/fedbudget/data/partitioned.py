"""Data that are dealt out already: one table per device, or Flower's partitions."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedbudget.data.dataset import Dataset
from fedbudget.data.reading import read_table
from fedbudget.data.schema import Schema
from fedbudget.data.tables import from_table
from fedbudget.errors import DataError
from fedbudget.text import shown

_DEVICE = "fedbudget device"  # a column that no table has by chance


def from_partitions(
    partitions: Any,
    *,
    label: str,
    schema: Schema | Mapping[str, Any] | None = None,
    seed: int = 0,
    missing: Literal["error", "drop"] = "error",
    name: str = "partitions",
) -> Dataset:
    """Make a data set of tables that devices hold already.

    Args:
        partitions: A dict of tables by device, a list of tables, or a partitioner of
            flwr-datasets with its data set. A table is whatever `from_table` takes,
            a Hugging Face `datasets.Dataset` too.
        label: The column to predict.
        schema: Public bounds and categories, as for `from_table`.
        seed: Seeds the 80/10/10 split on every device.
        missing: What to do with rows that have empty cells.
        name: The data set's name.

    Raises:
        DataError: There is no table, or tables have different columns.

    >>> schema = {"label": {"name": "y", "values": [0, 1]},
    ...           "features": {"v": {"low": 0, "high": 9}}}
    >>> tables = {"a": {"v": [1, 2], "y": [0, 1]}, "b": {"v": [3], "y": [1]}}
    >>> print(from_partitions(tables, label="y", schema=schema))
    partitions: 2 devices, 3 rows (2 train, 0 validation, 1 test), 2 columns, \
2 classes, dissimilarity mild
    """
    tables = _tables(partitions)
    first = next(iter(tables.values())).column_names
    for device, table in tables.items():
        if table.column_names != first:
            raise DataError(
                f"device {device!r} has columns {shown(table.column_names)}, the first "
                f"has {shown(first)}: give all devices the same"
            )
    import pyarrow as pa

    named = [
        table.append_column(_DEVICE, pa.array([device] * table.num_rows))
        for device, table in tables.items()
    ]
    try:
        whole = pa.concat_tables(named, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"devices hold a column in different types ({error}): make them the same"
        ) from None
    return from_table(
        whole,
        label=label,
        device=_DEVICE,
        schema=schema,
        seed=seed,
        missing=missing,
        name=name,
    )


def _tables(partitions: Any) -> dict[str, Any]:
    """Return one pyarrow table by the name of each device."""
    if hasattr(partitions, "load_partition"):  # flwr-datasets
        count = int(partitions.num_partitions)
        partitions = [partitions.load_partition(m) for m in range(count)]
    if isinstance(partitions, Mapping):
        found = {str(name): read_table(table) for name, table in partitions.items()}
    elif isinstance(partitions, Sequence) and not isinstance(partitions, str):
        found = {str(m): read_table(table) for m, table in enumerate(partitions)}
    else:
        raise DataError(
            f"partitions is a {type(partitions).__name__}: give a dict or a list of "
            "tables, or a partitioner of flwr-datasets"
        )
    if not found:
        raise DataError("partitions is empty: give at least one device's table")
    return found
