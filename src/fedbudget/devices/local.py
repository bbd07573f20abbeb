"""The local steps of one device in NumPy, written to be read beside the paper.

This is the reference: the compiled kernels are tested against it. It knows no plans and
no transport, and is what a real device runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import InvalidInputError
from fedbudget.models import Floats, Labels, Loss, Rows

Sampling: TypeAlias = Literal["full", "fixed", "poisson"]
SAMPLINGS: tuple[Sampling, ...] = ("full", "fixed", "poisson")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How the rows of a step are drawn.

    full     every row, every step
    fixed    a fresh uniform subset of `size` rows each step, without replacement
    poisson  each row on its own with probability `size / n`; `size` stays the divisor
    """

    sampling: Sampling = "full"
    size: int | None = None  # X_m; none for the full batch

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise InvalidInputError(
                f"sampling {self.sampling!r} is not known: choose one of "
                f"{', '.join(SAMPLINGS)}"
            )
        if self.sampling != "full" and (self.size is None or self.size < 1):
            raise InvalidInputError(
                f"{self.sampling} batches need a size of at least 1, got {self.size}"
            )

    def divisor(self, num_samples: int) -> int:
        """Return X_m: a public number, never the count that Poisson sampling drew."""
        size = num_samples if self.size is None else self.size
        if size > num_samples:
            raise InvalidInputError(
                f"batch size {size} is above the device's {num_samples} rows: lower it"
            )
        return num_samples if self.sampling == "full" else size

    def draw(self, num_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows of one step."""
        size = self.divisor(num_samples)
        if self.sampling == "poisson":
            return np.flatnonzero(rng.random(num_samples) < size / num_samples)
        if size == num_samples:
            return np.arange(num_samples)
        return rng.choice(num_samples, size=size, replace=False)


def local_steps(
    theta: Floats,
    x: Rows,
    y: Labels,
    *,
    loss: Loss,
    tau: int,
    learning_rate: float,
    noise_std: float,
    batch: Batch,
    rng: np.random.Generator,
) -> Floats:
    """Return theta after tau noisy steps on one device (`local_update_rule_2`).

    The noise is added to the gradient of the data alone: the L2 term reads no data and
    changes nothing about what the noise hides.
    """
    for _ in range(tau):
        rows = batch.draw(len(y), rng)
        gradient = data_gradient(
            loss, theta, x[rows], y[rows], divisor=batch.divisor(len(y))
        )
        noise = noise_std * rng.standard_normal(len(theta))
        theta = theta - learning_rate * (gradient + noise + loss.l2 * theta)
    return theta


def data_gradient(
    loss: Loss, theta: Floats, x: Rows, y: Labels, *, divisor: int
) -> Floats:
    """Return the sum of the rows' gradients over `divisor`, without the L2 term."""
    slopes = loss.slopes(loss.scores(theta, x), y)
    return np.asarray((x.T @ slopes).T.reshape(-1) / divisor)


def weighted_mean(thetas: Sequence[Floats] | Floats, weights: Floats) -> Floats:
    """Return the server's average of the devices' models.

    The paper's `global_aggregation_rule_2` has all weights at 1/M.
    """
    return np.asarray(np.asarray(weights) @ np.stack(list(thetas)))
