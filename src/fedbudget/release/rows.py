"""Rows of all devices as whole numbers, in the kernels' layouts."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.data import Part
from fedbudget.errors import DataError
from fedbudget.fleet.device.exact_steps import BLOCK, MOST_ROWS, rounded_rows
from fedbudget.losses import Loss
from fedbudget.simulation.kernels.layouts import PackedRows
from fedbudget.simulation.packing import packed_rows


def exact_rows(part: Part, loss: Loss) -> PackedRows:
    """Round rows to multiples of 2^-23 in the unit ball, and lay them out.

    Each row is rounded as on a real device, by itself. Sparse rows stay sparse. The
    result is a copy: changing the data set later changes no release.

    Raises:
        DataError: A device has no rows or too many, or a row is outside the unit ball.
    """
    most = int(part.sizes.max(initial=0))
    if most > MOST_ROWS:
        raise DataError(f"a device has {most} rows: give it at most {MOST_ROWS}")
    x = part.x
    on_grid = _dense(x) if isinstance(x, np.ndarray) else _sparse(x)
    return packed_rows(replace(part, x=on_grid), loss)


def _dense(x: NDArray[Any]) -> NDArray[np.float32]:
    on_grid = np.empty(x.shape, dtype=np.float32)
    for start in range(0, len(x), BLOCK):
        on_grid[start : start + BLOCK] = rounded_rows(x[start : start + BLOCK])
    return on_grid


def _sparse(x: Any) -> Any:
    """Round CSR rows: a row's non-zeros are rounded as a row without its zeros."""
    on_grid = x.astype(np.float64)
    on_grid.sum_duplicates()  # an entry may be a sum of several
    indptr = on_grid.indptr
    for start in range(0, x.shape[0], BLOCK):
        stop = min(start + BLOCK, x.shape[0])
        counts = np.diff(indptr[start : stop + 1])
        entries = slice(indptr[start], indptr[stop])
        filled = np.arange(int(counts.max(initial=0))) < counts[:, None]
        rows = np.zeros(filled.shape)
        rows[filled] = on_grid.data[entries]
        on_grid.data[entries] = rounded_rows(rows)[filled]
    return on_grid.astype(np.float32)
