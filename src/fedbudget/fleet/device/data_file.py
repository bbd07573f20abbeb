"""A device's data file, read with the standard library and NumPy only.

A file may grow while a device runs: rows are appended. A last line without a line end
is incomplete, and not a row yet.
"""

import csv
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from fedbudget.data.columns import check_name
from fedbudget.data.schema import Schema, read_schema_file
from fedbudget.data.text_rows import open_text, typed_columns
from fedbudget.data.unit_ball import check_unit_ball
from fedbudget.errors import DataError
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.policy import DataPolicy
from fedbudget.losses import Labels, Loss, loss_named

if TYPE_CHECKING:
    from _csv import Reader

_LINES = 500  # read and encoded at a time: strings need more memory than rows


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceRows:
    """The rows of a device, as of the last read of its file."""

    rows: ExactRows
    num_classes: int  # as in a plan: 1 unless the loss is softmax
    stamp: tuple[int, int, int]  # inode, size and modification time of the file
    schema: str | None = None  # digest; None for files of ready rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self.rows.x.shape[1])

    def fingerprint(self, count: int, *, start: int = 0) -> str:
        """Return a digest of `count` rows from `start` on, as used in training."""
        rows = self.rows.part(start, start + count)
        digest = hashlib.sha256(f"{count}x{self.dim}".encode())
        digest.update(np.ascontiguousarray(rows.x, "<f4").data)
        digest.update(np.ascontiguousarray(rows.y, "<f8").data)
        return digest.hexdigest()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time, which change with the file.

    Raises:
        DataError: The file does not exist.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"data file {str(path)!r}: {error.strerror}") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_rows(policy: DataPolicy) -> DeviceRows:
    """Read a device's rows.

    Raises:
        DataError: The file is missing, damaged, or does not match the schema.
    """
    stamp, schema = stamp_of(policy.file), None
    try:
        if policy.file.suffix == ".npz":
            rows, classes = _read_npz(policy)
        else:
            schema = _schema_of(policy)
            rows, classes = _read_table(policy, schema)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise DataError(
            f"data file {str(policy.file)!r} cannot be read: {error}"
        ) from None
    return DeviceRows(
        rows=rows,
        num_classes=_num_classes(policy.loss, classes),
        stamp=stamp,
        schema=None if schema is None else schema.digest,
    )


def loss_of(name: str, num_classes: int, l2: float = 0.0) -> Loss:
    """Return the loss; `num_classes` as in a plan, where it is 1 for two classes."""
    return loss_named(
        name, num_classes=num_classes if name == "softmax" else None, l2=l2
    )


def _num_classes(loss: str, classes: int | None) -> int:
    """Return the number of classes as in a plan, if the labels suit the loss."""
    if (classes is None) != (loss == "huber"):
        kind = "numbers" if classes is None else "classes"
        raise DataError(f"loss {loss!r} does not support labels that are {kind}")
    if loss == "softmax":
        return int(classes or 0)
    if classes not in (None, 2):
        raise DataError(f"loss {loss!r} is for 2 classes, not {classes}: use 'softmax'")
    return 1


def _read_npz(policy: DataPolicy) -> tuple[ExactRows, int | None]:
    import zipfile

    try:
        with np.load(policy.file, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (ValueError, TypeError, KeyError, zipfile.BadZipFile):
        raise DataError(
            f"data file {str(policy.file)!r} is not an .npz file with x and y"
        ) from None
    check_unit_ball(x)
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(f"y has shape {y.shape}: give one label per row of x")
    if policy.loss == "huber":
        if y.dtype.kind != "f" or not (np.abs(y) <= 1).all():
            raise DataError("y must contain numbers in [-1, 1] for loss 'huber'")
        return ExactRows.rounded(x, y.astype(np.float64)), None
    if y.dtype.kind not in "iu" or not ((y >= 0) & (y < policy.classes)).all():
        raise DataError(f"y must contain whole numbers from 0 to {policy.classes - 1}")
    return ExactRows.rounded(x, y.astype(np.int64)), policy.classes


def _read_schema(source: Path | Mapping[str, Any]) -> Schema:
    """Return a schema from a JSON or TOML file, or from a table of the policy.

    Raises:
        InvalidInputError: It cannot be read, or is invalid.
    """
    if isinstance(source, Mapping):
        return Schema.from_dict(source)
    return read_schema_file(source)


def _schema_of(policy: DataPolicy) -> Schema:
    assert policy.schema is not None  # checked by the policy
    schema = _read_schema(policy.schema)
    if policy.label not in (None, schema.label):
        raise DataError(
            f"label {policy.label!r} is not the schema's, {schema.label!r}: correct one"
        )
    return schema


def _read_table(policy: DataPolicy, schema: Schema) -> tuple[ExactRows, int | None]:
    with open_text(policy.file) as text:
        rows = ExactRows.joined(_blocks(schema, csv.reader(_complete_lines(text))))
    return rows, None if schema.classes is None else len(schema.classes)


def _blocks(schema: Schema, reader: "Reader") -> Iterator[tuple[Any, Labels]]:
    """Yield rows and labels, block by block."""
    header = next(reader, None)
    if header is None:
        raise DataError("the data file has no header line")
    for name in (*schema.features, schema.label):
        check_name(header, name)
    last_line = reader.line_num
    filled = filter(None, reader)  # empty lines are no readings
    while block := list(islice(filled, schema.block_of(_LINES))):
        try:
            columns = typed_columns(schema.columns, header, block)
            x = np.asarray(schema.encode(columns, dense=True))
            y = schema.encode_label(columns[schema.label])
        except DataError as error:  # it counts rows within the block
            raise DataError(
                f"lines {last_line + 1} to {reader.line_num}: {error}"
            ) from None
        last_line = reader.line_num
        if len(x):
            yield x, y


def _complete_lines(text: TextIO) -> Iterator[str]:
    for line in text:
        if line.endswith(("\n", "\r")):
            yield line
