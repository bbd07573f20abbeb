"""A fleet on this machine: the compiled kernels behind the `Devices` seam."""

from functools import cached_property

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, within
from fedbudget.data import Dataset, Part
from fedbudget.devices.kernels import RoundPlan, run_rounds
from fedbudget.devices.rows import PackedRows, pack_rows
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.ledger import Bools, Charge, Ledger
from fedbudget.models import Loss
from fedbudget.planning import Plan
from fedbudget.training import Order, Replies


class SimulatedDevices:
    """The devices of a data set, with ledgers of their own, in memory.

    Everything is reproducible from the seed. Each device charges its ledger before it
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
        self.data, self.seed, self.participation = data, int(seed), participation
        self._budget, self._prices = budget, prices
        self._packed: PackedRows | None = None
        self._ledger: Ledger | None = None

    @property
    def num_devices(self) -> int:
        """M."""
        return self.data.num_devices

    def check(self, plan: Plan) -> None:
        """Raise unless the plan fits the data; open the ledgers."""
        if plan.dim != self.data.dim:
            raise InvalidInputError(
                f"the plan is for rows of {plan.dim} columns, the data have "
                f"{self.data.dim}: plan again for these data"
            )
        self.data.problem(loss=plan.loss, l2=plan.l2)  # the loss must fit the labels
        if plan.loss == "softmax" and plan.num_classes != self.data.num_classes:
            raise InvalidInputError(
                f"the plan is for {plan.num_classes} classes, the data have "
                f"{self.data.num_classes}: plan again for these data"
            )
        sizes = self.data.num_samples
        wrong = plan.batch_size > sizes
        wrong |= (plan.sampling == "full") & (plan.batch_size != sizes)
        if wrong.any():
            m = int(np.argmax(wrong))
            raise InvalidInputError(
                f"the plan has batches of {plan.batch_size[m]} for device {m}, which "
                f"holds {sizes[m]} rows: plan again for these data"
            )
        if self._packed is None or self._packed.loss != plan.model:
            self._packed = _packed(self.data.train, plan.model)
        accountant = plan.accountant if plan.accountant != "none" else "gdp"
        self._ledger = Ledger(
            self._budget, num_devices=self.num_devices, accountant=accountant
        )

    def run_round(self, order: Order) -> Replies:
        """Charge every device that is asked, then run those that can pay."""
        ledger, packed = self._opened(order.plan)
        asked = order.plan.weights > 0
        paid = ledger.charge(self._charge(order.plan), who=asked)
        answered = paid & self._arrives(order.number)
        theta = order.theta
        if answered.any():
            theta = self._average(packed, order, answered)
        return Replies(
            theta=theta,
            answered=answered,
            epsilon=ledger.epsilon,
            cost=ledger.cost,
            refused={
                int(m): "the round would overdraw this device's budget"
                for m in np.flatnonzero(asked & ~paid)
            },
        )

    def catch_up(self, plan: Plan, rounds: int) -> None:
        """Charge the ledgers for rounds that an interrupted run has done."""
        ledger, _ = self._opened(plan)
        for _ in range(rounds):
            ledger.charge(self._charge(plan), who=plan.weights > 0)

    def measure(self, theta: Array) -> dict[str, float]:
        """Return loss and accuracy as means over the devices; not private."""
        assert self._packed is not None  # check() has packed them
        loss = self._packed.loss
        found = {"train_loss": self._mean(loss, theta, self.data.train, "loss")}
        for name, part in (
            ("validation", self.data.validation),
            ("test", self.data.test),
        ):
            if len(part):
                found[f"{name}_loss"] = self._mean(loss, theta, part, "loss")
                if self.data.classes is not None:
                    value = self._mean(loss, theta, part, "accuracy")
                    found[f"{name}_accuracy"] = value
        return found

    def _opened(self, plan: Plan) -> tuple[Ledger, PackedRows]:
        if self._ledger is None or self._packed is None:
            self.check(plan)
        assert self._ledger is not None and self._packed is not None
        return self._ledger, self._packed

    def _charge(self, plan: Plan) -> Charge:
        cost = plan.cost / plan.rounds
        if self._prices is not None:
            cost = self._prices.run_cost(
                rounds=1, tau=plan.tau, batch_size=plan.batch_size
            )
        poisson = plan.sampling == "poisson"
        return Charge(
            steps=plan.tau,
            noise_multiplier=plan.noise_multiplier,
            sampling_probability=plan.batch_size / self.data.num_samples
            if poisson
            else 1.0,
            cost=cost,
        )

    def _arrives(self, number: int) -> Bools:
        """Draw whose answers arrive in a round; the same whenever it is asked."""
        rng = np.random.default_rng([self.seed, number, 0xA11])
        return np.asarray(rng.random(self.num_devices) < self.participation)

    def _average(self, packed: PackedRows, order: Order, answered: Bools) -> Array:
        plan = order.plan
        weights = np.where(answered, plan.weights, 0.0)
        asked = RoundPlan(
            tau=plan.tau,
            learning_rate=plan.learning_rate,
            batch_size=plan.batch_size,
            noise_std=plan.noise_std,
            weights=weights / weights.sum(),
            sampling=plan.sampling,  # type: ignore[arg-type]
        )
        models = run_rounds(
            packed,
            order.theta,
            asked,
            rounds=1,
            seed=self.seed,
            first_step=order.first_step,
        )
        return models[0]

    @cached_property
    def _owners(self) -> dict[int, np.ndarray]:
        """Which device each row belongs to, by part."""
        parts = (self.data.train, self.data.validation, self.data.test)
        return {id(p): np.repeat(np.arange(len(p.sizes)), p.sizes) for p in parts}

    def _mean(self, loss: Loss, theta: Array, part: Part, what: str) -> float:
        """Average over each device's own rows, then over the devices that have any."""
        scores = loss.scores(theta, part.x)
        values = (
            loss.losses(scores, part.y)
            if what == "loss"
            else (loss.predictions(scores) == part.y).astype(np.float64)
        )
        sums = np.bincount(self._owners[id(part)], values, len(part.sizes))
        some = part.sizes > 0
        return float(np.mean(sums[some] / part.sizes[some]))


def _packed(part: Part, loss: Loss) -> PackedRows:
    if (part.sizes == 0).any():
        device = int(np.argmax(part.sizes == 0))
        raise DataError(f"device {device} has no training rows: leave it out")
    return pack_rows(part.x, part.y, part.offsets, loss=loss)
