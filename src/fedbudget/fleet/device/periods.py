"""Periods of a data set: rows that were added later have a budget of their own.

A data file grows at its end. A period is a range of rows by their *position* in the
file: it starts at `first_row` and ends where the next period starts. A run uses rows of
one period only, and its charges count for that period only.

**Statement.** Let the charges of every period be within (epsilon, delta). Then all that
the device ever sends is (epsilon, delta)-differentially private for every row, where
neighbouring data sets differ in the row at one position.

**Proof sketch.** Let the data sets differ at position i. The periods were fixed by
numbers of rows, which are equal in both, so i is in the same period k in both. Given
the messages so far, an answer of another period is computed from equal rows, and has
the same distribution in both: its privacy loss is 0. So the loss of all messages is
that of the answers of period k, whatever their order and whatever the coordinator does
in between: fully adaptive composition of Gaussian steps, with mu = 0 for the steps of
other periods (Smith and Thakurta 2022). These are within (epsilon, delta) by the
charges of period k. (Parallel composition, McSherry 2009, for adaptive queries.)

**What could break it** is a row that counts in two periods: moved by an insertion or a
deletion before it, or copied. So when a period starts, the ledger demands that the rows
which earlier runs used are unchanged and before its first row, and records the digest
of all rows before that row. A file whose earlier rows have another digest is not used
any more. That tells others only that rows were changed, as the refusal `data-changed`
does. A row that its owner appends a second time is not recognised: it is another row at
another position. Recognising it would make period 2 depend on the rows of period 1.

The first rows of a data set belong to period 1. Nothing here reads a clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Period:
    """A range of rows with a budget of its own."""

    number: int  # from 1
    first_row: int  # position in the data file, from 0
    before: str  # digest of all rows before the first one; "" if there are none


FIRST = Period(number=1, first_row=0, before="")


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Rows that a run uses."""

    period: int
    first_row: int
    count: int

    @property
    def stop(self) -> int:
        """The position after the last row."""
        return self.first_row + self.count


def num_usable(periods: Sequence[Period], index: int, num_rows: int) -> int:
    """Return how many rows of a file belong to the period at this index.

    >>> later = Period(number=2, first_row=100, before="d")
    >>> [num_usable([FIRST, later], index, 130) for index in (0, 1)]
    [100, 30]
    """
    following = periods[index + 1 : index + 2]
    stop = following[0].first_row if following else num_rows
    return max(0, min(stop, num_rows) - periods[index].first_row)


def newest_with(
    periods: Sequence[Period], *, num_rows: int, needed: int
) -> Period | None:
    """Return the newest period that has enough rows; none if no period has."""
    for index in reversed(range(len(periods))):
        if num_usable(periods, index, num_rows) >= needed:
            return periods[index]
    return None


def next_first_row(
    last: Period, *, size: int, used_until: int, num_rows: int
) -> int | None:
    """Return where the next period of `size` rows starts; none if it is incomplete.

    Args:
        last: The newest period.
        size: Rows of a period.
        used_until: The position after the last row that a run has used.
        num_rows: Of the file.

    >>> [next_first_row(FIRST, size=50, used_until=50, num_rows=n) for n in (99, 100)]
    [None, 50]
    """
    start = max(last.first_row + size, used_until)
    return start if num_rows >= start + size else None
