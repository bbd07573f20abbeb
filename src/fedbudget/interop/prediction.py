"""Predictions for a table of raw rows, beside its own columns.

CSV to CSV is read and written block by block with the standard library: a device
predicts with a base install, whatever the size of its file. Parquet needs pyarrow.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.data.columns import Cells, check_name
from fedbudget.data.text_rows import open_text, typed_columns
from fedbudget.errors import DataError, InvalidInputError, needed
from fedbudget.files import whole_file
from fedbudget.interop.export import LinearModel
from fedbudget.text import shown

_LINES = 5000  # of a CSV file, read and predicted at a time
_CSV = (".csv", ".csv.gz")
_SHOWN = 5  # predictions to show


@dataclass(kw_only=True)
class Predictions:
    """What was predicted for a table, as far as it is shown."""

    num_rows: int = 0
    classes: Counter[str] = field(
        default_factory=Counter
    )  # how often each was predicted
    least: float = np.inf  # of predicted numbers
    most: float = -np.inf
    first: list[dict[str, Any]] = field(default_factory=list)  # the first rows
    # The column that says whose a window's readings are; None: no windows, or all rows
    # were taken as the readings of one device.
    device: str | None = None

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Count the predictions of a block of rows."""
        labels = next(iter(columns.values()))
        self.num_rows += len(labels)
        if labels.dtype.kind == "f":
            self.least = min(self.least, float(labels.min(initial=np.inf)))
            self.most = max(self.most, float(labels.max(initial=-np.inf)))
        else:
            self.classes.update(labels.tolist())
        for row in range(min(_SHOWN - len(self.first), len(labels))):
            self.first.append(
                {name: cells[row].item() for name, cells in columns.items()}
            )


def predict_table(
    model: LinearModel,
    source: str | Path,
    out: str | Path | None = None,
    *,
    device: str | None = None,
) -> Predictions:
    """Predict every row of a file; write its columns and the predictions to another.

    Args:
        model: A model with a schema.
        source: A table of raw columns: .csv, .csv.gz or .parquet.
        out: The file to write, .csv or .parquet; None: none.
        device: With windows, the column of the devices, whose readings no window
            mixes; by default the model's, if the table has it. Rows are in the order
            of time.

    Raises:
        DataError: A column or a value does not match the model's schema.
        RecordError: The file cannot be written.
    """
    path = Path(source)
    target = None if out is None else Path(out)
    if model.schema is None:
        raise InvalidInputError(
            "the model has no schema, so raw columns cannot be encoded: export it "
            "again from a run that knows its schema"
        )
    if not path.is_file():
        raise DataError(f"table {str(path)!r} does not exist: check the path")
    if target is not None and target.suffix not in (".csv", ".parquet"):
        raise InvalidInputError(
            f"--out {str(target)!r} has suffix {target.suffix!r}: use .csv or .parquet"
        )
    if device is not None:
        if model.schema.windows is None:
            raise InvalidInputError(
                f"--device is {device!r}, and is for windows of readings, which the "
                "model does not have: leave it out"
            )
        model = replace(model, device=device)
    if path.name.endswith(_CSV) and (target is None or target.suffix == ".csv"):
        return _from_csv(model, path, target, named=device is not None)
    return _from_frame(model, path, target, named=device is not None)


def _device_in(model: LinearModel, header: Sequence[str]) -> str | None:
    """Return the column by which windows are kept apart, if there is one."""
    assert model.schema is not None  # checked by the caller
    if model.schema.windows is None or not model.device:
        return None
    return model.device if model.device in header else None


def _from_csv(
    model: LinearModel, source: Path, target: Path | None, *, named: bool
) -> Predictions:
    with open_text(source) as text:
        reader = csv.reader(text)
        header = next(reader, None)
        if header is None:
            raise DataError(f"table {str(source)!r} has no header line")
        if named:
            check_name(header, model.device)
        result = Predictions(device=_device_in(model, header))
        blocks = _predicted(model, reader, header, result.device)
        if target is None:
            for _, columns in blocks:
                result.add(columns)
            return result
        with whole_file(target) as file:
            writer = csv.writer(file, lineterminator="\n")
            for rows, columns in blocks:
                if not result.num_rows:
                    writer.writerow([*header, *columns])
                cells = [_texts(values) for values in columns.values()]
                writer.writerows(
                    [*row, *new] for row, *new in zip(rows, *cells, strict=True)
                )
                result.add(columns)
    return result


def _predicted(
    model: LinearModel, reader: Any, header: list[str], device: str | None
) -> Iterator[tuple[list[list[str]], dict[str, NDArray[Any]]]]:
    """Yield the cells of a block of rows, and their predictions."""
    assert model.schema is not None  # checked by the caller
    for name in model.schema.features:
        check_name(header, name)
    last_line = reader.line_num
    filled: Iterator[list[str]] = filter(None, reader)  # skips empty lines
    if device is not None:
        length = model.schema.block_of(1)
        filled = _whole_windows(filled, header.index(device), length)
    while rows := list(islice(filled, model.schema.block_of(_LINES))):
        try:
            columns: dict[str, Cells] = typed_columns(
                model.schema.features, header, rows
            )
            predicted = model.columns(columns)
        except DataError as error:  # it counts rows within the block
            raise DataError(
                f"lines {last_line + 1} to {reader.line_num}: {error}"
            ) from None
        if device is None:  # else a window's lines may be far apart
            last_line = reader.line_num
        _check_new(header, predicted)
        yield [rows[i] for i in model.schema.rows_of_samples(len(rows))], predicted


def _whole_windows(
    lines: Iterable[list[str]], column: int, length: int
) -> Iterator[list[str]]:
    """Yield each window's lines together, all of one device; others wait for theirs."""
    waiting: defaultdict[str, list[list[str]]] = defaultdict(list)
    for number, cells in enumerate(lines, start=1):
        name = cells[column].strip() if column < len(cells) else ""
        if not name:
            raise DataError(
                f"row {number} names no device, so its reading belongs to no window: "
                "fill the cell"
            )
        waiting[name].append(cells)
        if len(waiting[name]) == length:
            yield from waiting.pop(name)


def _from_frame(
    model: LinearModel, source: Path, target: Path | None, *, named: bool
) -> Predictions:
    from fedbudget.data.reading import read_devices, read_table
    from fedbudget.data.tables import category_texts

    assert model.schema is not None  # checked by the caller
    windows = model.schema.windows
    device = model.device if windows is not None and model.device else None
    table = read_table(source, text=category_texts(model.schema, device))
    if named:
        check_name(table.column_names, model.device)
    result = Predictions(device=_device_in(model, table.column_names))
    columns = model.columns(table)
    _check_new(table.column_names, columns)
    ends = model.schema.rows_of_samples(table.num_rows)
    if windows is not None and result.device is not None:
        rows = windows.by_device(read_devices(table, result.device))
        ends = rows[model.schema.rows_of_samples(len(rows))]
    table = table.take(ends)
    result.add(columns)
    if target is None:
        return result
    with needed("writing tables", "pyarrow"):
        import pyarrow as pa
        from pyarrow import csv as pa_csv, parquet
    for name, cells in columns.items():
        table = table.append_column(name, pa.array(cells.tolist()))
    with whole_file(target, "wb") as file:
        write = parquet.write_table if target.suffix == ".parquet" else pa_csv.write_csv
        write(table, file)
    return result


def _check_new(header: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Refuse a table that has a column of a prediction's name."""
    for name in columns:
        if name in header:
            raise DataError(
                f"the table already has a column {shown(name)}: rename or drop it"
            )


def _texts(values: NDArray[Any]) -> list[str]:
    """Return numbers with nine digits, more than a float32 has; names as they are."""
    if values.dtype.kind == "f":
        return [format(value, ".9g") for value in values.tolist()]
    return [str(value) for value in values.tolist()]
