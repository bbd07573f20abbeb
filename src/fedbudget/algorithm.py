"""The algorithm in NumPy, close to the paper's pseudocode: local steps, averages, sums.

The local steps are the reference: the compiled kernels (`simulation.kernels`) and the
steps of real devices (`fleet.device.exact_steps`) are tested against them. `Server`
holds the server's state: the model and its momentum. This module does not depend on
plans or transport.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, one_of
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Floats, Labels, Loss, Rows

Sampling: TypeAlias = Literal["full", "fixed", "poisson", "cyclic"]
SAMPLINGS: tuple[Sampling, ...] = ("full", "fixed", "poisson", "cyclic")

# State of simulated devices between rounds: see `training.Replies`.
State: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How the rows of a step are sampled.

    full     every row, every step
    fixed    a new uniform subset of `size` rows each step, without replacement
    poisson  each row independently with probability `size / n`; `size` stays the
             divisor
    cyclic   rows are partitioned once into n // size disjoint blocks of `size` rows,
             which the steps use in turn; the remaining rows are not used
    """

    sampling: Sampling = "full"
    size: int | None = None  # X_m; none for the full batch

    def __post_init__(self) -> None:
        one_of("sampling", self.sampling, SAMPLINGS)
        if self.sampling != "full" and (self.size is None or self.size < 1):
            raise InvalidInputError(
                f"{self.sampling} batches need a size of at least 1, got {self.size}"
            )

    def divisor(self, num_samples: int) -> int:
        """Return X_m: a public number, never the number of rows that Poisson drew."""
        size = num_samples if self.size is None else self.size
        if size > num_samples:
            raise InvalidInputError(
                f"batch size {size} is above the device's {num_samples} rows: lower it"
            )
        return num_samples if self.sampling == "full" else size

    def draw(
        self,
        num_samples: int,
        rng: "np.random.Generator",  # quoted: real devices do not load it
        *,
        step: int = 0,
        permutation: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Return the rows of one step.

        Cyclic batches depend on the step's number in the run and on a permutation of
        the rows. The permutation is fixed for the run and independent of the rows'
        values.
        """
        size = self.divisor(num_samples)
        if self.sampling == "cyclic":
            if permutation is None:
                raise InvalidInputError(
                    "cyclic batches need a permutation of the rows, got None: give "
                    "permutation, drawn once for the run"
                )
            block = step % (num_samples // size)
            return permutation[block * size : (block + 1) * size]
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
    rng: "np.random.Generator",  # quoted: real devices do not load it
    shift: Floats | float = 0.0,
    first_step: int = 0,
    permutation: NDArray[np.int64] | None = None,
) -> Floats:
    """Return theta after tau noisy steps on one device (`local_update_rule_2`).

    The noise is added to the gradient of the data only. The L2 term does not depend on
    the data, so it does not change the sensitivity.
    """
    for step in range(first_step, first_step + tau):
        rows = batch.draw(len(y), rng, step=step, permutation=permutation)
        gradient = data_gradient(
            loss, theta, x[rows], y[rows], divisor=batch.divisor(len(y))
        )
        noise = noise_std * rng.standard_normal(len(theta))
        theta = theta - learning_rate * (gradient + noise + loss.l2 * theta) + shift
    return theta


def next_shift(shift: Floats, reply: Floats, average: Floats, *, tau: int) -> Floats:
    """Return the shift that a device adds to theta in every step of its next round.

    Drift correction: with heterogeneous (unlike) devices, tau local steps move a device
    away from the average, by reply - average. The shift cancels this deviation: it
    corrects each of the tau steps by 1 / tau of it. The shifts' weighted mean is zero,
    so they do not move the average. It is SCAFFOLD's control variate (Karimireddy et
    al. 2020, option II) in the form of Scaffnew (Mishchenko et al. 2022).

    A device computes it from its own reply and the next order: no extra message is
    sent. Both were released already, so it costs no privacy.
    """
    return shift + (average - reply) / tau


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
    return np.asarray(np.asarray(weights) @ np.asarray(thetas))


def noisy_upload(
    theta: Floats,
    reply: Floats,
    *,
    weight: float,
    noise_std: float,
    rng: "np.random.Generator",  # quoted: real devices do not load it
    clip: float | None = None,
) -> Floats:
    """Return what a device adds to a sum: its weighted move, and its share of noise.

    This is noise once per upload: the reply is theta after `local_steps` without noise.
    The server sees only sums of uploads (`privacy.uploads` has the guarantee).
    """
    move = reply - theta
    if clip is not None:
        move = move * (clip / max(float(np.linalg.norm(move)), clip))
    return np.asarray(weight * move + noise_std * rng.standard_normal(len(theta)))


def model_of_sum(
    theta: Floats, uploads: Sequence[Floats] | Floats, weights: Floats
) -> Floats:
    """Return the server's model from the sum of the uploads that arrived.

    Without noise it is the weighted mean of these devices' models. The weights are
    public, so dividing by their sum costs no privacy.
    """
    return np.asarray(theta + np.sum(np.stack(list(uploads)), axis=0) / np.sum(weights))


@dataclass(kw_only=True, eq=False)
class Server:
    """The server's state: everything that a checkpoint stores."""

    theta: Array
    velocity: Array
    rounds_done: int = 0
    devices: State = field(default_factory=dict)  # of simulated devices

    @classmethod
    def start(cls, num_params: int) -> "Server":
        """Return the initial state: all devices start from zero."""
        theta, velocity = np.zeros((2, num_params))
        return cls(theta=theta, velocity=velocity)

    def update(self, average: Array, *, momentum: float, rate: float = 1.0) -> None:
        """Update the model by a round's average, with heavy-ball momentum.

        The rate multiplies the average's move. Both are post-processing of released
        models, and cost no privacy.
        """
        self.velocity = momentum * self.velocity + rate * (average - self.theta)
        self.theta = self.theta + self.velocity
        self.rounds_done += 1

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint."""
        own = {
            name: np.asarray(value)
            for name, value in vars(self).items()
            if name != "devices"
        }
        return own | {f"devices.{name}": x for name, x in self.devices.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Server":
        """Return the state of a checkpoint."""
        return cls(
            theta=arrays["theta"],
            velocity=arrays["velocity"],
            rounds_done=int(arrays["rounds_done"]),
            devices={
                name.removeprefix("devices."): array
                for name, array in arrays.items()
                if name.startswith("devices.")
            },
        )
