"""Devices in this process whose models may be released: no seed, exact noise.

rows.py         rows as whole numbers, in the layouts of the simulator's kernels
normals.py      exact noise, from a cryptographic stream

sums.py         noise per step: exact sums of a batch's gradients, compiled
steps.py        batches and local steps, compiled
rounds.py       a round: random words, then the compiled steps

quiet_steps.py  noise once per upload: local steps without noise, compiled
uploads.py      a round: steps, shares of the noise, and the sum of whole numbers

Real devices do the same in NumPy, with `fleet.device.exact_steps`, `exact_uploads` and
`exact_noise`.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.algorithm import next_shift, weighted_mean
from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array
from fedbudget.data import Dataset
from fedbudget.errors import TrainingError
from fedbudget.fleet.device.exact_steps import noisy_gradient
from fedbudget.ledger import Bools
from fedbudget.losses import Loss
from fedbudget.planning import Plan
from fedbudget.privacy import Kind
from fedbudget.release.rounds import ReleaseRounds, dealt_rows
from fedbudget.release.rows import exact_rows
from fedbudget.release.uploads import UploadRounds
from fedbudget.simulation.charging import ChargedDevices
from fedbudget.simulation.devices import check_plan
from fedbudget.simulation.kernels.layouts import PackedRows
from fedbudget.training import Order, Replies


class ReleaseDevices(ChargedDevices):
    """The devices of a data set; models that are trained on them may be released.

    Each device charges its ledger before it trains, and refuses a round that its budget
    does not allow, whatever the plan says. Random numbers come from the operating
    system: there is no seed, and no two runs are the same. Nothing is measured on the
    rows.

    *Guarantee.* All models of a device together are (epsilon, delta)-differentially
    private for replacing one of its rows with its label (or all of its rows, if that is
    the plan's unit), at the epsilon that its ledger states, with the plan's accountant.
    The adversary may know all other rows; it cannot tell the key stream of AES-256 from
    random bits (computational differential privacy). With trust "uploads" it may see
    the model of every device after every local step. With trust "sum" it sees the model
    of every round, and all that up to the plan's number of colluders know.

    *Proof sketch*, for noise per step. (1) The sum of a batch's gradients is a whole
    number per parameter, without rounding error, to which a row contributes a vector of
    norm at most G that depends on no other row: replacing a row moves it by at most 2 G
    (`release.sums`). (2) The sum is rounded to a grid and round(s N) is added, N an
    exact normal: this is the Gaussian mechanism followed by rounding, with noise that
    is raised by what rounding the sum may add to 2 G (`exact_steps.NoiseGrid`,
    `release.normals`). (3) Poisson batches have rows independently with a probability
    q' that is at most the q of the account. Such a step is a mixture of the step with q
    and of one without the row, which is the same for both tables; by the joint
    convexity of the hockey-stick divergence it is as private as the step with q. Cyclic
    batches are disjoint by a partition that no row's value changes. (4) Steps, drift
    correction, averages and momentum are post-processing; the ledger composes the
    steps, whose noise and batch sizes the plan fixes before the run. For noise once per
    upload, `privacy.uploads` has the proof, and `fleet.device.exact_uploads` that it
    holds in spite of rounding. A round with fewer answers than the plan's least is
    lost: its sum is not computed.

    *Not covered.* The numbers of rows are public. So is what the plan, the schema or a
    choice between runs was computed from, if that was the rows. How long a run takes is
    not protected. Ledgers live in this process: another process starts with empty ones,
    unless it resumes a recorded run.

    *Resumed runs.* The record has the rounds that were released; `catch_up` charges
    them. A round that was interrupted before it was recorded was never released: nobody
    has seen it. So it may run again, with new noise, and a new process charges it once.
    The batches of cyclic sampling are those of the interrupted run: their partition is
    a function of a random number that is in the record. It need not be secret.

    Args:
        data: The rows of every device. They are copied when a run begins.
        budget: The limits of each device; without them no round is refused.
        prices: The prices that devices pay; without them, the plan's costs count.

    >>> import fedbudget as fb
    >>> data = fb.load("adult", split="iid")
    >>> budget = fb.Budget(epsilon=4, cost=1000)
    >>> prices = fb.Prices(communication=100, computation=1)
    >>> devices = fb.ReleaseDevices(data, budget=budget, prices=prices)
    >>> run = fb.train(fb.plan(data.problem(), budget, prices), devices)
    >>> bool((devices.ledger.epsilon <= 4).all())
    True
    """

    kind: Kind = "release"

    def __init__(
        self,
        data: Dataset,
        *,
        budget: Budget | None = None,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(data, budget=budget, prices=prices)
        self._stream = self._new_stream()
        self._packed: PackedRows | None = None
        # Of the last plan.
        self._rounds: tuple[Plan, ReleaseRounds | UploadRounds] | None = None
        # Stream, and the order of its cyclic batches.
        self._dealt: tuple[int, NDArray[np.uint32]] = -1, np.zeros(0, dtype=np.uint32)

    def identity(self) -> dict[str, Any]:
        """Return values that must be the same for an interrupted run to be resumed.

        There is no checksum of the rows: it would be a release of them without noise.
        """
        return {}

    def begin(self, plan: Plan) -> None:
        """Prepare a run of this plan, and count its prior spending.

        Raises:
            InvalidInputError: The plan does not fit the data, does not keep the
                epsilons that it states, or has noise that cannot be drawn exactly.
        """
        check_plan(plan, self.data)
        self._admit(plan)
        rounds = self._rounds_of(plan)
        if isinstance(rounds, ReleaseRounds):
            rounds.in_round(plan.rounds)  # the least noise
        self._count_prior(plan)

    def run_round(self, order: Order) -> Replies:
        """Charge every selected device, then train those whose budget allows it."""
        plan = order.plan
        self._select_stream(order)
        selected = plan.takes_part(order.number)
        paid = self._pay(order, selected)
        answered = paid
        if paid.sum() < plan.least_answers:
            answered = np.zeros_like(paid)  # a sum of fewer answers is not released
        theta, shifts = order.theta, order.state.get("shifts")
        if answered.any():
            theta, shifts = self._average(order, answered, shifts)
        return Replies(
            theta=theta,
            state=({} if shifts is None else {"shifts": shifts})
            | {"noise": np.asarray(self._stream)},
            answered=answered,
            epsilon=self.ledger.epsilon_at(plan.delta),
            cost=self.ledger.cost,
            refused=self._refusals(order, selected & ~paid),
        )

    def _query_name(self, loss: Loss, noise_std: Array) -> str:
        return os.urandom(8).hex()

    def _noisy_gradients(self, loss: Loss, noise_std: Array) -> Array:
        """Sum exactly, and add exact noise, as a step from zero does."""
        answers = []
        for m in range(self.num_devices):
            x, y = self.data.train.device(m)
            answer = noisy_gradient(loss, x, y, noise_std=float(noise_std[m]))
            if answer is None:  # it depends on noisy numbers only
                raise TrainingError(
                    f"the noisy gradient of device {m} is too long: ask with less "
                    "noise, or raise epsilon"
                )
            answers.append(answer)
        return np.array(answers)

    def _new_stream(self) -> int:
        return int.from_bytes(os.urandom(8), "little") >> 1

    def _deal(self) -> int:
        return self._stream

    def _average(
        self, order: Order, answered: Bools, shifts: Array | None
    ) -> tuple[Array, Array | None]:
        """Return the average, and the drift corrections (shifts) for the next round."""
        plan, rounds = order.plan, self._rounds_of(order.plan)
        weights = np.where(answered, plan.weights, 0.0)
        devices = np.flatnonzero(weights)
        if isinstance(rounds, UploadRounds):
            deal, first_step = self._dealt_rows(plan), order.first_step
            return rounds.model_after(
                order.theta, devices, first_step=first_step, deal=deal
            ), None
        if plan.drift_correction:
            shape = plan.num_devices, len(order.theta)
            shifts = np.zeros(shape) if shifts is None else shifts.copy()
        replies = rounds.in_round(order.number).replies(
            order.theta,
            devices,
            first_step=order.first_step,
            shifts=None if shifts is None else shifts[devices],
            deal=self._dealt_rows(plan),
        )
        shares = weights[devices] / weights.sum()
        average = np.asarray(weighted_mean(replies, shares), dtype=np.float64)
        if shifts is not None:
            shifts[devices] = next_shift(
                shifts[devices], replies, average, tau=plan.tau
            )
        return average, shifts

    def _rounds_of(self, plan: Plan) -> ReleaseRounds | UploadRounds:
        """Return the plan's compiled steps, prepared once per plan."""
        if self._rounds is None or self._rounds[0] is not plan:
            if self._packed is None or self._packed.loss != plan.model:
                self._packed = exact_rows(self.data.train, plan.model)
            kind = UploadRounds if plan.trust == "sum" else ReleaseRounds
            self._rounds = plan, kind.of(plan, self._packed)
        return self._rounds[1]

    def _dealt_rows(self, plan: Plan) -> NDArray[np.uint32]:
        """Return the order of cyclic batches; of no length for others."""
        if plan.sampling != "cyclic":
            return np.zeros(0, dtype=np.uint32)
        if self._dealt[0] != self._stream:
            rows = dealt_rows(self._stream, self.data.train.offsets)
            self._dealt = self._stream, rows
        return self._dealt[1]
