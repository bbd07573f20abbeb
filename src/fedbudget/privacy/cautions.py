"""What a reader should know of the budgets before trusting a promise."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array

HARDLY_A_PROMISE = 100  # an epsilon above this


def weak_promises(
    epsilon: Array, delta: Array, num_samples: NDArray[np.int64]
) -> Iterator[str]:
    """Say where an epsilon or a delta promises a device next to nothing.

    >>> list(weak_promises(np.array([4.0]), np.array([1e-4]), np.array([100])))
    []
    """
    many = delta * num_samples >= 1
    if many.any():
        m = int(np.argmax(many))
        yield (
            f"delta {delta[m]:g} is not below one over the samples of device {m}, "
            f"{num_samples[m]}: it would allow to publish one of them"
        )
    large = epsilon > HARDLY_A_PROMISE
    if large.any():
        m = int(np.argmax(large))
        yield (
            f"epsilon {epsilon[m]:g} of device {m} is hardly a promise: above "
            f"{HARDLY_A_PROMISE}, it rules out next to nothing; 1 to 10 are usual"
        )
