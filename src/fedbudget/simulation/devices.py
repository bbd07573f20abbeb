"""Simulated devices: the `Devices` protocol on top of the compiled kernels."""

from hashlib import sha256
from typing import Any, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedbudget.algorithm import Sampling
from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number, per_device, seed_number
from fedbudget.data import Dataset, Part
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.ledger import Bools, Charge, Ledger, Turns
from fedbudget.losses import Loss
from fedbudget.planning import Plan
from fedbudget.simulation.kernels.layouts import PackedRows, pack_rows
from fedbudget.simulation.kernels.runs import RoundPlan, no_shifts, run_rounds
from fedbudget.simulation.measuring import measure
from fedbudget.simulation.personal import measure_personal
from fedbudget.training import Order, Replies


class SimulatedDevices:
    """The devices of a data set, with their ledgers, in memory.

    Everything is reproducible from the seed, including the noise: there is no privacy
    guarantee against anyone who knows the seed. Each device charges its ledger before
    it trains, and refuses a round that its budget does not allow, whatever the plan
    says. Noise is never reused: if a step is taken again, by a second run or by a
    second continuation of a run, it gets new noise.

    Args:
        data: The rows of every device.
        seed: Seed of the noise, the batches and the arrival of answers.
        budget: The limits of each device; without them no round is refused.
        prices: The prices that devices pay; without them, the plan's costs count.
        participation: Probability that a device's answer arrives in a round. A device
            whose answer is lost has still been charged.
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
        self.data = data
        self.participation = number("participation", participation, above=0, most=1)
        self.seed = seed_number(seed)
        for name, value in ({} if prices is None else vars(prices)).items():
            per_device(f"prices.{name}", value, data.num_devices)
        self._prices = prices
        self._packed: PackedRows | None = None
        # One ledger for the life of the devices: a second run adds to its spending.
        self.ledger = Ledger(budget, num_devices=data.num_devices)
        self._noise = 0  # number of the noise stream in use: see `_noise_seed`
        self._drawn: dict[
            int, int
        ] = {}  # noise stream -> number of steps already drawn
        # Charged rounds: noise stream, first step, digest of the plan.
        self._charged: set[tuple[int, int, bytes]] = set()
        self._digest: tuple[Plan | None, bytes] = None, b""  # of the last plan

    @property
    def num_devices(self) -> int:
        """M."""
        return self.data.num_devices

    @property
    def identity(self) -> dict[str, Any]:
        """Values that must be the same for an interrupted run to be resumed.

        `rows` is a checksum of the training rows; like everything in a simulation, it
        is not private.
        """
        train, checksum = self.data.train, 0
        x = [train.x] if isinstance(train.x, np.ndarray) else _arrays_of(train.x)
        for array in (*x, train.y, train.offsets):
            checksum = crc32(np.ascontiguousarray(array).data, checksum)
        return {
            "seed": self.seed,
            "participation": self.participation,
            "rows": f"{checksum:08x}",
        }

    @property
    def steps_taken(self) -> int:
        """Local steps of the longest run so far, with those of runs it continued."""
        return max(self._drawn.values(), default=0)

    def begin(self, plan: Plan) -> None:
        """Lay out the rows for a run of this plan, and count its prior spending.

        Raises:
            InvalidInputError: The plan does not fit the data, or does not keep the
                epsilons that it states.
        """
        check_plan(plan, self.data)
        self._rows(plan.model)
        self.ledger.count_prior(plan.prior_mu, plan.prior_releases)

    def run_round(self, order: Order) -> Replies:
        """Charge every selected device, then train those whose budget allows it."""
        self._noise = self._noise_of(order)
        if order.first_step < self._drawn.get(self._noise, 0):
            self._noise = 1 + max(self._drawn)  # never reuse noise
        selected = order.plan.takes_part(order.number)
        paid = self._pay(order.plan, order.first_step, selected)
        answered = paid & self._arrives(order.number)
        theta, shifts = order.theta, order.state.get("shifts")
        if answered.any():
            theta, shifts = self._average(order, answered, shifts)
        return Replies(
            theta=theta,
            state=({} if shifts is None else {"shifts": shifts})
            | {"noise": np.asarray(self._noise)},
            answered=answered,
            epsilon=self.ledger.epsilon_at(order.plan.delta),
            cost=self.ledger.cost,
            refused=self._refusals(order, selected & ~paid),
        )

    def _refusals(self, order: Order, refused: Bools) -> dict[int, str]:
        charge = self._charge(order.plan, order.first_step)
        affords = self.ledger.affords_cost(charge)
        message = "the round would overdraw this device's {} budget"
        return {
            int(m): message.format("privacy" if affords[m] else "cost")
            for m in np.flatnonzero(refused)
        }

    def catch_up(self, order: Order) -> None:
        """Charge the ledgers for the completed rounds of an interrupted run.

        Rounds that these devices ran themselves are charged already.
        """
        plan, self._noise = order.plan, self._noise_of(order)
        for done in range(order.number - 1):
            first_step = order.steps_before + done * plan.tau
            key = self._noise, first_step, self._digest_of(plan)
            if key not in self._charged:
                self._pay(plan, first_step, plan.takes_part(done + 1))

    def measure(self, theta: Array) -> dict[str, float]:
        """Return loss and accuracy as means over the devices; not private."""
        if self._packed is None:
            raise InvalidInputError("nothing to measure yet: begin a run first")
        return measure(self.data, self._packed.loss, theta)

    def measure_personal(self, theta: Array) -> dict[str, float]:
        """Let every device adapt a model to its own rows, and measure; not private.

        The result also has local-only models and the best constant guess.
        """
        if self._packed is None:
            raise InvalidInputError("nothing to measure yet: begin a run first")
        return measure_personal(self.data, self._packed.loss, theta)

    def _rows(self, loss: Loss) -> PackedRows:
        """Return the rows in the kernels' layout, packed once per loss."""
        if self._packed is None or self._packed.loss != loss:
            self._packed = packed_rows(self.data.train, loss)
        return self._packed

    def _noise_of(self, order: Order) -> int:
        """Return the number of the noise stream that a run has used so far."""
        return int(order.state.get("noise", self._noise))

    def _pay(self, plan: Plan, first_step: int, selected: Bools) -> Bools:
        """Charge a round to the selected devices, and count its noise as drawn."""
        self._charged.add((self._noise, first_step, self._digest_of(plan)))
        drawn = self._drawn.get(self._noise, 0)
        self._drawn[self._noise] = max(drawn, first_step + plan.tau)
        return self.ledger.charge(self._charge(plan, first_step), mask=selected)

    def _digest_of(self, plan: Plan) -> bytes:
        """Return the digest of a plan, computed once per plan."""
        if self._digest[0] is not plan:
            self._digest = plan, _digest(plan)
        return self._digest[1]

    def _charge(self, plan: Plan, first_step: int) -> Charge:
        cost = plan.cost / np.maximum(plan.device_rounds, 1)
        if self._prices is not None:
            cost = self._prices.run_cost(
                rounds=1, tau=plan.tau, batch_size=plan.batch_size
            )
        turns = None
        if plan.sampling == "cyclic":
            turns = Turns(
                deal=self._noise_seed(),  # the kernels shuffle with the same seed
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
        """Draw whose answers arrive in a round: a function of seed and round only."""
        rng = np.random.default_rng([self.seed, number, 0xA11])
        return np.asarray(rng.random(self.num_devices) < self.participation)

    def _noise_seed(self) -> int:
        """Return the seed of the noise stream in use; the first is the devices' own.

        Two runs with the same noise would reveal it: it cancels in their difference.
        """
        if self._noise == 0:
            return self.seed
        words = np.random.SeedSequence([self.seed, self._noise + 1]).generate_state(2)
        return int(words[0]) << 32 | int(words[1])

    def _average(
        self, order: Order, answered: Bools, shifts: NDArray[np.float32] | None
    ) -> tuple[Array, NDArray[np.float32] | None]:
        """Return the average, and the drift corrections (shifts) for the next round."""
        plan, rows = order.plan, self._rows(order.plan.model)
        # One round of the kernels: the server itself adds momentum between rounds.
        kernel_plan = round_plan(plan, np.where(answered, plan.weights, 0.0))
        if plan.drift_correction:
            shifts = no_shifts(rows, kernel_plan) if shifts is None else shifts.copy()
        models = run_rounds(
            rows,
            order.theta,
            kernel_plan,
            rounds=1,
            seed=self._noise_seed(),
            first_step=order.first_step,
            shifts=shifts,
        )
        return np.asarray(models[0]), shifts


def check_plan(plan: Plan, data: Dataset) -> None:
    """Raise unless the plan fits the data and keeps the epsilons that it states."""
    if plan.num_devices != data.num_devices:
        raise InvalidInputError(
            f"the plan is for {plan.num_devices} devices, the data have "
            f"{data.num_devices}: plan again for these data"
        )
    if plan.dim != data.dim:
        raise InvalidInputError(
            f"the plan is for rows of {plan.dim} columns, the data have "
            f"{data.dim}: plan again for these data"
        )
    data.check_loss(plan.loss)
    if plan.loss == "softmax" and plan.num_classes != data.num_classes:
        raise InvalidInputError(
            f"the plan is for {plan.num_classes} classes, the data have "
            f"{data.num_classes}: plan again for these data"
        )
    sizes = data.num_samples
    if (plan.num_samples != sizes).any():
        m = int(np.argmax(plan.num_samples != sizes))
        raise InvalidInputError(
            f"the plan is for {plan.num_samples[m]} training rows on device {m}, "
            f"which holds {sizes[m]}: plan again for these data"
        )
    plan.check_promise()


def _arrays_of(x: Any) -> tuple[NDArray[Any], ...]:
    return x.data, x.indices, x.indptr


def _digest(plan: Plan) -> bytes:
    """Return a digest of all fields of a plan."""
    digest = sha256()
    for name, value in vars(plan).items():
        content = value if isinstance(value, np.ndarray) else repr(value).encode()
        digest.update(name.encode() + b"=" + bytes(content))
    return digest.digest()


def round_plan(plan: Plan, weights: Array) -> RoundPlan:
    """Return the values of a plan that the kernels use."""
    return RoundPlan(
        tau=plan.tau,
        learning_rate=plan.learning_rate,
        batch_size=plan.batch_size,
        noise_std=plan.noise_std,
        weights=weights / weights.sum(),
        sampling=cast(Sampling, plan.sampling),
        momentum=plan.momentum,
        drift_correction=plan.drift_correction,
    )


def packed_rows(part: Part, loss: Loss) -> PackedRows:
    """Lay out the training rows of every device for the kernels."""
    if (part.sizes == 0).any():
        device = int(np.argmax(part.sizes == 0))
        raise DataError(f"device {device} has no training rows: leave it out")
    return pack_rows(part.x, part.y, part.offsets, loss=loss)
