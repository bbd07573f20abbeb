"""A fleet on this machine: the compiled kernels behind the `Devices` seam."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, whole, within
from fedbudget.data import Dataset, Part
from fedbudget.devices.kernels import no_shifts, run_rounds
from fedbudget.devices.local import Sampling
from fedbudget.devices.measuring import measure
from fedbudget.devices.personal import measure_personal
from fedbudget.devices.round_plan import RoundPlan
from fedbudget.devices.rows import PackedRows, pack_rows
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.ledger import Bools, Charge, Ledger, Turns
from fedbudget.models import Loss
from fedbudget.planning import Plan
from fedbudget.training import Order, Replies


class SimulatedDevices:
    """The devices of a data set, with ledgers of their own, in memory.

    Everything is reproducible from the seed, also the noise: nothing is promised
    against anyone who knows it. Each device charges its ledger before it
    trains, and refuses what its budget does not allow, whatever the plan says.

    Args:
        data: The rows of every device.
        seed: Of the noise, the batches and who answers.
        budget: What each device allows itself; without one nothing is refused.
        prices: What a round costs each device; without them, what the plan says.
        participation: Probability that a device's answer arrives in a round. One that
            does not has still been charged.
    """

    def __init__(
        self,
        data: Dataset,
        *,
        seed: int = 0,
        budget: Budget | None = None,
        prices: Prices | None = None,
        participation: float = 1.0,
    ) -> None:
        within("participation", participation, above=0, most=1)
        self.data, self.participation = data, participation
        self.seed = whole("seed", seed, least=0, most=2**64 - 1)
        self._prices = prices
        self._packed: PackedRows | None = None
        # One ledger for the life of the devices: a second run adds to what they spent.
        self.ledger = Ledger(budget, num_devices=data.num_devices)
        self._runs = 0  # begun so far; one that goes on `after` another is part of it

    @property
    def num_devices(self) -> int:
        """M."""
        return self.data.num_devices

    def check(self, plan: Plan) -> None:
        """Raise unless the plan fits the data."""
        if plan.dim != self.data.dim:
            raise InvalidInputError(
                f"the plan is for rows of {plan.dim} columns, the data have "
                f"{self.data.dim}: plan again for these data"
            )
        self.data.check_loss(plan.loss)
        if plan.loss == "softmax" and plan.num_classes != self.data.num_classes:
            raise InvalidInputError(
                f"the plan is for {plan.num_classes} classes, the data have "
                f"{self.data.num_classes}: plan again for these data"
            )
        sizes = self.data.num_samples
        if (plan.num_samples != sizes).any():
            m = int(np.argmax(plan.num_samples != sizes))
            raise InvalidInputError(
                f"the plan is for {plan.num_samples[m]} training rows on device {m}, "
                f"which holds {sizes[m]}: plan again for these data"
            )
        self._rows(plan.model)
        self.ledger.count_prior(plan.prior_mu, plan.prior_releases)

    def run_round(self, order: Order) -> Replies:
        """Charge every device that is asked, then run those that can pay."""
        if order.first_step == 0:
            self._runs += 1
        asked = order.plan.takes_part(order.number)
        charge = self._charge(order.plan, order.first_step)
        paid = self.ledger.charge(charge, who=asked)
        answered = paid & self._arrives(order.number)
        theta, shifts = order.theta, order.state.get("shifts")
        if answered.any():
            theta, shifts = self._average(order, answered, shifts)
        return Replies(
            theta=theta,
            state={} if shifts is None else {"shifts": shifts},
            answered=answered,
            epsilon=self.ledger.epsilon_at(order.plan.delta),
            cost=self.ledger.cost,
            refused=self._refusals(charge, asked & ~paid),
        )

    def _refusals(self, charge: Charge, who: Bools) -> dict[int, str]:
        affords = self.ledger.affords_cost(charge)
        words = "the round would overdraw this device's {} budget"
        return {
            int(m): words.format("privacy" if affords[m] else "cost")
            for m in np.flatnonzero(who)
        }

    def catch_up(self, plan: Plan, rounds: int) -> None:
        """Charge the ledgers for rounds that an interrupted run has done."""
        for done in range(rounds):
            charge = self._charge(plan, done * plan.tau)
            self.ledger.charge(charge, who=plan.takes_part(done + 1))

    def measure(self, theta: Array) -> dict[str, float]:
        """Return loss and accuracy as means over the devices; not private."""
        if self._packed is None:
            raise InvalidInputError("nothing to measure yet: check a plan first")
        return measure(self.data, self._packed.loss, theta)

    def measure_personal(self, theta: Array) -> dict[str, float]:
        """Let every device adapt a model to its own rows, and measure; not private.

        Beside the personal models stand what devices reach on their own rows alone,
        with nothing sent, and the best constant guess.
        """
        if self._packed is None:
            raise InvalidInputError("nothing to measure yet: check a plan first")
        return measure_personal(self.data, self._packed.loss, theta)

    def _rows(self, loss: Loss) -> PackedRows:
        """Return the rows as the kernels want them, packed once."""
        if self._packed is None or self._packed.loss != loss:
            self._packed = packed_rows(self.data.train, loss)
        return self._packed

    def _charge(self, plan: Plan, first_step: int) -> Charge:
        cost = plan.cost / np.maximum(plan.device_rounds, 1)
        if self._prices is not None:
            cost = self._prices.run_cost(
                rounds=1, tau=plan.tau, batch_size=plan.batch_size
            )
        turns = None
        if plan.sampling == "cyclic":
            turns = Turns(
                deal=self._noise_seed(),  # the kernels deal by it, too
                blocks=plan.blocks,
                batch_size=plan.batch_size,
                first_step=first_step,
            )
        return Charge(
            steps=plan.tau,
            noise_multiplier=plan.noise_multiplier,
            sampling_probability=plan.sampling_probability,
            turns=turns,
            cost=cost,
        )

    def _arrives(self, number: int) -> Bools:
        """Draw whose answers arrive in a round; the same whenever it is asked."""
        rng = np.random.default_rng([self.seed, number, 0xA11])
        return np.asarray(rng.random(self.num_devices) < self.participation)

    def _noise_seed(self) -> int:
        """Return the seed of this run's noise; a second run must not repeat the first.

        Two runs with the same noise would give it away: their difference is without.
        """
        if self._runs <= 1:
            return self.seed
        words = np.random.SeedSequence([self.seed, self._runs]).generate_state(2)
        return int(words[0]) << 32 | int(words[1])

    def _average(
        self, order: Order, answered: Bools, shifts: NDArray[np.float32] | None
    ) -> tuple[Array, NDArray[np.float32] | None]:
        """Return the average, and the shifts of drift control for the next round."""
        plan, rows = order.plan, self._rows(order.plan.model)
        # One round of kernels: momentum between rounds is the server's to add.
        asked = round_plan(plan, np.where(answered, plan.weights, 0.0))
        if plan.drift_control:
            shifts = no_shifts(rows, asked) if shifts is None else shifts.copy()
        models = run_rounds(
            rows,
            order.theta,
            asked,
            rounds=1,
            seed=self._noise_seed(),
            first_step=order.first_step,
            shifts=shifts,
        )
        return np.asarray(models[0]), shifts


def round_plan(plan: Plan, weights: Array) -> RoundPlan:
    """Return what the kernels need of a plan."""
    return RoundPlan(
        tau=plan.tau,
        learning_rate=plan.learning_rate,
        batch_size=plan.batch_size,
        noise_std=plan.noise_std,
        weights=weights / weights.sum(),
        sampling=cast(Sampling, plan.sampling),
        momentum=plan.momentum,
        drift_control=plan.drift_control,
    )


def packed_rows(part: Part, loss: Loss) -> PackedRows:
    """Lay out the training rows of every device for the kernels."""
    if (part.sizes == 0).any():
        device = int(np.argmax(part.sizes == 0))
        raise DataError(f"device {device} has no training rows: leave it out")
    return pack_rows(part.x, part.y, part.offsets, loss=loss)
