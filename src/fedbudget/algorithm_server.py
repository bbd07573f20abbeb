"""The server's side of a run: the model, its momentum, and what devices have spent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array

# What simulated devices keep between rounds: see `training.Replies`.
State: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(kw_only=True, eq=False)
class Server:
    """All that has to survive an interruption."""

    theta: Array
    velocity: Array
    tail: Array  # sum of the models that the release averages
    tail_count: int = 0
    rounds_done: int = 0
    devices: State = field(default_factory=dict)  # of simulated devices: see `State`
    # Spent by each device after the last round; None before the first.
    epsilon: Array | None = None
    cost: Array | None = None

    @classmethod
    def start(cls, num_params: int) -> "Server":
        """All devices start from zero."""
        theta, velocity, tail = np.zeros((3, num_params))
        return cls(theta=theta, velocity=velocity, tail=tail)

    def update(self, average: Array, *, momentum: float, in_tail: bool) -> None:
        """Take over a round's average, with heavy-ball momentum."""
        self.velocity = momentum * self.velocity + (average - self.theta)
        self.theta = self.theta + self.velocity
        if in_tail:
            self.tail = self.tail + self.theta
            self.tail_count += 1
        self.rounds_done += 1

    @property
    def release(self) -> Array:
        """The model to be released: the last, or the mean of the last ones."""
        return self.tail / self.tail_count if self.tail_count else self.theta

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint."""
        own = {
            name: np.asarray(value)
            for name, value in vars(self).items()
            if value is not None and name != "devices"
        }
        return own | {f"devices.{name}": x for name, x in self.devices.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Server":
        """Return the state of a checkpoint."""
        return cls(
            theta=arrays["theta"],
            velocity=arrays["velocity"],
            tail=arrays["tail"],
            tail_count=int(arrays["tail_count"]),
            rounds_done=int(arrays["rounds_done"]),
            epsilon=arrays.get("epsilon"),
            cost=arrays.get("cost"),
            devices={
                name.removeprefix("devices."): array
                for name, array in arrays.items()
                if name.startswith("devices.")
            },
        )
