"""Columns in memory: numbers as float64, everything else as codes into a value list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import DataError

Codes: TypeAlias = NDArray[np.integer[Any]]
Numbers: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Coded:
    """A column of text, truth values or any other category."""

    codes: Codes  # shape (n,): index into values; -1 where the cell is empty
    values: tuple[str, ...]  # distinct

    def __len__(self) -> int:
        return len(self.codes)


Column: TypeAlias = Numbers | Coded  # an empty number is NaN
Cells: TypeAlias = Column | Sequence[Any] | NDArray[Any]  # what `as_column` takes


def as_column(cells: Cells) -> Column:
    """Return a column: numbers stay numbers, the rest is coded in sorted order.

    >>> as_column(["b", None, "a"]).codes.tolist()
    [1, -1, 0]
    """
    if isinstance(cells, Coded):
        return cells
    kind = cells.dtype.kind if isinstance(cells, np.ndarray) else ""
    if kind in ("i", "u", "f"):
        return np.asarray(cells, dtype=np.float64)
    types = {type(cell) for cell in cells} - {type(None)}
    if types and types <= {bool, np.bool_}:
        codes = [-1 if cell is None else int(cell) for cell in cells]
        return Coded(codes=np.array(codes, dtype=np.int8), values=("false", "true"))
    if types and all(issubclass(t, int | float | np.number) for t in types):
        numbers = [np.nan if cell is None else cell for cell in cells]
        return np.array(numbers, dtype=np.float64)
    values = sorted({str(cell) for cell in cells if cell is not None})
    index: dict[Any, int] = {value: code for code, value in enumerate(values)}
    text = (cell if cell is None else str(cell) for cell in cells)
    codes = [index.get(cell, -1) for cell in text]
    return Coded(codes=np.array(codes, dtype=np.int32), values=tuple(values))


def as_coded(column: Column) -> Coded:
    """Return the column as categories; a whole number is spelt without a point.

    >>> as_coded(np.array([2.0, 0.5, 2.0])).values
    ('0.5', '2')
    """
    if isinstance(column, Coded):
        return column
    numbers, codes = np.unique(column, return_inverse=True)  # all NaN become one, last
    num_known = int(np.count_nonzero(~np.isnan(numbers)))
    codes = np.where(codes < num_known, codes, -1).reshape(-1)
    known = numbers[:num_known].tolist()
    values = tuple(str(int(v)) if v.is_integer() else repr(v) for v in known)
    return Coded(codes=codes, values=values)


def missing(column: Column) -> Bools:
    """Return where the column has no value; shape (n,).

    >>> missing(np.array([1.0, np.nan])).tolist()
    [False, True]
    """
    if isinstance(column, Coded):
        return np.asarray(column.codes < 0)
    return np.isnan(column)


def keep_rows(column: Column, keep: Bools) -> Column:
    """Return the column with only the rows marked, and only the values they hold.

    >>> keep_rows(as_column(["a", "b"]), np.array([False, True])).values
    ('b',)
    """
    if not isinstance(column, Coded):
        return column[keep]
    codes = column.codes[keep]
    present = np.bincount(codes[codes >= 0], minlength=len(column.values)) > 0
    renumbered = np.append(np.cumsum(present) - 1, -1)  # the last place is for code -1
    values = tuple(v for v, held in zip(column.values, present, strict=True) if held)
    return Coded(codes=renumbered[codes], values=values)


def named(columns: Mapping[str, Column], name: str) -> Column:
    """Return a column by its name, or say which names are near.

    >>> len(named({"age": np.zeros(3)}, "age"))
    3
    """
    check_name(columns, name)
    return columns[name]


def check_name(names: Mapping[str, Any] | Sequence[str], name: str) -> None:
    """Refuse a name that is not among the columns, and say which are near."""
    if name in names:
        return
    spelt = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), spelt, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(repr(spelt[n]) for n in near)}?"
        if near
        else "name one of them"
    )
    shown = ", ".join(map(repr, list(names)[:10])) + ", ..." * (len(names) > 10)
    raise DataError(f"column {name!r} is not in the table, which has {shown}: {hint}")
