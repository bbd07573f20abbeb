"""Scale a matrix to rows in the unit ball: each row independently, by public bounds."""

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import DataError
from fedbudget.losses import Labels, Rows

# An intercept is a constant column: the row and it have half of the squared norm each.
_SHARE = np.sqrt(0.5)


def row_scale(*, row_norm: float, intercept: bool) -> float:
    """Return the scale factor of a row inside the bound."""
    return LARGEST_NORM * (float(_SHARE) if intercept else 1.0) / row_norm


def unit_rows(x: Any, *, row_norm: float, intercept: bool) -> Rows:
    """Clip each row to the norm, and scale all rows into the unit ball.

    Args:
        x: A dense matrix or a CSR one; shape (n, d).
        row_norm: A public bound; longer rows are clipped to it.
        intercept: Add a constant last column.

    >>> unit_rows(np.array([[3.0, 4.0]]), row_norm=5, intercept=False).round(3)
    array([[0.6, 0.8]], dtype=float32)
    """
    sparse = not isinstance(x, np.ndarray)
    clip = row_norm / np.maximum(row_norm, row_norms(x))
    scale = clip * row_scale(row_norm=row_norm, intercept=intercept)
    constant = np.full((x.shape[0], int(intercept)), LARGEST_NORM * _SHARE)
    if not sparse:
        rows = np.hstack([scaled(x, scale), constant])
        return np.ascontiguousarray(rows, dtype=np.float32)
    from scipy.sparse import csr_array, hstack

    rows = hstack([scaled(x, scale), csr_array(constant)], format="csr")
    result = csr_array(rows.astype(np.float32))
    result.sum_duplicates()
    return result


def row_norms(x: Any) -> Array:
    """Return the norm of each row of a dense or a sparse matrix; shape (n,).

    Each row is first divided by its largest entry, so that no square overflows.

    >>> row_norms(np.array([[3e200, 0.0], [0.0, 0.0]])).tolist()
    [3e+200, 0.0]
    """
    largest = abs(x).max(axis=1)
    largest = np.asarray(largest if isinstance(x, np.ndarray) else largest.toarray())
    largest = largest.astype(np.float64).reshape(-1)
    divisor = np.maximum(largest, 1e-150)  # its inverse is finite
    small = scaled(x, 1 / divisor)
    squares = small * small if isinstance(x, np.ndarray) else small.multiply(small)
    sums = np.asarray(squares.sum(axis=1), dtype=np.float64).reshape(-1)
    return np.asarray(divisor * np.sqrt(sums))


def scaled(x: Any, factors: Array) -> Any:
    """Return a dense or a sparse matrix with each row times its factor."""
    if isinstance(x, np.ndarray):
        return x * factors[:, None]
    from scipy.sparse import diags_array

    return diags_array(factors) @ x


def by_device(
    x: Rows, y: Labels, groups: ArrayLike | None, *, classes: tuple[str, ...] | None
) -> tuple[Dataset, NDArray[np.int64]]:
    """Store the rows device by device; without groups, one device holds all.

    Returns:
        The data, and the position in x of each of its training rows.

    Raises:
        DataError: There is not one group for each row.
    """
    codes, names = _devices(groups, len(y))
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))])
    offsets = offsets.astype(np.int64)
    part = Part(x=x[order], y=y[order], offsets=offsets, owned=True)
    empty = Part(x=x[:0], y=y[:0], offsets=np.zeros(len(names) + 1, np.int64))
    data = Dataset(
        name="rows",
        train=part,
        validation=empty,
        test=empty,
        device_names=names,
        feature_names=tuple(map(str, range(x.shape[1]))),
        classes=classes,
        dissimilarity="mild",
    )
    return data, order


def _devices(
    groups: ArrayLike | None, num_rows: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each row's device, and the devices' names in sorted order."""
    if groups is None:
        return np.zeros(num_rows, np.int64), ("all rows",)
    array = np.asarray(groups)
    if array.shape != (num_rows,):
        raise DataError(
            f"groups has shape {array.shape}, but there are {num_rows} rows: give the "
            "device of each row"
        )
    row = _first_missing(groups)
    if row is not None:
        raise DataError(
            f"groups has no device for row {row}: name it, or leave that row out"
        )
    try:
        names, codes = np.unique(array, return_inverse=True)
    except TypeError:
        raise DataError(
            "groups mixes types that cannot be sorted: make them all text or all "
            "numbers"
        ) from None
    return np.asarray(codes, np.int64).reshape(-1), tuple(map(str, names))


def _first_missing(groups: ArrayLike) -> int | None:
    """Return the first row whose device is None, NaN or another missing value."""
    array = groups if isinstance(groups, np.ndarray) else np.array(groups, dtype=object)
    if array.dtype.kind not in "fcmMO":
        return None
    if array.dtype.kind == "O" and "pandas" in sys.modules:  # for its NA and NaT
        missing = np.asarray(sys.modules["pandas"].isna(array))
    else:
        missing = np.array([each is None or each != each for each in array])
    return int(missing.argmax()) if missing.any() else None


def check_numbers(x: Any) -> None:
    """Raise if a column of a frame or of a matrix holds text.

    Raises:
        DataError: It does; the error names the column.
    """
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        columns = [(name, x[name]) for name in x.columns]
    elif isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "USO":
        columns = list(enumerate(x.T))
    else:
        return
    for name, column in columns:
        values = np.asarray(column)
        if values.dtype.kind not in "USO":
            continue
        text = next((v for v in values.ravel() if isinstance(v, str)), None)
        if text is not None:
            raise DataError(
                f"column {name!r} of X holds text, such as {str(text)!r}: encode it in "
                "a step before, with categories that are publicly known: "
                "OneHotEncoder(categories=[...])"
            )
