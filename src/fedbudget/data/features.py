"""Numeric and categorical columns, described publicly, and their encoding."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import one_of
from fedbudget.data.columns import (
    Coded,
    Column,
    Numbers,
    as_coded,
    canonical,
    category_text,
    decimal_comma,
)
from fedbudget.data.times import Time
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.text import shown


@dataclass(frozen=True)
class Numeric:
    """A number with public bounds: clipped to [low, high], then scaled to [-1, 1]."""

    low: float
    high: float
    missing: float | None = None  # the value of an empty cell; None: not allowed
    unit: str = ""  # of the numbers, such as kWh; printed, never computed with

    def __post_init__(self) -> None:
        if not isinstance(self.unit, str):
            raise InvalidInputError(
                f"unit must be a text, got {shown(self.unit)}: write it in quotes, "
                "such as 'kWh'"
            )
        for name in ("low", "high", "missing"):
            value = getattr(self, name)
            if value is not None or name != "missing":
                object.__setattr__(self, name, _number(name, value))
        if not (-inf < self.low < self.high < inf and self.high - self.low < inf):
            raise InvalidInputError(
                f"low must be below high, both finite, got low={self.low:g} and "
                f"high={self.high:g}: give the public range of the column"
            )
        if self.missing is not None and not self.low <= self.missing <= self.high:
            raise InvalidInputError(
                f"missing={self.missing:g} is outside [{self.low:g}, {self.high:g}]: "
                "choose a value inside"
            )

    def encode(self, name: str, column: Column) -> Numbers:
        """Return numbers in [-1, 1]; shape (n,)."""
        if isinstance(column, Coded):
            example = (
                f"text, such as {shown(column.values[0])}"
                f"{decimal_comma(column.values[0])}"
                if column.values
                else ""
            )
            raise DataError(
                f"column {name!r} holds {example or 'no number'}, but the schema says "
                "Numeric: make the column numeric or describe it as Categorical",
                column=name,
            )
        if self.missing is not None:
            column = np.where(np.isnan(column), self.missing, column)
        bad = ~np.isfinite(column)
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"column {name!r} holds {column[row]} in row {row} (counted from 0), "
                "not a finite number: replace it, or drop the row",
                column=name,
            )
        low, width = self.low, self.high - self.low
        share = (np.clip(column, low, self.high) - low) / width
        return np.clip(2 * share - 1, -1.0, 1.0)  # again: rounding may exceed 1

    def decode(self, encoded: Numbers) -> Numbers:
        """Return numbers in the column's unit: the inverse of `encode` inside bounds.

        >>> Numeric(0, 100).decode(np.array([-1.0, 0.5])).tolist()
        [0.0, 75.0]
        """
        middle, half = self.low / 2 + self.high / 2, (self.high - self.low) / 2
        return np.asarray(middle + half * encoded)


@dataclass(frozen=True)
class Categorical:
    """A category from a public list, encoded as one column per value.

    A cell matches the value of the same text, or else the value that is the same number
    or truth value, so that files and frames agree. If two values are the same number
    ("1" and "01"), only the text counts.

    >>> Categorical([False, True]).values, Categorical([0.0, 0.5]).values
    (('false', 'true'), ('0', '0.5'))
    """

    values: Sequence[str]  # also numbers and truth values; stored as a tuple of texts
    missing: str | None = None  # the value of an empty cell; None: not allowed
    other: Literal["error", "ignore"] = "error"  # an unlisted value; ignore: all zeros

    def __post_init__(self) -> None:
        values: Any = self.values
        # A text's items would be its letters, and a set has no order.
        if isinstance(values, str | bytes | Mapping | Set) or not isinstance(
            values, Iterable
        ):
            raise InvalidInputError(
                f"values must be a list, got {shown(values)}: list each category once, "
                "[...]"
            )
        object.__setattr__(self, "values", tuple(map(_category, values)))
        if not self.values or len(set(self.values)) < len(self.values):
            raise InvalidInputError(
                f"values must be distinct and at least one, got {shown(self.values)}: "
                "list each category once, [...]"
            )
        if self.missing is not None:
            object.__setattr__(self, "missing", _category(self.missing))
        if self.missing is not None and self.missing not in self.values:
            raise InvalidInputError(
                f"missing={shown(self.missing)} is not among the values: add it to them"
            )
        one_of("other", self.other, ("error", "ignore"))

    def encode(self, name: str, column: Column) -> NDArray[np.int64]:
        """Return the index of each row's value; -1 where the row gets only zeros."""
        coded = as_coded(column)
        codes = self.codes(coded)
        bad = codes < 0
        if self.other == "error" and bool(bad.any()):
            cell, empty = first_cell(coded, bad)
            remedy = "fill it" if empty else "add it to the schema"
            raise DataError(
                f"column {name!r} holds {cell}, which is not one of its "
                f"{len(self.values)} values: {remedy}, or set other='ignore' or "
                "missing= in the schema",
                column=name,
            )
        return codes

    def codes(self, column: Coded) -> NDArray[np.int64]:
        """Return the index of each row's value; -1 where it is not in the list."""
        exact = {value: code for code, value in enumerate(self.values)}
        equivalent: dict[str, int] = {}
        for value, code in exact.items():
            key = canonical(value)
            equivalent[key] = -1 if key in equivalent else code
        # The last entry is for code -1, an empty cell.
        table = np.full(len(column.values) + 1, -1, dtype=np.int64)
        for index, value in enumerate(column.values):
            match = exact.get(value)
            table[index] = (
                equivalent.get(canonical(value), -1) if match is None else match
            )
        if self.missing is not None:
            table[-1] = exact[self.missing]
        return np.asarray(table[column.codes])


Encoded = Numeric | Categorical  # what a sample has
Feature = Numeric | Categorical | Time  # what a row has


def first_cell(column: Coded, marked: NDArray[np.bool_]) -> tuple[str, bool]:
    """Describe the first marked cell and its row; return also whether it is empty."""
    row = int(np.argmax(marked))
    code = int(column.codes[row])
    cell = "no value" if code < 0 else shown(column.values[code])
    return f"{cell} in row {row} (counted from 0)", code < 0


def _number(name: str, value: Any) -> float:
    """Return a bound as a float."""
    try:
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            return float(value) + 0.0  # -0.0 would be another text in a digest
    except (OverflowError, TypeError):  # beyond float64, or a complex number
        pass
    raise InvalidInputError(
        f"{name} must be a number, got {shown(value)}: give the public range of the "
        "column"
    )


def _category(value: Any) -> str:
    """Return a listed value as text."""
    text = None
    if isinstance(value, str | bool | int | float | np.bool_ | np.number):
        try:
            text = category_text(value)
        except ValueError:  # an integer of thousands of digits
            text = None
    if text is None:
        raise InvalidInputError(
            f"values must be texts, numbers or truth values, got {shown(value)}: write "
            "each category as a text"
        )
    return text
