"""Columns in memory: numbers as float64, all others as codes into a value list."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
Cells: TypeAlias = Column | Sequence[Any] | NDArray[Any]  # the input of `as_column`


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
    """Return any cells as categories, written by `category_text`; no rounding.

    >>> as_coded(np.array([2.0, 0.5, 2.0])).values
    ('0.5', '2')
    """
    if isinstance(cells, Coded):
        return cells
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        distinct, codes = np.unique(
            cells, return_inverse=True
        )  # NaN: one value, the last
        texts = [category_text(cell) for cell in distinct]
        codes = codes.reshape(-1)
        if texts and texts[-1] is None:
            codes = np.where(codes < len(texts) - 1, codes, -1)
        return Coded(codes=codes, values=tuple(t for t in texts if t is not None))
    texts = [category_text(cell) for cell in cells]
    values = sorted({text for text in texts if text is not None})
    index: dict[str | None, int] = {value: code for code, value in enumerate(values)}
    codes = np.array([index.get(text, -1) for text in texts], dtype=np.int32)
    return Coded(codes=codes, values=tuple(values))


def category_text(cell: Any) -> str | None:
    """Return the text of a category; None for an empty cell (None or NaN).

    A truth value is 'true' or 'false'. A whole number has no decimal point, so 1, 1.0
    and a float32 of 1 are the same category.

    >>> [category_text(cell) for cell in (True, 2.0, np.float32(0.1), 2**53 + 1)]
    ['true', '2', '0.1', '9007199254740993']
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


def canonical(text: str) -> str:
    """Return the canonical form of a number or truth value; other texts unchanged.

    >>> canonical("1.50") == canonical(" +01.5") == canonical("15e-1")
    True
    >>> canonical("True")
    'true'
    """
    bare = text.strip()
    if bare in TRUE or bare in FALSE:
        return "true" if bare in TRUE else "false"
    if not _NUMBER.fullmatch(bare):
        return text
    from decimal import Decimal  # late: few devices need it, and it takes memory

    sign, digits, exponent = Decimal(bare).as_tuple()
    mantissa = "".join(map(str, digits)).lstrip("0")
    shortest = mantissa.rstrip("0")
    exponent = int(exponent) + len(mantissa) - len(shortest)
    return f"{'-' * sign}{shortest}e{exponent}" if shortest else "0e0"


def missing(column: Column) -> Bools:
    """Return a mask of the empty cells; shape (n,).

    >>> missing(np.array([1.0, np.nan])).tolist()
    [False, True]
    """
    if isinstance(column, Coded):
        return np.asarray(column.codes < 0)
    return np.isnan(column)


def keep_rows(column: Column, keep: Bools) -> Column:
    """Return the marked rows of a column, with only the values that occur in them.

    >>> keep_rows(as_column(["a", "b"]), np.array([False, True])).values
    ('b',)
    """
    if not isinstance(column, Coded):
        return column[keep]
    codes = column.codes[keep]
    present = np.bincount(codes[codes >= 0], minlength=len(column.values)) > 0
    renumbered = np.append(np.cumsum(present) - 1, -1)  # the last entry is for code -1
    values = tuple(v for v, used in zip(column.values, present, strict=True) if used)
    return Coded(codes=renumbered[codes], values=values)


def check_name(names: Mapping[str, Any] | Sequence[str], name: str) -> None:
    """Refuse a name that is not among the columns, and suggest similar ones."""
    if name in names:
        return
    if hint := other_separator(list(names)):
        raise DataError(f"the table {hint}", column=name)
    shown = ", ".join(map(repr, list(names)[:10])) + ", ..." * (len(names) > 10)
    raise DataError(
        f"column {name!r} is not in the table, which has {shown}: "
        f"{nearest(names, name)}",
        column=name,
    )


def decimal_comma(text: str) -> str:
    """Return a remedy if a text is a number with a decimal comma, else nothing.

    >>> decimal_comma("3,5")
    ', a decimal comma: write 3.5'
    """
    if re.fullmatch(r"\s*[+-]?\d+,\d+\s*", text):
        return f", a decimal comma: write {text.strip().replace(',', '.')}"
    return ""


def other_separator(names: Sequence[str]) -> str:
    """Return what is wrong if a header was not separated by commas, else nothing.

    >>> other_separator(["a;b"])[:38]
    'separates its cells by semicolons, as '
    """
    for mark, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and mark in names[0]:
            return (
                f"separates its cells by {word}, as in {names[0]!r}: save it with "
                "commas between cells and points in numbers, such as by "
                f"pandas.read_csv(path, sep={mark!r}, decimal=',').to_csv(new, "
                "index=False)"
            )
    return ""


def nearest(names: Mapping[str, Any] | Sequence[str], name: str) -> str:
    """Return a hint for a name that is not among the names.

    >>> nearest(["age", "height"], "agee")
    "did you mean 'age'?"
    """
    from difflib import get_close_matches  # late: for errors alone

    by_lower = {candidate.lower(): candidate for candidate in names}
    matches = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    if not matches:
        return "name one of them"
    return f"did you mean {' or '.join(repr(by_lower[match]) for match in matches)}?"
