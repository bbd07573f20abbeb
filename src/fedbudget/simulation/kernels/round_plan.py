"""What a round asks of every device, and what the kernels cannot do."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.algorithm import SAMPLINGS, Sampling
from fedbudget.errors import InvalidInputError
from fedbudget.simulation.kernels.layouts import PackedRows


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """What a round asks of every device; numbers may be one for all or one each."""

    tau: int
    learning_rate: float
    batch_size: ArrayLike  # X_m; not read for full batches
    noise_std: ArrayLike  # sigma_m
    weights: ArrayLike  # p_m; a device with weight zero does not take part
    sampling: Sampling = "fixed"
    momentum: float = 0.0  # of the server's update, between rounds
    drift_control: bool = False  # see `local.next_shift`


def check_plan(plan: RoundPlan, packed: PackedRows) -> None:
    """Refuse what the kernels, which check nothing, could not survive."""
    if plan.sampling not in SAMPLINGS:
        raise InvalidInputError(
            f"sampling {plan.sampling!r} is not known: choose one of {SAMPLINGS}"
        )
    if not 0 <= plan.momentum < 1:
        raise InvalidInputError(f"momentum must be in [0, 1), got {plan.momentum}")
    if plan.tau < 1 or not np.isfinite(plan.learning_rate):
        raise InvalidInputError(
            f"tau must be at least 1 and learning_rate finite, got tau={plan.tau}, "
            f"learning_rate={plan.learning_rate}"
        )
    sizes = per_device(plan.batch_size, packed, "batch_size")
    wrong = (sizes < 1) | (sizes > packed.num_samples)
    if plan.sampling != "full" and wrong.any():
        m = int(np.flatnonzero(wrong)[0])
        raise InvalidInputError(
            f"batch_size of device {m} must be 1 .. {packed.num_samples[m]}, its "
            f"number of rows, got {sizes[m]}"
        )
    for name in ("noise_std", "weights"):
        values = per_device(getattr(plan, name), packed, name)
        if not ((values >= 0) & np.isfinite(values)).all():
            raise InvalidInputError(
                f"{name} must be zero or positive and finite, got {values.min()} .. "
                f"{values.max()}"
            )


def per_device(values: ArrayLike, packed: PackedRows, name: str) -> NDArray[Any]:
    """Return one value per device."""
    array = np.asarray(values)
    if array.shape not in ((), (packed.num_devices,)):
        raise InvalidInputError(
            f"{name} must be one number or one for each of the {packed.num_devices} "
            f"devices, got shape {array.shape}"
        )
    return np.broadcast_to(array, (packed.num_devices,))
