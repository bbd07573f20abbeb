"""Four devices of different sizes, and the reference steps on their rows."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.algorithm import Batch, local_steps, next_shift, weighted_mean
from fedbudget.losses import Floats, Labels, Loss
from fedbudget.simulation.kernels.runs import RoundPlan

SIZES = np.array([70, 1, 33, 96])  # rows per device
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
WEIGHTS = np.array([0.4, 0.1, 0.2, 0.3])


def reference(
    loss: Loss,
    x: Any,
    y: Labels,
    theta: Floats,
    plan: RoundPlan,
    rounds: int,
    *,
    orders: Sequence[NDArray[np.int64] | None] = (None,) * len(SIZES),
) -> Floats:
    """Return the model after `rounds` rounds without noise."""
    shifts = [np.zeros_like(theta) for _ in SIZES]
    batch_size = np.broadcast_to(plan.batch_size, SIZES.shape)
    for number in range(rounds):
        replies = [
            local_steps(
                theta,
                x[a:b],
                y[a:b],
                loss=loss,
                tau=plan.tau,
                learning_rate=plan.learning_rate,
                noise_std=0.0,
                batch=Batch(sampling=plan.sampling, size=int(batch_size[m])),
                rng=np.random.default_rng(),
                shift=shifts[m],
                first_step=number * plan.tau,
                permutation=orders[m],
            )
            for m, (a, b) in enumerate(pairwise(OFFSETS))
        ]
        theta = weighted_mean(replies, np.asarray(plan.weights))
        if plan.drift_correction:
            shifts = [
                next_shift(shift, reply, theta, tau=plan.tau)
                for shift, reply in zip(shifts, replies, strict=True)
            ]
    return theta
