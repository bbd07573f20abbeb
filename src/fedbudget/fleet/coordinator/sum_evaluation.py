"""An evaluation whose coordinator sees only the sum of all answers.

It is a run of sums with one round, under the identity of its order: the phases are
those of `sum_devices`. Nothing is resumed: started again, it is another evaluation.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator.checkpoints import Checkpoints, StoredRun
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.coordinator.sum_devices import SumDevices
from fedbudget.fleet.coordinator.sum_rounds import Phase, SumContext
from fedbudget.fleet.device.exact_uploads import (
    LEAST_SCALE_BITS,
    MOST_SCALE_BITS,
    UploadGrid,
)
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.evaluation import (
    EvaluationOrder,
    EvaluationSum,
    num_values,
    sum_purpose,
)
from fedbudget.fleet.wire.framing import Joiner, split
from fedbudget.fleet.wire.messages import Declaration, theta_from_bytes
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning import Plan
from fedbudget.privacy.uploads import check_answers
from fedbudget.training import Order

_RING_BITS = 32
_TAIL = 12.0  # standard deviations that the noise of the sum stays within
_REPLY, _PEER = 8192, 160  # bytes of a reply, and of its part for each peer, at most


@dataclass(frozen=True, kw_only=True)
class SummedAnswers:
    """The sum of an evaluation, in rows, and who is in it."""

    total: Array
    answered: tuple[str, ...]
    refused: dict[str, str]  # reason by device


def terms_for(
    noise_std: float,
    *,
    least_answers: int,
    colluders: int,
    declarations: Sequence[Declaration],
) -> EvaluationSum:
    """Return the finest grid on which the sum of all devices fits the ring.

    Its honest noise is `noise_std` rows, or a little more.

    Raises:
        InvalidInputError: There are too few devices, or there is no such grid.
    """
    check_answers(least_answers, colluders, len(declarations))
    share = noise_std / math.sqrt(least_answers - colluders)
    rows = sum(int(d.evaluation_samples or 0) for d in declarations)
    count = len(declarations)
    for bits in range(MOST_SCALE_BITS, LEAST_SCALE_BITS - 1, -1):
        steps = min(1 << 30, int(2.0**bits / share))
        reach = rows * steps + _TAIL * math.sqrt(count) * 2.0**bits + count
        if steps >= 1 and reach < 2.0 ** (_RING_BITS - 1):
            return EvaluationSum(
                least_answers=least_answers,
                colluders=colluders,
                row_steps=steps,
                scale_bits=bits,
                ring_bits=_RING_BITS,
            )
    raise InvalidInputError(
        f"a sum over {rows} rows with noise {noise_std:g} does not fit {_RING_BITS} "
        "bits: raise epsilon, or ask fewer devices"
    )


class _EvaluationDevices(SumDevices):
    """The devices of one evaluation."""

    remedy = "start more devices, and evaluate again"

    def ask(
        self, order: EvaluationOrder, run: StoredRun, terms: EvaluationSum
    ) -> SummedAnswers:
        """Run the phases of the sum, and leave no order at the broker."""
        signed, plan = self._signer.sign(order), Plan.from_dict(run.plan)
        self._offers = dict.fromkeys(self.names, signed)
        self._terms = sum_purpose(order.to_bytes())
        self._joiner = Joiner(max_bytes=_REPLY + _PEER * self.num_devices)
        self._kept: set[str] = set()
        self._checkpoints.begin(replace(run, run=order.evaluation), [])
        context = SumContext(
            run=order.evaluation,
            round=1,
            plan=plan,
            grid=UploadGrid(
                step=1 / terms.row_steps,
                scale_bits=terms.scale_bits,
                ring_bits=terms.ring_bits,
                largest_norm=math.inf,
            ),
            length=num_values(order.measure, order.num_classes),
            names=self.names,
            checkpoints=self._checkpoints,
            tally=Tally(plan, run.declarations, self._checkpoints),
            authority=self._authority,
        )
        theta = theta_from_bytes(order.theta, order.precision, order.num_params)
        try:
            self._keep(topics.order(order.evaluation), signed)
            peers = self._peers(context)
            attempt, total = self._attempts(
                context, peers, Order(number=1, theta=theta, plan=plan)
            )
        finally:
            for topic in sorted(self._kept):
                self._channel.withdraw(topic)
            self._channel.flush(10)
        if total is None:
            raise TrainingError(
                "the sum of this evaluation is lost, and devices are charged: too few "
                "revealed their shares; evaluate again"
            )
        refused = self._outside | attempt.refused
        return SummedAnswers(
            total=total,
            answered=tuple(sorted(attempt.names_of(attempt.answered))),
            refused={name: entry.reason for name, entry in sorted(refused.items())},
        )

    def _selected(self, plan: Plan) -> set[str]:
        return set(self.names)

    def _send_to(self, name: str, signed: bytes, again: Phase | None = None) -> None:
        """Send an order to one device; offers of runs stay as they are."""
        super()._send_to(name, signed)

    def _keep(self, topic: str, payload: bytes) -> None:
        self._kept |= {part for part, _ in split(topic, payload)}
        super()._keep(topic, payload)


def summed_answers(
    channel: Channel,
    run: StoredRun,
    order: EvaluationOrder,
    terms: EvaluationSum,
    *,
    declarations: Sequence[Declaration],
    signer: Signer,
    seconds: float,
    authority: Path | None,
) -> SummedAnswers:
    """Return the sum of the devices' answers.

    Raises:
        TrainingError: Too few devices answer, the sum is lost, or it is garbage.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "evaluation.sqlite")
        try:
            devices = _EvaluationDevices(
                channel,
                declarations,
                signer=signer,
                checkpoints=checkpoints,
                deadline=seconds,
                minimum=1,
                patience=1,
                precision=order.precision,
                authority=authority,
            )
            answers = devices.ask(order, run, terms)
        finally:
            checkpoints.close()
    rows = {d.device: int(d.evaluation_samples or 0) for d in declarations}
    most = sum(rows[name] for name in answers.answered)
    tail = _TAIL * math.sqrt(len(answers.answered)) * terms.share_std
    if not np.all((answers.total >= -tail) & (answers.total <= most + tail)):
        raise TrainingError(
            f"the sum of {len(answers.answered)} answers is not one of {most} rows: a "
            "device sent garbage; devices are charged"
        )
    return answers
