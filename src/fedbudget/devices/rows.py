"""The rows of all devices, laid out for the kernels.

Rows stand device after device; `offsets[m] : offsets[m + 1]` are those of device m.
Three layouts, chosen by `pack_rows` from what the rows are:

    DenseRows    an array
    OneHotRows   the same number of non-zeros in every row, all of one value
    SparseRows   any other compressed sparse rows

One-hot rows are stored as *codes* of 16 bits, four to a 64-bit word: no value, no
column index of 4 bytes. A code is a place in a table that the kernel fills from theta
before each step; a row's score is the sum of its codes' entries.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import DataError, InvalidInputError
from fedbudget.models import Floats, Labels, Rows

Single: TypeAlias = NDArray[np.float32]
Counts: TypeAlias = NDArray[np.int64]

CODES_PER_WORD = 4
MAX_CODES = 1 << 16
# Two columns are merged into one code only while the table of all pairs stays near L1.
MAX_PAIR_TABLE = 1024
LANE = 16  # entries of a table are laid out in runs of this many floats


class DenseRows(NamedTuple):
    """Rows as an array."""

    offsets: Counts  # shape (M + 1,)
    y: Single  # shape (N,): -1 and 1, or classes, or real targets
    x: Single  # shape (N * width,): rows padded with zeros to `width` columns
    width: int


class OneHotRows(NamedTuple):
    """Rows with a fixed number of non-zeros of one value, as codes."""

    offsets: Counts  # shape (M + 1,)
    y: Single  # shape (N,)
    words: NDArray[np.uint64]  # shape (N, words per row)
    value: np.float32
    pairs: Counts  # shape (num_pairs, 5): see `Pair`; empty if codes are columns
    table_size: int


class SparseRows(NamedTuple):
    """Compressed sparse rows."""

    offsets: Counts  # shape (M + 1,)
    y: Single  # shape (N,)
    starts: Counts  # shape (N + 1,)
    columns: NDArray[np.int32]
    values: Single


class Pair(NamedTuple):
    """Two groups of columns of which every row has one each, merged into one code.

    The code of (i, j) is offset + i * width + j, for column first + i and second + j.
    """

    first: int
    num_first: int
    second: int
    num_second: int
    offset: int

    @property
    def width(self) -> int:
        """Columns of the second group, rounded up so that a run of them vectorises."""
        return -(-self.num_second // LANE) * LANE


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Rows of all devices in one of the three layouts."""

    rows: DenseRows | OneHotRows | SparseRows
    dim: int

    @property
    def num_samples(self) -> Counts:
        """N_m; shape (M,)."""
        return np.diff(self.rows.offsets)

    @property
    def num_devices(self) -> int:
        """M."""
        return len(self.rows.offsets) - 1


def pack_rows(
    x: Rows, y: Labels, offsets: Counts, *, signed: bool, merge: bool = True
) -> PackedRows:
    """Lay out the concatenated rows of all devices.

    Args:
        x: The rows, shape (N, dim).
        y: The labels, shape (N,).
        offsets: Where each device's rows start, and N; shape (M + 1,).
        signed: Store the classes 0 and 1 as -1 and +1 (logistic, hinge).
        merge: Merge one-hot columns in pairs where that saves time (large batches).
    """
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    if offsets[0] != 0 or offsets[-1] != len(y) or (np.diff(offsets) < 1).any():
        raise InvalidInputError(
            f"offsets must grow from 0 to the {len(y)} rows, with a row per device, "
            f"got {offsets[:3]} .. {offsets[-1]}"
        )
    labels = np.asarray(y, dtype=np.float32)
    if signed:
        labels = np.where(labels > 0, np.float32(1), np.float32(-1))
    dim = x.shape[1]
    if isinstance(x, np.ndarray):
        _check_finite(x)
        width = -(-dim // LANE) * LANE
        dense = np.zeros((len(labels), width), dtype=np.float32)
        dense[:, :dim] = x
        return PackedRows(
            rows=DenseRows(offsets, labels, dense.reshape(-1), width), dim=dim
        )
    _check_finite(x.data)
    columns = _fixed_columns(x)
    if columns is not None:
        one_hot = _one_hot_rows(columns, labels, offsets, dim, x.data[0], merge)
        return PackedRows(rows=one_hot, dim=dim)
    sparse = SparseRows(
        offsets,
        labels,
        x.indptr.astype(np.int64),
        x.indices.astype(np.int32),
        x.data.astype(np.float32),
    )
    return PackedRows(rows=sparse, dim=dim)


def pack_one_hot(
    columns: NDArray[np.integer],
    y: Labels,
    offsets: Counts,
    *,
    dim: int,
    signed: bool,
    merge: bool = True,
) -> PackedRows:
    """Lay out one-hot rows given by their columns, shape (N, k), scaled to norm 1."""
    labels = np.asarray(y, dtype=np.float32)
    if signed:
        labels = np.where(labels > 0, np.float32(1), np.float32(-1))
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    value = columns.shape[1] ** -0.5
    rows = _one_hot_rows(columns, labels, offsets, dim, value, merge)
    return PackedRows(rows=rows, dim=dim)


def _check_finite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise DataError("rows hold NaN or infinite values: drop or fill them first")


def _fixed_columns(x: Rows) -> NDArray[np.integer] | None:
    """Return the columns of the non-zeros, shape (N, k), if rows are one-hot."""
    assert not isinstance(x, np.ndarray)
    counts = np.diff(x.indptr)
    k = int(counts[0])
    if k == 0 or (counts != k).any() or (x.data != x.data[0]).any():
        return None
    if x.shape[1] >= MAX_CODES:
        return None
    return np.sort(x.indices.reshape(-1, k), axis=1)


def _one_hot_rows(
    columns: NDArray[np.integer],
    labels: Single,
    offsets: Counts,
    dim: int,
    value: float,
    merge: bool,
) -> OneHotRows:
    pairs = _pairs(columns) if merge else []
    if pairs:
        codes = _pair_codes(columns, pairs)
        table_size = pairs[-1].offset + pairs[-1].num_first * pairs[-1].width + 1
    else:
        codes = [columns[:, j] for j in range(columns.shape[1])]
        table_size = dim + 1
    # Places without a code point at the table's last entry, which stays zero.
    words = np.zeros((len(labels), -(-len(codes) // CODES_PER_WORD)), dtype=np.uint64)
    for place in range(words.shape[1] * CODES_PER_WORD):
        code = codes[place] if place < len(codes) else table_size - 1
        shift = np.uint64(16 * (place % CODES_PER_WORD))
        words[:, place // CODES_PER_WORD] |= np.uint64(code) << shift
    arrays = np.array(pairs, dtype=np.int64).reshape(len(pairs), 5)
    return OneHotRows(offsets, labels, words, np.float32(value), arrays, table_size)


def _pairs(columns: NDArray[np.integer]) -> list[Pair]:
    """Pair up the groups of columns, the largest with the smallest; none if too large.

    A group is the range of columns that the j-th non-zero of a row takes; the groups
    of one-hot encoded categories do not overlap.
    """
    low, high = columns.min(axis=0), columns.max(axis=0)
    k = len(low)
    if k < 2 or k % 2 or (low[1:] <= high[:-1]).any():
        return []
    by_size = np.argsort(high - low, kind="stable")
    pairs: list[Pair] = []
    offset = 0
    for small, large in zip(by_size[: k // 2], by_size[: k // 2 - 1 : -1], strict=True):
        count = [int(high[g] - low[g]) + 1 for g in (small, large)]
        pair = Pair(int(low[small]), count[0], int(low[large]), count[1], offset)
        offset += pair.num_first * pair.width
        pairs.append(pair)
    return pairs if offset <= MAX_PAIR_TABLE else []


def _pair_codes(
    columns: NDArray[np.integer], pairs: list[Pair]
) -> list[NDArray[np.integer]]:
    low = list(columns.min(axis=0))
    codes = []
    for pair in pairs:
        i = columns[:, low.index(pair.first)] - pair.first
        j = columns[:, low.index(pair.second)] - pair.second
        codes.append(pair.offset + i * pair.width + j)
    return codes
