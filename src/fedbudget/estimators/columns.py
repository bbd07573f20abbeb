"""Public bounds of a matrix's columns, by which an estimator scales them."""

from typing import Any, NamedTuple

import numpy as np

from fedbudget.checks import Array
from fedbudget.data import Numeric
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.text import shown


class ColumnBounds(NamedTuple):
    """The middle and the half width of each column's bounds; shape (d,)."""

    middle: Array
    half: Array

    @classmethod
    def of(cls, kinds: dict[str, Numeric]) -> "ColumnBounds":
        """Return the bounds of described columns."""
        low = np.array([kind.low for kind in kinds.values()])
        high = np.array([kind.high for kind in kinds.values()])
        return cls(low / 2 + high / 2, high / 2 - low / 2)

    def scaled(self, x: Array) -> Array:
        """Clip numbers to their bounds, and scale them to [-1, 1]."""
        return np.clip((x - self.middle) / self.half, -1.0, 1.0)

    def unscaled(self, z: Array) -> Array:
        """Return scaled numbers in their own units."""
        return self.middle + self.half * z


def read_bounds(bounds: Any, x: Any) -> dict[str, Numeric]:
    """Return the public bounds of each column of x, by its position.

    Args:
        bounds: (low, high) for all columns, or such a pair for each.
        x: The rows; shape (n, d).

    Raises:
        DataError: x is sparse.
        InvalidInputError: They are no bounds, or not one for each column.

    >>> read_bounds((0, 5), np.zeros((2, 1)))
    {'0': Numeric(low=0.0, high=5.0, missing=None, unit='')}
    """
    if not isinstance(x, np.ndarray):
        raise DataError(
            "X is sparse, and bounds move its zeros: give a dense matrix, or leave "
            "bounds out"
        )
    columns = x.shape[1]
    try:
        pairs = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        pairs = np.zeros(0)
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (columns, 1))
    if pairs.shape != (columns, 2):
        raise InvalidInputError(
            f"bounds {shown(bounds)} are not those of {columns} columns: give (low, "
            "high) for all of them, or one such pair for each",
            argument="bounds",
        )
    kinds = {}
    for j, (low, high) in enumerate(pairs.tolist()):
        try:
            kinds[str(j)] = Numeric(low, high)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"bounds of column {j}: {error}", argument="bounds"
            ) from None
    return kinds
