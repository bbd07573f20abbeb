"""What devices have spent, and the refusal to spend more than they may.

One `Ledger` holds one device or a whole simulated fleet, an entry of each array per
device. A charge is made before data is touched, and is never taken back: a device that
trained and then failed to answer has still used its data.

Gaussian steps without sampling compose exactly by adding mu^2, also when the noise of a
later step was chosen after seeing earlier answers (fully adaptive composition holds for
Gaussian DP: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import Budget
from fedbudget.checks import Array, floats, whole
from fedbudget.privacy import (
    GDP,
    ZCDP,
    PldAccountant,
    accountant_named,
)

Bools: TypeAlias = NDArray[np.bool_]

# A sum of costs may differ from their product by rounding, not by more.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Charge:
    """What one round would cost every device."""

    steps: int
    noise_multiplier: ArrayLike  # noise over one sample's share G / X; 0 is no noise
    sampling_probability: ArrayLike = 1.0  # below 1: Poisson-sampled batches
    cost: ArrayLike


class Ledger:
    """The accounts of devices: charges what fits, refuses what does not.

    >>> ledger = Ledger(Budget(epsilon=1.0, delta=1e-4, cost=250), num_devices=1)
    >>> charge = Charge(steps=10, noise_multiplier=40.0, cost=100)
    >>> [bool(ledger.charge(charge)[0]) for _ in range(3)]
    [True, True, False]
    """

    def __init__(
        self, budget: Budget | None, *, num_devices: int, accountant: str = "gdp"
    ) -> None:
        self.num_devices = whole("num_devices", num_devices)
        self._plain = ZCDP if accountant_named(accountant) is ZCDP else GDP
        self._mu_sq = np.zeros(num_devices)
        self._prior_sq = np.zeros(num_devices)
        self._sampled: list[tuple[Array, Array, Array]] = []
        self._cost = np.zeros(num_devices)
        self.budget = budget  # None: everything is counted, nothing refused
        if budget is None:
            self._limits = np.full((3, num_devices), np.inf)
            self._delta = np.full(num_devices, 1e-4)
        else:
            epsilon, self._delta, cost = budget.per_device(num_devices)
            mu = self._plain.mu_from_epsilon(budget.epsilon, budget.delta)
            self._limits = np.stack(np.broadcast_arrays(mu**2, epsilon, cost))

    @property
    def cost(self) -> Array:
        """Spent so far; shape (M,)."""
        return self._cost.copy()

    @property
    def epsilon(self) -> Array:
        """Spent so far, at the budget's delta; shape (M,)."""
        return self._epsilon(self._mu_sq, self._sampled)

    def count_prior(self, mu: ArrayLike) -> None:
        """Count what was spent before any run: constants measured on these rows.

        Told again, as every plan for the devices does, it is not counted twice.
        """
        self._prior_sq = np.maximum(self._prior_sq, floats(mu) ** 2)

    def charge(self, charge: Charge, *, who: Bools | None = None) -> Bools:
        """Charge the devices that can pay, of those in `who`, and say which they are.

        A device that cannot pay is not charged at all.
        """
        cost = self._cost + floats(charge.cost)
        pays: Bools = cost <= self._limits[2] * (1 + _ROUNDING)
        pays &= self._within_privacy(*self._with(charge, pays))
        if who is not None:
            pays &= who
        self._cost = np.where(pays, cost, self._cost)
        self._mu_sq, self._sampled = self._with(charge, pays)
        return pays

    def _with(
        self, charge: Charge, who: Bools
    ) -> tuple[Array, list[tuple[Array, Array, Array]]]:
        """Return what would have been released after a charge of those in `who`."""
        if np.all(floats(charge.sampling_probability) == 1):
            with np.errstate(divide="ignore"):
                added = 4 * charge.steps / floats(charge.noise_multiplier) ** 2
            return self._mu_sq + np.where(who, added, 0.0), self._sampled
        kind = floats(charge.noise_multiplier), floats(charge.sampling_probability)
        steps, before = np.where(who, float(charge.steps), 0.0), self._sampled
        if before and all(map(np.array_equal, before[-1], kind)):  # the same goes on
            steps, before = steps + before[-1][2], before[:-1]
        return self._mu_sq, [*before, (*kind, steps)]

    def _within_privacy(
        self, mu_sq: Array, sampled: list[tuple[Array, Array, Array]]
    ) -> Bools:
        if sampled:
            return np.asarray(self._epsilon(mu_sq, sampled) <= self._limits[1])
        return np.asarray(mu_sq + self._prior_sq <= self._limits[0])

    def _epsilon(
        self, mu_sq: Array, sampled: list[tuple[Array, Array, Array]]
    ) -> Array:
        mu = np.sqrt(mu_sq + self._prior_sq)
        if sampled:
            pld = PldAccountant()
            return pld.epsilon_of_steps(sampled, delta=self._delta, prior_mu=mu)
        spent = np.where(np.isinf(mu), np.inf, 0.0)
        some = (mu > 0) & np.isfinite(mu)
        spent[some] = self._plain.epsilon_from_mu(mu[some], self._delta[some])
        return spent
