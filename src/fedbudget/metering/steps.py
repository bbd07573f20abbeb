"""The local steps of a device, on rows made up for the purpose."""

from collections.abc import Callable

import numpy as np

from fedbudget.fleet.device.exact_steps import ExactRows, noisy_steps
from fedbudget.losses import Loss

TAU = 10  # steps at a time: noise is drawn for several at once, which costs less each
_NOISE_MULTIPLIER = 50.0  # noise over one row's share; times do not depend on it


def step_runner(loss: Loss, *, num_samples: int, dim: int) -> Callable[[], None]:
    """Return a function that takes TAU noisy steps over all rows of a device.

    They are the steps of a real device: exact sums, and noise from the operating
    system. The rows are random and dense: a device's own are not touched, and a step's
    time depends on their number and width alone.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, dim), dtype=np.float32)
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True) + 1e-6
    y = rng.integers(max(2, loss.num_outputs), size=num_samples)
    rows = ExactRows.rounded(x, y.astype(np.float64) if loss.name == "huber" else y)
    theta = np.zeros(loss.num_params(dim))

    def steps() -> None:
        noisy_steps(
            theta,
            rows,
            loss=loss,
            tau=TAU,
            learning_rate=1.0,
            noise_std=_NOISE_MULTIPLIER * loss.lipschitz / num_samples,
            batch_size=num_samples,
        )

    return steps
