"""Time stamps as columns: places on the circles of the day, the week and the year.

A time stamp gives a sine and a cosine for each of its cycles, so that midnight is next
to midnight. The formulas are public and read no other row:

    angle = 2 pi (t + offset) / period,   t: seconds since 1970-01-01 00:00

Time stamps are wall-clock times, as written: an offset such as +01:00 is ignored, for
people live by their clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import numpy as np

from fedbudget.data.columns import Cells, Coded, Numbers, as_column
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.text import shown

_DAY = 86_400.0
# Seconds of a period, and seconds from its start to 1970-01-01, a Thursday. A year is
# the mean one of the calendar: it starts within a day of 1 January.
CYCLES = {
    "hour": (_DAY, 0.0),
    "weekday": (7 * _DAY, 3 * _DAY),
    "month": (365.2425 * _DAY, 0.0),
}
_EPOCH = datetime(1970, 1, 1)  # wall-clock times have no zone
_MOST_SECONDS = 1e11  # the year 5138; larger numbers are milliseconds


@dataclass(frozen=True)
class Time:
    """A time stamp: the hour, the weekday or the month, each as sine and cosine.

    >>> Time(("hour",)).columns("at", ["2026-02-02 06:00"])["at_hour_sin"]
    array([1.])
    """

    cycles: Sequence[str] = ("hour", "weekday")  # stored as a tuple
    missing: ClassVar[None] = None  # an empty cell is not allowed

    def __post_init__(self) -> None:
        cycles: Any = self.cycles
        valid = isinstance(cycles, Sequence) and not isinstance(cycles, str)
        if not valid or not cycles or not all(cycle in CYCLES for cycle in cycles):
            raise InvalidInputError(
                f"cycles must be a list of {', '.join(CYCLES)}, got {shown(cycles)}: "
                "write cycles = ['hour', 'weekday']"
            )
        if len(set(cycles)) < len(cycles):
            raise InvalidInputError(f"cycles has one twice, {shown(cycles)}: remove it")
        object.__setattr__(self, "cycles", tuple(cycles))

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names of the columns that a time stamp gives."""
        parts = ("sin", "cos")
        return tuple(
            f"{name}_{cycle}_{part}" for cycle in self.cycles for part in parts
        )

    def columns(self, name: str, cells: Cells) -> dict[str, Numbers]:
        """Return a sine and a cosine for each cycle, between -1 and 1."""
        stamps = seconds(name, cells)
        values = []
        for cycle in self.cycles:
            period, offset = CYCLES[cycle]
            angle = 2 * np.pi * (np.mod(stamps + offset, period) / period)
            values += [np.sin(angle), np.cos(angle)]
        return dict(zip(self.names(name), values, strict=True))


def seconds(name: str, cells: Cells) -> Numbers:
    """Return time stamps as seconds since 1970-01-01 00:00.

    Args:
        name: The column's name, for errors.
        cells: Texts as ISO 8601 has them, `datetime` or `datetime64` values, or
            numbers of seconds.

    Raises:
        DataError: A cell is empty, or no time stamp.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        stamps = np.where(np.isnat(cells), np.nan, cells.astype("M8[us]").astype(float))
        return _checked(name, stamps / 1e6)
    column = as_column(cells)
    if not isinstance(column, Coded):
        return _checked(name, column)
    table = [_parsed(name, value) for value in column.values]
    # The last entry is for code -1, an empty cell.
    return _checked(name, np.array([*table, np.nan])[column.codes])


def _parsed(name: str, text: str) -> float:
    try:
        stamp = datetime.fromisoformat(text.strip())
    except ValueError:
        raise DataError(
            f"column {name!r} holds {shown(text)}, which is no time stamp: write it as "
            "2026-02-28 14:30:00",
            column=name,
        ) from None
    return (stamp.replace(tzinfo=None) - _EPOCH).total_seconds()


def _checked(name: str, stamps: Numbers) -> Numbers:
    """Refuse an empty cell, and numbers that are no seconds."""
    bad = ~(np.abs(stamps) < _MOST_SECONDS)
    if not bad.any():
        return stamps
    row = int(np.argmax(bad))
    if np.isnan(stamps[row]):
        raise DataError(
            f"column {name!r} has no time stamp in row {row} (counted from 0): fill "
            "it, or drop the row",
            column=name,
        )
    raise DataError(
        f"column {name!r} holds {stamps[row]:g} in row {row} (counted from 0), beyond "
        f"{_MOST_SECONDS:g} seconds since 1970: divide milliseconds by 1000",
        column=name,
    )
