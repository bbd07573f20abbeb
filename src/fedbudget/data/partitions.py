"""Partition the rows of one table over devices, from a seed.

Every function returns one device id (0 .. M-1) per row, and leaves no device empty.
On the command line a partition is a text: ``iid:16`` (even shares), ``size:60,40``
(counts, or shares such as ``size:0.7,0.3``), ``dirichlet:16:0.3`` (skewed labels) or
``column:sensor_id`` (a column of the table).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import one_of, seed_number, whole
from fedbudget.errors import InvalidInputError
from fedbudget.text import counted, shown

DeviceIds: TypeAlias = NDArray[np.int64]
Dissimilarity: TypeAlias = Literal["iid", "mild", "strong"]

SEED = 0  # the default
SPELLINGS = "iid:16, size:60,40, dirichlet:16:0.3 or column:NAME"


def generator(seed: int, *, stream: int = 0) -> np.random.Generator:
    """Return the random generator of a seed; streams of one seed are independent.

    >>> generator(7).random() == generator(7, stream=1).random()
    False
    """
    return np.random.default_rng((seed_number(seed), stream))


def iid(num_rows: int, num_devices: int, *, seed: int = 0) -> DeviceIds:
    """Partition shuffled rows evenly: sizes differ by at most one.

    >>> np.bincount(iid(10, 4)).tolist()
    [3, 3, 2, 2]
    """
    num_devices = _enough_rows(num_rows, num_devices)
    ids = np.arange(num_rows, dtype=np.int64) % num_devices
    return generator(seed).permutation(ids)


def by_size(num_rows: int, sizes: Sequence[float], *, seed: int = 0) -> DeviceIds:
    """Partition shuffled rows by sizes: counts (int) or shares (float).

    Counts must add up to the number of rows, shares to one.

    >>> np.bincount(by_size(10, [0.7, 0.3])).tolist()
    [7, 3]
    """
    array = np.asarray(sizes)
    if array.ndim != 1 or not array.size or not bool(np.all(array > 0)):
        raise InvalidInputError(
            f"sizes must be a list of positive numbers, got {sizes}: "
            "give one count or one share per device"
        )
    _enough_rows(num_rows, len(array))
    counts = array if array.dtype.kind in "iu" else _counts(num_rows, array)
    if counts.sum() != num_rows:
        raise InvalidInputError(
            f"sizes add up to {counts.sum()} rows, the table has {num_rows}: "
            "correct the counts, or give shares that add up to 1"
        )
    ids = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return generator(seed).permutation(ids)


def dirichlet(
    labels: ArrayLike, num_devices: int, alpha: float, *, seed: int = 0
) -> DeviceIds:
    """Skew the labels: each class is distributed by its own Dirichlet(alpha) draw.

    A small alpha gives devices with few classes and of different sizes. Each device
    first gets one row at random, so that none is empty. For experiments: one label
    decides where other rows go, and no privacy guarantee covers that.

    >>> ids = dirichlet([0, 1] * 50, 4, 0.3)
    >>> np.unique(ids).tolist()
    [0, 1, 2, 3]
    """
    y = np.asarray(labels)
    num_devices = _enough_rows(len(y), num_devices)
    if not 0 < alpha < inf:
        raise InvalidInputError(
            f"alpha must be positive and finite, got {alpha}: 0.1 is a strong skew, "
            "10 nearly none"
        )
    rng = generator(seed)
    order = rng.permutation(len(y))
    ids = np.empty(len(y), dtype=np.int64)
    ids[order[:num_devices]] = np.arange(num_devices)
    rest = order[num_devices:]
    classes = np.unique(y)
    for value in classes:  # all of them, so the draws do not depend on `order`
        shares = np.cumsum(rng.dirichlet(np.full(num_devices, alpha)))
        rows = rest[y[rest] == value]
        drawn = np.searchsorted(shares, rng.random(len(rows)), side="right")
        ids[rows] = np.minimum(drawn, num_devices - 1)
    return ids


def own_or_even(
    owners: DeviceIds,
    names: Sequence[str],
    *,
    split: str,
    splits: tuple[str, str],
    unlike: Dissimilarity = "mild",
    num_devices: int | None = None,
    seed: int = 0,
) -> tuple[DeviceIds, tuple[str, ...], Dissimilarity]:
    """Partition built-in data by their own devices, or evenly (``iid``).

    Args:
        owners: The device that each row comes from, 0 .. M-1.
        names: The names of these devices.
        split: One of `splits`, of which the first keeps the owners.
        splits: The names of both ways.
        unlike: How heterogeneous the owners are.
        num_devices: For ``iid`` only; by default M.
        seed: Seeds the even partition.

    Returns:
        The device of each row, the devices' names, and their dissimilarity.
    """
    one_of("split", split, splits)
    if split != "iid":
        if num_devices not in (None, len(names)):
            raise InvalidInputError(
                f"num_devices={shown(num_devices)} does not go with split {split!r}, "
                f"which has {len(names)}: leave it out or use split 'iid'"
            )
        return owners, tuple(names), unlike
    count = len(names) if num_devices is None else whole("num_devices", num_devices)
    return iid(len(owners), count, seed=seed), tuple(map(str, range(count))), "iid"


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How to partition rows over devices; `parse_partition` reads it from a text."""

    kind: Literal["iid", "size", "dirichlet", "column"]
    num_devices: int = 0
    sizes: tuple[float, ...] = ()
    alpha: float = 0.0
    column: str = ""

    def __str__(self) -> str:
        if self.kind == "column":
            return f"column:{self.column}"
        if self.kind == "size":
            return f"size:{','.join(map(str, self.sizes))}"
        skew = f":{self.alpha:g}" if self.kind == "dirichlet" else ""
        return f"{self.kind}:{self.num_devices}{skew}"

    @property
    def dissimilarity(self) -> Dissimilarity:
        """How heterogeneous the devices are, by the kind of partition."""
        if self.kind == "column":
            return "mild"
        return "strong" if self.kind == "dirichlet" else "iid"

    @property
    def caveat(self) -> str:
        """What no privacy guarantee covers with this partition; usually nothing."""
        if self.kind != "dirichlet":
            return ""
        return (
            "NOT covered: which rows a device holds, and how many: the partition "
            f"{self} depends on the labels"
        )

    def device_ids(self, labels: NDArray[Any], *, seed: int = 0) -> DeviceIds:
        """Return one device id per label; not for ``column``, which needs the table."""
        if self.kind == "iid":
            return iid(len(labels), self.num_devices, seed=seed)
        if self.kind == "size":
            return by_size(len(labels), self.sizes, seed=seed)
        if self.kind == "column":
            raise InvalidInputError(
                f"partition 'column:{self.column}' needs the table: use from_table"
            )
        if labels.dtype.kind == "f":
            raise InvalidInputError(
                "partition 'dirichlet' needs classes, and these labels are numbers: "
                "use iid, size or column"
            )
        return dirichlet(labels, self.num_devices, self.alpha, seed=seed)


def parse_partition(text: str) -> Partition:
    """Read a partition from its text.

    >>> parse_partition("dirichlet:16:0.3").num_devices
    16
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "column" and rest:
            return Partition(kind="column", column=rest)
        if kind == "iid":
            return Partition(kind="iid", num_devices=_positive(rest))
        if kind == "size":
            number = float if "." in rest or "e" in rest else int
            sizes = tuple(number(part) for part in rest.split(","))
            return Partition(kind="size", num_devices=len(sizes), sizes=sizes)
        if kind == "dirichlet":
            count, alpha = rest.split(":")
            return Partition(
                kind="dirichlet", num_devices=_positive(count), alpha=float(alpha)
            )
    except ValueError:
        pass  # the message below is for every invalid text
    raise InvalidInputError(
        f"partition {text!r} is not known: write {SPELLINGS}", argument="partition"
    )


def _positive(text: str) -> int:
    """Return a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _enough_rows(num_rows: int, num_devices: int) -> int:
    """Return the number of devices; refuse more devices than rows."""
    num_devices = whole("num_devices", num_devices)
    if num_rows < num_devices:
        raise InvalidInputError(
            f"num_devices is {num_devices}, but there are only "
            f"{counted(num_rows, 'row')}: use at most "
            f"{counted(num_rows, 'device')}"
        )
    return num_devices


def _counts(num_rows: int, shares: NDArray[Any]) -> NDArray[np.int64]:
    """Round shares to whole counts with the right sum (largest remainders first)."""
    if not abs(float(shares.sum()) - 1) < 1e-6:
        raise InvalidInputError(
            f"shares add up to {float(shares.sum()):g}, not to 1: correct them, or "
            "give whole counts"
        )
    exact = shares * num_rows
    counts = np.asarray(np.floor(exact), dtype=np.int64)
    missing = num_rows - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    if not counts.all():
        raise InvalidInputError(
            f"a share of {float(shares.min()):g} of {num_rows} rows is less than one "
            "row: raise it or use fewer devices"
        )
    return counts
