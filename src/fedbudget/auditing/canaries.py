"""Crafted tables that differ in one row.

A coordinator chooses the model, so the model is crafted too. One of its weights is huge
(2^60, on the second column). A row with any positive entry there has a huge score, and
thus a gradient of full length G, whatever noise the other weights carry: full length in
every step of a run. The two canary rows, (a, b) and (-a, b) with b = 2^-23, then have
gradients G a and -G a on the first column, with a = 1 - 2^-23: opposite, and of full
length except for one part in eight million.

Uploads to a sum (`upload_claims`) start from a shorter model: there, b is as large as
full slopes over all steps of a round need it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array
from fedbudget.losses import Labels, Loss

LEAST = 2.0**-23  # the smallest entry of a row that a device can represent
HUGE = 2.0**60  # a weight; exact in float32, and below the limit of a model
LARGE = 2.0**13  # a weight; below the limit of a model that devices upload moves from
_FULL_SCORE = 45.0  # of which a slope is full, but for 1e-19 of it
_FEWEST_COLUMNS = 2
_SEED = 13  # of the ordinary rows of a table: they are public


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows in the unit ball, and their labels."""

    x: Array  # shape (n, dim)
    y: Labels  # shape (n,)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two tables that differ in one row, and the model at which they are compared."""

    name: str
    first: Table
    second: Table
    theta: Array

    @property
    def tables(self) -> tuple[Table, Table]:
        """Both tables."""
        return self.first, self.second


def opposite_pair(loss: Loss, *, rows: int, dim: int, whole: bool = False) -> Pair:
    """Return a pair whose canaries have opposite gradients of full length.

    They are one row, or the whole table: for the device as the unit.
    """
    width, count = max(dim, _FEWEST_COLUMNS), rows if whole else 1
    others = _ordinary_rows(rows - count, width)
    name = "opposite gradients of full length"
    return _pair(name, loss, others, at=len(others) // 2, count=count)


def opposite_moves(
    loss: Loss, *, rows: int, dim: int, progress: float, at: int, whole: bool
) -> Pair:
    """Return a pair that moves local steps without noise in opposite directions.

    Only canaries have an entry in the first column, and their slopes stay full: so
    their moves add up over the steps, and no curvature damps them.

    Args:
        loss: Of the steps.
        rows: Of each table.
        dim: Columns.
        progress: eta G tau: how far steps can move a model at most.
        at: The canary's row.
        whole: Whether all rows are canaries: for the device as the unit.
    """
    width = max(dim, _FEWEST_COLUMNS)
    canaries = rows if whole else 1
    drift = progress * canaries / rows  # of a canary's own score
    b = min(0.5, (_FULL_SCORE + drift) / max(LARGE - progress, 1.0))
    others = _ordinary_rows(rows - canaries, width)
    others[:, 0] = 0.0
    size = (1 - LEAST) * np.sqrt(1 - b**2), b
    name = "opposite moves of full length"
    return _pair(name, loss, others, at=at, size=size, count=canaries, weight=LARGE)


def crafted_pairs(loss: Loss, *, dim: int) -> Iterator[Pair]:
    """Yield pairs that would break sums with rounding errors, or bounds on gradients.

    Among them is the straddle of a power of two: the partial sum of the first rows is
    just above 2^p with one canary, and just below with the other. In float32, each of
    the many small rows that follow is absorbed above, but subtracted below.
    """
    width = max(dim, _FEWEST_COLUMNS)
    yield opposite_pair(loss, rows=1, dim=width)
    yield opposite_pair(loss, rows=700, dim=width)
    for power in (9, 12, 15):
        yield _straddle(loss, power, width)
    for size in (1e-300, 1e-6, 1.0, 1e3, 1e29):
        yield from _rounding_edges(loss, width, size, rows=64, changed=slice(20, 21))


def crafted_devices(loss: Loss, *, rows: int, dim: int) -> Iterator[Pair]:
    """Yield pairs of tables that differ in all of their rows."""
    width = max(dim, _FEWEST_COLUMNS)
    yield opposite_pair(loss, rows=rows, dim=width, whole=True)
    for size in (1e-300, 1e-6, 1.0, 1e3, 1e29):
        yield from _rounding_edges(loss, width, size, rows=rows, changed=slice(0, rows))


def crafted_moves(
    loss: Loss, *, rows: int, dim: int, progress: float, at: int, whole: bool
) -> Iterator[Pair]:
    """Yield pairs that move steps without noise; arguments as of `opposite_moves`."""
    yield opposite_moves(
        loss, rows=rows, dim=dim, progress=progress, at=at, whole=whole
    )
    changed = slice(0, rows) if whole else slice(at, at + 1)
    width = max(dim, _FEWEST_COLUMNS)
    for size in (1e-300, 1e-3, 1.0, 1e2):
        yield from _rounding_edges(loss, width, size, rows=rows, changed=changed)


def _straddle(loss: Loss, power: int, width: int) -> Pair:
    """Return a pair whose float32 partial sums straddle 2^power."""
    before = _full_rows(2 ** (power + 1), width, entry=0.5)
    after = _full_rows(40_000, width, entry=-(2.0 ** (power - 24)))
    others = np.concatenate([before, after])
    return _pair(f"straddle of 2^{power}", loss, others, at=len(before))


def _full_rows(count: int, width: int, *, entry: float) -> Array:
    """Return equal rows whose gradients are the rows: their scores are huge."""
    x = np.zeros((count, width))
    x[:, 0], x[:, 1] = entry, 2.0**-4
    return x


def _pair(
    name: str,
    loss: Loss,
    others: Array,
    *,
    at: int,
    size: tuple[float, float] = (1 - LEAST, LEAST),
    count: int = 1,
    weight: float = HUGE,
) -> Pair:
    """Return the pair of canaries at a position between other rows."""
    tables = []
    for sign in (1, -1):
        canary = np.zeros((count, others.shape[1]))
        canary[:, 0], canary[:, 1] = sign * size[0], size[1]
        x = np.concatenate([others[:at], canary, others[at:]])
        tables.append(Table(x=x, y=_labels(loss, len(x))))
    theta = np.zeros(loss.num_params(others.shape[1]))
    # Of softmax, the weight of class 1: every row has label 0.
    theta[1 if loss.num_outputs == 1 else others.shape[1] + 1] = weight
    return Pair(name=name, first=tables[0], second=tables[1], theta=theta)


def _labels(loss: Loss, count: int) -> Labels:
    """Return labels for which a large score is wrong: the slope is full."""
    return np.zeros(count, dtype=np.float64 if loss.name == "huber" else np.int64)


def _ordinary_rows(count: int, width: int) -> Array:
    """Return rows in the unit ball whose second entry is never near zero."""
    x = np.random.default_rng(_SEED).uniform(-1, 1, (count, width))
    x[:, 1] = np.where(x[:, 1] < 0, -0.5, 0.5)
    return np.asarray(x / np.sqrt(width))


def _rounding_edges(
    loss: Loss, width: int, size: float, *, rows: int, changed: slice
) -> Iterator[Pair]:
    """Yield pairs of rows that rounding could lengthen, at models of one size.

    Entries lie halfway between two numbers that a device can represent, or the row is
    as long as is accepted.
    """
    rng = np.random.default_rng([_SEED, abs(int(np.log2(size)))])
    for edge in ("halfway entries", "longest rows"):
        x = rng.normal(size=(rows, width))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        if edge == "halfway entries":
            x = (np.floor(0.999 * x / LEAST) + 0.5) * LEAST
        else:
            x *= 1 + 2.0**-24
        theta = rng.normal(size=loss.num_params(width)) * size
        replaced = x.copy()
        replaced[changed] = -x[changed]
        yield Pair(
            name=f"{edge}, weights of size {size:g}",
            first=Table(x=x, y=_any_labels(loss, len(x), changed, 0)),
            second=Table(x=replaced, y=_any_labels(loss, len(x), changed, 1)),
            theta=theta,
        )


def _any_labels(loss: Loss, count: int, canaries: slice, label: int) -> Labels:
    """Return labels that change along the table; the canaries' is given."""
    classes = max(2, loss.num_outputs)
    y = np.arange(count) % classes
    y[canaries] = label
    return y * 2.0 - 1 if loss.name == "huber" else y
