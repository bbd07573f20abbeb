"""Budgets of a device, prices, and the cost of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, PerDevice, floats, one_of, per_device, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.privacy.runs import TRUSTS, UNITS, Scope, Trust, Unit
from fedbudget.privacy.uploads import check_answers

# Far above any use, and far below where the arithmetic of a plan overflows.
MOST_EPSILON, MOST_COST, LEAST_DELTA = 1e12, 1e100, 1e-100

DELTA = 1e-4  # the paper's; no larger one is planned

# Defaults.
COMMUNICATION_PRICE, COMPUTATION_PRICE = 100, 1  # of a round, of a step; the paper's
# Initial values in new configs, demos, UI pages and estimators; there is no default.
FIRST_EPSILON, FIRST_COST = 4.0, 1000.0
TRUST: Trust = "uploads"
UNIT: Unit = "sample"


@dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """The privacy loss and the resource cost that each device may spend at most.

    Epsilon, delta and cost are one number for all devices, or one per device. A delta
    that is not given is planned from the devices' numbers of rows: see `planned_delta`.
    The other fields say what epsilon promises, and are the same for all devices.

    >>> Budget(epsilon=4.0, delta=1e-4, cost=1000)
    Budget(epsilon=4.0, delta=0.0001, cost=1000.0)
    >>> Budget(epsilon=1.0, cost=1000, trust="sum", least_answers=40)
    Budget(epsilon=1.0, cost=1000.0, trust='sum', least_answers=40)
    """

    epsilon: PerDevice
    delta: PerDevice | None = None  # None: planned
    cost: PerDevice  # in the unit of the prices
    # What the server sees: every upload, or only sums of uploads (secure aggregation),
    # in which devices share the noise.
    trust: Trust = TRUST
    unit: Unit = UNIT  # what epsilon protects: a sample, or all samples of a device
    # t: a sum of fewer answers is never seen. None: of all devices that take part: it
    # needs the least noise, and tolerates no lost answer. Only with trust "sum".
    least_answers: int | None = None
    colluders: int = 0  # c: devices that may be on the server's side; with trust "sum"

    def __post_init__(self) -> None:
        self._check_trust()
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

    def _check_trust(self) -> None:
        one_of("trust", self.trust, TRUSTS)
        one_of("unit", self.unit, UNITS)
        whole("colluders", self.colluders, least=0)
        if self.least_answers is not None:
            check_answers(self.least_answers, self.colluders)
            object.__setattr__(self, "least_answers", int(self.least_answers))
        object.__setattr__(self, "colluders", int(self.colluders))
        if self.trust == "sum":
            return
        for name, unset in (("least_answers", None), ("colluders", 0)):
            value = getattr(self, name)
            if value != unset:
                raise InvalidInputError(
                    f"{name} {value} is for trust 'sum', got trust {self.trust!r}: a "
                    "server that sees every upload needs no other device; leave it out",
                    argument=name,
                )

    def __repr__(self) -> str:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        defaults = {item.name: item.default for item in fields(self)}
        shown = [
            f"{name}={value!r}"
            for name, value in values.items()
            if isinstance(value, np.ndarray) or value != defaults[name]
        ]
        return f"Budget({', '.join(shown)})"

    @property
    def scope(self) -> Scope:
        """What epsilon protects, and against whom."""
        return Scope(self.unit, self.trust, self.colluders)

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
    # Per round of secure aggregation, whose masks and shares are messages too; it is
    # paid instead of `communication` if trust is "sum". None: the same.
    secure_round: PerDevice | None = None

    def __post_init__(self) -> None:
        _set(
            self,
            {
                name: within(name, value, least=0, most=MOST_COST)
                for name, value in vars(self).items()
                if value is not None
            },
        )

    def for_trust(self, trust: Trust) -> "Prices":
        """Return what devices pay under this trust, with its price of a round.

        >>> Prices(communication=100, computation=1, secure_round=130).for_trust("sum")
        Prices(communication=130.0, computation=1.0, computation_per_sample=0.0, ...)
        """
        if trust == "uploads" or self.secure_round is None:
            return replace(self, secure_round=None)
        return replace(self, communication=self.secure_round, secure_round=None)

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
        for name, value in personal_values(owner).items():
            per_device(name, value, num_devices)


def personal_values(owner: Budget | Prices) -> dict[str, PerDevice]:
    """Return the fields that may have one number per device, where they are given."""
    names = ("epsilon", "delta", "cost") if isinstance(owner, Budget) else vars(owner)
    values = {name: getattr(owner, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


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
