"""The round that is going on: who has answered, and what their answers average to."""

import logging
from dataclasses import replace

import numpy as np

from fedbudget.algorithm import weighted_mean
from fedbudget.checks import Array
from fedbudget.errors import MessageError
from fedbudget.fleet.coordinator.answers import (
    JOINED_LATE,
    Asked,
    is_final,
    read_answer,
    read_reply,
)
from fedbudget.fleet.coordinator.checkpoints import (
    ANSWERED,
    LATE,
    REFUSED,
    Checkpoints,
    StoredReply,
)
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.wire.messages import Reply, theta_from_bytes

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
            if fresh and said.outcome == REFUSED:
                self._note(device, replace(said, round=asked.round))

    @property
    def num_answers(self) -> int:
        """How many models have come in."""
        return sum(reply.outcome == ANSWERED for reply in self.replies.values())

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
        if known is not None and known.outcome == ANSWERED:
            if reply.theta != known.theta:
                raise MessageError("it has answered this round before, otherwise")
            return  # the same bytes again: our order came twice
        if reply.refused:
            self._refuse(device, reply)
            return
        read_answer(reply, self.asked, self._index[device])
        self._passing.discard(device)
        self._note(
            device,
            StoredReply(
                round=reply.round, device=device, outcome=ANSWERED, theta=reply.theta
            ),
        )

    def _answer_to_offer(self, device: str, reply: Reply) -> None:
        """A device that refuses the run refuses every round of it."""
        if reply.refused and not is_final(reply.code):
            # It counts as silent: silent devices are sent their offers again.
            _log.warning("device %s cannot join yet: %s", device, _words(reply))
            return
        outcome, words = (REFUSED, _words(reply)) if reply.refused else (ANSWERED, "")
        said = StoredReply(round=0, device=device, outcome=outcome, reason=words)
        self._checkpoints.add_reply(said)
        if reply.refused:
            _log.warning("device %s refuses the run: %s", device, words)
            if device in self._wanted and device not in self.replies:
                self._note(device, replace(said, round=self.asked.round))
        elif not self._answered(device):
            # It joins after all: what it said of this round is out of date.
            if device in self.replies:
                self._passing.add(device)
                said = replace(self.replies[device], reason=f"{JOINED_LATE}: no answer")
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
        return name in self.replies and self.replies[name].outcome == ANSWERED

    def _refuse(self, device: str, reply: Reply) -> None:
        if is_final(reply.code):
            self._passing.discard(device)
        else:
            self._passing.add(device)
        self._note(
            device,
            StoredReply(
                round=reply.round, device=device, outcome=REFUSED, reason=_words(reply)
            ),
        )

    def _late(self, device: str, reply: Reply) -> None:
        """Note that a device has paid for a round that is over."""
        self._heard.add(device)
        earlier = self._checkpoints.replies(reply.round).get(device)
        if reply.refused or (earlier is not None and earlier.outcome != REFUSED):
            return
        _log.info("device %s answers round %d too late", device, reply.round)
        self._checkpoints.add_reply(
            StoredReply(round=reply.round, device=device, outcome=LATE)
        )
        self._tally.late(device, was_refused=earlier is not None)

    def _note(self, device: str, reply: StoredReply) -> None:
        self.replies[device] = reply
        self._checkpoints.add_reply(reply)
        self._tally.note(reply)


def _words(reply: Reply) -> str:
    return f"{reply.code}: {reply.reason}" if reply.reason else reply.code
