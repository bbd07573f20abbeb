"""The memory layouts of all devices' rows for the kernels.

Rows are sorted by device; `offsets[m] : offsets[m + 1]` are those of device m.
`pack_rows` selects one of three layouts:

    DenseRows    an array
    OneHotRows   the same number of non-zeros in every row, all with the same value
    SparseRows   any other compressed sparse rows

One-hot rows are stored as *codes* of one or two bytes, four to a word, without values
and without column indices of 4 bytes. A code is a column or a pair of columns. For
pairs, the kernel fills a table of all pairs' sums before each step, which halves the
number of look-ups.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import DataError, InvalidInputError
from fedbudget.losses import Floats, Labels, Loss, Rows

Single: TypeAlias = NDArray[np.float32]
Counts: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint32] | NDArray[np.uint64]

LANE_BLOCK = 64  # rows per block in lanes: their scores stay in the L1 cache
RUN = 16  # rows and tables are laid out in runs of this many floats
MAX_CODES = 1 << 16
MAX_PAIR_TABLE = 1024  # a larger table of pairs costs more than it saves
MAX_DEALT = 1 << 28  # bytes of rows that are stored once more, in another order
MERGED_BATCH = 64  # from this batch size on, merged columns are faster


class DenseRows(NamedTuple):
    """Rows as an array."""

    offsets: Counts  # shape (M + 1,)
    y: Single  # shape (N,): -1 and 1, or classes, or real targets
    x: Single  # shape (N * width,): rows padded with zeros to `width` columns
    width: int


class OneHotRows(NamedTuple):
    """Rows with a fixed number of equal non-zeros, as codes."""

    offsets: Counts  # shape (M + 1,)
    y: Single  # shape (N,)
    words: Words  # shape (N * width,): four codes in each
    width: int  # words per row
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


Layout: TypeAlias = DenseRows | OneHotRows | SparseRows


class Pair(NamedTuple):
    """Two groups of columns, merged into one code; every row has one column of each.

    The code of (i, j) is offset + i * width + j, for column first + i and second + j.
    """

    first: int
    num_first: int
    second: int
    num_second: int
    offset: int

    @property
    def width(self) -> int:
        """Columns of the second group, rounded up to whole runs."""
        return -(-self.num_second // RUN) * RUN


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """The rows of all devices in one of the three layouts, for one loss."""

    loss: Loss
    dim: int
    rows: Layout
    merged: OneHotRows | None = None  # the same rows with one-hot columns in pairs
    # Layout and seed -> see `dealt`; the last one is kept, as long as the rows live.
    _dealt: dict[str, tuple[int, "Layout"]] = field(default_factory=dict, repr=False)

    @property
    def num_samples(self) -> Counts:
        """N_m; shape (M,)."""
        return np.diff(self.rows.offsets)

    @property
    def num_devices(self) -> int:
        """M."""
        return len(self.rows.offsets) - 1

    @property
    def num_params(self) -> int:
        """The length of theta."""
        return self.loss.num_params(self.dim)

    def dealt(self, layout: Layout, seed: int) -> Layout | None:
        """Return rows in the order of a run's cyclic batches; None if too large.

        A batch is then read from beginning to end, and nothing is shuffled in a round.
        The batches are those that kernels would draw from the unsorted rows.
        """
        from fedbudget.simulation.kernels.arrays import deal_rows

        size = sum(array.nbytes for array in layout if isinstance(array, np.ndarray))
        if size > MAX_DEALT or isinstance(layout, SparseRows):
            return None
        name = "merged" if layout is self.merged else "rows"
        known, rows = self._dealt.get(name, (None, layout))
        if known != seed:
            order = np.empty(len(layout.y), dtype=np.uint32)
            picks = np.empty(int(self.num_samples.max()) + RUN, dtype=np.uint32)
            deal_rows(layout.offsets, np.uint64(seed), picks, order)
            starts = np.repeat(layout.offsets[:-1], self.num_samples)
            rows = _reordered(layout, order + starts)
            self._dealt[name] = seed, rows
        return rows

    def layout_for(self, batch_size: float) -> Layout:
        """Return the fastest layout for one run with batches of this size."""
        # Merged columns halve the work per row, at a fixed price per step.
        if self.merged is not None and batch_size >= MERGED_BATCH:
            return self.merged
        return self.rows


def _reordered(layout: DenseRows | OneHotRows, index: Counts) -> Layout:
    """Return dense or one-hot rows in another order."""
    shape, y = (len(index), layout.width), layout.y[index]
    if isinstance(layout, OneHotRows):
        words = layout.words.reshape(shape)[index].reshape(-1)
        return layout._replace(y=y, words=words)
    rows = aligned_zeros(shape)
    rows[:] = layout.x.reshape(shape)[index]
    return layout._replace(y=y, x=rows.reshape(-1))


def pack_rows(x: Rows, y: Labels, offsets: Counts, *, loss: Loss) -> PackedRows:
    """Lay out the concatenated rows of all devices.

    Args:
        x: The rows, shape (N, dim).
        y: The labels, shape (N,): classes 0 .. C-1, or real targets.
        offsets: Where each device's rows start, and N; shape (M + 1,).
        loss: The training loss.

    Raises:
        DataError: Rows or labels are not finite, or a label is not a class.
    """
    offsets, labels = _checked_offsets(offsets, len(y)), _labels(y, loss)
    dim = x.shape[1]
    if isinstance(x, np.ndarray):
        _check_finite(x)
        width = -(-dim // RUN) * RUN
        dense = aligned_zeros((len(labels), width))
        dense[:, :dim] = x
        rows = DenseRows(offsets, labels, dense.reshape(-1), width)
        return PackedRows(loss=loss, dim=dim, rows=rows)
    _check_finite(x.data)
    columns = _fixed_columns(x)
    if columns is not None:
        value = float(x.data[0])
        return pack_one_hot(columns, y, offsets, dim=dim, loss=loss, value=value)
    sparse = SparseRows(
        offsets,
        labels,
        x.indptr.astype(np.int64),
        x.indices.astype(np.int32),
        x.data.astype(np.float32),
    )
    return PackedRows(loss=loss, dim=dim, rows=sparse)


def pack_one_hot(
    columns: NDArray[np.integer],
    y: Labels,
    offsets: Counts,
    *,
    dim: int,
    loss: Loss,
    value: float | None = None,
) -> PackedRows:
    """Lay out one-hot rows from the columns of their non-zeros, shape (N, k).

    Without a `value`, rows are scaled to norm 1.
    """
    offsets, labels = _checked_offsets(offsets, len(y)), _labels(y, loss)
    if not (columns.min() >= 0 and columns.max() < dim < MAX_CODES):
        raise DataError(
            f"columns must be 0 .. dim - 1 with dim below {MAX_CODES}, got "
            f"{columns.min()} .. {columns.max()} and dim={dim}"
        )
    if value is None:
        value = columns.shape[1] ** -0.5
    words, width = _words(columns, spare=dim)
    no_pairs = np.zeros((0, 5), dtype=np.int64)
    rows = OneHotRows(
        offsets, labels, words, width, np.float32(value), no_pairs, dim + 1
    )
    merged = None
    if len(y) >= 2 * MERGED_BATCH * (len(offsets) - 1):
        merged = _merged(rows, columns)
    return PackedRows(loss=loss, dim=dim, rows=rows, merged=merged)


def _checked_offsets(offsets: Counts, num_rows: int) -> Counts:
    # A copy: for read-only arrays, the kernels would be compiled once more.
    offsets = np.array(offsets, dtype=np.int64)
    if offsets[0] != 0 or offsets[-1] != num_rows or (np.diff(offsets) < 1).any():
        raise InvalidInputError(
            f"offsets must grow from 0 to the {num_rows} rows, with a row per device, "
            f"got {offsets[:3]} .. {offsets[-1]}"
        )
    return offsets


def _labels(y: Labels, loss: Loss) -> Single:
    """Return the labels as the kernels expect them: signs, classes or targets."""
    labels = np.asarray(y)
    if loss.name == "huber":
        _check_finite(labels)
        return labels.astype(np.float32)
    num_classes = max(2, loss.num_outputs)
    # Millions of rows: they are checked without a copy, unless they are floats.
    whole = labels.dtype.kind in "bui" or bool((labels == np.floor(labels)).all())
    if not (whole and labels.min() >= 0 and labels.max() < num_classes):
        raise DataError(
            f"labels for the {loss.name} loss must be classes 0 .. {num_classes - 1}, "
            f"got {labels.min()} .. {labels.max()}"
        )
    if loss.name == "softmax":
        return labels.astype(np.float32)
    return np.where(labels > 0, np.float32(1), np.float32(-1))


def aligned_zeros(shape: tuple[int, int]) -> Single:
    """Return zeros aligned to cache lines, so that no run crosses two of them."""
    count = shape[0] * shape[1]
    buffer = np.zeros(count + RUN, dtype=np.float32)
    start = -(buffer.ctypes.data // buffer.itemsize) % RUN
    return buffer[start : start + count].reshape(shape)


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
    columns: NDArray[np.integer] = x.indices.reshape(-1, k)
    if (columns[:, 1:] > columns[:, :-1]).all():
        return columns  # millions of rows: not sorted again
    return np.sort(columns, axis=1)


def _words(codes: NDArray[np.integer], *, spare: int) -> tuple[Words, int]:
    """Return codes, shape (N, k), four to a word, and the words per row.

    Codes below 256 take one byte each, others two. Unused positions hold the spare
    code, the largest. Codes that already have this layout are not copied.
    """
    code, word = ("u1", "u4") if spare < 256 else ("u2", "u8")
    width = -(-codes.shape[1] // 4)
    if codes.shape[1] == 4 * width:
        padded = np.ascontiguousarray(codes, dtype=code)
    else:
        padded = np.full((len(codes), 4 * width), spare, dtype=code)
        padded[:, : codes.shape[1]] = codes
    # The first code is in the lowest bits, whatever the machine's byte order.
    words = padded.reshape(-1).view(np.dtype(word).newbyteorder("<"))
    native: Words = words.astype(word, copy=False)
    return native, width


def _merged(rows: OneHotRows, columns: NDArray[np.integer]) -> OneHotRows | None:
    """Return the rows with columns merged in pairs, if the table is small enough."""
    pairs = _pairs(columns)
    if not pairs:
        return None
    size = pairs[-1].offset + pairs[-1].num_first * pairs[-1].width
    words, width = _words(_pair_codes(columns, pairs), spare=size)
    table = np.array(pairs, dtype=np.int64)
    return rows._replace(words=words, width=width, pairs=table, table_size=size + 1)


def _pairs(columns: NDArray[np.integer]) -> list[Pair]:
    """Pair the groups of columns, the largest with the smallest; none if too large.

    A group is the range of columns of the j-th non-zero of all rows; groups of one-hot
    encoded categories do not overlap.
    """
    low, high = columns.min(axis=0), columns.max(axis=0)
    k = len(low)
    if k < 2 or k % 2 or (low[1:] <= high[:-1]).any():
        return []
    by_size = np.argsort(high - low, kind="stable")
    pairs: list[Pair] = []
    offset = 0
    for small, large in zip(by_size[: k // 2], by_size[: k // 2 - 1 : -1], strict=True):
        count = [int(high[g]) - int(low[g]) + 1 for g in (small, large)]
        pair = Pair(int(low[small]), count[0], int(low[large]), count[1], offset)
        offset += pair.num_first * pair.width
        pairs.append(pair)
    return pairs if offset <= MAX_PAIR_TABLE else []


def _pair_codes(columns: NDArray[np.integer], pairs: list[Pair]) -> NDArray[np.integer]:
    """Return the code of every row's pairs, shape (N, num_pairs)."""
    low = columns.min(axis=0).tolist()
    codes = np.empty((len(columns), len(pairs)), dtype=np.uint16)
    for column, pair in enumerate(pairs):
        # Columns may be bytes, which codes would overflow.
        i = columns[:, low.index(pair.first)].astype(np.uint16) - pair.first
        j = columns[:, low.index(pair.second)].astype(np.uint16) - pair.second
        codes[:, column] = pair.offset + i * pair.width + j
    return codes
