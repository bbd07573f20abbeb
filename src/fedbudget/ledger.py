"""The ledger of devices: it adds up what they spend, and refuses to overdraw.

One `Ledger` serves one device or a whole simulated fleet; arrays have one entry per
device. A charge comes before any use of the data and is never reverted: a device that
trained and then failed to answer has still used its data.

Gaussian steps without sampling compose exactly by adding mu^2, also when the noise of a
later step depends on earlier answers (fully adaptive composition holds for Gaussian DP:
Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).

Disjoint batches that are taken in turn cost less (parallel composition). B consecutive
steps are a lap, and a row is in at most one of them. So a lap costs as much as one
step, and is charged when it begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import DELTA, Budget
from fedbudget.checks import Array, floats, whole
from fedbudget.errors import InvalidInputError
from fedbudget.privacy import (
    GDP,
    ZCDP,
    PldAccountant,
    accountant_named,
)

Bools: TypeAlias = NDArray[np.bool_]

# Relative tolerance: a sum of costs differs from their product by rounding errors.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Turns:
    """Disjoint batches that are taken in turn: step k takes batch k mod `blocks`."""

    deal: int  # identifies the partition of the rows into batches
    blocks: ArrayLike  # B: number of batches
    batch_size: ArrayLike  # X: rows of a batch
    first_step: int  # k of the round's first step


@dataclass(frozen=True, kw_only=True, eq=False)
class Charge:
    """The cost of one round for each device."""

    steps: int
    noise_multiplier: ArrayLike  # noise_std over one sample's share G / X; 0: no noise
    sampling_probability: ArrayLike = 1.0  # below 1: Poisson-sampled batches
    turns: Turns | None = None  # None: a row may be in every step
    cost: ArrayLike


def mu_squared(uses: ArrayLike, noise_multiplier: ArrayLike) -> Array:
    """Return the cost of Gaussian steps on a row: the square of Gaussian DP's mu.

    >>> float(mu_squared(10, 20.0))
    0.1
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(4 * floats(uses) / floats(noise_multiplier) ** 2)


class _Laps(NamedTuple):
    """The current lap of each device: each of its B steps is paid for once."""

    deal: NDArray[np.uint64]
    blocks: Array
    batch_size: Array
    noise_multiplier: Array  # that was charged
    taken: Array  # steps below this one are used: a second use is charged
    end: Array  # steps below this one belong to the lap

    @classmethod
    def none(cls, num_devices: int) -> "_Laps":
        zeros = [np.zeros(num_devices) for _ in range(5)]
        return cls(np.zeros(num_devices, dtype=np.uint64), *zeros)

    def begun_by(self, charge: Charge, turns: Turns) -> tuple[Array, "_Laps"]:
        """Return the number of laps that a charge begins, and the laps after it.

        Steps of a device's current lap are paid for: each once, with the same batches
        and at least the same noise. Any other step begins a new lap.
        """
        first, stop = turns.first_step, turns.first_step + charge.steps
        settings = [turns.blocks, turns.batch_size, charge.noise_multiplier]
        blocks, size, noise = (
            np.broadcast_to(floats(x), self.end.shape) for x in settings
        )
        deal = np.full(self.deal.shape, turns.deal, dtype=np.uint64)
        same = (self.deal == deal) & (self.blocks == blocks) & (self.batch_size == size)
        same &= (noise >= self.noise_multiplier) & (first >= self.taken)
        unpaid = np.where(same, np.maximum(first, self.end), first)
        laps = np.maximum(-((unpaid - stop) // blocks), 0.0)
        new = _Laps(deal, blocks, size, noise, np.full_like(self.end, stop), unpaid)
        new = new._replace(end=unpaid + laps * blocks)
        continued = self._replace(taken=np.maximum(self.taken, stop))
        return laps, continued.replaced(new, where=laps > 0)

    def replaced(self, new: "_Laps", *, where: Bools) -> "_Laps":
        return _Laps(*map(lambda x, y: np.where(where, x, y), new, self))


class _Released(NamedTuple):
    """All releases of the devices so far."""

    mu_sq: Array
    sampled: list[tuple[Array, Array, Array]]  # noise multiplier, probability, steps
    laps: _Laps | None  # None: no batches taken in turn


class Ledger:
    """The spending of devices: accepts charges within the budget, refuses others.

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
        self._released = _Released(np.zeros(num_devices), [], None)
        self._priors: dict[frozenset[str], Array] = {}  # mu^2, by names of releases
        self._prior_sq = np.zeros(num_devices)
        self._cost = np.zeros(num_devices)
        self.budget = budget  # None: charges are counted, none is refused
        if budget is None:
            self._limits = np.full((3, num_devices), np.inf)
            self._delta = np.full(num_devices, DELTA)
        else:
            epsilon, self._delta, cost = budget.per_device(num_devices)
            mu = self._plain.mu_from_epsilon(budget.epsilon, budget.delta)
            self._limits = np.stack(np.broadcast_arrays(mu**2, epsilon, cost))

    @property
    def cost(self) -> Array:
        """Cost spent so far; shape (M,)."""
        return self._cost.copy()

    @property
    def epsilon(self) -> Array:
        """Epsilon spent so far, at the budget's delta or the default; shape (M,)."""
        return self.epsilon_at(self._delta)

    def epsilon_at(self, delta: ArrayLike) -> Array:
        """Return the epsilon spent so far, at any delta; shape (M,)."""
        deltas = np.broadcast_to(floats(delta), (self.num_devices,))
        return self._epsilon(self._released, deltas)

    def count_prior(self, mu: ArrayLike, releases: Iterable[str] = ()) -> None:
        """Count what was spent before any run: private measurements on these rows.

        Every plan for the devices reports them; the same ones are counted once.

        Args:
            mu: Cost of all these measurements together.
            releases: Names of the measurements. A subset of another report is counted
                there. Other reports are added up, which overestimates if they overlap.
        """
        reported = frozenset(releases)
        mu_sq = np.broadcast_to(floats(mu) ** 2, (self.num_devices,))
        self._priors[reported] = np.maximum(self._priors.get(reported, 0.0), mu_sq)
        largest = [
            spent
            for names, spent in self._priors.items()
            # A report without names is never a subset of another.
            if not (names and any(names < others for others in self._priors))
        ]
        self._prior_sq = np.sum(largest, axis=0)

    def charge(self, charge: Charge, *, mask: Bools | None = None) -> Bools:
        """Charge the devices in `mask` that can pay; return which were charged.

        A device that cannot pay is not charged at all.
        """
        pays = self.affords_cost(charge)
        pays &= self._within_privacy(self._with(charge, pays))
        if mask is not None:
            pays &= mask
        self._cost = np.where(pays, self._cost + floats(charge.cost), self._cost)
        self._released = self._with(charge, pays)
        return pays

    def affords_cost(self, charge: Charge) -> Bools:
        """Return which devices can pay the cost; if refused, they lack privacy."""
        cost = self._cost + floats(charge.cost)
        return np.asarray(cost <= self._limits[2] * (1 + _ROUNDING))

    def count(self, charge: Charge) -> None:
        """Count an earlier charge of all devices, even if it exceeds the budget.

        A device that restarts reads its past charges; its owner may have lowered the
        budget since.
        """
        everyone = np.ones(self.num_devices, dtype=bool)
        self._cost = self._cost + floats(charge.cost)
        self._released = self._with(charge, everyone)

    def _with(self, charge: Charge, mask: Bools) -> _Released:
        """Return the releases after a charge of the devices in `mask`."""
        mu_sq, sampled, laps = self._released
        if np.all(floats(charge.sampling_probability) == 1):
            uses: Array | float = float(charge.steps)  # of any one row, at most
            if charge.turns is not None:
                before = laps or _Laps.none(self.num_devices)
                uses, after = before.begun_by(charge, charge.turns)
                laps = before.replaced(after, where=mask)
            added = mu_squared(uses, charge.noise_multiplier)
            used = mask & (np.asarray(uses) > 0)  # no use costs 0, even without noise
            return _Released(mu_sq + np.where(used, added, 0.0), sampled, laps)
        if charge.turns is not None:
            raise InvalidInputError(
                "a charge has turns and a sampling_probability below 1: batches are "
                "taken in turn or drawn, not both"
            )
        rates = floats(charge.noise_multiplier), floats(charge.sampling_probability)
        steps = np.where(mask, float(charge.steps), 0.0)
        if sampled and all(
            map(np.array_equal, sampled[-1], rates)
        ):  # the same settings
            steps, sampled = steps + sampled[-1][2], sampled[:-1]
        return _Released(mu_sq, [*sampled, (*rates, steps)], laps)

    def _within_privacy(self, released: _Released) -> Bools:
        if released.sampled:
            spent = self._epsilon(released, self._delta)
            return np.asarray(spent <= self._limits[1])
        return np.asarray(released.mu_sq + self._prior_sq <= self._limits[0])

    def _epsilon(self, released: _Released, delta: Array) -> Array:
        mu = np.sqrt(released.mu_sq + self._prior_sq)
        if released.sampled:
            pld = PldAccountant()
            return pld.epsilon_of_steps(released.sampled, delta=delta, prior_mu=mu)
        spent = np.where(np.isinf(mu), np.inf, 0.0)
        finite = (mu > 0) & np.isfinite(mu)
        spent[finite] = self._plain.epsilon_from_mu(mu[finite], delta[finite])
        return spent
