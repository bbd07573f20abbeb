"""CSV files read with the standard library and NumPy, block by block.

This is how a device reads its rows: it has little memory, and no pyarrow.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from fedbudget.data.columns import Cells, as_coded, decimal_comma
from fedbudget.data.features import Categorical, Feature, Numeric
from fedbudget.data.reading import NULLS
from fedbudget.data.times import Time
from fedbudget.errors import DataError
from fedbudget.text import shown


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a CSV file, packed or not; a byte order mark is skipped."""
    if path.name.endswith(".csv.gz"):
        import gzip

        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as packed:
            yield packed
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as plain:
            yield plain
    else:
        raise DataError(
            f"data file {str(path)!r} has the unknown suffix {path.suffix!r}: "
            "use .csv, .csv.gz or .npz"
        )


def typed_columns(
    kinds: Mapping[str, Feature], header: list[str], block: list[list[str]]
) -> dict[str, Cells]:
    """Return columns for a block of lines, each read as its kind says.

    >>> from fedbudget.data.features import Numeric
    >>> typed_columns({"v": Numeric(0, 9)}, ["id", "v"], [["a", "1.5"]])
    {'v': array([1.5])}
    """
    block = [cells for cells in block if cells]  # skips empty lines
    for cells in block:
        if len(cells) != len(header):
            raise DataError(
                f"a row has {len(cells)} cells, the header {len(header)}: "
                f"{shown(cells)}"
            )
    columns: dict[str, Cells] = {}
    for name, kind in kinds.items():
        index = header.index(name)
        texts = [cells[index] for cells in block]
        if isinstance(kind, Numeric):
            columns[name] = np.array([_number(name, cell) for cell in texts])
        elif isinstance(kind, Time):
            columns[name] = as_coded([None if t.strip() in NULLS else t for t in texts])
        else:
            columns[name] = as_coded([_category(kind, cell) for cell in texts])
    return columns


def _number(name: str, cell: str) -> float:
    bare = cell.strip()
    if bare in NULLS:
        return np.nan
    try:
        if "_" in bare:  # valid in Python, but not in data files
            raise ValueError
        return float(bare)
    except ValueError:
        raise DataError(
            f"column {name!r} holds {shown(cell)}{decimal_comma(cell)}, but the schema "
            "says Numeric: "
            "correct it, or describe the column as Categorical"
        ) from None


def _category(kind: Categorical, cell: str) -> str | None:
    return None if cell.strip() in NULLS and cell not in kind.values else cell
