"""The devices' rows in the kernels' layout, packed once per part of a data set.

The arrays of a part do not change, so a second run on the same data finds its rows
packed. They are freed together with the part.
"""

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from fedbudget.checks import Array
from fedbudget.data import Part
from fedbudget.errors import DataError
from fedbudget.losses import Loss
from fedbudget.simulation.kernels.layouts import (
    LANE_BLOCK,
    Counts,
    Layout,
    PackedRows,
    pack_rows,
)

# Part -> (loss, outputs) -> its rows: labels depend on the loss, but not on its L2.
_packed: WeakKeyDictionary[Part, dict[tuple[str, int], PackedRows]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRows:
    """A part in blocks of LANE_BLOCK rows, for `measuring`."""

    rows: Layout  # "device" k of the layout is block k
    offsets: Counts  # shape (M + 1,): of the devices' rows
    weights: Array  # shape (M,): of each of a device's rows in the mean over devices


def packed_rows(part: Part, loss: Loss) -> PackedRows:
    """Return the training rows of every device in the kernels' layout."""
    if (part.sizes == 0).any():
        device = int(np.argmax(part.sizes == 0))
        raise DataError(f"device {device} has no training rows: leave it out")
    return _cached(part, loss, part.offsets)


def measured_rows(part: Part, loss: Loss) -> MeasuredRows:
    """Return a part that is not empty in blocks; some devices may have no rows."""
    sizes = part.sizes
    # Empty devices have no place in a layout: then all rows are those of one device.
    all_rows = np.array([0, len(part)])
    packed = _cached(part, loss, part.offsets if sizes.all() else all_rows)
    starts = np.append(np.arange(0, len(part), LANE_BLOCK), len(part))
    weights = np.zeros(len(sizes))
    weights[sizes > 0] = 1 / (np.count_nonzero(sizes) * sizes[sizes > 0])
    return MeasuredRows(
        rows=packed.rows._replace(offsets=starts.astype(np.int64)),
        offsets=np.array(part.offsets),  # a copy: see `layouts`
        weights=weights,
    )


def _cached(part: Part, loss: Loss, offsets: Counts) -> PackedRows:
    by_loss = _packed.setdefault(part, {})
    key = loss.name, loss.num_outputs
    if key not in by_loss:
        by_loss[key] = pack_rows(part.x, part.y, offsets, loss=loss)
    return replace(by_loss[key], loss=loss)
