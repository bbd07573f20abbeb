"""Budgets of a device, prices, and the cost of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, PerDevice, floats, per_device, within
from fedbudget.errors import InvalidInputError

# Far above any use, and far below where the arithmetic of a plan overflows.
MOST_EPSILON, MOST_COST, LEAST_DELTA = 1e12, 1e100, 1e-100

DELTA = 1e-4  # the paper's; no larger one is planned

# Defaults.
COMMUNICATION_PRICE, COMPUTATION_PRICE = 100, 1  # of a round, of a step; the paper's
# Initial values in new configs, demos, UI pages and estimators; there is no default.
FIRST_EPSILON, FIRST_COST = 4.0, 1000.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """The privacy loss and the resource cost that each device may spend at most.

    Every field is one number for all devices, or one per device. A delta that is not
    given is planned from the devices' numbers of rows: see `planned_delta`.

    >>> Budget(epsilon=4.0, delta=1e-4, cost=1000)
    Budget(epsilon=4.0, delta=0.0001, cost=1000.0)
    """

    epsilon: PerDevice
    delta: PerDevice | None = None  # None: planned
    cost: PerDevice  # in the unit of the prices

    def __post_init__(self) -> None:
        checked: dict[str, PerDevice] = {
            "epsilon": within(
                "epsilon",
                self.epsilon,
                above=0,
                most=MOST_EPSILON,
                remedy="1 to 10 are usual",
            ),
            "cost": within(
                "cost",
                self.cost,
                above=0,
                most=MOST_COST,
                remedy="it must pay for at least one round",
            ),
        }
        if self.delta is not None:
            checked["delta"] = within(
                "delta",
                self.delta,
                least=LEAST_DELTA,
                below=1,
                remedy="use less than one over the number of samples of a device",
            )
        _set(self, checked)

    def for_rows(self, num_samples: ArrayLike) -> "Budget":
        """Return the budget of devices with these rows: its delta, or a planned one.

        >>> Budget(epsilon=4.0, cost=1000).for_rows([51, 1628])
        Budget(epsilon=4.0, delta=6e-05, cost=1000.0)
        """
        if self.delta is not None:
            return self
        return replace(self, delta=planned_delta(num_samples))

    def delta_or_raise(self) -> PerDevice:
        """Return delta; raise if it has yet to be planned."""
        if self.delta is None:
            raise InvalidInputError(
                "delta is not given, and there are no rows to plan it from: give one "
                "below 1 / (10 n) for a device of n rows, or use budget.for_rows",
                argument="delta",
            )
        return self.delta

    def per_device(self, num_devices: int) -> tuple[Array, Array, Array]:
        """Return epsilon, delta and cost as arrays with one entry per device."""
        return (
            per_device("epsilon", self.epsilon, num_devices),
            per_device("delta", self.delta_or_raise(), num_devices),
            per_device("cost", self.cost, num_devices),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """Prices of communication and computation: one number, or one per device.

    >>> prices = Prices(communication=100, computation=1)
    >>> float(prices.run_cost(rounds=5, tau=10, batch_size=256))
    550.0
    """

    communication: PerDevice  # c1: per round, for the download and the upload
    computation: PerDevice  # c2: per local step
    computation_per_sample: PerDevice = 0.0  # per sample in a local step, in addition

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
        """Return the cost of one local step, per device."""
        if np.all(floats(self.computation_per_sample) == 0):
            return floats(self.computation)
        per_sample = floats(self.computation_per_sample) * floats(batch_size)
        return floats(self.computation) + per_sample

    def run_cost(
        self, *, rounds: ArrayLike, tau: ArrayLike, batch_size: ArrayLike
    ) -> Array:
        """Return the cost of a run, per device (paper: cost)."""
        steps = self.step_cost(batch_size=batch_size) * floats(tau)
        return (floats(self.communication) + steps) * floats(rounds)

    def max_rounds(
        self, cost: ArrayLike, *, tau: ArrayLike, batch_size: ArrayLike
    ) -> float:
        """Return the number of rounds of tau steps that every device can pay for.

        Infinite if rounds are free. The cost of these rounds never exceeds a budget,
        whatever the rounding of the division.
        """
        round_cost = self.run_cost(rounds=1, tau=tau, batch_size=batch_size)
        budget = floats(cost)
        with np.errstate(divide="ignore", over="ignore"):
            ratio = float(np.min(budget / round_cost))
        rounds = float(np.floor(ratio))
        # The division can round up to a whole number only if it is close to one.
        close = np.isfinite(ratio) and ratio - rounds < 1e-9 * ratio
        if close and bool(np.any(rounds * round_cost > budget)):
            return rounds - 1
        return rounds


def check_devices(budget: Budget, prices: Prices, num_devices: int) -> None:
    """Raise unless every list has one entry per device."""
    for owner in (budget, prices):
        for name, value in vars(owner).items():
            per_device(name, value, num_devices)


def planned_delta(num_samples: ArrayLike) -> float:
    """Return a delta for devices with these training rows, one for all.

    It is the smaller of 1e-4 and 1 / (10 n) for the n rows of the largest device,
    rounded down to one digit: with probability delta anything may leak, also a row, so
    delta must be well below 1 / n.

    >>> planned_delta([51, 1628]), planned_delta(8400), planned_delta(1000)
    (6e-05, 1e-05, 0.0001)
    """
    limit = 10 * int(np.max(num_samples))
    power = len(str(limit - 1))  # the least whole number with 10^power >= limit
    return min(DELTA, float(f"{10**power // limit}e-{power}"))


def _set(frozen: Budget | Prices, values: Mapping[str, PerDevice]) -> None:
    lengths = {len(v) for v in values.values() if isinstance(v, np.ndarray)}
    if len(lengths) > 1:
        raise InvalidInputError(
            f"lists have {' and '.join(map(str, sorted(lengths)))} entries: give every "
            "list one entry per device, or a single number"
        )
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
