"""Simulated devices: the `Devices` protocol on top of the compiled kernels."""

from hashlib import sha256
from typing import Any, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedbudget.algorithm import Sampling
from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number, seed_number
from fedbudget.data import Dataset
from fedbudget.data.dataset import arrays_of
from fedbudget.errors import InvalidInputError
from fedbudget.ledger import Bools
from fedbudget.losses import Loss
from fedbudget.planning import Plan
from fedbudget.privacy import Kind
from fedbudget.simulation.charging import ChargedDevices
from fedbudget.simulation.dissimilarity import device_gradient
from fedbudget.simulation.kernels.runs import RoundPlan
from fedbudget.simulation.lookahead import Lookahead, Setting
from fedbudget.simulation.measuring import accuracies, measure_details, measure_new
from fedbudget.simulation.packing import packed_rows
from fedbudget.simulation.personal import adapt_all, measure_adapted
from fedbudget.training import Order, Replies


class SimulatedDevices(ChargedDevices):
    """The devices of a data set, with their ledgers, in memory: a simulation.

    Everything is reproducible from the seed, including the noise, and sums and noise
    are in single precision: nothing is promised for the models, and every epsilon is
    what devices *would* spend. Each device charges its ledger before
    it trains, and refuses a round that its budget does not allow, whatever the plan
    says. Noise is never reused: if a step is taken again, by a second run or by a
    second continuation of a run, it gets new noise.

    Args:
        data: The rows of every device.
        seed: Seed of the noise, the batches and the arrival of answers.
        budget: The limits of each device; without them no round is refused.
        prices: The prices that devices pay; without them, the plan's costs count.
        participation: Probability that a device's answer arrives in a round. A device
            whose answer is lost has still been charged. If fewer than the plan's
            `least_answers` arrive, the round is lost: none of them counts as answered.
        new_devices: Devices that never train, such as `hold_out` returns; the model is
            measured on all of their rows, too.
    """

    kind: Kind = "simulation"

    def __init__(
        self,
        data: Dataset,
        *,
        seed: int = 0,
        budget: Budget | None = None,
        prices: Prices | None = None,
        participation: float = 1.0,
        new_devices: Dataset | None = None,
    ) -> None:
        super().__init__(data, budget=budget, prices=prices)
        if new_devices is not None and new_devices.dim != data.dim:
            raise InvalidInputError(
                f"new_devices have rows of {new_devices.dim} columns, the data have "
                f"{data.dim}: use devices of the same data, as hold_out returns them"
            )
        self._new_devices = new_devices
        self.participation = number("participation", participation, above=0, most=1)
        self.seed = seed_number(seed)
        self._loss: Loss | None = None  # of the last run
        self._threshold = 0.5  # of its decisions
        self.personal: Array | None = None  # models of `measure_personal`
        self._ahead = Lookahead(data)
        self._last_setting: tuple[Plan | None, Bools | None, Setting | None]
        self._last_setting = None, None, None

    def identity(self) -> dict[str, Any]:
        """Return values that must be the same for an interrupted run to be resumed.

        `rows` is a checksum of the training rows; like everything in a simulation, it
        is not private.
        """
        train, checksum = self.data.train, 0
        for array in (*arrays_of(train.x), train.y, train.offsets):
            checksum = crc32(np.ascontiguousarray(array).data, checksum)
        return {
            "seed": self.seed,
            "participation": self.participation,
            "rows": f"{checksum:08x}",
        }

    def begin(self, plan: Plan) -> None:
        """Lay out the rows for a run of this plan, and count its prior spending.

        Raises:
            InvalidInputError: The plan does not fit the data, or does not keep the
                epsilons that it states.
        """
        check_plan(plan, self.data)
        self._admit(plan)
        self._loss, self._threshold, self.personal = plan.model, plan.threshold, None
        packed_rows(self.data.train, plan.model)
        self._count_prior(plan)

    def run_round(self, order: Order) -> Replies:
        """Charge every selected device, then train those whose budget allows it."""
        self._select_stream(order)
        selected = order.plan.takes_part(order.number)
        paid = self._pay(order, selected)
        answered = paid & self._arrives(order.number)
        if answered.sum() < order.plan.least_answers:
            answered = np.zeros_like(answered)  # nobody sees a sum of fewer answers
        theta, shifts = order.theta, order.state.get("shifts")
        if answered.any():
            theta, shifts = self._average(order, answered)
        return Replies(
            theta=theta,
            state=({} if shifts is None else {"shifts": shifts})
            | {"noise": np.asarray(self._stream)},
            answered=answered,
            epsilon=self.ledger.epsilon_at(order.plan.delta),
            cost=self.ledger.cost,
            refused=self._refusals(order, selected & ~paid),
        )

    def _query_name(self, loss: Loss, noise_std: Array) -> str:
        """Return a digest of all that the noisy answer is computed from."""
        origin = self.identity() | {"query": self._queries, "loss": loss}
        return sha256(repr(origin).encode() + noise_std.tobytes()).hexdigest()[:16]

    def _noisy_gradients(self, loss: Loss, noise_std: Array) -> Array:
        """Draw the noise from the seed, for each query anew and apart from all runs."""
        noise = np.random.default_rng([self.seed, self._queries, 0x9E5])
        gradients = np.array(
            [device_gradient(self.data.train, loss, m) for m in range(self.num_devices)]
        )
        return gradients + noise_std[:, None] * noise.standard_normal(gradients.shape)

    def measure(self, theta: Array) -> dict[str, float]:
        """Return loss and accuracy as means over the devices; not private."""
        loss = self._trained_loss()
        measured = self._ahead.measure(loss, theta)
        if self._threshold != 0.5:
            measured |= accuracies(self.data, loss, theta, self._threshold)
        if self._new_devices is None:
            return measured
        return measured | measure_new(
            self._new_devices, loss, theta, threshold=self._threshold
        )

    def measure_details(self, theta: Array) -> dict[str, float]:
        """Return metrics beyond loss and accuracy, on the test rows; not private."""
        loss = self._trained_loss()
        return measure_details(self.data, loss, theta, threshold=self._threshold)

    def measure_personal(self, theta: Array) -> dict[str, float]:
        """Let every device adapt a model to its own rows, and measure; not private.

        The result also has local-only models and the best constant guess.
        """
        loss = self._trained_loss()
        adapted = adapt_all(self.data, loss, theta)
        self.personal = np.array([model.theta for model in adapted])
        return measure_adapted(self.data, loss, adapted, threshold=self._threshold)

    def _trained_loss(self) -> Loss:
        if self._loss is None:
            raise InvalidInputError("nothing to measure yet: begin a run first")
        return self._loss

    def _new_stream(self) -> int:
        return 1 + max(self._drawn)

    def _deal(self) -> int:
        return self._noise_seed()  # the kernels shuffle with the same seed

    def _arrives(self, number: int) -> Bools:
        """Draw whose answers arrive in a round: a function of seed and round only."""
        if self.participation == 1:
            return np.ones(self.num_devices, dtype=bool)
        rng = np.random.default_rng([self.seed, number, 0xA11])
        return np.asarray(rng.random(self.num_devices) < self.participation)

    def _noise_seed(self) -> int:
        """Return the seed of the noise stream in use; the first is the devices' own.

        Two runs with the same noise would reveal it: it cancels in their difference.
        """
        if self._stream == 0:
            return self.seed
        words = np.random.SeedSequence([self.seed, self._stream + 1]).generate_state(2)
        return int(words[0]) << 32 | int(words[1])

    def _average(
        self, order: Order, answered: Bools
    ) -> tuple[Array, NDArray[np.float32] | None]:
        """Return the average, and the drift corrections (shifts) for the next round."""
        setting = self._setting(order.plan, answered)
        return self._ahead.average(setting, order, most=self._same_devices(order))

    def _setting(self, plan: Plan, answered: Bools) -> Setting:
        """Return the setting of a round, prepared once for rounds that are alike."""
        last, devices, setting = self._last_setting
        seed = self._noise_seed()
        if last is plan and setting is not None and setting.seed == seed:
            if devices is not None and np.array_equal(devices, answered):
                return setting
        weights = np.where(answered, plan.weights, 0.0)
        rows = packed_rows(self.data.train, plan.model)
        setting = Setting(rows=rows, plan=round_plan(plan, weights), seed=seed)
        self._last_setting = plan, answered, setting
        return setting

    def _same_devices(self, order: Order) -> int:
        """Return the rounds, from this one on, in which the same devices answer.

        Refusals are not foreseen: then some rounds are simulated in vain.
        """
        last = order.plan.device_rounds
        ends = int(last[last >= order.number].min(initial=order.plan.rounds))
        count = ends - order.number + 1
        if self.participation == 1:
            return count
        arrives = self._arrives(order.number)
        for later in range(1, count):
            if not np.array_equal(self._arrives(order.number + later), arrives):
                return later
        return count


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
    if plan.participation != 1:
        raise InvalidInputError(
            f"the plan asks {plan.participation:g} of the devices in a round, which "
            "only real fleets do: plan for all of them"
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


def round_plan(plan: Plan, weights: Array) -> RoundPlan:
    """Return the values of a plan that the kernels use, for the devices with weights.

    If the server sees only their sum, it has the noise that these devices carry: one
    share each. The mean is the sum over their weights.
    """
    upload_noise = 0.0
    if plan.trust == "sum":
        carried = float(np.sqrt(np.sum(plan.noise_std[weights > 0] ** 2)))
        upload_noise = carried / float(weights.sum())
    return RoundPlan(
        tau=plan.tau,
        learning_rate=plan.learning_rate,
        batch_size=plan.batch_size,
        noise_std=plan.noise_std_of(1) if plan.trust == "uploads" else 0.0,
        noise_decay=plan.noise_decay,
        upload_noise=upload_noise,
        clip=plan.clip,
        weights=weights / weights.sum(),
        sampling=cast(Sampling, plan.sampling),
        momentum=plan.momentum,
        server_rate=plan.server_rate,
        drift_correction=plan.drift_correction,
    )
