"""Read a file or a frame into columns, through a pyarrow table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.data.columns import (
    FALSE,
    TRUE,
    Coded,
    Column,
    as_coded,
    check_name,
    other_separator,
)
from fedbudget.errors import DataError, needed
from fedbudget.text import counted

SUFFIXES = (".csv", ".csv.gz", ".parquet")

# Empty cells of a CSV file, unless a schema lists them as categories. In a frame or a
# Parquet file, only nulls and NaN are empty.
NULLS = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null"]


def read_table(source: Any, *, text: Mapping[str, Sequence[str]] | None = None) -> Any:
    """Return a pyarrow table from a path, or from a frame that supports Arrow.

    Args:
        source: A path (.csv, .csv.gz, .parquet) or a frame.
        text: Columns of a CSV file to read as text, since type inference would turn
            01 into 1; each with the texts that are never an empty cell.

    Raises:
        DataError: The source cannot be read, or has no rows or columns.
        MissingExtraError: pyarrow is not installed.

    >>> read_table({"age": [30, 40]}).num_rows
    2
    """
    with needed("reading tables", "pyarrow"):
        import pyarrow as pa
    try:
        if isinstance(source, str | Path):
            table = _read_file(Path(source), text or {})
        elif type(source).__module__.partition(".")[0] == "datasets":  # Hugging Face
            table = source.with_format("arrow")[:]
        else:
            table = pa.table(source)
    except DataError:
        raise
    except pa.ArrowException as error:
        detail = "; ".join(" ".join(str(arg).split()) for arg in error.args)
        raise DataError(
            f"the table mixes types or is damaged ({detail}): give each column one "
            "type",
            argument="source",
        ) from None
    except OSError as error:
        raise DataError(
            f"file {str(source)!r} cannot be read ({error}): check that it is complete",
            argument="source",
        ) from None
    except (TypeError, ValueError):
        raise DataError(
            f"source is a {type(source).__name__}: pass a path ({', '.join(SUFFIXES)}) "
            "or a pandas, polars or pyarrow frame",
            argument="source",
        ) from None
    # A pandas index other than a range becomes a column of this name.
    names = [n for n in table.column_names if not n.startswith("__index_level_")]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"column {twice!r} occurs twice: rename one", column=twice)
    if not table.num_rows or not names:
        raise DataError(
            f"the table is empty, {table.num_rows} rows and {len(names)} columns: give "
            "at least one row",
            argument="source",
        )
    return table.select(names)


def _read_file(path: Path, text: Mapping[str, Sequence[str]]) -> Any:
    """Read a CSV or Parquet file."""
    if not path.is_file():
        raise DataError(
            f"file {str(path)!r} does not exist: check the path", argument="source"
        )
    name = path.name.lower()
    if name.endswith(".parquet"):
        from pyarrow import parquet

        return parquet.read_table(path)
    if not name.endswith((".csv", ".csv.gz")):
        raise DataError(
            f"file {str(path)!r} has suffix {path.suffix!r}, which is not supported: "
            f"use {' or '.join(SUFFIXES)}",
            argument="source",
        )
    if not path.stat().st_size:
        raise DataError(
            f"the table is empty: file {str(path)!r} has no header line",
            argument="source",
        )
    return _read_csv(path, text)


def _read_csv(path: Path, text: Mapping[str, Sequence[str]]) -> Any:
    """Read a CSV file; infer the types of all columns but those of text."""
    import pyarrow as pa
    from pyarrow import compute, csv

    options = csv.ConvertOptions(
        null_values=NULLS,
        strings_can_be_null=True,
        true_values=list(TRUE),
        false_values=list(FALSE),
        column_types=dict.fromkeys(text, pa.large_string()),
    )
    try:
        table = csv.read_csv(path, convert_options=options)
    except pa.ArrowInvalid:
        _check_separator(path, _header(path))
        _check_widths(path)
        raise
    _check_separator(path, table.column_names)
    names = table.column_names
    # Columns with empty cells are read again, to compare their texts.
    with_nulls = [n for n in text if names.count(n) == 1 and table.column(n).null_count]
    if not with_nulls:
        return table
    options.null_values = [""]
    options.include_columns = with_nulls
    as_text = csv.read_csv(path, convert_options=options)
    for name in with_nulls:
        cells = as_text.column(name)
        nulls = pa.array([n for n in NULLS if n not in text[name]], pa.large_string())
        empty = compute.is_in(compute.utf8_trim_whitespace(cells), value_set=nulls)
        cells = compute.if_else(empty, pa.scalar(None, pa.large_string()), cells)
        table = table.set_column(names.index(name), name, cells)
    return table


def _header(path: Path) -> list[str]:
    """Return the header's cells, if they were separated by commas."""
    import gzip  # late: devices use other parts of this file

    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        return str(file.readline()).rstrip("\r\n").split(",")


def _check_separator(path: Path, names: Sequence[str]) -> None:
    """Refuse a file whose cells are separated by something else than commas."""
    if hint := other_separator(names):
        raise DataError(f"file {str(path)!r} {hint}", argument="source")


def _check_widths(path: Path) -> None:
    """Refuse a CSV file with a row of more or fewer cells than its header has."""
    import pyarrow as pa
    from pyarrow import csv

    invalid: list[Any] = []

    def on_invalid(row: Any) -> str:
        invalid.append(row)
        return "error"

    try:  # row numbers need a single thread
        csv.read_csv(
            path,
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(invalid_row_handler=on_invalid),
        )
    except pa.ArrowInvalid:
        pass
    if invalid:
        row = invalid[0]
        position = f"row {row.number}" if row.number is not None else "a row"
        raise DataError(
            f"{position} of file {str(path)!r} (the header is row 1) has "
            f"{counted(row.actual_columns, 'cell')}, and the header has "
            f"{row.expected_columns}: correct it, and quote cells that hold a comma",
            argument="source",
        )


def read_column(table: Any, name: str) -> Column:
    """Return a column: numbers as float64, text and truth values coded.

    >>> read_column(read_table({"b": [True, None]}), "b").codes.tolist()
    [1, -1]
    """
    import pyarrow as pa

    check_name(table.column_names, name)
    array = _plain(table.column(name))
    kind = array.type
    if pa.types.is_boolean(kind):
        codes = array.cast(pa.int8()).fill_null(-1).to_numpy(zero_copy_only=False)
        return Coded(codes=codes, values=("false", "true"))
    if pa.types.is_large_string(kind):
        return _coded_text(array)
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    ):
        raise DataError(
            f"column {name!r} has type {kind}, which is neither number, text nor truth "
            "value: convert it to one of these, leave it out, or describe a time "
            "stamp by its cycles in a schema",
            column=name,
        )
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64)


def read_categories(table: Any, name: str) -> Coded:
    """Return any column as categories in sorted order; whole numbers stay exact.

    >>> read_categories(read_table({"id": [10, 9, 10]}), "id").values
    ('9', '10')
    """
    import pyarrow as pa

    check_name(table.column_names, name)
    array = _plain(table.column(name))
    if pa.types.is_binary(array.type) or pa.types.is_nested(array.type):
        raise DataError(
            f"column {name!r} has type {array.type}, which cannot name a device or a "
            "category: use text or numbers",
            column=name,
        )
    if pa.types.is_floating(array.type):  # not widened: 0.1 stays 0.1
        return as_coded(array.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(array.type) or pa.types.is_null(array.type):
        return as_coded(read_column(table, name))
    return _coded_text(array)


def read_devices(table: Any, name: str) -> Coded:
    """Return a column as device names; numbers are sorted by value.

    Different texts are different devices, such as 7 and 007; 8.0 is written as 8.

    >>> read_devices(read_table({"id": ["10.0", "9.0", "10.0"]}), "id").values
    ('9', '10')
    """
    import pyarrow as pa

    coded = read_categories(table, name)
    texts = pa.array(coded.values, pa.large_string())
    try:
        numbers = texts.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # not all are numbers: sorted as text
        return coded
    values, whole = coded.values, [v.removesuffix(".0") for v in coded.values]
    if len(set(whole)) == len(whole):
        values = tuple(whole)
    order = np.argsort(numbers, kind="stable")
    rank = np.full(len(order) + 1, -1, dtype=np.int64)  # the last entry is for code -1
    rank[order] = np.arange(len(order))
    return Coded(codes=rank[coded.codes], values=tuple(values[j] for j in order))


def read_times(table: Any, name: str) -> Any:
    """Return a column by which rows can be sorted: times, numbers or texts.

    >>> read_times(read_table({"t": ["b", "a"]}), "t").tolist()
    [1, 0]
    """
    import pyarrow as pa

    check_name(table.column_names, name)
    array = _plain(table.column(name))
    if array.null_count:
        raise DataError(
            f"column {name!r} has {array.null_count} empty cells, and orders the rows: "
            "fill them",
            column=name,
        )
    if pa.types.is_temporal(array.type):
        width = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return array.cast(width).to_numpy(zero_copy_only=False)
    column = read_column(table, name)
    return column.codes if isinstance(column, Coded) else column


def is_stamp(kind: Any) -> bool:
    """Return whether an Arrow type has a date: a day, or a day and a time."""
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def read_stamps(table: Any, name: str) -> Column:
    """Return time stamps: wall-clock seconds since 1970, or texts that stand for them.

    >>> read_stamps(read_table({"t": ["2026-02-02 00:00"]}), "t").values
    ('2026-02-02 00:00',)
    """
    import pyarrow as pa
    from pyarrow import compute

    check_name(table.column_names, name)
    array = _plain(table.column(name))
    if not is_stamp(array.type):
        return read_column(table, name)
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        array = compute.local_timestamp(array)
    whole = array.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    numbers = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64) / 1e6  # an empty cell is NaN


def read_label(table: Any, name: str, *, most_classes: int) -> Column:
    """Return a label column: exact classes if it has few distinct whole numbers.

    >>> read_label(read_table({"y": [2**53, 2**53 + 1]}), "y", most_classes=20).values
    ('9007199254740992', '9007199254740993')
    """
    import pyarrow as pa
    from pyarrow import compute

    check_name(table.column_names, name)
    array = _plain(table.column(name))
    if pa.types.is_integer(array.type):
        if compute.count_distinct(array).as_py() <= most_classes:
            return read_categories(table, name)
    return read_column(table, name)


def _plain(chunked: Any) -> Any:
    """Return one array, dictionaries decoded and all text as large_string."""
    import pyarrow as pa

    coded = pa.types.is_dictionary(chunked.type)
    kind = chunked.type.value_type if coded else chunked.type
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        kind = pa.large_string()
    if coded:  # pyarrow cannot decode the string views of polars itself
        decoded = [c.dictionary.cast(kind).take(c.indices) for c in chunked.chunks]
        chunked = pa.chunked_array(decoded, type=kind)
    array = chunked.cast(kind).combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # older versions, if there is no chunk
        array = pa.concat_arrays(array.chunks)
    return array


def _coded_text(array: Any) -> Coded:
    """Code an array by its distinct values, sorted."""
    import pyarrow as pa
    from pyarrow import compute

    encoded = array.dictionary_encode()
    values = encoded.dictionary
    order = compute.sort_indices(values).to_numpy()
    rank = np.full(len(order) + 1, -1, dtype=np.int32)  # the last entry is for code -1
    rank[order] = np.arange(len(order), dtype=np.int32)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    text = values.take(pa.array(order)).cast(pa.large_string())
    return Coded(codes=rank[codes], values=tuple(text.to_pylist()))
