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
    """A folder of parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        """Make the folder; refuse where that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"cannot write to {self.folder}: {error.strerror or error}: choose "
                "another folder"
            ) from error

    def kept(
        self, name: str, key: str, make: Callable[[], Sequence[Mapping[str, Any]]]
    ) -> list[Row]:
        """Return the rows of a part: those on disk, or newly made ones."""
        path = self.folder / f"{name}-{key}.parquet"
        found = self._read(path)
        if found is None:
            found = [dict(row) for row in make()]
            write_table(path, found)
        return found

    def read(self, name: str) -> list[Row]:
        """Return the rows of a file.

        Raises:
            OSError: There is no such file, or it is damaged.
        """
        rows = self._read(self.folder / name)
        if rows is None:
            raise FileNotFoundError(f"no readable {self.folder / name}")
        return rows

    def has(self, name: str, key: str) -> bool:
        """Say whether a part is there already."""
        return (self.folder / f"{name}-{key}.parquet").is_file()

    def _read(self, path: Path) -> list[Row] | None:
        if not path.is_file():
            return None
        parquet = _parquet()
        try:
            rows: list[Row] = parquet.read_table(path).to_pylist()
        except (OSError, ValueError):  # damaged: made again
            return None
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
