"""Columns in memory: numbers as float64, everything else as codes into a value list."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from math import isnan
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import DataError

Codes: TypeAlias = NDArray[np.integer[Any]]
Numbers: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

TRUE = ("true", "True", "TRUE")
FALSE = ("false", "False", "FALSE")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)


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
    return as_coded(cells)


def as_coded(cells: Cells) -> Coded:
    """Return any cells as categories, each spelt as `spelt` says; nothing is rounded.

    >>> as_coded(np.array([2.0, 0.5, 2.0])).values
    ('0.5', '2')
    """
    if isinstance(cells, Coded):
        return cells
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        distinct, codes = np.unique(cells, return_inverse=True)  # NaN: one, the last
        texts = [spelt(cell) for cell in distinct]
        codes = codes.reshape(-1)
        if texts and texts[-1] is None:
            codes = np.where(codes < len(texts) - 1, codes, -1)
        return Coded(codes=codes, values=tuple(t for t in texts if t is not None))
    held = [spelt(cell) for cell in cells]
    values = sorted({text for text in held if text is not None})
    index: dict[str | None, int] = {value: code for code, value in enumerate(values)}
    codes = np.array([index.get(text, -1) for text in held], dtype=np.int32)
    return Coded(codes=codes, values=tuple(values))


def spelt(cell: Any) -> str | None:
    """Return the text of a category; None for an empty cell (None or NaN).

    A truth value is 'true' or 'false', and a whole number has no point, so that 1, 1.0
    and a float32 of it are one category wherever they come from.

    >>> spelt(True), spelt(2.0), spelt(np.float32(0.1)), spelt(2**53 + 1)
    ('true', '2', '0.1', '9007199254740993')
    """
    if cell is None:
        return None
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, float | np.floating):
        if isnan(cell):
            return None
        return str(int(cell)) if float(cell).is_integer() else str(cell)
    return str(cell)


def reading(text: str) -> str:
    """Return what a text reads as: the same for all spellings of one number.

    So too for the spellings of a truth value. Any other text is returned as it is.

    >>> reading("1.50") == reading(" +01.5") == reading("15e-1"), reading("True")
    (True, 'true')
    """
    bare = text.strip()
    if bare in TRUE or bare in FALSE:
        return "true" if bare in TRUE else "false"
    if not _NUMBER.fullmatch(bare):
        return text
    sign, digits, exponent = Decimal(bare).as_tuple()
    mantissa = "".join(map(str, digits)).lstrip("0")
    shortest = mantissa.rstrip("0")
    exponent = int(exponent) + len(mantissa) - len(shortest)
    return f"{'-' * sign}{shortest}e{exponent}" if shortest else "0e0"


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


def check_name(names: Mapping[str, Any] | Sequence[str], name: str) -> None:
    """Refuse a name that is not among the columns, and say which are near."""
    if name in names:
        return
    shown = ", ".join(map(repr, list(names)[:10])) + ", ..." * (len(names) > 10)
    raise DataError(
        f"column {name!r} is not in the table, which has {shown}: "
        f"{nearest(names, name)}",
        column=name,
    )


def nearest(names: Mapping[str, Any] | Sequence[str], name: str) -> str:
    """Return a hint for a name that is not among these.

    >>> nearest(["age", "height"], "agee")
    "did you mean 'age'?"
    """
    spelt = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), spelt, n=3, cutoff=0.5)
    if not near:
        return "name one of them"
    return f"did you mean {' or '.join(repr(spelt[match]) for match in near)}?"
