"""What a device may spend, what things cost, and what a run costs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, PerDevice, floats, per_device, within
from fedbudget.errors import InvalidInputError

# Far beyond any use, and far from where the arithmetic of a plan ends.
MOST_EPSILON, MOST_COST, LEAST_DELTA = 1e12, 1e100, 1e-100

# What is taken where nobody says otherwise.
DELTA = 1e-4  # the paper's
COMMUNICATION_PRICE, COMPUTATION_PRICE = 100, 1  # of a round, of a step; the paper's
# Where a user has to say: what first configs, demos, pages and estimators begin with.
FIRST_EPSILON, FIRST_COST = 4.0, 1000.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """The most that a device may lose in privacy and spend in resources.

    Every field is one number for all devices, or one per device.

    >>> Budget(epsilon=4.0, delta=1e-4, cost=1000)
    Budget(epsilon=4.0, delta=0.0001, cost=1000.0)
    """

    epsilon: PerDevice
    delta: PerDevice = DELTA
    cost: PerDevice  # in the unit of the prices

    def __post_init__(self) -> None:
        checked = {
            "epsilon": within(
                "epsilon",
                self.epsilon,
                above=0,
                most=MOST_EPSILON,
                remedy="1 to 10 are usual",
            ),
            "delta": within(
                "delta",
                self.delta,
                least=LEAST_DELTA,
                below=1,
                remedy="take less than one over the number of samples of a device",
            ),
            "cost": within(
                "cost",
                self.cost,
                above=0,
                most=MOST_COST,
                remedy="it must pay for at least one round",
            ),
        }
        _set(self, checked)

    def per_device(self, num_devices: int) -> tuple[Array, Array, Array]:
        """Return epsilon, delta and cost as arrays with one entry per device."""
        return (
            per_device("epsilon", self.epsilon, num_devices),
            per_device("delta", self.delta, num_devices),
            per_device("cost", self.cost, num_devices),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """What a device pays; one number for all devices, or one per device.

    >>> prices = Prices(communication=100, computation=1)
    >>> float(prices.run_cost(rounds=5, tau=10, batch_size=256))
    550.0
    """

    communication: PerDevice  # c1: per round, for the download and the upload
    computation: PerDevice  # c2: per local step
    computation_per_sample: PerDevice = 0.0  # per sample in a local step, on top

    def __post_init__(self) -> None:
        names = ("communication", "computation", "computation_per_sample")
        _set(
            self,
            {
                name: within(name, getattr(self, name), least=0, most=MOST_COST)
                for name in names
            },
        )

    def step_cost(self, *, batch_size: ArrayLike) -> Array:
        """Return what one local step costs each device."""
        if np.all(floats(self.computation_per_sample) == 0):
            return floats(self.computation)
        per_sample = floats(self.computation_per_sample) * floats(batch_size)
        return floats(self.computation) + per_sample

    def run_cost(
        self, *, rounds: ArrayLike, tau: ArrayLike, batch_size: ArrayLike
    ) -> Array:
        """Return what a run costs each device (paper: cost)."""
        steps = self.step_cost(batch_size=batch_size) * floats(tau)
        return (floats(self.communication) + steps) * floats(rounds)

    def max_rounds(
        self, cost: ArrayLike, *, tau: ArrayLike, batch_size: ArrayLike
    ) -> float:
        """Return how many rounds of tau steps a cost budget pays for on every device.

        Infinite where rounds are free. The product with the price of a round never
        exceeds a budget, whatever the division rounds to.
        """
        one = self.run_cost(rounds=1, tau=tau, batch_size=batch_size)
        budget = floats(cost)
        with np.errstate(divide="ignore", over="ignore"):
            ratio = float(np.min(budget / one))
        rounds = float(np.floor(ratio))
        # Only next to a whole number can the division have rounded across it.
        close = np.isfinite(ratio) and ratio - rounds < 1e-9 * ratio
        if close and bool(np.any(rounds * one > budget)):
            return rounds - 1
        return rounds


def check_devices(budget: Budget, prices: Prices, num_devices: int) -> None:
    """Raise unless every list has one entry per device."""
    for owner in (budget, prices):
        for name, value in vars(owner).items():
            per_device(name, value, num_devices)


def _set(frozen: Budget | Prices, values: Mapping[str, PerDevice]) -> None:
    lengths = {len(v) for v in values.values() if isinstance(v, np.ndarray)}
    if len(lengths) > 1:
        raise InvalidInputError(
            f"lists have {' and '.join(map(str, sorted(lengths)))} entries: give every "
            "list one entry per device, or a single number"
        )
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
