"""The open round: its replies, the checks on them, and their average.

Replies are untrusted. A reply must come over the topic of its device, be for this run
and an open round, be finite and of the right size, and lie within the distance from the
order's model that honest steps and noise can cover. Any other reply is dropped and
logged with the device's name; the model does not change. A hostile device can still
move the average within that distance, by its weight.

Drift correction adds to that distance. A device computes its shift itself (`drift`),
and the coordinator has no copy. But in

    tau * shift_(k+1) = tau * shift_k + average_k - reply_k

the reply contains the move by the last shift, and the two cancel. What remains is the
move of the average and the device's own noisy gradients. Only the L2 term, which
depends on where the last shift led, returns a part of it. So shifts do not accumulate,
and a limit follows from the orders and averages of the closed rounds.
"""

import logging
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedbudget.algorithm import weighted_mean
from fedbudget.checks import Array
from fedbudget.errors import MessageError
from fedbudget.fleet.coordinator.checkpoints import (
    JOINED_LATE,
    Checkpoints,
    Outcome,
    StoredReply,
)
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import (
    ACCEPTED,
    ANSWERED,
    PRECISIONS,
    AnswerReader,
    Reply,
    RoundOrder,
    theta_from_bytes,
)
from fedbudget.planning import Plan

# The norm of a standard normal vector in d dimensions exceeds sqrt(d) + 6 once in 65
# million times.
_TAIL = 6.0
_ROUNDING = 1 + 1e-3  # of noise to a grid, and of models to single precision

# A device that refuses with this code may answer the same order later.
_TRANSIENT = "device-trouble"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """The open round that replies are checked against."""

    run: bytes
    round: int
    theta: Array  # where devices start
    plan: Plan
    precision: str
    shift_limit: Array  # of drift correction, per device: see `ShiftLimit`
    asked: NDArray[np.bool_]  # devices that are to carry the order out; shape (M,)


class CloneError(MessageError):
    """Two devices answer under one name, or one with an old copy of its ledger."""


def max_distances(plan: Plan, theta: Array) -> Array:
    """Return the maximum distance of each honest answer from `theta`; shape (M,).

    Each of tau steps moves by at most eta (G + l2 |theta|) plus its noise; the L2 term
    only pulls back. The noise of all steps sums to one normal vector; that of the first
    round is the largest. Drift correction is not included.
    """
    eta, tau, dim = plan.learning_rate, plan.tau, len(theta)
    pull = plan.lipschitz + plan.l2 * float(np.linalg.norm(theta))
    noise = plan.noise_std_of(1) * np.sqrt(tau) * (np.sqrt(dim) + _TAIL)
    return np.asarray(eta * (tau * pull + noise) * _ROUNDING)


def read_reply(payload: bytes, *, device: str, run: bytes) -> Reply | None:
    """Return a device's reply to this run; None if it is to another run.

    Raises:
        MessageError: It is damaged, or names another device.
    """
    reply = Reply.from_bytes(payload)
    if reply.device != device:
        raise MessageError(f"it names {reply.device!r}, on the topic of {device!r}")
    if reply.run != run:
        return None
    invalid = ANSWERED if reply.round == 0 else ACCEPTED
    if reply.code == invalid:
        raise MessageError(f"code {reply.code!r} is invalid for round {reply.round}")
    return reply


def check_answer(reply: Reply, context: RoundContext, limit: float) -> None:
    """Check the model in a reply to the open round.

    Raises:
        MessageError: Honest steps cannot have produced it.
    """
    assert reply.theta is not None  # the message's own check
    theta = theta_from_bytes(reply.theta, context.precision, len(context.theta))
    move = theta - context.theta
    distance = math.sqrt(move @ move)
    if not distance <= limit:
        raise MessageError(
            f"its model is at distance {distance:.4g} from the order's; honest steps "
            f"lead at most {limit:.4g} away"
        )


def is_final(reply_code: str) -> bool:
    """Return whether a device that refused with this code will refuse again."""
    return reply_code != _TRANSIENT


def read_order(payload: bytes) -> RoundOrder:
    """Return a signed order, as devices read it."""
    return RoundOrder.from_bytes(decode(payload)[0])


def theta_of(payload: bytes, precision: str, num_params: int) -> Array:
    """Return the model in an order, as devices read it."""
    return theta_from_bytes(read_order(payload).theta, precision, num_params)


class ShiftLimit:
    """The limit of drift correction's shifts, updated from the closed rounds."""

    def __init__(self, plan: Plan, checkpoints: Checkpoints, precision: str) -> None:
        self._plan, self._checkpoints, self._precision = plan, checkpoints, precision
        self._num_params = plan.model.num_params(plan.dim)
        self._rounds = 0  # taken into account so far
        self._limit = np.zeros(plan.num_devices)

    def before(self, round: int) -> Array:
        """Return the largest move by all shifts of a round; shape (M,).

        A device that missed rounds has an older shift, so the limit never decreases.
        """
        while self._plan.drift_correction and self._rounds < round - 1:
            self._rounds += 1
            order = self._checkpoints.order(self._rounds)
            average = self._checkpoints.closed_round(self._rounds)
            if order is not None and average is not None:
                theta = theta_of(order, self._precision, self._num_params)
                limit = next_shift_limit(self._plan, theta, average, self._limit)
                self._limit = np.maximum(self._limit, limit)
        return self._limit


def next_shift_limit(plan: Plan, theta: Array, average: Array, limit: Array) -> Array:
    """Return the limit of the shifts after a round, from the limit in it."""
    own = max_distances(plan, theta)
    # The L2 term of later steps takes back a part of each step's move. The part is
    # largest for the first step.
    shrunk = 1 - min(1.0, plan.learning_rate * plan.l2)
    pull = 1 - shrunk ** (plan.tau - 1)
    moved = float(np.linalg.norm(average - theta))
    return np.asarray(moved + own + pull * (own + limit))


class OpenRound:
    """The replies to one round, in memory and in the checkpoints.

    A restarted coordinator reads the earlier replies from the checkpoints.
    """

    def __init__(
        self,
        context: RoundContext,
        names: tuple[str, ...],
        checkpoints: Checkpoints,
        tally: Tally,
    ) -> None:
        self.context, self._names = context, names
        self._checkpoints, self._tally = checkpoints, tally
        self._index = {name: index for index, name in enumerate(names)}
        limits = max_distances(context.plan, context.theta) + context.shift_limit
        # Single precision rounds a large model by more than a small step moves it.
        slack = 1e-6 * float(np.linalg.norm(context.theta))
        self._limits: list[float] = (limits + slack).tolist()
        self._rounds = dict(
            zip(names, context.plan.device_rounds.tolist(), strict=True)
        )
        asked = zip(names, context.asked.tolist(), strict=True)
        self._selected = {n for n, is_asked in asked if is_asked}
        size = len(context.theta) * PRECISIONS[context.precision].itemsize
        self._reader = AnswerReader(context.run, context.round, size)
        self._transient: set[str] = set()  # refused for now, may still answer
        self._late_devices: set[str] = set()  # replied to an earlier round
        self.replies = checkpoints.replies(context.round)
        self._num_answers = sum(map(self._answered, self.replies))
        self._unanswered = self._selected - set(self.replies)
        tally.begin(context.round, self.replies)
        for device, reply in checkpoints.replies(0).items():
            is_new = device in self._selected and device not in self.replies
            if is_new and reply.outcome == Outcome.REFUSED:
                self._note(device, replace(reply, round=context.round))

    @property
    def num_answers(self) -> int:
        """The number of answers."""
        return self._num_answers

    @property
    def num_selected(self) -> int:
        """The number of devices selected for the round."""
        return len(self._selected)

    @property
    def answered(self) -> list[str]:
        """The devices whose answers count."""
        return [name for name in self._names if self._answered(name)]

    def asks(self, name: str) -> bool:
        """Return whether the round asks a device."""
        return name in self._selected

    @property
    def waiting(self) -> set[str]:
        """The devices that may still answer."""
        return self._unanswered | self._transient

    @property
    def silent(self) -> set[str]:
        """The devices that have sent nothing, not even a late answer."""
        return self._unanswered - self._late_devices

    def take(self, device: str, payload: bytes) -> None:
        """Store a reply.

        Raises:
            MessageError: It is invalid.
        """
        if not self._rounds.get(device):
            raise MessageError("the device is not part of this run")
        reply = self._reader.read(device, payload)
        if reply is None:
            reply = read_reply(payload, device=device, run=self.context.run)
        if reply is None:
            return  # of an old run, sent again
        if reply.round > self.context.round:
            raise MessageError(f"it answers round {reply.round}, which was not ordered")
        if reply.round == 0:
            self._answer_to_offer(device, reply)
            return
        if reply.round < self.context.round:
            self._late(device, reply)
            return
        if device not in self._selected:
            return  # it stopped as planned, and refuses the rounds after that
        earlier = self.replies.get(device)
        if earlier is not None and earlier.outcome == Outcome.ANSWERED:
            if reply.theta != earlier.theta:
                raise CloneError(
                    "it has answered this round before, with another model: two "
                    "processes answer for it, or its ledger is an old copy; stop one "
                    "of them, or restore the newest ledger"
                )
            return  # the same bytes again: the order was delivered twice
        if reply.refused:
            self._refuse(device, reply)
            return
        self._check_previous(device, reply)
        check_answer(reply, self.context, self._limits[self._index[device]])
        self._transient.discard(device)
        self._note(device, stored(reply))

    def _check_previous(self, device: str, reply: Reply) -> None:
        """Refuse an answer whose ledger lacks the charge of an earlier answer."""
        last = self._tally.last_answers.get(device, 0)
        if reply.previous is not None and reply.previous < last < reply.round:
            raise CloneError(
                f"its ledger has round {reply.previous} as the last one before round "
                f"{reply.round}, but it has answered round {last}: two processes "
                "answer for it, or its ledger is an old copy; stop one of them, or "
                "restore the newest ledger"
            )

    def _answer_to_offer(self, device: str, reply: Reply) -> None:
        """Store a reply to the offer; a refusal of the run is one of all its rounds."""
        if reply.refused and not is_final(reply.code):
            # It counts as silent, and so its offer is sent again.
            _log.warning("device %s cannot join yet: %s", device, _describe(reply))
            return
        entry = stored(reply)
        self._checkpoints.add_reply(entry)
        if reply.refused:
            _log.warning("device %s refuses the run: %s", device, entry.reason)
            if device in self._selected and device not in self.replies:
                self._note(device, replace(entry, round=self.context.round))
        elif not self._answered(device):
            # It joins after all: its refusal of this round is out of date.
            if device in self.replies:
                self._transient.add(device)
                reason = f"{JOINED_LATE}: no answer"
                entry = replace(self.replies[device], code=JOINED_LATE, reason=reason)
                self._note(device, entry)

    def drop(self, device: str, reason: str) -> None:
        """Count a dropped message, in the log and in the checkpoints."""
        name = device if device in self._index else "(unknown)"
        _log.warning("reply of device %s dropped: %s", device, reason)
        self._checkpoints.add_dropped(name, reason)
        self._tally.dropped[name] = self._tally.dropped.get(name, 0) + 1

    def average(self, theta: Array) -> Array:
        """Return the weighted mean of the answers; `theta` if there are none."""
        answered = self.answered
        if not answered:
            return np.asarray(theta, dtype=np.float64)
        weights = np.array(
            [self.context.plan.weights[self._index[n]] for n in answered]
        )
        models = np.frombuffer(  # each was checked when it was taken
            b"".join(self.replies[name].theta or b"" for name in answered),
            dtype=PRECISIONS[self.context.precision],
        )
        models = models.reshape(len(answered), len(theta)).astype(np.float64)
        mean = weighted_mean(models, weights / weights.sum())
        return np.asarray(mean, dtype=np.float64)

    def _answered(self, name: str) -> bool:
        return name in self.replies and self.replies[name].outcome == Outcome.ANSWERED

    def _refuse(self, device: str, reply: Reply) -> None:
        if is_final(reply.code):
            self._transient.discard(device)
        else:
            self._transient.add(device)
        self._note(device, stored(reply))

    def _late(self, device: str, reply: Reply) -> None:
        """Note that a device was charged for a closed round."""
        self._late_devices.add(device)
        earlier = self._checkpoints.outcome_of(reply.round, device)
        if reply.refused or earlier not in (None, Outcome.REFUSED):
            return
        _log.info("device %s answers round %d too late", device, reply.round)
        self._checkpoints.add_reply(
            StoredReply(round=reply.round, device=device, outcome=Outcome.LATE)
        )
        self._tally.late(device, was_refused=earlier is not None)

    def _note(self, device: str, reply: StoredReply) -> None:
        self._num_answers -= self._answered(device)
        self.replies[device] = reply
        self._num_answers += self._answered(device)
        self._unanswered.discard(device)
        self._checkpoints.add_reply(reply)
        self._tally.note(reply)


def stored(reply: Reply) -> StoredReply:
    """Return a reply in the form of the checkpoints."""
    return StoredReply(
        round=reply.round,
        device=reply.device,
        outcome=Outcome.REFUSED if reply.refused else Outcome.ANSWERED,
        code=reply.code if reply.refused else "",
        reason=_describe(reply) if reply.refused else "",
        theta=reply.theta,
    )


def _describe(reply: Reply) -> str:
    return f"{reply.code}: {reply.reason}" if reply.reason else reply.code
