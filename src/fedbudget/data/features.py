"""The two kinds of columns, with public bounds or a public list, and their encoding."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import one_of
from fedbudget.data.columns import Coded, Column, Numbers, as_coded, reading, spelt
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.text import shown


@dataclass(frozen=True)
class Numeric:
    """A number with public bounds: clipped to [low, high], which becomes [-1, 1]."""

    low: float
    high: float
    missing: float | None = None  # what an empty cell stands for; None: not allowed

    def __post_init__(self) -> None:
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
            such = f"text, such as {shown(column.values[0])}" if column.values else ""
            raise DataError(
                f"column {name!r} holds {such or 'no number'}, but the schema says "
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
        return np.clip(2 * share - 1, -1.0, 1.0)  # again: rounding may pass the end


@dataclass(frozen=True)
class Categorical:
    """A category out of a public list; becomes one column per value.

    A cell matches the value that is spelt like it, else the one that reads as the same
    number or truth value, so that files and frames agree. Where two values read alike
    ("1" and "01"), only the spelling counts.

    >>> Categorical([False, True]).values, Categorical([0.0, 0.5]).values
    (('false', 'true'), ('0', '0.5'))
    """

    values: Sequence[str]  # numbers and truth values too; kept as a tuple of texts
    missing: str | None = None  # the value an empty cell stands for; None: not allowed
    other: Literal["error", "ignore"] = "error"  # an unlisted value; ignore: all zeros

    def __post_init__(self) -> None:
        given: Any = self.values
        # A text's items would be its letters, and a set has no order.
        if isinstance(given, str | bytes | Mapping | Set) or not isinstance(
            given, Iterable
        ):
            raise InvalidInputError(
                f"values must be a list, got {shown(given)}: list each category once, "
                "[...]"
            )
        object.__setattr__(self, "values", tuple(map(_category, given)))
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
            held, empty = first_held(coded, bad)
            remedy = "fill it" if empty else "add it to the schema"
            raise DataError(
                f"column {name!r} holds {held}, which is not one of its "
                f"{len(self.values)} values: {remedy}, or set other='ignore' or "
                "missing= there",
                column=name,
            )
        return codes

    def codes(self, column: Coded) -> NDArray[np.int64]:
        """Return the index of each row's value; -1 where it is not in the list."""
        exact = {value: code for code, value in enumerate(self.values)}
        alike: dict[str, int] = {}
        for value, code in exact.items():
            key = reading(value)
            alike[key] = -1 if key in alike else code
        # One place more, for code -1: an empty cell reads the last entry.
        table = np.full(len(column.values) + 1, -1, dtype=np.int64)
        for place, value in enumerate(column.values):
            found = exact.get(value)
            table[place] = alike.get(reading(value), -1) if found is None else found
        if self.missing is not None:
            table[-1] = exact[self.missing]
        return np.asarray(table[column.codes])


Feature = Numeric | Categorical


def first_held(column: Coded, marked: NDArray[np.bool_]) -> tuple[str, bool]:
    """Return what the first marked row holds and where, and whether it is nothing."""
    row = int(np.argmax(marked))
    code = int(column.codes[row])
    held = "no value" if code < 0 else shown(column.values[code])
    return f"{held} in row {row} (counted from 0)", code < 0


def _number(name: str, value: Any) -> float:
    """Return a bound as a float."""
    try:
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            return float(value)
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
            text = spelt(value)
        except ValueError:  # an integer of thousands of digits
            text = None
    if text is None:
        raise InvalidInputError(
            f"values must be texts, numbers or truth values, got {shown(value)}: write "
            "each category as a text"
        )
    return text
