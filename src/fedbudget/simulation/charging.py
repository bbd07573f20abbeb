"""Devices in this process: their ledgers, which every round is charged to, once."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256

import numpy as np

from fedbudget.algorithm import State
from fedbudget.budget import Budget, Prices, personal_values
from fedbudget.checks import Array, per_device
from fedbudget.data import Dataset
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import InvalidInputError
from fedbudget.ledger import Bools, Charge, Ledger, Turns
from fedbudget.losses import Hinge, Logistic, Loss
from fedbudget.planning import Plan
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.privacy import Scope
from fedbudget.simulation.dissimilarity import GradientRelease, check_query_unit
from fedbudget.simulation.histograms import DISTANCE, Bins, histogram_rows
from fedbudget.simulation.personal import without_features
from fedbudget.training import Order


class ChargedDevices(ABC):
    """The ledgers of devices in memory, and what was charged to them.

    A run has a *stream* of random numbers: its number identifies the run's noise and
    the partition of its cyclic batches. It is in the state between rounds, so that a
    resumed run has the same one.

    Args:
        data: The rows of every device.
        budget: The limits of each device; without them no round is refused.
        prices: The prices that devices pay; without them, the plan's costs count.
    """

    def __init__(
        self, data: Dataset, *, budget: Budget | None, prices: Prices | None
    ) -> None:
        self.data = data
        for name, value in ({} if prices is None else personal_values(prices)).items():
            per_device(f"prices.{name}", value, data.num_devices)
        self._prices = prices
        if budget is not None:
            budget = budget.for_rows(data.num_samples)
        # One ledger for the life of the devices: a second run adds to its spending.
        self.ledger = Ledger(budget, num_devices=data.num_devices)
        self._stream = 0  # number of the stream in use
        self._drawn: dict[int, int] = {}  # stream -> number of steps already drawn
        self._scopes: set[Scope] = set()  # of all that was charged
        # Charged rounds: stream, first step, digest of the plan.
        self._charged: set[tuple[int, int, bytes]] = set()
        self._last_charge: tuple[Plan, Charge] | None = None
        self._queries = 0  # answered or refused
        self._digest: tuple[Plan | None, bytes] = None, b""  # of the last plan

    @property
    def num_devices(self) -> int:
        """M."""
        return self.data.num_devices

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee of a release of these data does not cover."""
        return self.data.caveats

    def steps_taken(self, state: State) -> int:
        """Return the local steps of the run that this state is of; 0 if of others."""
        stream = state.get("noise")
        return 0 if stream is None else self._drawn.get(int(stream), 0)

    def _admit(self, plan: Plan) -> None:
        """Raise if the plan's epsilons would not add up with those of the ledgers.

        They do for the same unit and adversary, and where what was charged protects
        more than the plan states: see `Scope.lacks`. A budget that does not say what
        the server sees leaves that to the plan, which states it.
        """
        budget = self.ledger.budget
        if plan.accountant == NOT_PRIVATE:
            return
        lacks = ""
        if budget is not None:
            trust = "sum" if plan.trust == "sum" else budget.trust
            lacks = plan.scope.lacks(budget.scope._replace(trust=trust))
        if lacks:
            raise InvalidInputError(
                f"the plan's releases {lacks}, as the devices' budgets require: plan "
                "with their unit, trust and colluders"
            )
        lacks = next(filter(None, (s.lacks(plan.scope) for s in self._scopes)), "")
        if lacks:
            raise InvalidInputError(
                f"earlier releases of these devices {lacks}, as this plan states: "
                "their epsilons do not add up; plan with the same unit, trust and "
                "colluders"
            )

    @abstractmethod
    def _new_stream(self) -> int:
        """Return the number of a stream that no step was drawn from."""

    @abstractmethod
    def _deal(self) -> int:
        """Return the number that identifies the stream's partition into batches."""

    @abstractmethod
    def _query_name(self, loss: Loss, noise_std: Array) -> str:
        """Return a name for a query's answer that no other release has."""

    @abstractmethod
    def _noisy_gradients(self, loss: Loss, noise_std: Array) -> Array:
        """Return mean gradients at theta = 0 with noise, for a charged query."""

    def noisy_gradients(
        self, loss: Loss, noise_std: Array, *, cost: Array
    ) -> GradientRelease:
        """Charge a query to every device, and answer it: see `QueriedDevices`."""
        name = self._charged_query(loss, noise_std, cost)
        gradients = self._noisy_gradients(loss, noise_std)
        return GradientRelease(name=name, gradients=gradients)

    def noisy_class_shares(self, noise_std: Array, *, cost: Array) -> GradientRelease:
        """Charge a query to every device, and answer it: see `thresholds`."""
        loss = Logistic()
        name = self._charged_query(loss, noise_std, cost)
        gradients = self._gradients_on(without_features(self.data), loss, noise_std)
        return GradientRelease(name=name, gradients=gradients)

    def noisy_histograms(
        self, bins: Bins, count: int, noise_std: Array, *, cost: Array
    ) -> GradientRelease:
        """Charge a query to every device, and answer it: see `histograms`.

        Args:
            bins: Of each training sample, computed from that sample alone.
            count: Of the bins of a histogram.
            noise_std: Per coordinate of a mean of rows; shape (M,).
            cost: Of the query, for devices without prices; shape (M,).

        Returns:
            The noisy share of the samples in every bin; shape (M, D count).
        """
        loss = Hinge()
        # A query is charged for rows that differ by 2; these differ by less.
        name = self._charged_query(loss, noise_std * (2 / DISTANCE), cost)
        rows = histogram_rows(self.data, bins, count)
        gradients = self._gradients_on(rows, loss, noise_std)
        scale = np.sqrt(bins.shape[1]) / LARGEST_NORM
        return GradientRelease(name=name, gradients=-scale * gradients)

    def _gradients_on(self, rows: Dataset, loss: Loss, noise_std: Array) -> Array:
        """Return noisy mean gradients on other rows of the same samples."""
        own, self.data = self.data, rows
        try:
            return self._noisy_gradients(loss, noise_std)
        finally:
            self.data = own

    def _count_prior(self, plan: Plan) -> None:
        """Count what was spent before the run; what was charged here counts once."""
        cost = 0.0 if plan.prior_cost is None else plan.prior_cost
        self.ledger.count_prior(plan.prior_mu, plan.prior_releases, cost)

    def _charged_query(self, loss: Loss, noise_std: Array, cost: Array) -> str:
        """Charge one noisy mean gradient to every device; return the query's name."""
        check_query_unit(self.ledger.budget)
        self._scopes.add(Scope())
        sizes = self.data.num_samples
        if self._prices is not None:
            cost = self._prices.run_cost(rounds=1, tau=1, batch_size=sizes)
        self._queries += 1
        name = self._query_name(loss, noise_std)
        multiplier = noise_std * sizes / loss.lipschitz
        charge = Charge(steps=1, noise_multiplier=multiplier, cost=cost)
        self.ledger.charge_release(name, charge)
        return name

    def catch_up(self, order: Order, refused: Collection[int] = ()) -> None:
        """Charge the ledgers for the completed rounds of an interrupted run.

        Rounds that these devices ran themselves are charged already.

        Args:
            order: The next one.
            refused: Devices that refused one of those rounds.

        Raises:
            InvalidInputError: Another device cannot pay for what it has released: its
                ledger would state less than that.
        """
        plan, self._stream = order.plan, self._stream_of(order)
        for done in range(order.number - 1):
            earlier = replace(order, number=done + 1)
            key = self._stream, earlier.first_step, self._digest_of(plan)
            if key not in self._charged:
                selected = plan.takes_part(earlier.number)
                unpaid = selected & ~self._pay(earlier, selected)
                for m in set(np.flatnonzero(unpaid).tolist()) - set(refused):
                    raise InvalidInputError(
                        f"device {m} has released round {earlier.number} of this run, "
                        "which its present budget does not pay for: resume with the "
                        "budgets that the run was begun with"
                    )

    def _select_stream(self, order: Order) -> None:
        """Select the stream of a round: never one that drew its steps before."""
        self._stream = self._stream_of(order)
        if order.first_step < self._drawn.get(self._stream, 0):
            self._stream = self._new_stream()

    def _stream_of(self, order: Order) -> int:
        """Return the number of the stream that a run has used so far."""
        return int(order.state.get("noise", self._stream))

    def _pay(self, order: Order, selected: Bools) -> Bools:
        """Charge a round to the selected devices, and count its steps as drawn."""
        plan, first_step = order.plan, order.first_step
        self._charged.add((self._stream, first_step, self._digest_of(plan)))
        self._scopes.add(plan.scope)
        drawn = self._drawn.get(self._stream, 0)
        self._drawn[self._stream] = max(drawn, first_step + plan.tau)
        return self.ledger.charge(self._charge(order), mask=selected)

    def _digest_of(self, plan: Plan) -> bytes:
        """Return the digest of a plan, computed once per plan."""
        if self._digest[0] is not plan:
            self._digest = plan, _digest(plan)
        return self._digest[1]

    def _charge(self, order: Order) -> Charge:
        """Return the charge of a round.

        Rounds differ in their cyclic batches, or in noise that falls.
        """
        plan = order.plan
        if self._last_charge is None or self._last_charge[0] is not plan:
            self._last_charge = plan, self._plain_charge(plan)
        charge = self._last_charge[1]
        if plan.noise_decay < 1:
            noise_std = plan.noise_std_of(order.number)
            multiplier = noise_std * plan.batch_size / plan.lipschitz
            return replace(charge, noise_multiplier=multiplier)
        per_row = plan.trust == "uploads" and plan.unit == "sample"
        if plan.sampling != "cyclic" or not per_row:
            return charge
        turns = Turns(
            deal=self._deal(),
            blocks=plan.blocks,
            batch_size=plan.batch_size,
            first_step=order.first_step,
        )
        return replace(charge, turns=turns)

    def _plain_charge(self, plan: Plan) -> Charge:
        prior = 0.0 if plan.prior_cost is None else plan.prior_cost
        cost = (plan.cost - prior) / np.maximum(plan.device_rounds, 1)
        if self._prices is not None:
            cost = self._prices.for_trust(plan.trust).run_cost(
                rounds=1, tau=plan.tau, batch_size=plan.batch_size
            )
        if plan.trust == "sum":  # one upload, whatever its batches
            return Charge(steps=1, noise_multiplier=plan.noise_multiplier, cost=cost)
        return Charge(
            steps=plan.tau,
            noise_multiplier=plan.noise_multiplier,
            sampling_probability=plan.sampling_probability,
            cost=cost,
        )

    def _refusals(self, order: Order, refused: Bools) -> dict[int, str]:
        """Return why devices refused a round."""
        if not refused.any():
            return {}
        charge = self._charge(order)
        affords, composes = (
            self.ledger.affords_cost(charge),
            self.ledger.composes(charge),
        )
        overdraws = "the round would overdraw this device's {} budget"
        reasons = np.where(
            affords, overdraws.format("privacy"), overdraws.format("cost")
        )
        differs = "after Poisson-sampled steps, this device takes no others"
        reasons = np.where(affords & ~composes, differs, reasons)
        return {int(m): str(reasons[m]) for m in np.flatnonzero(refused)}


def _digest(plan: Plan) -> bytes:
    """Return a digest of all fields of a plan."""
    digest = sha256()
    for name, value in vars(plan).items():
        content = value if isinstance(value, np.ndarray) else repr(value).encode()
        digest.update(name.encode() + b"=" + bytes(content))
    return digest.digest()
