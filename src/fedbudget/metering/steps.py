"""How long one local step takes, on rows made up for the purpose."""

from collections.abc import Callable

import numpy as np

from fedbudget.devices.local import Batch, local_steps
from fedbudget.models import Loss


def step_runner(
    loss: Loss, *, num_samples: int, dim: int, seed: int = 0
) -> Callable[[], None]:
    """Return a function that takes one noisy step over all rows of a device.

    The rows are random and dense: a device's own are not touched, and a step's time
    depends on their number and width alone.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_samples, dim)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True) + 1e-6
    y = rng.integers(max(2, loss.num_outputs), size=num_samples)
    theta, batch = np.zeros(loss.num_params(dim)), Batch()

    def step() -> None:
        local_steps(
            theta,
            x,
            y.astype(np.float64) if loss.name == "huber" else y,
            loss=loss,
            tau=1,
            learning_rate=1.0,
            noise_std=1.0,
            batch=batch,
            rng=rng,
        )

    return step
