"""What devices have spent, and the refusal to spend more than they may.

One `Ledger` holds one device or a whole simulated fleet, an entry of each array per
device. A charge is made before data is touched, and is never taken back: a device that
trained and then failed to answer has still used its data.

Gaussian steps without sampling compose exactly by adding mu^2, also when the noise of a
later step was chosen after seeing earlier answers (fully adaptive composition holds for
Gaussian DP: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).

Disjoint batches that are taken in turn cost less (parallel composition): of B steps in
a row, which are a lap, a row is in one at most. So a lap costs what one step costs, and
is charged when it begins.
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

# A sum of costs may differ from their product by rounding, not by more.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Turns:
    """Disjoint batches that are taken in turn: step k takes number k mod `blocks`."""

    deal: int  # which dealing of the rows: another one makes other batches
    blocks: ArrayLike  # B: how many batches
    batch_size: ArrayLike  # X: rows of each
    first_step: int  # k of the round's first step


@dataclass(frozen=True, kw_only=True, eq=False)
class Charge:
    """What one round would cost every device."""

    steps: int
    noise_multiplier: ArrayLike  # noise over one sample's share G / X; 0 is no noise
    sampling_probability: ArrayLike = 1.0  # below 1: Poisson-sampled batches
    turns: Turns | None = None  # None: a row may be in every step
    cost: ArrayLike


def mu_squared(uses: ArrayLike, noise_multiplier: ArrayLike) -> Array:
    """Return what Gaussian steps on a row cost: the square of Gaussian DP's mu.

    >>> float(mu_squared(10, 20.0))
    0.1
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(4 * floats(uses) / floats(noise_multiplier) ** 2)


class _Laps(NamedTuple):
    """The lap that each device is in: its next B steps are paid for, once each."""

    deal: NDArray[np.uint64]
    blocks: Array
    batch_size: Array
    noise_multiplier: Array  # that was charged for
    taken: Array  # steps below this one are taken: a second time, they are charged
    end: Array  # steps below this one are in the lap

    @classmethod
    def none(cls, num_devices: int) -> "_Laps":
        zeros = [np.zeros(num_devices) for _ in range(5)]
        return cls(np.zeros(num_devices, dtype=np.uint64), *zeros)

    def begun_by(self, charge: Charge, turns: Turns) -> tuple[Array, "_Laps"]:
        """Return how many laps a charge begins, and the laps that devices are in then.

        Steps of the lap that a device is in are paid for: those of the same batches,
        each once, with no less noise. Any other step begins a lap of its own.
        """
        first, stop = turns.first_step, turns.first_step + charge.steps
        like = [turns.blocks, turns.batch_size, charge.noise_multiplier]
        blocks, size, noise = (np.broadcast_to(floats(x), self.end.shape) for x in like)
        deal = np.full(self.deal.shape, turns.deal, dtype=np.uint64)
        same = (self.deal == deal) & (self.blocks == blocks) & (self.batch_size == size)
        same &= (noise >= self.noise_multiplier) & (first >= self.taken)
        unpaid = np.where(same, np.maximum(first, self.end), first)
        laps = np.maximum(-((unpaid - stop) // blocks), 0.0)
        new = _Laps(deal, blocks, size, noise, np.full_like(self.end, stop), unpaid)
        new = new._replace(end=unpaid + laps * blocks)
        going_on = self._replace(taken=np.maximum(self.taken, stop))
        return laps, going_on.replaced(new, where=laps > 0)

    def replaced(self, new: "_Laps", *, where: Bools) -> "_Laps":
        return _Laps(*map(lambda x, y: np.where(where, x, y), new, self))


class _Released(NamedTuple):
    """All that devices have released so far."""

    mu_sq: Array
    sampled: list[tuple[Array, Array, Array]]  # noise multiplier, probability, steps
    laps: _Laps | None  # None: no batches were taken in turn


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
        self._released = _Released(np.zeros(num_devices), [], None)
        self._priors: dict[frozenset[str], Array] = {}  # mu^2, by what was measured
        self._prior_sq = np.zeros(num_devices)
        self._cost = np.zeros(num_devices)
        self.budget = budget  # None: everything is counted, nothing refused
        if budget is None:
            self._limits = np.full((3, num_devices), np.inf)
            self._delta = np.full(num_devices, DELTA)
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
        """Spent so far, at the budget's delta, or the default one; shape (M,)."""
        return self.epsilon_at(self._delta)

    def epsilon_at(self, delta: ArrayLike) -> Array:
        """Return what was spent so far, at any delta; shape (M,)."""
        at = np.broadcast_to(floats(delta), (self.num_devices,))
        return self._epsilon(self._released, at)

    def count_prior(self, mu: ArrayLike, releases: Iterable[str] = ()) -> None:
        """Count what was spent before any run: constants measured on these rows.

        Told again, as every plan for the devices does, it is not counted twice.

        Args:
            mu: What all these measurements together have cost.
            releases: Their names. Those of one plan that are also among another's are
                counted there; else the two are added up, which is too much if they
                share some.
        """
        told = frozenset(releases)
        mu_sq = np.broadcast_to(floats(mu) ** 2, (self.num_devices,))
        self._priors[told] = np.maximum(self._priors.get(told, 0.0), mu_sq)
        largest = [
            spent
            for names, spent in self._priors.items()
            # What has no names may be anything: it is never part of the rest.
            if not (names and any(names < others for others in self._priors))
        ]
        self._prior_sq = np.sum(largest, axis=0)

    def charge(self, charge: Charge, *, who: Bools | None = None) -> Bools:
        """Charge the devices that can pay, of those in `who`, and say which they are.

        A device that cannot pay is not charged at all.
        """
        pays = self.affords_cost(charge)
        pays &= self._within_privacy(self._with(charge, pays))
        if who is not None:
            pays &= who
        self._cost = np.where(pays, self._cost + floats(charge.cost), self._cost)
        self._released = self._with(charge, pays)
        return pays

    def affords_cost(self, charge: Charge) -> Bools:
        """Say whose cost budget has room: who is refused all the same lacks privacy."""
        cost = self._cost + floats(charge.cost)
        return np.asarray(cost <= self._limits[2] * (1 + _ROUNDING))

    def count(self, charge: Charge) -> None:
        """Count a charge that all devices made before, whether or not it fits now.

        A device that starts again reads its past charges, and its owner may have
        lowered the budget since.
        """
        everyone = np.ones(self.num_devices, dtype=bool)
        self._cost = self._cost + floats(charge.cost)
        self._released = self._with(charge, everyone)

    def _with(self, charge: Charge, who: Bools) -> _Released:
        """Return what would have been released after a charge of those in `who`."""
        mu_sq, sampled, laps = self._released
        if np.all(floats(charge.sampling_probability) == 1):
            uses: Array | float = float(charge.steps)  # of any one row, at most
            if charge.turns is not None:
                before = laps or _Laps.none(self.num_devices)
                uses, after = before.begun_by(charge, charge.turns)
                laps = before.replaced(after, where=who)
            added = mu_squared(uses, charge.noise_multiplier)
            some = who & (np.asarray(uses) > 0)  # nothing is 0 also without noise
            return _Released(mu_sq + np.where(some, added, 0.0), sampled, laps)
        if charge.turns is not None:
            raise InvalidInputError(
                "a charge has turns and a sampling_probability below 1: batches are "
                "taken in turn or drawn, not both"
            )
        kind = floats(charge.noise_multiplier), floats(charge.sampling_probability)
        steps = np.where(who, float(charge.steps), 0.0)
        if sampled and all(map(np.array_equal, sampled[-1], kind)):  # the same goes on
            steps, sampled = steps + sampled[-1][2], sampled[:-1]
        return _Released(mu_sq, [*sampled, (*kind, steps)], laps)

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
        some = (mu > 0) & np.isfinite(mu)
        spent[some] = self._plain.epsilon_from_mu(mu[some], delta[some])
        return spent
