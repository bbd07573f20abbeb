"""Rows in the unit ball: the sensitivity of a gradient depends on it."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import DataError
from fedbudget.losses import Rows
from fedbudget.text import shown

# Rounding an entry to float32 changes it by at most 2^-24 of it, so a row scaled to
# this norm has a norm of at most 1 exactly.
LARGEST_NORM = 1 - 2.0**-23

# Rows that users scaled to norm 1 and rounded to float32 may exceed 1 by 2^-24. Twice
# that is accepted, and scaled down to 1: see `in_unit_ball`.
ROUNDING = 2.0**-23


def in_unit_ball(x: Rows) -> Rows:
    """Scale rows that exceed norm 1 by rounding to at most 1.

    Kernels read rows in float32, and rounding to it may raise a norm above 1. Other
    rows are unchanged; if all are, `x` itself is returned.

    Raises:
        DataError: A norm is above 1 by more than rounding, or not finite.

    >>> rows = np.array([[1.0, 2.0**-12], [0.6, 0.5]], dtype=np.float32)
    >>> in_unit_ball(rows).tolist()
    [[0.9999998..., 0.00024414...], [0.6000000..., 0.5]]
    """
    norms = _norms(x)
    if x.dtype.kind == "f" and x.dtype != np.float32:
        norms = np.maximum(norms, np.sqrt(_squares(x.astype(np.float32))))
    above = norms > 1
    if not above.any():
        return x
    # Half precision is too coarse for norms slightly below 1.
    scaled: Any = x.astype(np.promote_types(x.dtype, np.float32))  # always a copy
    scale = np.where(above, LARGEST_NORM / np.where(above, norms, 1.0), 1.0)
    if isinstance(scaled, np.ndarray):
        scaled[above] *= scale[above, None]
    else:
        factors = np.repeat(scale, np.diff(scaled.indptr))
        scaled.data[: len(factors)] *= factors
    return cast(Rows, scaled)


def check_unit_ball(x: Rows) -> None:
    """Refuse rows with a norm above 1, or with an entry that is not finite.

    >>> check_unit_ball(np.array([[0.6, 0.8], [1.0, 0.5]], dtype=np.float32))
    Traceback (most recent call last):
    fedbudget.errors.DataError: row 1 (counted from 0) has norm 1.11803, above 1: \
divide each row by max(1, its norm), computed in float64
    """
    _norms(x)


def _norms(x: Rows) -> NDArray[np.float64]:
    """Return the norm of each row, at most 1 up to rounding."""
    if not (isinstance(x, np.ndarray) or getattr(x, "format", None) == "csr"):
        raise DataError(
            f"x is a {type(x).__name__}, {shown(x)}: give a numpy array or a CSR array"
        )
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise DataError(
            f"x has shape {x.shape} and type {x.dtype}: give one row of numbers per "
            "sample, float32"
        )
    norms = np.sqrt(_squares(x))
    inside = norms <= 1 + ROUNDING  # False for NaN as well
    if inside.all():
        return norms
    row = int(np.argmin(inside))
    if not np.isfinite(norms[row]):
        raise DataError(
            f"row {row} (counted from 0) has norm {norms[row]}, so an entry is not a "
            "finite number: replace it, or drop the row"
        )
    raise DataError(
        f"row {row} (counted from 0) has norm {norms[row]:.6g}, above 1: divide each "
        "row by max(1, its norm), computed in float64"
    )


def _squares(x: Any) -> NDArray[np.float64]:
    """Return the squared norm of each row, summed in float64; shape (n,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(x, np.ndarray):
            squares = np.einsum("ij,ij->i", x, x, dtype=np.float64, casting="unsafe")
            return np.asarray(squares)
        if not x.has_canonical_format:  # an entry may be a sum of several
            x = x.copy()
            x.sum_duplicates()
        rows = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
        entries = np.square(x.data[: len(rows)], dtype=np.float64)
        sums = np.bincount(rows, weights=entries, minlength=x.shape[0])
        return np.asarray(sums, dtype=np.float64)
