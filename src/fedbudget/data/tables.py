"""Your own tables: one with a device column, one per device, or Flower's partitions.

`infer_schema` reads a schema from private rows, and warns.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import one_of
from fedbudget.data.columns import (
    Bools,
    Cells,
    Coded,
    Column,
    as_coded,
    as_column,
    check_name,
    keep_rows,
    missing,
)
from fedbudget.data.dataset import Dataset, split_rows
from fedbudget.data.features import Categorical, Feature
from fedbudget.data.fourier import FeatureStep
from fedbudget.data.inference import MOST_NUMERIC_CLASSES, schema_from_rows
from fedbudget.data.partitions import (
    SPELLINGS,
    DeviceIds,
    Partition,
    parse_partition,
)
from fedbudget.data.reading import (
    is_stamp,
    read_categories,
    read_column,
    read_devices,
    read_label,
    read_stamps,
    read_table,
    read_times,
)
from fedbudget.data.schema import Schema
from fedbudget.data.times import Time, seconds
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from fedbudget.losses import Labels, Rows
from fedbudget.text import shown

_DEVICE = "fedbudget device"  # a name that no table uses
_DROPPED = (
    "NOT covered: the numbers of rows: those with empty cells are left out "
    "(missing='drop')"
)
_READ_BOUNDS = "NOT covered: the bounds and categories, which were read from the rows"


def from_table(
    source: Any,
    *,
    label: str,
    device: str | None = None,
    schema: Schema | Mapping[str, Any] | None = None,
    partition: str | Partition | None = None,
    seed: int = 0,
    missing: Literal["error", "drop"] = "error",
    name: str | None = None,
    intercept: bool = True,
    features: FeatureStep = None,
    order: str | None = None,
) -> Dataset:
    """Make a data set from a table of one row per sample.

    Args:
        source: A path (.csv, .csv.gz, .parquet), or a pandas, polars or pyarrow frame.
        label: The column to predict. A schema defines its classes or bounds. Without
            one, a numeric column of more than 20 distinct values means regression.
        device: The column that names each row's device. Not a feature, unless the
            schema lists it.
        schema: Public bounds and categories, as a `Schema` or as the plain dict that
            `Schema.from_dict` reads. Without it they are read from the rows, with a
            `NotPrivateWarning`.
        partition: Instead of a device column, how to partition the rows: ``iid:16``,
            ``size:60,40``, ``dirichlet:16:0.3`` or ``column:NAME``. With ``dirichlet``,
            a label decides where other rows go, with a `NotPrivateWarning`.
        seed: Seeds the partition and the 80/10/10 split on every device.
        missing: What to do with rows that have empty cells. With ``drop``, private
            cells decide the numbers of rows, with a `NotPrivateWarning`.
        name: The data set's name; by default the file's.
        intercept: Add a constant column. Ignored with a schema, which has its own.
        features: ``linear``, ``fourier`` or ``fourier:COUNT``: the feature step, as
            for `Schema.with_features`. By default, that of the schema.
        order: A column of the time, which is public: the last tenth of each device's
            time is the test part, the tenth before it the validation part. By
            default, the parts are drawn; with windows they are always ordered.

    Raises:
        DataError: The table is invalid; the message names the column and the reason.
        MissingExtraError: pyarrow or scipy is not installed.

    >>> schema = Schema.from_dict({
    ...     "label": {"name": "alarm", "values": ["false", "true"]},
    ...     "features": {"volts": {"low": 0, "high": 5}},
    ... })
    >>> table = {"volts": [1, 2, 3], "alarm": [True, False, True], "id": [7, 7, 9]}
    >>> print(from_table(table, label="alarm", device="id", schema=schema))
    table: 2 devices, 3 rows (2 train, 0 validation, 1 test), 2 columns, 2 classes, \
dissimilarity mild
    """
    one_of("missing", missing, ("error", "drop"))
    _check_names(label, device)
    schema = _schema(schema)
    division = _partition(device, partition)
    device = division.column or None
    table = read_table(source, text=category_texts(schema, device))
    times = _times(table) if schema is None else {}
    if times:  # again, as written: a parser moves time stamps with a zone to UTC
        texts = category_texts(None, device) | dict.fromkeys(times, ())
        table = read_table(source, text=texts)
    columns = _columns(table, label=label, device=device, schema=schema)
    owners = None if device is None else read_devices(table, device)
    complete, owners = _without_gaps(
        columns, device, owners, schema, drop=missing == "drop"
    )
    caveats = _warned_caveats(division, drop=missing == "drop")
    if schema is None:
        schema = schema_from_rows(
            columns, label=label, intercept=intercept, times=times
        )
        caveats.append(_READ_BOUNDS)
    if features is not None:
        schema = schema.with_features(features)
    columns, ordered = complete, order is not None or schema.windows is not None
    if ordered:
        if schema.windows is not None and order is None:
            order = schema.windows.order
        check_ordered(schema, owners, drop=missing == "drop")
        columns, owners = _in_order(table, columns, owners, schema, order)
    x, y = schema.encode(columns), schema.encode_label(columns[label])
    if owners is not None:
        ids, names = np.asarray(owners.codes), owners.values
    else:
        ids = _device_ids(division, y, seed)
        names = tuple(map(str, range(division.num_devices)))
    train, validation, test = split_rows(
        x, y, ids, num_devices=len(names), seed=seed, ordered=ordered
    )
    return Dataset(
        name=name or _name_of(source),
        train=train,
        validation=validation,
        test=test,
        device_names=names,
        feature_names=schema.feature_names,
        classes=schema.classes,
        dissimilarity=division.dissimilarity,
        caveats=tuple(caveats),
        schema=schema,
    )


def check_ordered(schema: Schema, owners: Coded | None, *, drop: bool) -> None:
    """Refuse what windows or an order do not go with."""
    if owners is None:
        raise InvalidInputError(
            "windows and order need the devices of the rows: name their column with "
            "device=, for a partition would mix the readings of several devices",
            argument="device",
        )
    if drop and schema.windows is not None:
        raise InvalidInputError(
            "missing='drop' does not go with windows: one dropped reading would move "
            "all later ones to other windows, and one window is what is protected; set "
            "missing= for the column in the schema",
            argument="missing",
        )


def _in_order(
    table: Any,
    columns: dict[str, Column],
    owners: Coded | None,
    schema: Schema,
    order: str | None,
) -> tuple[dict[str, Column], Coded]:
    """Return the rows by device and time; of windows, whole ones, with their owners."""
    assert owners is not None  # checked by the caller
    codes = np.asarray(owners.codes, dtype=np.int64)
    times = None if order is None else read_times(table, order)
    if isinstance(schema.features.get(str(order)), Time):
        times = seconds(str(order), columns[str(order)])
    if times is not None and len(times) != len(codes):
        raise InvalidInputError(
            "missing='drop' does not go with order: fill the empty cells, or set "
            "missing= in a schema",
            argument="missing",
        )
    if schema.windows is None:
        rows = np.lexsort((codes,) if times is None else (times, codes))
        ends = codes[rows]
    else:
        rows = schema.windows.arranged(codes, times)
        ends = codes[rows][:: schema.windows.length]
        counts = np.bincount(ends, minlength=len(owners.values))
        if not counts.all():
            name = owners.values[int(np.argmin(counts))]
            raise DataError(
                f"device {name!r} has fewer than {schema.windows.length} readings, a "
                "window: leave it out, or shorten the windows",
                argument="windows",
            )
    taken = {name: _taken(column, rows) for name, column in columns.items()}
    return taken, Coded(codes=ends, values=owners.values)


def _taken(column: Column, rows: NDArray[np.int64]) -> Column:
    if isinstance(column, Coded):
        return Coded(codes=column.codes[rows], values=column.values)
    return column[rows]


def _warned_caveats(division: Partition, *, drop: bool) -> list[str]:
    """Return what private values decide about public counts and other rows, and warn.

    It does not depend on the rows: whether one of them is dropped is private.
    """
    caveats = []
    if drop:
        caveats.append(_DROPPED)
        warnings.warn(
            "missing='drop' leaves out rows with empty cells, so private cells decide "
            "the numbers of rows, which are public, and no privacy guarantee covers "
            "that; fill the cells, or set missing= for a column in a schema",
            NotPrivateWarning,
            stacklevel=3,
        )
    if division.caveat:
        caveats.append(division.caveat)
        warnings.warn(
            f"with partition {str(division)!r}, one private label decides which device "
            "holds other rows, and no privacy guarantee covers that; use it for "
            "experiments, or partition by iid, size or column",
            NotPrivateWarning,
            stacklevel=3,
        )
    return caveats


def read_sample(source: Any, schema: Schema) -> tuple[Rows, Labels]:
    """Read rows that are not private, encoded as the private rows are.

    Args:
        source: As for `from_table`; it needs the columns of the schema.
        schema: That of the private rows.

    Raises:
        DataError: The table is invalid; the message names the column and the reason.
    """
    table = read_table(source, text=category_texts(schema, None))
    columns = _columns(table, label=schema.label, device=None, schema=schema)
    columns, _ = _without_gaps(columns, None, None, schema, drop=False)
    return schema.encode(columns), schema.encode_label(columns[schema.label])


def read_features(source: Any, schema: Schema, device: str = "") -> dict[str, Cells]:
    """Read the columns that the schema's features need; the label is not needed.

    Args:
        source: A dict of columns, or as for `from_table`.
        schema: That of the model.
        device: The column of the devices. If the schema has windows and the table has
            this column, rows are returned window by window, each of one device.

    Raises:
        DataError: A column is missing, or the table cannot be read.
    """
    if isinstance(source, Mapping):
        for name in schema.features:
            check_name(list(source), name)
        cells: dict[str, Cells] = {name: source[name] for name in schema.features}
        names = list(source)
        owners = as_coded(source[device]) if device and device in names else None
    else:
        named = device if device and schema.windows is not None else None
        table = read_table(source, text=category_texts(schema, named))
        cells = {n: _read(table, n, kind) for n, kind in schema.features.items()}
        names = table.column_names
        owners = read_devices(table, device) if device and device in names else None
    if schema.windows is None or owners is None:
        return cells
    rows = schema.windows.by_device(owners)
    return {name: _taken(as_column(column), rows) for name, column in cells.items()}


def _read(table: Any, name: str, kind: Feature) -> Column:
    """Read a column as its kind says."""
    if isinstance(kind, Categorical):
        return read_categories(table, name)
    return (
        read_stamps(table, name) if isinstance(kind, Time) else read_column(table, name)
    )


def from_partitions(
    partitions: Any,
    *,
    label: str,
    schema: Schema | Mapping[str, Any] | None = None,
    seed: int = 0,
    missing: Literal["error", "drop"] = "error",
    name: str = "partitions",
) -> Dataset:
    """Make a data set from one table per device.

    Args:
        partitions: A dict of tables by device, a list of tables, or a partitioner of
            flwr-datasets with its data set. A table is any source of `from_table`, or
            a Hugging Face `datasets.Dataset`.
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
        table = pa.concat_tables(named, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"devices hold a column in different types ({error}): make them the same"
        ) from None
    return from_table(
        table,
        label=label,
        device=_DEVICE,
        schema=schema,
        seed=seed,
        missing=missing,
        name=name,
    )


def _device_ids(division: Partition, labels: NDArray[Any], seed: int) -> DeviceIds:
    try:
        return division.device_ids(labels, seed=seed)
    except InvalidInputError as error:
        if error.argument != "seed":
            error.argument = "partition"
        raise


def infer_schema(
    source: Any, *, label: str, device: str | None = None, intercept: bool = True
) -> Schema:
    """Infer a schema from a table's rows, to be replaced by public knowledge.

    Emits a `NotPrivateWarning`: bounds and categories are read from private rows, and
    no guarantee covers them. The sources are those of `from_table`.
    """
    _check_names(label, device)
    table = read_table(source)
    columns = _columns(table, label=label, device=device, schema=None)
    _without_gaps(columns, None, None, None, drop=True)  # raises if none is complete
    return schema_from_rows(
        columns, label=label, intercept=intercept, times=_times(table)
    )


def _times(table: Any) -> dict[str, Time]:
    """Return the columns of time stamps; a day without a time has no hour."""
    import pyarrow as pa

    kinds = {name: table.column(name).type for name in table.column_names}
    return {
        name: Time(("weekday",)) if pa.types.is_date(kind) else Time()
        for name, kind in kinds.items()
        if is_stamp(kind)
    }


def _check_names(label: Any, device: Any) -> None:
    """Refuse names that are not texts."""
    if not isinstance(label, str):
        raise InvalidInputError(
            f"label must name a column, got {shown(label)}: name the column to predict",
            argument="label",
        )
    if device is not None and not isinstance(device, str):
        raise InvalidInputError(
            f"device must name a column, got {shown(device)}: name the column of "
            "each row's device",
            argument="device",
        )


def _schema(schema: Any) -> Schema | None:
    """Return the schema, converted from a plain dict if necessary."""
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema.from_dict(schema)
    raise InvalidInputError(
        f"schema is a {type(schema).__name__}, {shown(schema)}: pass a Schema, or the "
        "dict that Schema.from_dict reads"
    )


def _partition(device: str | None, partition: Any) -> Partition:
    """Return the partition, or the one by the device column."""
    if partition is None:
        if device is None:
            raise InvalidInputError(
                "neither device nor partition is given: name the device's column with "
                "device=, or partition the rows with partition='iid:16'"
            )
        return Partition(kind="column", column=device)
    if not isinstance(partition, str | Partition):
        raise InvalidInputError(
            f"partition must be a text, got {shown(partition)}: write {SPELLINGS}",
            argument="partition",
        )
    division = parse_partition(partition) if isinstance(partition, str) else partition
    if device not in (None, division.column):
        raise InvalidInputError(
            f"device={device!r} and partition {str(division)!r} disagree on the "
            "device of a row: leave out partition to keep the table's devices; or "
            "leave out device, and that column if it is no feature, to partition the "
            "rows again",
            argument="partition",
        )
    return division


def category_texts(
    schema: Schema | None, device: str | None
) -> dict[str, tuple[str, ...]]:
    """Return the columns to read as text, with the texts that the schema lists."""
    kinds = {} if schema is None else {**schema.features, schema.label: schema.target}
    texts: dict[str, tuple[str, ...]] = {}
    for name, kind in kinds.items():
        if isinstance(kind, Categorical):
            texts[name] = tuple(kind.values)
        elif isinstance(kind, Time):  # as written: a parser would move it to UTC
            texts[name] = ()
    if device is not None and device not in kinds:
        texts[device] = ()
    return texts


def _columns(
    table: Any, *, label: str, device: str | None, schema: Schema | None
) -> dict[str, Column]:
    """Read the label and the features: those of the schema, or all columns."""
    check_name(table.column_names, label)
    if device is not None:
        check_name(table.column_names, device)
    if device == label:
        raise InvalidInputError(
            f"label and device are both {label!r}: name two different columns",
            argument="device",
        )
    if schema is None:
        names = [name for name in table.column_names if name not in (label, device)]
        features = {
            name: read_stamps(table, name)
            if is_stamp(table.column(name).type)
            else read_column(table, name)
            for name in names
        }
        classes = MOST_NUMERIC_CLASSES
        return {**features, label: read_label(table, label, most_classes=classes)}
    if schema.label != label:
        raise InvalidInputError(
            f"label is {label!r}, but the schema describes {schema.label!r}: make them "
            "the same",
            argument="label",
        )
    return {n: _read(table, n, kind) for n, kind in schema.columns.items()}


def _without_gaps(
    columns: dict[str, Column],
    device: str | None,
    owners: Coded | None,
    schema: Schema | None,
    *,
    drop: bool,
) -> tuple[dict[str, Column], Coded | None]:
    """Refuse or drop rows with an empty cell that the schema does not allow."""
    gaps = {n: missing(c) for n, c in columns.items() if not _allowed(schema, n)}
    if device is not None and owners is not None:  # a device must have a name
        gaps[device] = missing(owners)
    counts = {name: int(gap.sum()) for name, gap in gaps.items() if gap.any()}
    if not counts:
        return columns, owners
    if not drop:
        name, count = next(iter(counts.items()))
        row = int(np.argmax(gaps[name]))
        others = f" (and {len(counts) - 1} more columns)" if len(counts) > 1 else ""
        raise DataError(
            f"column {name!r} has {count} empty cells, the first in row {row} (counted "
            f"from 0){others}: fill them, drop these rows (missing='drop', --missing "
            "drop), or set missing= in a schema",
            column=name,
        )
    keep: Bools = ~np.logical_or.reduce(list(gaps.values()))
    if not keep.any():
        raise DataError(
            f"no row is complete, {len(keep)} would be dropped: fill the empty cells "
            f"of {', '.join(map(repr, counts))}"
        )
    complete = {name: keep_rows(column, keep) for name, column in columns.items()}
    remaining = None if owners is None else keep_rows(owners, keep)
    return complete, remaining if isinstance(remaining, Coded) else None


def _allowed(schema: Schema | None, name: str) -> bool:
    """Return whether the schema allows empty cells in this column."""
    if schema is None:
        return False
    kind = schema.target if name == schema.label else schema.features[name]
    ignores = isinstance(kind, Categorical) and kind.other == "ignore"
    return ignores or kind.missing is not None


def _name_of(source: Any) -> str:
    """Return a file's name without its suffixes."""
    if not isinstance(source, str | Path):
        return "table"
    return Path(source).name.split(".", maxsplit=1)[0]


def _tables(partitions: Any) -> dict[str, Any]:
    """Return a pyarrow table per device, by name."""
    if hasattr(partitions, "load_partition"):  # flwr-datasets
        count = int(partitions.num_partitions)
        partitions = [partitions.load_partition(m) for m in range(count)]
    if isinstance(partitions, Mapping):
        tables = {str(name): read_table(table) for name, table in partitions.items()}
    elif isinstance(partitions, Sequence) and not isinstance(partitions, str):
        tables = {str(m): read_table(table) for m, table in enumerate(partitions)}
    else:
        raise DataError(
            f"partitions is a {type(partitions).__name__}: give a dict or a list of "
            "tables, or a partitioner of flwr-datasets"
        )
    if not tables:
        raise DataError("partitions is empty: give at least one device's table")
    return tables
