"""Rows kept on disk as Parquet, whole or not at all, and found again by what made them.

A part's file name holds a hash of everything that its rows depend on: the version, the
plans, the data and the repeats. A stopped evaluation finds what it has; a change of a
planner finds nothing that is no longer true.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.errors import MissingExtraError, RecordError
from fedbudget.record import whole_file

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]


def digest(pieces: Iterable[bytes | str | float]) -> str:
    """Return a short hash of the pieces, in their order."""
    found = hashlib.sha256()
    for piece in pieces:
        raw = piece if isinstance(piece, bytes) else repr(piece).encode()
        found.update(len(raw).to_bytes(8, "little") + raw)
    return found.hexdigest()[:16]


class Store:
    """A folder of parts that one version of the program made."""

    def __init__(self, folder: Path, *, version: str) -> None:
        self.folder, self.version = folder, version

    def kept(
        self,
        name: str,
        depends: Iterable[bytes | str | float],
        make: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> tuple[list[Row], bool]:
        """Return the rows of a part, and whether they were on disk already.

        Args:
            name: Of the part.
            depends: All that the rows depend on, other than the version.
            make: Makes them, where they are not there, or damaged.
        """
        path = self.folder / f"{name}-{digest([self.version, *depends])}.parquet"
        try:
            return read_table(path), True
        except (OSError, ValueError):
            rows = [dict(row) for row in make()]
        write_table(path, rows)
        return rows, False


def make_folder(folder: Path) -> None:
    """Make the folder; refuse where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"cannot write to {folder}: {error.strerror or error}: choose another "
            "folder"
        ) from error


def read_table(path: Path) -> list[Row]:
    """Return the rows of a Parquet file.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged.
    """
    rows: list[Row] = _parquet().read_table(path).to_pylist()
    return rows


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as Parquet or CSV, by the path's ending; whole or not at all."""
    parquet, table = _parquet(), _table(rows)
    with whole_file(path, "wb") as file:
        if path.suffix == ".csv":
            from pyarrow import csv

            csv.write_csv(table, file)
        else:
            parquet.write_table(table, file)


def _table(rows: Sequence[Mapping[str, Any]]) -> "pyarrow.Table":
    import pyarrow

    names = list(dict.fromkeys(name for row in rows for name in row))
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("the paper's evaluation", "pyarrow") from None
    return parquet
