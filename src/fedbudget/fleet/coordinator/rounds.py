"""The round that is going on: who has answered, and what their answers average to.

Replies are untrusted. A reply must be from the device whose topic it came over, for
this run and an open round, finite and of the right size, and not farther from the
order's model than honest steps and noise can lead. Whatever is not is dropped by name,
and the model unharmed. A hostile device can still pull the average within that limit,
by its weight.

How far drift correction may take an honest device is limited, too. A device computes
its shift itself (`drift`), and the coordinator keeps no copy. But in

    tau * shift_(k+1) = tau * shift_k + average_k - reply_k

what the last shift has moved cancels against the reply, which holds it: what is left is
how far the average moved, and the device's own noisy gradients. Only the L2 term pulls
at where the last shift led, and gives a part of that back. So the shifts do not add up,
and a limit follows from the orders and averages of the rounds that are over.
"""

import logging
from dataclasses import dataclass, replace

import numpy as np

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
    Reply,
    RoundOrder,
    theta_from_bytes,
)
from fedbudget.planning import Plan

# A normal vector of length d is longer than sqrt(d) + 6 once in 65 million times.
_TAIL = 6.0
_ROUNDING = 1 + 1e-3  # of the noise to a grid, and of models to single precision

# A device that says this may answer the same order later.
_PASSING = "device-trouble"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The open round that replies are read against."""

    run: bytes
    round: int
    theta: Array  # that devices start from
    plan: Plan
    precision: str
    reach: Array  # how far drift control may take each device: see `Reach`


def farthest(plan: Plan, index: int, theta: Array) -> float:
    """Return how far from `theta` an honest answer of a device can be, by its steps.

    Each of tau steps moves by at most eta (G + l2 |theta|) and its noise; the L2 term
    only pulls back. The noises of all steps add up to one normal vector.
    """
    eta, tau, dim = plan.learning_rate, plan.tau, len(theta)
    pull = plan.lipschitz + plan.l2 * float(np.linalg.norm(theta))
    noise = float(plan.noise_std[index]) * np.sqrt(tau) * (np.sqrt(dim) + _TAIL)
    return float(eta * (tau * pull + noise)) * _ROUNDING


def read_reply(payload: bytes, *, device: str, run: bytes) -> Reply | None:
    """Return a device's reply to this run; none if it is to another.

    Raises:
        MessageError: It is damaged, or in the name of another device.
    """
    reply = Reply.from_bytes(payload)
    if reply.device != device:
        raise MessageError(f"speaks as {reply.device!r}, over the topic of {device!r}")
    if reply.run != run:
        return None
    wrong = ANSWERED if reply.round == 0 else ACCEPTED
    if reply.code == wrong:
        raise MessageError(f"code {reply.code!r} does not go with round {reply.round}")
    return reply


def read_answer(reply: Reply, asked: Asked, index: int) -> Array:
    """Return the model in a reply to the open round.

    Raises:
        MessageError: It cannot have come from honest steps.
    """
    assert reply.theta is not None  # the message's own check
    theta = theta_from_bytes(reply.theta, asked.precision, len(asked.theta))
    moved = float(np.linalg.norm(theta - asked.theta))
    limit = farthest(asked.plan, index, asked.theta) + float(asked.reach[index])
    # Single precision rounds a large model by more than a small step moves it.
    slack = 1e-6 * float(np.linalg.norm(asked.theta))
    if not moved <= limit + slack:
        raise MessageError(
            f"its model is {moved:.4g} away from the order's, and honest steps lead "
            f"at most {limit:.4g}"
        )
    return theta


def is_final(reply_code: str) -> bool:
    """Return whether a device that refused so will refuse this round again."""
    return reply_code != _PASSING


def theta_of(payload: bytes, precision: str, num_params: int) -> Array:
    """Return the model in an order of ours, as devices will read it."""
    body, _ = decode(payload)
    return theta_from_bytes(RoundOrder.from_bytes(body).theta, precision, num_params)


class Reach:
    """Follows the closed rounds of a run; a new one finds all of them in the file."""

    def __init__(self, plan: Plan, checkpoints: Checkpoints, precision: str) -> None:
        self._plan, self._checkpoints, self._precision = plan, checkpoints, precision
        self._num_params = plan.model.num_params(plan.dim)
        self._rounds = 0  # that are taken into account
        self._reach = np.zeros(plan.num_devices)

    def before(self, round: int) -> Array:
        """Return how far all shifts of a round lead at most; shape (M,).

        Who missed rounds has an older shift: the largest limit so far holds for all.
        """
        while self._plan.drift_control and self._rounds < round - 1:
            self._rounds += 1
            order = self._checkpoints.order(self._rounds)
            average = self._checkpoints.closed_round(self._rounds)
            if order is not None and average is not None:
                theta = theta_of(order, self._precision, self._num_params)
                found = next_reach(self._plan, theta, average, self._reach)
                self._reach = np.maximum(self._reach, found)
        return self._reach


def next_reach(plan: Plan, theta: Array, average: Array, reach: Array) -> Array:
    """Return how far the shifts after a round lead at most, from those in it."""
    own = np.array([farthest(plan, m, theta) for m in range(plan.num_devices)])
    # What a step has moved, the L2 term of the steps after it takes back in part: most
    # of the first step's, this much.
    shrunk = 1 - min(1.0, plan.learning_rate * plan.l2)
    pull = 1 - shrunk ** (plan.tau - 1)
    moved = float(np.linalg.norm(average - theta))
    return np.asarray(moved + own + pull * (own + reach))


_log = logging.getLogger(__name__)


class OpenRound:
    """One round's replies, in memory and in the checkpoints.

    A coordinator that was killed finds here again what had come in before.
    """

    def __init__(
        self,
        asked: Asked,
        names: tuple[str, ...],
        checkpoints: Checkpoints,
        tally: Tally,
    ) -> None:
        self.asked, self._names = asked, names
        self._checkpoints, self._tally = checkpoints, tally
        self._index = {name: index for index, name in enumerate(names)}
        self._rounds = dict(zip(names, asked.plan.device_rounds.tolist(), strict=True))
        self._wanted = {n for n in names if self._rounds[n] >= asked.round}
        self._passing: set[str] = set()  # refused, but may still answer
        self._heard: set[str] = set()  # in answer to another round
        self.replies = checkpoints.replies(asked.round)
        tally.begin(asked.round, self.replies)
        for device, said in checkpoints.replies(0).items():
            fresh = device in self._wanted and device not in self.replies
            if fresh and said.outcome == Outcome.REFUSED:
                self._note(device, replace(said, round=asked.round))

    @property
    def num_answers(self) -> int:
        """How many models have come in."""
        return sum(reply.outcome == Outcome.ANSWERED for reply in self.replies.values())

    @property
    def num_wanted(self) -> int:
        """How many devices are asked."""
        return len(self._wanted)

    @property
    def waiting(self) -> set[str]:
        """Those who may still answer."""
        return (self._wanted - set(self.replies)) | self._passing

    @property
    def silent(self) -> set[str]:
        """Those of whom nothing was heard, not even too late."""
        return self._wanted - set(self.replies) - self._heard

    def take(self, device: str, payload: bytes) -> None:
        """Take in a reply.

        Raises:
            MessageError: It is not worth anything.
        """
        if not self._rounds.get(device):
            raise MessageError("it has no part in this run")
        reply = read_reply(payload, device=device, run=self.asked.run)
        if reply is None:
            return  # an old run's, sent again
        if reply.round > self.asked.round:
            raise MessageError(f"it answers round {reply.round}, which nobody ordered")
        if reply.round == 0:
            self._answer_to_offer(device, reply)
            return
        if reply.round < self.asked.round:
            self._late(device, reply)
            return
        if device not in self._wanted:
            return  # it has left the run as planned, and says that it will not
        known = self.replies.get(device)
        if known is not None and known.outcome == Outcome.ANSWERED:
            if reply.theta != known.theta:
                raise MessageError("it has answered this round before, otherwise")
            return  # the same bytes again: our order came twice
        if reply.refused:
            self._refuse(device, reply)
            return
        read_answer(reply, self.asked, self._index[device])
        self._passing.discard(device)
        self._note(device, stored(reply))

    def _answer_to_offer(self, device: str, reply: Reply) -> None:
        """A device that refuses the run refuses every round of it."""
        if reply.refused and not is_final(reply.code):
            # It counts as silent: silent devices are sent their offers again.
            _log.warning("device %s cannot join yet: %s", device, _words(reply))
            return
        said = stored(reply)
        self._checkpoints.add_reply(said)
        if reply.refused:
            _log.warning("device %s refuses the run: %s", device, said.reason)
            if device in self._wanted and device not in self.replies:
                self._note(device, replace(said, round=self.asked.round))
        elif not self._answered(device):
            # It joins after all: what it said of this round is out of date.
            if device in self.replies:
                self._passing.add(device)
                reason = f"{JOINED_LATE}: no answer"
                said = replace(self.replies[device], code=JOINED_LATE, reason=reason)
                self._note(device, said)

    def drop(self, device: str, reason: str) -> None:
        """Name what is thrown away, in the log and in the checkpoints."""
        known = device if device in self._index else "(unknown)"
        _log.warning("reply of device %s dropped: %s", device, reason)
        self._checkpoints.add_dropped(known, reason)
        self._tally.dropped[known] = self._tally.dropped.get(known, 0) + 1

    def average(self, theta: Array) -> Array:
        """Return the weighted mean of the answers; `theta` itself if there are none."""
        answered = [n for n in self._names if self._answered(n)]
        if not answered:
            return np.asarray(theta, dtype=np.float64)
        weights = np.array([self.asked.plan.weights[self._index[n]] for n in answered])
        models = [
            theta_from_bytes(
                self.replies[name].theta or b"", self.asked.precision, len(theta)
            )
            for name in answered
        ]
        mean = weighted_mean(models, weights / weights.sum())
        return np.asarray(mean, dtype=np.float64)

    def _answered(self, name: str) -> bool:
        return name in self.replies and self.replies[name].outcome == Outcome.ANSWERED

    def _refuse(self, device: str, reply: Reply) -> None:
        if is_final(reply.code):
            self._passing.discard(device)
        else:
            self._passing.add(device)
        self._note(device, stored(reply))

    def _late(self, device: str, reply: Reply) -> None:
        """Note that a device has paid for a round that is over."""
        self._heard.add(device)
        earlier = self._checkpoints.replies(reply.round).get(device)
        if reply.refused or (earlier and earlier.outcome != Outcome.REFUSED):
            return
        _log.info("device %s answers round %d too late", device, reply.round)
        self._checkpoints.add_reply(
            StoredReply(round=reply.round, device=device, outcome=Outcome.LATE)
        )
        self._tally.late(device, was_refused=earlier is not None)

    def _note(self, device: str, reply: StoredReply) -> None:
        self.replies[device] = reply
        self._checkpoints.add_reply(reply)
        self._tally.note(reply)


def stored(reply: Reply) -> StoredReply:
    """Return an answer, a refusal or an acceptance as the checkpoints keep it."""
    return StoredReply(
        round=reply.round,
        device=reply.device,
        outcome=Outcome.REFUSED if reply.refused else Outcome.ANSWERED,
        code=reply.code if reply.refused else "",
        reason=_words(reply) if reply.refused else "",
        theta=reply.theta,
    )


def _words(reply: Reply) -> str:
    return f"{reply.code}: {reply.reason}" if reply.reason else reply.code
