"""Devices that join after training: held out of it, and measured afterwards."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import whole
from fedbudget.data.dataset import Dataset, Part
from fedbudget.data.partitions import generator
from fedbudget.errors import InvalidInputError


def hold_out(data: Dataset, *, count: int, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Return the data without some devices drawn at random, and those devices.

    >>> from fedbudget.data import load
    >>> there, newcomers = hold_out(load("adult", split="iid"), count=4)
    >>> there.num_devices, newcomers.num_devices
    (12, 4)
    """
    count = whole("count", count)
    if count >= data.num_devices:
        raise InvalidInputError(
            f"count is {count}, but there are {data.num_devices} devices and one has "
            f"to train: hold out at most {data.num_devices - 1}"
        )
    order = generator(seed, stream=2).permutation(data.num_devices)
    late = np.sort(order[:count])
    return only(data, np.sort(order[count:]).tolist()), only(data, late.tolist())


def only(data: Dataset, devices: Sequence[int]) -> Dataset:
    """Return the data of these devices alone, in this order."""
    return replace(
        data,
        train=_take(data.train, devices),
        validation=_take(data.validation, devices),
        test=_take(data.test, devices),
        device_names=tuple(data.device_names[m] for m in devices),
    )


def _take(part: Part, devices: Sequence[int]) -> Part:
    for m in devices:
        part.device(m)  # raises for one that is not there
    rows: NDArray[np.int64] = np.concatenate(
        [np.arange(part.offsets[m], part.offsets[m + 1]) for m in devices]
    )
    sizes = part.sizes[list(devices)]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Part(x=part.x[rows], y=part.y[rows], offsets=offsets)
