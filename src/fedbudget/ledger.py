"""The ledger of devices: it adds up what they spend, and refuses to overdraw.

One `Ledger` serves one device or a whole simulated fleet; arrays have one entry per
device. A charge comes before any use of the data and is never reverted: a device that
trained and then failed to answer has still used its data.

Gaussian steps without sampling compose exactly by adding mu^2, also when the noise of a
later step depends on earlier answers (fully adaptive composition holds for Gaussian DP:
Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).

Poisson-sampled steps have no such theorem. What holds: K steps whose noise and sampling
probability are *fixed in advance* are dominated by the K-fold product of one dominating
pair, whatever the model of each step depends on (Zhu, Dong and Wang 2022, Theorem 10),
and stopping early is post-processing of that product. So a ledger claims amplification
only if a device's first charge is sampled, and then accepts only steps that the first
one dominates: with at least its noise, and at most its probability. Sampled steps of
any other device are counted without amplification, as Gaussian steps.

Disjoint batches that are taken in turn cost less (parallel composition). B consecutive
steps are a lap, and a row is in at most one of them. So a lap costs as much as one
step, and is charged when it begins.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import DELTA, Budget
from fedbudget.checks import Array, floats, whole
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.privacy import (
    GDP,
    ZCDP,
    PldAccountant,
    accountant_named,
    rounded_up,
)

Bools: TypeAlias = NDArray[np.bool_]

_FEW = 256  # epsilons that are converted in advance, at most
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

    Statement: a step with noise multiplier z is (2 / z)-GDP for a replaced row, so n
    of them have mu^2 = 4 n / z^2 together: `NoisyGradients.mu` has the proof.

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

        Proof that this covers every row: the steps of a lap are at most B in a row, of
        different batches of one partition, and each is taken once. So a row is in at
        most one of them, with at least the noise that was charged: the lap is as
        private as that step (`NoisyGradients.laps`), also if steps of it are left out.
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


class _Sampled(NamedTuple):
    """Sampled steps that amplification is claimed for, all like a device's first."""

    noise_multiplier: Array
    probability: Array
    steps: Array  # 0: a device without such steps

    @classmethod
    def none(cls, num_devices: int) -> "_Sampled":
        one = np.ones(num_devices)
        return cls(noise_multiplier=one, probability=one, steps=np.zeros(num_devices))

    @property
    def mu_sq(self) -> Array:
        """The cost of the steps without amplification."""
        return mu_squared(self.steps, self.noise_multiplier)

    def dominates(self, charge: Charge) -> Bools:
        """Return where a charge's steps cost at most as much as those before."""
        noise, probability = charge.noise_multiplier, charge.sampling_probability
        return np.asarray(
            (floats(noise) >= self.noise_multiplier)
            & (floats(probability) <= self.probability)
        )

    def with_steps(self, charge: Charge, *, where: Bools) -> "_Sampled":
        first = where & (self.steps == 0)
        return _Sampled(
            np.where(first, floats(charge.noise_multiplier), self.noise_multiplier),
            np.where(first, floats(charge.sampling_probability), self.probability),
            np.where(where, self.steps + charge.steps, self.steps),
        )

    def without(self, where: Bools) -> "_Sampled":
        return self._replace(steps=np.where(where, 0.0, self.steps))


class _Released(NamedTuple):
    """All releases of the devices so far."""

    mu_sq: Array
    added: Array  # to mu_sq by the last charge
    growth: Array  # of what was added, since the charge before
    sampled: _Sampled | None  # None: no sampled steps
    laps: _Laps | None  # None: no batches taken in turn

    def forecast(self, devices: NDArray[np.int64], count: int) -> Array:
        """Return mu^2 of some devices now and after further charges, if they go on so.

        Shape (count, devices).
        """
        factors = self.growth[devices] ** np.arange(1, count)[:, np.newaxis]
        charges = [self.mu_sq[devices], *(self.added[devices] * factors)]
        return np.asarray(np.cumsum(charges, axis=0))

    def only(self, devices: Bools) -> "_Released":
        """Return the charges of some devices, without amplification."""
        mu_sq, added, growth = self.mu_sq, self.added, self.growth
        return _Released(mu_sq[devices], added[devices], growth[devices], None, None)


class _Epsilons:
    """Epsilons of devices whose mu^2 grows steadily, converted in advance.

    A conversion of one value takes as long as one of fifty. After a second charge,
    those of the next charges are converted, too: twice as many each time that there are
    too few. Values of mu^2 are rounded up in the 14th digit: forecasts have rounding
    errors of their own.
    """

    def __init__(self, convert: Callable[..., Array]) -> None:
        self._convert = convert
        self._by_pair: dict[tuple[float, float], float] = {}  # of mu^2 and delta
        self._ahead = 1

    def at(self, released: _Released, delta: Array, prior_sq: Array) -> Array:
        """Return the epsilon of each device with mu^2 + prior_sq above 0."""
        total = _rounded_up(released.mu_sq + prior_sq)
        if len(total) > _FEW:  # many at a time already
            return self._convert(np.sqrt(total), delta)
        pairs = list(zip(total.tolist(), delta.tolist(), strict=True))
        missing = {pair: i for i, pair in enumerate(pairs) if pair not in self._by_pair}
        if missing:
            some = np.array(list(missing.values()))
            later = released.forecast(some, max(1, min(self._ahead, _FEW // len(some))))
            later = _rounded_up(later + prior_sq[some])
            deltas = np.broadcast_to(delta[some], later.shape)
            keys = zip(later.ravel().tolist(), deltas.ravel().tolist(), strict=True)
            epsilon = self._convert(np.sqrt(later), deltas).ravel().tolist()
            # Earlier charges are not looked up again.
            current = {p: self._by_pair[p] for p in pairs if p not in missing}
            self._by_pair = current | dict(zip(keys, epsilon, strict=True))
            self._ahead = min(2 * self._ahead, _FEW)
        return np.array([self._by_pair[pair] for pair in pairs])


def _rounded_up(mu_sq: Array) -> Array:
    """Return positive values, rounded up to 44 bits."""
    mantissa, exponent = np.frexp(mu_sq)
    return np.asarray(np.ldexp(np.ceil(np.ldexp(mantissa, 44)), exponent - 44))


def _together(reports: Mapping[frozenset[str], Array]) -> Array:
    """Return mu^2, or the cost, of all reported measurements; exact or too high.

    A report counts at least as much as all reports of a part of its measurements:
    whoever reports more names and less spending erases nothing.
    """
    total = np.zeros(1)
    for names, spent in reports.items():
        if any(names < others for others in reports):
            continue
        parts = {part: value for part, value in reports.items() if part < names}
        total = total + np.maximum(spent, _together(parts))
    return total


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
        nothing = np.zeros(num_devices)
        self._released = _Released(nothing, nothing, nothing + 1, None, None)
        self._epsilons = _Epsilons(self._plain.epsilon_from_mu)
        self._priors: dict[frozenset[str], Array] = {}  # mu^2, by names of releases
        self._prior_sq = np.zeros(num_devices)
        self._prior_costs: dict[frozenset[str], Array] = {}  # by the same names
        self._prior_cost = np.zeros(num_devices)
        self._cost = np.zeros(num_devices)
        self.budget = budget  # None: charges are counted, none is refused
        if budget is None:
            self._limits = np.full((3, num_devices), np.inf)
            self._delta = np.full(num_devices, DELTA)
        else:
            epsilon, self._delta, cost = budget.per_device(num_devices)
            mu = self._plain.mu_from_epsilon(budget.epsilon, budget.delta_or_raise())
            self._limits = np.stack(np.broadcast_arrays(mu**2, epsilon, cost))

    @property
    def cost(self) -> Array:
        """Cost spent so far; shape (M,)."""
        return self._cost + self._prior_cost

    @property
    def epsilon(self) -> Array:
        """Epsilon spent so far, at the budget's delta or the default; shape (M,)."""
        return self.epsilon_at(self._delta)

    def epsilon_at(self, delta: ArrayLike) -> Array:
        """Return the epsilon spent so far, at any delta; shape (M,)."""
        deltas = np.broadcast_to(floats(delta), (self.num_devices,))
        return self._epsilon(self._released, deltas)

    def count_prior(
        self, mu: ArrayLike, releases: Iterable[str] = (), cost: ArrayLike = 0.0
    ) -> None:
        """Count what was spent before any run: private measurements on these rows.

        Every plan for the devices reports them; the same ones are counted once.

        Args:
            mu: Privacy cost of all these measurements together.
            releases: Names of the measurements. A subset of another report is counted
                there, and that one at least as high. Other reports are added up, which
                overestimates if they overlap.
            cost: Cost of all these measurements together.

        Raises:
            InvalidInputError: Something was spent, and has no name: another one without
                a name could not be told from it.
        """
        reported = frozenset(releases)
        mu_sq = np.broadcast_to(floats(mu) ** 2, (self.num_devices,))
        costs = np.broadcast_to(floats(cost), (self.num_devices,))
        if not reported and (mu_sq.any() or costs.any()):
            raise InvalidInputError(
                f"a measurement of cost {costs.max():g} and mu "
                f"{float(np.sqrt(mu_sq.max())):g} has no name: name it, so that it is "
                "counted once"
            )
        self._priors[reported] = np.maximum(self._priors.get(reported, 0.0), mu_sq)
        self._prior_sq = np.asarray(_together(self._priors))
        before = self._prior_costs.get(reported, 0.0)
        self._prior_costs[reported] = np.maximum(before, costs)
        self._prior_cost = np.asarray(_together(self._prior_costs))

    def charge(self, charge: Charge, *, mask: Bools | None = None) -> Bools:
        """Charge the devices in `mask` that can pay; return which were charged.

        A device that cannot pay is not charged at all.
        """
        pays, released = self._payable(charge, mask)
        self._cost = np.where(pays, self._cost + floats(charge.cost), self._cost)
        self._released = released
        return pays

    def charge_release(self, name: str, charge: Charge) -> None:
        """Charge all devices for a measurement, which plans will report by its name.

        A plan that reports it adds nothing: see `count_prior`. It must be charged
        before any row is read.

        Raises:
            InfeasibleBudgetError: A device cannot pay; then none is charged.
        """
        pays, _ = self._payable(charge)
        if not pays.all():
            raise InfeasibleBudgetError(self._overdraft(int(np.argmin(pays)), charge))
        mu_sq = mu_squared(charge.steps, charge.noise_multiplier)
        self.count_prior(np.sqrt(mu_sq), {name}, charge.cost)

    def _overdraft(self, device: int, charge: Charge) -> str:
        """Return why a device cannot pay: what it has spent, and what is asked."""
        mu = np.sqrt(mu_squared(charge.steps, charge.noise_multiplier))
        epsilon = self._plain.epsilon_from_mu(mu, self._delta)
        asked, cost = (
            float(np.broadcast_to(floats(value), (self.num_devices,))[device])
            for value in (epsilon, charge.cost)
        )
        _, limit, most = self._limits[:, device]
        return (
            f"device {device} has spent epsilon {rounded_up(self.epsilon[device])} of "
            f"{limit:g} and cost {self.cost[device]:g} of {most:g}, and cannot pay "
            f"epsilon {rounded_up(asked)} and cost {cost:g} more: ask for less, or "
            "raise its budget"
        )

    def _payable(
        self, charge: Charge, mask: Bools | None = None
    ) -> tuple[Bools, _Released]:
        """Return who in `mask` can pay a charge, and the releases after it."""
        affords = self.affords_cost(charge) & self.composes(charge)
        if mask is not None:
            affords &= mask
        released = self._with(charge, affords)
        pays = affords & self._within_privacy(released)
        if not np.array_equal(pays, affords):
            released = self._with(charge, pays)
        return pays, released

    def affords_cost(self, charge: Charge) -> Bools:
        """Return which devices can pay the cost; if refused, they lack privacy."""
        cost = self.cost + floats(charge.cost)
        return np.asarray(cost <= self._limits[2] * (1 + _ROUNDING))

    def composes(self, charge: Charge) -> Bools:
        """Return which devices can add a charge to what they have released.

        All can, except after sampled steps: see the module's docstring. Without a
        budget, such a charge is counted, and amplification is no longer claimed.
        """
        sampled = self._released.sampled
        if sampled is None or self.budget is None:
            return np.ones(self.num_devices, dtype=np.bool_)
        return np.asarray((sampled.steps == 0) | sampled.dominates(charge))

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
        mu_sq, before_added, _, sampled, laps = self._released
        drawn = bool(np.any(floats(charge.sampling_probability) < 1))
        if drawn and charge.turns is not None:
            raise InvalidInputError(
                "a charge has turns and a sampling_probability below 1: batches are "
                "taken in turn or drawn, not both"
            )
        uses: Array | float = float(charge.steps)  # of any one row, at most
        if charge.turns is not None:
            before = laps or _Laps.none(self.num_devices)
            uses, after = before.begun_by(charge, charge.turns)
            laps = before.replaced(after, where=mask)
        plain = mask  # devices that claim no amplification for these steps
        if drawn or sampled is not None:
            sampled = sampled or _Sampled.none(self.num_devices)
            amplified = self._amplifies(charge, sampled) & mask
            plain = mask & ~amplified
            # What was claimed before is counted again, without amplification.
            mu_sq = mu_sq + np.where(plain, sampled.mu_sq, 0.0)
            sampled = sampled.with_steps(charge, where=amplified).without(plain)
        used = plain & (np.asarray(uses) > 0)  # no use costs 0, even without noise
        added = np.where(used, mu_squared(uses, charge.noise_multiplier), 0.0)
        # Noise that falls from round to round adds more each time, by a steady factor.
        steady = (added > 0) & (before_added > 0) & np.isfinite(added + before_added)
        growth = np.divide(added, before_added, out=np.ones_like(added), where=steady)
        return _Released(mu_sq + added, added, np.clip(growth, 0.5, 2.0), sampled, laps)

    def _amplifies(self, charge: Charge, sampled: _Sampled) -> Bools:
        """Return where amplification holds for a charge's steps."""
        first = (self._released.mu_sq + self._prior_sq == 0) & (sampled.steps == 0)
        first &= floats(charge.sampling_probability) < 1
        continued = (sampled.steps > 0) & sampled.dominates(charge)
        return np.asarray(first | continued)

    def _within_privacy(self, released: _Released) -> Bools:
        if released.sampled is not None:
            spent = self._epsilon(released, self._delta)
            return np.asarray(spent <= self._limits[1])
        return np.asarray(released.mu_sq + self._prior_sq <= self._limits[0])

    def _epsilon(self, released: _Released, delta: Array) -> Array:
        charged, prior, sampled = released.mu_sq, self._prior_sq, released.sampled
        spent = np.zeros(self.num_devices)
        if sampled is not None:
            amplified = (sampled.steps > 0) & (charged + prior == 0)
            if amplified.any():
                spent[amplified] = PldAccountant().epsilon_of_steps(
                    *(column[amplified] for column in sampled), delta=delta[amplified]
                )
            charged = np.where(amplified, 0.0, charged + sampled.mu_sq)
        finite = (charged + prior > 0) & np.isfinite(charged + prior)
        if finite.any():
            plain = released._replace(mu_sq=charged).only(finite)
            spent[finite] = self._epsilons.at(plain, delta[finite], prior[finite])
        return np.where(np.isinf(charged + prior), np.inf, spent)
