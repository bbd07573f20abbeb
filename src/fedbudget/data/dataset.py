"""A data set partitioned over devices: three parts, rows stored device by device.

A plan uses only the public shape of a data set: the training rows of each device, the
numbers of columns and classes, and how the rows were partitioned. `Dataset.problem`
returns that shape, and reads no row.

`hold_out` keeps devices out of training, to measure the model on them afterwards.
"""

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import whole
from fedbudget.data.partitions import Dissimilarity, generator
from fedbudget.data.unit_ball import in_unit_ball
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from fedbudget.losses import MARGIN_LOSSES, Labels, Rows
from fedbudget.text import counted, shown

if TYPE_CHECKING:
    from fedbudget.data.fourier import FeatureStep
    from fedbudget.data.schema import Schema
    from fedbudget.problem import Constant, Problem

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Rows for training, validation or test, stored device by device.

    The arrays are copied before they are checked, and are read-only: the sensitivity of
    a gradient depends on rows that stay in the unit ball. `owned` saves the copy of
    arrays that nobody else can write to.
    """

    x: Rows  # shape (n, dim), float32, every row in the unit ball; dense or CSR
    y: Labels  # shape (n,): classes 0 .. C-1 (int64), or targets in [-1, 1] (float64)
    offsets: Counts  # shape (M + 1,): device m holds rows offsets[m]:offsets[m + 1]
    owned: InitVar[bool] = False  # new arrays, or those of another part: not copied

    def __post_init__(self, owned: bool) -> None:
        if not owned:
            for name in ("x", "y", "offsets"):
                object.__setattr__(self, name, getattr(self, name).copy())
        rows = int(self.offsets[-1]) if len(self.offsets) else -1
        if not rows == len(self.y) == self.x.shape[0]:
            raise DataError(
                f"offsets end at {rows}, but x has {self.x.shape[0]} rows and y has "
                f"{len(self.y)}: the three must agree"
            )
        if self.offsets[0] != 0 or bool(np.any(np.diff(self.offsets) < 0)):
            raise DataError("offsets must start at 0 and not decrease: sort the rows")
        object.__setattr__(self, "x", in_unit_ball(self.x))
        for array in (*arrays_of(self.x), self.y, self.offsets):
            array.setflags(write=False)
        if self.y.dtype.kind == "f" and not np.isfinite(self.y).all():
            row = int(np.argmin(np.isfinite(self.y)))
            raise DataError(
                f"y holds {self.y[row]} in row {row} (counted from 0), not a finite "
                "number: replace it, or drop the row"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_devices(self) -> int:
        """M: the number of devices."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Counts:
        """Rows per device; shape (M,)."""
        return np.diff(self.offsets)

    def device(self, m: int) -> tuple[Rows, Labels]:
        """Return the rows and the labels of device m (views where possible)."""
        if not 0 <= m < self.num_devices:
            raise InvalidInputError(
                f"device {m} does not exist: choose 0 .. {self.num_devices - 1}"
            )
        rows = slice(int(self.offsets[m]), int(self.offsets[m + 1]))
        return self.x[rows], self.y[rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training, validation and test rows of M devices, and their public shape."""

    name: str
    train: Part
    validation: Part
    test: Part
    device_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    classes: tuple[str, ...] | None  # None: the labels are numbers (regression)
    dissimilarity: Dissimilarity  # of the partition, which is public
    synthetic: bool = False  # rows drawn from a model
    caveats: tuple[str, ...] = ()  # what no guarantee covers, such as its counts
    schema: "Schema | None" = None  # the public encoding; None: not known
    centred: bool = False  # columns have mean 0, by a public preparation

    def __post_init__(self) -> None:
        for part in (self.train, self.validation, self.test):
            shape = (part.num_devices, part.x.shape[1])
            if shape != (len(self.device_names), len(self.feature_names)):
                raise DataError(
                    f"a part has {counted(shape[0], 'device')} and "
                    f"{counted(shape[1], 'column')}, but there are names for "
                    f"{len(self.device_names)} and {len(self.feature_names)}: the "
                    "parts and the names must agree"
                )

    def __str__(self) -> str:
        kind = "regression" if self.classes is None else f"{len(self.classes)} classes"
        total = len(self.train) + len(self.validation) + len(self.test)
        return (
            f"{self.name}: {'SYNTHETIC, ' if self.synthetic else ''}"
            f"{counted(self.num_devices, 'device')}, {counted(total, 'row')} "
            f"({len(self.train)} train, {len(self.validation)} validation, "
            f"{len(self.test)} test), {counted(self.dim, 'column')}, {kind}, "
            f"dissimilarity {self.dissimilarity}"
        )

    __repr__ = __str__

    @property
    def num_devices(self) -> int:
        """M: the number of devices."""
        return self.train.num_devices

    @property
    def num_samples(self) -> Counts:
        """N_m: training rows per device; shape (M,)."""
        return self.train.sizes

    @property
    def dim(self) -> int:
        """The number of columns of a row."""
        return int(self.train.x.shape[1])

    @property
    def num_classes(self) -> int | None:
        """The number of classes; None for regression."""
        return None if self.classes is None else len(self.classes)

    def check_loss(self, loss: str) -> None:
        """Raise unless the loss fits the labels."""
        _fitting_loss(loss, self.num_classes)

    def problem(
        self,
        *,
        loss: str | None = None,
        l2: float = 0.0,
        dissimilarity: str | float | None = None,
        donors: Sequence[str] = (),
        features: "FeatureStep" = None,
    ) -> "Problem":
        """Return the public shape for a plan; reads no row, except those of donors.

        The shape is counts, columns and classes, and what the public encoding says
        about the rows' mean.

        Args:
            loss: By default logistic for two classes, softmax for more, huber for
                regression.
            l2: Weight of the L2 term.
            dissimilarity: How heterogeneous the devices are; by default that of the
                partition.
            donors: Names of devices that let the planner read their training rows. No
                epsilon covers what the plan reveals of these: a `NotPrivateWarning`.
            features: Another feature step, as for `Schema.with_features`: the shape
                that these rows would have with it. By default, the rows as they are.

        Raises:
            InvalidInputError: The loss does not fit the labels, or a donor is not
                known.
        """
        from fedbudget.problem import Problem

        schema, dim = self.schema, self.dim
        if features is not None:
            schema = self._expanded(features)
            dim = len(schema.feature_names)
        loss = _fitting_loss(loss, self.num_classes)
        problem = Problem(
            num_samples=self.num_samples,
            dim=dim,
            loss=loss,
            num_classes=self.num_classes,
            l2=l2,
            dissimilarity=(
                self.dissimilarity if dissimilarity is None else dissimilarity
            ),
            overrides=self._encoded_mean(schema, loss),
            schema="" if schema is None else schema.to_json(),
        )
        if not donors:
            return problem
        x, y = self._donated(donors)
        named = f"rows of {counted(len(donors), 'donor device')}, not private"
        return problem.with_public_sample(x, y, note=named)

    def _expanded(self, features: "FeatureStep") -> "Schema":
        """Return the schema with another feature step."""
        if self.schema is None:
            raise InvalidInputError(
                f"features {shown(features)} do not go with {self.name}, whose rows "
                "have no schema: leave them out",
                argument="features",
            )
        return self.schema.with_features(features)

    def _encoded_mean(
        self, schema: "Schema | None", loss: str
    ) -> dict[str, "Constant"]:
        """Return what the encoding says about the rows, as constants of a problem."""
        from fedbudget.data.encoding import (
            CENTRED_DECAY,
            CENTRED_GAP_DECAY,
            FOURIER_GAIN,
        )
        from fedbudget.problem import LEARNABLE_SHARE, Constant

        if self.centred:
            note = "columns have mean 0"
            values = {
                "spike_share": 0.0,
                "spectrum_decay": CENTRED_DECAY,
                "gap_decay": CENTRED_GAP_DECAY,
            }
        elif schema is not None:
            encoding = schema.encoding
            note = f"by the encoding: {encoding}"
            values = {
                "spike_share": encoding.spike_share,
                "spike_gap": encoding.spike_gap,
                "spectrum_decay": encoding.spectrum_decay,
                "gap_decay": encoding.gap_decay,
            }
            if schema.expansion is not None:
                values["learnable_share"] = LEARNABLE_SHARE[loss] + FOURIER_GAIN
        else:
            return {}
        return {
            name: Constant(value=value, source="assumed", note=note)
            for name, value in values.items()
        }

    def _donated(self, donors: Sequence[str]) -> tuple[Rows, Labels]:
        """Return the training rows of devices that consented to it, with a warning."""
        unknown = [name for name in donors if name not in self.device_names]
        if unknown:
            raise InvalidInputError(
                f"donor {unknown[0]!r} is not a device: name some of "
                f"{', '.join(self.device_names[:5])}, ...",
                argument="donors",
            )
        warnings.warn(
            f"the plan reads the training rows of {counted(len(donors), 'donor')}: no "
            "epsilon covers what it reveals of them, so each must have consented",
            NotPrivateWarning,
            stacklevel=3,
        )
        numbers = [self.device_names.index(name) for name in dict.fromkeys(donors)]
        part = _take_devices(self.train, numbers)
        return part.x, part.y


def arrays_of(x: Rows) -> tuple[NDArray[Any], ...]:
    """Return the arrays that hold dense or CSR rows."""
    return (x,) if isinstance(x, np.ndarray) else (x.data, x.indices, x.indptr)


def split_rows(
    x: Rows,
    y: Labels,
    device_ids: ArrayLike,
    *,
    num_devices: int | None = None,
    seed: int = 0,
    ordered: bool = False,
) -> tuple[Part, Part, Part]:
    """Split every device's rows at random: 80% train, 10% validation, 10% test.

    A device of n rows trains on int(0.8 n), at least one; int(0.9 n) - int(0.8 n) are
    for validation and the rest for test. Within a device the order is random as well.
    Vectorised over devices: a million of them take seconds.

    Args:
        x: Rows, dense or CSR; shape (n, dim).
        y: Labels; shape (n,).
        device_ids: The device of each row, 0 .. M-1; shape (n,).
        num_devices: M; by default the largest id plus one.
        seed: Seeds the choice of rows.
        ordered: Do not draw: a device's first rows train, its last ones are for test,
            so that neighbours in time do not leak from one part to another.

    Raises:
        DataError: A device has no row.

    >>> x, y = np.zeros((11, 2), np.float32), np.arange(11)
    >>> train, validation, test = split_rows(x, y, [0] * 10 + [1])
    >>> [part.sizes.tolist() for part in (train, validation, test)]
    [[8, 1], [1, 0], [1, 0]]
    """
    ids = np.asarray(device_ids, dtype=np.int64)
    counts = np.bincount(ids, minlength=num_devices or 0).astype(np.int64)
    if not counts.size or not counts.all():
        empty = int(np.argmin(counts)) if counts.size else 0
        raise DataError(
            f"device {empty} has no row: drop it, or use a partition that fills it"
        )
    # Keys are distinct, so every sort gives the same order: by device, then random.
    ranks = np.arange(len(ids))
    if not ordered:
        ranks = generator(seed, stream=1).permutation(len(ids))
    order = np.argsort(ids * len(ids) + ranks)
    ends = np.cumsum(counts)
    rank = np.arange(len(ids)) - np.repeat(ends - counts, counts)
    num_train = np.maximum(1, 8 * counts // 10)
    num_validation = 9 * counts // 10 - 8 * counts // 10
    first, second = num_train, num_train + num_validation
    part_of = (rank >= np.repeat(first, counts)).astype(np.int8)
    part_of += rank >= np.repeat(second, counts)
    sizes = (num_train, num_validation, counts - second)
    parts = [_take(x, y, order[part_of == k], size) for k, size in enumerate(sizes)]
    return parts[0], parts[1], parts[2]


def hold_out(data: Dataset, *, count: int, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split off devices at random; return the remaining ones and the held-out ones.

    >>> from fedbudget.data import load
    >>> remaining, held_out = hold_out(load("adult", split="iid"), count=4)
    >>> remaining.num_devices, held_out.num_devices
    (12, 4)
    """
    count = whole("count", count)
    if count >= data.num_devices:
        raise InvalidInputError(
            f"count is {count}, but there are {data.num_devices} devices and one must "
            f"train: hold out at most {data.num_devices - 1}"
        )
    order = generator(seed, stream=2).permutation(data.num_devices)
    held_out, remaining = np.sort(order[:count]), np.sort(order[count:])
    return (
        select_devices(data, remaining.tolist()),
        select_devices(data, held_out.tolist()),
    )


def all_rows(data: Dataset) -> Part:
    """Return training, validation and test rows together, device by device."""
    parts = (data.train, data.validation, data.test)
    owners = [np.repeat(np.arange(data.num_devices), part.sizes) for part in parts]
    order = np.argsort(np.concatenate(owners), kind="stable")
    if isinstance(data.train.x, np.ndarray):
        x: Any = np.concatenate([part.x for part in parts])
    else:
        from scipy.sparse import vstack

        x = vstack(cast(Any, [part.x for part in parts]), format="csr")
    y = np.concatenate([part.y for part in parts])
    return _take(x, y, order, np.sum([part.sizes for part in parts], axis=0))


def select_devices(data: Dataset, devices: Sequence[int]) -> Dataset:
    """Return the data of these devices only, in this order."""
    return replace(
        data,
        train=_take_devices(data.train, devices),
        validation=_take_devices(data.validation, devices),
        test=_take_devices(data.test, devices),
        device_names=tuple(data.device_names[m] for m in devices),
    )


def _fitting_loss(loss: str | None, num_classes: int | None) -> str:
    """Return the loss, or the default one for these labels; refuse an unfit one."""
    if num_classes is None:
        fitting: tuple[str, ...] = ("huber",)
        labels = "numbers"
    elif num_classes == 2:
        fitting, labels = ("logistic", *MARGIN_LOSSES, "softmax"), "2 classes"
    else:
        fitting, labels = ("softmax",), f"{num_classes} classes"
    if loss is None:
        return fitting[0]
    if loss not in fitting:
        raise InvalidInputError(
            f"loss {loss!r} does not fit labels that are {labels}: "
            f"use {' or '.join(fitting)}",
            argument="loss",
        )
    return loss


def _take(x: Rows, y: Labels, rows: NDArray[Any], sizes: Counts) -> Part:
    """Return the part made of these rows, which are sorted by device."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Part(x=cast(Rows, x[rows]), y=y[rows], offsets=offsets, owned=True)


def _take_devices(part: Part, devices: Sequence[int]) -> Part:
    for m in devices:
        part.device(m)  # raises if it does not exist
    rows: NDArray[np.int64] = np.concatenate(
        [np.arange(part.offsets[m], part.offsets[m + 1]) for m in devices]
    )
    sizes = part.sizes[list(devices)]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Part(x=part.x[rows], y=part.y[rows], offsets=offsets, owned=True)
