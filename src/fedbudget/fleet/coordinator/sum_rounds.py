"""One attempt at a secure sum, as the coordinator sees it.

`SumAttempt` has what devices sent, each message in the checkpoints before it counts,
and makes the next message from it. It has no clock and sends nothing: `sum_devices`
does. Messages of devices are untrusted.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.coordinator.checkpoints import (
    Checkpoints,
    Outcome,
    StoredReply,
)
from fedbudget.fleet.coordinator.rounds import read_reply, stored
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.device.exact_uploads import UploadGrid
from fedbudget.fleet.secure import masks, protocol, unmasking
from fedbudget.fleet.secure.introductions import check_introduction
from fedbudget.fleet.secure.peers import (
    Attempt,
    Peers,
    Roster,
    check_key,
)
from fedbudget.fleet.secure.protocol import SEALED_BYTES
from fedbudget.fleet.secure.shamir import SECRET_BYTES
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import Message, Reply
from fedbudget.fleet.wire.secure_messages import (
    REPLIES,
    AttemptAnswers,
    AttemptConfirmation,
    AttemptKeys,
    AttemptReply,
    AttemptRoster,
    AttemptUpload,
    Introduction,
    RevealedShares,
    RevealOrder,
    SumTerms,
    pack_records,
    unpack_records,
)
from fedbudget.planning import Plan

_log = logging.getLogger(__name__)
_TAIL = 6.0  # as in `rounds`: exceeded once in 65 million times


class Phase(StrEnum):
    """The steps of an attempt: what the coordinator waits for."""

    INTRODUCTIONS = "introductions"
    KEYS = "keys"
    UPLOADS = "uploads"
    CONFIRMATIONS = "confirmations"
    SHARES = "shares"


# What a device sends in each phase.
SENT: Mapping[Phase, str] = {
    Phase.INTRODUCTIONS: Introduction.kind,
    Phase.KEYS: AttemptKeys.kind,
    Phase.UPLOADS: AttemptUpload.kind,
    Phase.CONFIRMATIONS: AttemptConfirmation.kind,
    Phase.SHARES: RevealedShares.kind,
}


@dataclass(frozen=True, kw_only=True)
class SumContext:
    """What the messages of a round are checked against."""

    run: bytes
    round: int
    plan: Plan
    grid: UploadGrid
    length: int  # of an upload
    names: tuple[str, ...]  # of the plan's devices
    checkpoints: Checkpoints
    tally: Tally
    authority: Path | None = None  # of the peers' certificates; None: devices check


class Collector:
    """What devices sent, by kind and by device; of one attempt, or of the run."""

    def __init__(self, context: SumContext, attempt: int) -> None:
        self.context, self.attempt = context, attempt
        number = context.round if attempt else 0
        self._place = (number, attempt)
        self._messages = context.checkpoints.sum_messages(*self._place)
        self.refused: dict[str, StoredReply] = {}

    def received(self, phase: Phase) -> dict[str, bytes]:
        """Return the messages of a phase, by device."""
        return self._messages.get(SENT[phase], {})

    def sent(self, kind: str) -> bytes | None:
        """Return an order of the coordinator that is stored, signed."""
        return self._messages.get(kind, {}).get("")

    def store(self, kind: str, payload: bytes, device: str = "") -> None:
        """Store a message of a device, or an order before it is published."""
        self.context.checkpoints.add_sum_message(*self._place, kind, device, payload)
        self._messages.setdefault(kind, {})[device] = payload

    def take(self, device: str, payload: bytes) -> None:
        """Store a message of a device.

        Raises:
            MessageError: It is invalid.
        """
        if device not in self.context.names:
            raise MessageError("the device is not part of this run")
        plain = decode(payload)
        kind = plain.get("kind") if isinstance(plain, dict) else None
        if kind == Reply.kind:
            self._refusal(device, payload)
        elif kind == Introduction.kind:
            self._introduction(device, payload)
        else:
            self.take_step(device, kind, payload)

    def take_step(self, device: str, kind: object, payload: bytes) -> None:
        """Ignore messages about attempts: none has begun, or it is over."""

    def suffices(self, phase: Phase, devices: set[str]) -> bool:
        """Return whether devices can go on with what these have sent, if not few."""
        return True

    def drop(self, device: str, reason: str) -> None:
        """Count a dropped message, in the log and in the checkpoints."""
        context = self.context
        name = device if device in context.names else "(unknown)"
        _log.warning("message of device %s dropped: %s", device, reason)
        context.checkpoints.add_dropped(name, reason)
        context.tally.dropped[name] = context.tally.dropped.get(name, 0) + 1

    def _introduction(self, device: str, payload: bytes) -> None:
        introduction = Introduction.from_bytes(payload)
        if introduction.device != device or introduction.run != self.context.run:
            return  # of an old run
        if self.context.authority is not None:
            try:
                check_introduction(introduction, self.context.authority)
            except InvalidInputError as error:
                raise MessageError(str(error)) from None
        if self.attempt == 0 and device not in self.received(Phase.INTRODUCTIONS):
            self.store(Introduction.kind, payload, device)
            self.refused.pop(device, None)

    def _refusal(self, device: str, payload: bytes) -> None:
        reply = read_reply(payload, device=device, run=self.context.run)
        if reply is None or not reply.refused:
            return
        if reply.round not in (0, self.context.round):
            return
        entry = stored(reply)
        _log.warning("device %s refuses: %s", device, entry.reason)
        self.refused[device] = entry


class SumAttempt(Collector):
    """One attempt at a round: from the devices' keys to the sum."""

    def __init__(self, context: SumContext, peers: Peers, attempt: int) -> None:
        super().__init__(context, attempt)
        self.peers = peers
        self.of = Attempt(context.run, context.round, attempt)
        self._index = {member.name: m for m, member in enumerate(peers.members)}
        self.least = max(peers.least_answers, context.plan.least_answers)

    def suffices(self, phase: Phase, devices: set[str]) -> bool:
        """Return whether devices would go on, and the sum could be unmasked.

        With k neighbours on a circle, those that are missing must not be too close.
        """
        sent = {self._index[device] for device in devices}
        if phase is Phase.KEYS:
            return self.peers.is_spread(sent)
        if phase is not Phase.UPLOADS:
            return True
        threshold = self.peers.neighbourhood.threshold
        return self.peers.is_spread(sent) and all(
            len(sent.intersection(self.roster.neighbours(index))) >= threshold
            for index in self.roster.keys
        )

    def take_step(self, device: str, kind: object, payload: bytes) -> None:
        """Store a message about this attempt; ignore one about another."""
        for message in REPLIES:
            if message.kind == kind:
                self._take(device, message.from_bytes(payload))
                return
        raise MessageError(f"a message of the unknown kind {str(kind)[:40]!r}")

    def _take(self, device: str, message: AttemptReply) -> None:
        if message.device != device:
            raise MessageError(
                f"it names {message.device!r}, on the topic of {device!r}"
            )
        if message.of != self.of:
            return  # late, or of an old run
        if device not in self._index:
            raise MessageError("the device is not among the peers of this run")
        self._check(device, message)
        payload = message.to_bytes()
        earlier = self._messages.get(message.kind, {}).get(device)
        # A device that was restarted announces new keys, until there is a roster.
        renewed = isinstance(message, AttemptKeys)
        if earlier is None or (renewed and self.sent(AttemptRoster.kind) is None):
            self.store(message.kind, payload, device)
        elif earlier != payload and not renewed:
            raise MessageError(f"it has sent other {message.kind} before")
        if isinstance(message, AttemptUpload):
            self.context.tally.note(self._entry(device, Outcome.ANSWERED))

    def _check(self, device: str, message: AttemptReply) -> None:
        """Refuse what an honest device does not send."""
        index = self._index[device]
        if isinstance(message, AttemptKeys):
            try:
                check_key(self.peers, self.of, index, message.key)
            except InvalidInputError as error:
                raise MessageError(str(error)) from None
            holders = unpack_records(message.sealed, SEALED_BYTES)
            if tuple(holders) != self.peers.neighbours[index]:
                raise MessageError("its shares are not for its neighbours")
        elif isinstance(message, AttemptUpload):
            kind = masks.word_type(self.context.grid.ring_bits)
            size = self.context.length * kind.itemsize
            if len(message.vector) != size:
                raise MessageError(
                    f"its vector has {len(message.vector)} bytes, not {size}"
                )
            if index not in self.roster.keys:
                raise MessageError("it has announced no key for this attempt")
        elif isinstance(message, AttemptConfirmation):
            statement = protocol.answers_statement(self.roster, self.answered)
            if not self.peers.members[index].verify(message.signature, statement):
                raise MessageError("it has not signed this list of answers")
        elif isinstance(message, RevealedShares):
            unpack_records(message.shares, SECRET_BYTES)

    def note_outcomes(self, answered: set[str]) -> None:
        """Store who is in the sum of the round, who is charged without, who refuses."""
        checkpoints = self.context.checkpoints
        for device in checkpoints.sum_senders(self.context.round, AttemptUpload.kind):
            outcome = Outcome.ANSWERED if device in answered else Outcome.LATE
            checkpoints.add_reply(self._entry(device, outcome))
        for refusal in self.refused.values():
            checkpoints.add_reply(replace(refusal, round=self.context.round))

    def _entry(self, device: str, outcome: Outcome) -> StoredReply:
        return StoredReply(round=self.context.round, device=device, outcome=outcome)

    def roster_order(self) -> Message:
        """Return the order with all mask keys: that to all devices."""
        keys = {
            self._index[device]: AttemptKeys.from_bytes(payload).key
            for device, payload in self.received(Phase.KEYS).items()
        }
        roster = Roster(peers=self.peers, attempt=self.of, keys=keys)
        return AttemptRoster.of_roster(roster)

    @cached_property
    def roster(self) -> Roster:
        """The roster that was published.

        Raises:
            MessageError: There is none yet.
        """
        signed = self.sent(AttemptRoster.kind)
        if signed is None:
            raise MessageError("there is no roster of this attempt yet")
        return AttemptRoster.from_bytes(decode(signed)[0]).read(self.peers)

    def roster_order_for(self, device: str) -> Message:
        """Return the order to one device: the keys of its neighbours."""
        return AttemptRoster.of_roster(self.roster.for_device(self._index[device]))

    def answers_order(self) -> Message:
        """Return the order with the list of those who have uploaded."""
        indices = {self._index[d]: b"" for d in self.received(Phase.UPLOADS)}
        return AttemptAnswers(
            run=self.of.run,
            round=self.of.round,
            attempt=self.of.number,
            answered=pack_records(indices),
        )

    @cached_property
    def answered(self) -> list[int]:
        """The published list of answers.

        Raises:
            MessageError: There is none yet.
        """
        signed = self.sent(AttemptAnswers.kind)
        if signed is None:
            raise MessageError("there is no list of answers of this attempt yet")
        return AttemptAnswers.from_bytes(decode(signed)[0]).read()

    def names_of(self, indices: Mapping[int, object] | list[int]) -> set[str]:
        """Return the names of devices."""
        return {self.peers.members[index].name for index in indices}

    def reveal_order(self, device: str) -> Message:
        """Return the order to one device: the signatures, and its shares."""
        sealed = self._sealed.get(self._index[device], {})
        return RevealOrder(
            run=self.of.run,
            round=self.of.round,
            attempt=self.of.number,
            device=device,
            confirmations=self._quorum_signatures,
            sealed=pack_records(sealed),
        )

    @cached_property
    def _quorum_signatures(self) -> bytes:
        """The confirmations that every device is sent, as records."""
        signatures = {
            self._index[name]: AttemptConfirmation.from_bytes(payload).signature
            # A quorum is enough: a device checks every signature.
            for name, payload in islice(
                sorted(self.received(Phase.CONFIRMATIONS).items()), self.peers.quorum
            )
        }
        return pack_records(signatures)

    @cached_property
    def _sealed(self) -> dict[int, dict[int, bytes]]:
        """The encrypted shares of those in the roster: by receiver, then by sender."""
        sealed: dict[int, dict[int, bytes]] = {}
        for device, payload in self.received(Phase.KEYS).items():
            sender = self._index[device]
            if sender not in self.roster.keys:
                continue  # its keys came late
            keys = AttemptKeys.from_bytes(payload)
            for receiver, data in unpack_records(keys.sealed, SEALED_BYTES).items():
                sealed.setdefault(receiver, {})[sender] = data
        return sealed

    def total(self) -> Array:
        """Return the unmasked sum of the weighted moves and their noise.

        Raises:
            InvalidInputError: Shares are missing or wrong.
        """
        kind = masks.word_type(self.context.grid.ring_bits)
        answered = self.answered
        names = {index: self.peers.members[index].name for index in answered}
        uploads = {
            index: np.frombuffer(
                AttemptUpload.from_bytes(
                    self.received(Phase.UPLOADS)[names[index]]
                ).vector,
                dtype=kind,
            )
            for index in answered
        }
        shares = {
            self._index[device]: unpack_records(
                RevealedShares.from_bytes(payload).shares, SECRET_BYTES
            )
            for device, payload in self.received(Phase.SHARES).items()
        }
        grid = self.context.grid
        words = unmasking.unmask(self.roster, uploads, shares, ring_bits=grid.ring_bits)
        return grid.decoded(words.astype(np.int64))

    @property
    def weight(self) -> float:
        """The weights of those who answered, together."""
        names = self.names_of(self.answered)
        pairs = zip(self.context.names, self.context.plan.weights, strict=True)
        return float(sum(weight for name, weight in pairs if name in names))


def most_moved(plan: Plan, theta: Array, *, weight: float, answers: int) -> float:
    """Return the largest norm of an honest sum: of all moves, and of the noise."""
    eta, tau, bound = plan.learning_rate, plan.tau, plan.lipschitz
    reach = float(np.linalg.norm(theta)) + eta * tau * bound
    move = eta * tau * (bound + plan.l2 * reach)
    if plan.clip is not None:
        move = min(move, plan.clip)
    noise = float(plan.noise_std[0]) * np.sqrt(answers) * (np.sqrt(len(theta)) + _TAIL)
    return float(weight * move + noise) * (1 + 1e-3)  # rounding to the grid


def grid_of_plan(plan: Plan) -> UploadGrid:
    """Return the common grid of all uploads."""
    return UploadGrid.of(plan.uploads, plan.model, dim=plan.dim)


def terms_of_plan(plan: Plan, index: int, grid: UploadGrid) -> SumTerms:
    """Return the terms that one device is offered."""
    return SumTerms(
        unit=plan.unit,
        least_answers=plan.least_answers,
        colluders=plan.colluders,
        weight=float(plan.weights[index]),
        step=grid.step,
        scale_bits=grid.scale_bits,
        ring_bits=grid.ring_bits,
        largest_norm=grid.largest_norm,
        clip=plan.clip,
    )
