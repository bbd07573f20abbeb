"""A fleet as `Devices`: `train` runs it like simulated devices, over any channel.

Each device receives an offer of its own part of the plan, once per run.
"""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, number, one_of, whole, within
from fedbudget.errors import (
    InvalidInputError,
    MessageError,
    RecordError,
    TrainingError,
)
from fedbudget.fleet.coordinator.checkpoints import (
    Checkpoints,
    StoredRun,
    pack_bits,
    unpack_bits,
)
from fedbudget.fleet.coordinator.defaults import (
    DEADLINE,
    DEAF,
    MINIMUM,
    NAME,
    PARTICIPATION,
    PATIENCE,
    PRECISION,
    QUORUM,
)
from fedbudget.fleet.coordinator.participation import Participation
from fedbudget.fleet.coordinator.roster import Roster, check_fit
from fedbudget.fleet.coordinator.rounds import (
    CloneError,
    OpenRound,
    RoundContext,
    ShiftLimit,
    read_order,
    theta_of,
)
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.coordinator.sum_rounds import grid_of_plan, terms_of_plan
from fedbudget.fleet.transport.channel import Channel, Message
from fedbudget.fleet.transport.reply_signatures import ReplyKeys
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.framing import Joiner, split
from fedbudget.fleet.wire.messages import (
    PRECISIONS,
    Declaration,
    Precision,
    RoundOrder,
    RunOffer,
    theta_to_bytes,
)
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning import Plan
from fedbudget.planning.plans import is_same_plan
from fedbudget.privacy import Kind, Trust
from fedbudget.training import Order, Replies

_BATCH = 256  # messages stored in one transaction
_ENVELOPE = 4096  # bytes of a reply besides its model, at most
_FIRST_REPEAT, _LONGEST_REPEAT = 1.0, 16.0  # seconds until an order is repeated
_log = logging.getLogger(__name__)


class Backoff:
    """Moments that come after twice the time each, in seconds since a start."""

    def __init__(self, first: float, longest: float = math.inf) -> None:
        self.at, self._step, self._longest = first, first, longest

    def is_due(self, elapsed: float) -> bool:
        """Return whether the next moment has come; if so, the one after it is next."""
        if elapsed < self.at:
            return False
        self._step = min(2 * self._step, self._longest)
        self.at = elapsed + self._step
        return True


class Receiver(Protocol):
    """What takes the messages of devices: an open round."""

    def take(self, device: str, payload: bytes) -> None:
        """Store a message, or raise a MessageError."""

    def drop(self, device: str, reason: str) -> None:
        """Count a dropped message."""


class FleetDevices:
    """Devices that answer over a channel; each enforces its own budgets.

    Args:
        channel: To the devices: a connection to a broker, or Flower's messages.
        declarations: Of the run's devices, in the order of the plan.
        signer: Signs offers and orders.
        checkpoints: The file of the run.
        name: Of the run, for people and for the devices' policies.
        deadline: Seconds for a round, by the monotonic clock.
        minimum: Answers that a round needs before it ends at its deadline.
        patience: Deadlines after which a round without enough answers ends the run.
        quorum: Share of the asked devices whose answers end a round, once the others
            have had as long again; 1: every round waits for all, until its deadline.
        participation: Share of the devices that a round asks, by turns.
        precision: Of the models that are sent.
        roster: Stores declarations and connection states that arrive during the run.
        authority: Of the devices' certificates: replies must be signed with them.
            None: signatures are not checked.
    """

    kind: Kind = "release"  # each device adds exact noise before it answers
    trust: Trust = "uploads"  # what this coordinator sees

    def __init__(
        self,
        channel: Channel,
        declarations: Sequence[Declaration],
        *,
        signer: Signer,
        checkpoints: Checkpoints,
        name: str = NAME,
        deadline: float = DEADLINE,
        minimum: int = MINIMUM,
        patience: int = PATIENCE,
        quorum: float = QUORUM,
        participation: float = PARTICIPATION,
        precision: str = PRECISION,
        roster: Roster | None = None,
        authority: Path | None = None,
    ) -> None:
        within("deadline", deadline, above=0)
        one_of("precision", precision, tuple(PRECISIONS))
        self.declarations, self.name = tuple(declarations), name
        self.deadline, self.patience = float(deadline), whole("patience", patience)
        self.minimum = whole("minimum", minimum, most=len(self.declarations))
        self.quorum = number("quorum", quorum, above=0, most=1)
        self._share = number("participation", participation, above=0, most=1)
        self._participation: Participation | None = None
        self.precision = precision
        self.roster = Roster() if roster is None else roster
        self._channel, self._signer = channel, signer
        self._checkpoints = checkpoints
        self._authority = authority
        self._keys = ReplyKeys(self.declarations, authority)
        self._run: StoredRun | None = None
        self._offers: dict[str, bytes] = {}  # signed, by device
        self._shift_limit: ShiftLimit | None = None
        self._silence: Counter[str] = Counter()  # deadlines missed in a row
        self._half_seconds = 0.0  # until half of the answers of the last round
        self._quorum_seconds = math.inf  # until the quorum of the open round
        self._joiner = Joiner(max_bytes=_ENVELOPE)
        self.tally: Tally | None = None

    @property
    def num_devices(self) -> int:
        """The number of devices (M)."""
        return len(self.declarations)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices, in the order of the plan."""
        return tuple(declaration.device for declaration in self.declarations)

    def begin(self, plan: Plan) -> None:
        """Store a run of this plan, or resume the stored one, and send the offers.

        Every device that takes part in the plan receives a signed offer. Refusals from
        before an interruption are deleted: those devices are asked again.

        Raises:
            InvalidInputError: The plan does not fit the declarations.
            RecordError: The stored run has another plan, other devices or another
                precision.
        """
        if plan.trust != self.trust:
            raise InvalidInputError(
                f"the plan has trust {plan.trust!r}, and these devices {self.trust!r}: "
                "use SumDevices for sums, FleetDevices for uploads"
            )
        check_fit(plan, self.declarations)
        stored = self._checkpoints.run()
        if stored is None:
            stored = self._store(plan)
        elif (
            not is_same_plan(stored.plan, StoredRun.plain(plan))
            or stored.declarations != self.declarations
        ):
            raise RecordError(
                f"{self._checkpoints.path} holds a run of another plan or of other "
                "devices: choose another folder"
            )
        else:
            self._resume()
        self._run = stored
        self.roster.begin(self.declarations)
        # Devices of an older release cannot be asked one by one.
        if all((d.wire or 1) >= 2 for d in self.declarations):
            self._participation = Participation(
                self.names, run=stored.run, share=self._share
            )
        self._shift_limit = ShiftLimit(plan, self._checkpoints, self.precision)
        self.tally = Tally(plan, self.declarations, self._checkpoints)
        size = plan.model.num_params(plan.dim) * PRECISIONS[self.precision].itemsize
        self._joiner = Joiner(max_bytes=size + _ENVELOPE)
        self._offers = dict(self._checkpoints.offers())
        for device, payload in self._offers.items():
            self._keep(topics.offer(device), payload)

    def run_round(self, order: Order) -> Replies:
        """Run one round, unless it is closed already."""
        if self._run is None or self.tally is None:
            raise InvalidInputError("no run has begun: call begin first")
        theta = self._checkpoints.closed_round(order.number)
        if theta is None:
            theta = self._run_open_round(order)
        return self.tally.replies(order.number, theta)

    def status(self) -> dict[str, Any]:
        """Return the state of the run as plain values; safe from any thread."""
        status: dict[str, Any] = {"name": self.name, "devices": []}
        if self._run is not None and self.tally is not None:
            status["run"] = self._run.run.hex()
            status |= self.tally.summary(self.roster.online)
        return status

    def _store(self, plan: Plan) -> StoredRun:
        run = os.urandom(16)
        stored = StoredRun(
            run=run,
            name=self.name,
            plan=StoredRun.plain(plan),
            declarations=self.declarations,
        )
        offers = offers_of(
            plan,
            self.declarations,
            run=run,
            name=self.name,
            precision=self.precision,  # type: ignore[arg-type]  # checked above
        )
        signed = [(offer.device, self._signer.sign(offer)) for offer in offers]
        self._checkpoints.begin(stored, signed)
        return stored

    def _resume(self) -> None:
        """Check the stored run and prepare to resume it; nothing is sent yet."""
        precision = precision_of(self._checkpoints.offers()[0][1])
        if precision != self.precision:
            raise RecordError(
                f"{self._checkpoints.path} holds a run whose models are {precision}, "
                f"not {self.precision}: use the precision that the run started with"
            )
        # Owners may have changed the policies that made their devices refuse.
        self._checkpoints.forget_refusals()

    def _run_open_round(self, order: Order) -> Array:
        """Send the order, collect answers until the round ends, and average."""
        assert self._run is not None and self.tally is not None
        assert self._shift_limit is not None
        payload = self._order_bytes(order)
        context = RoundContext(
            run=self._run.run,
            round=order.number,
            theta=theta_of(payload, self.precision, len(order.theta)),
            plan=order.plan,
            precision=self.precision,
            shift_limit=self._shift_limit.before(order.number),
            asked=self._asked_by(payload, order),
        )
        current = OpenRound(context, self.names, self._checkpoints, self.tally)
        # A device whose disk was full has not stored its offer.
        self._repeat(self._silence)
        # If this coordinator dies, no device shall pay for its order; the first chunk
        # of a long one is enough.
        self._channel.clear_at_death(split(topics.order(self._run.run), payload)[0][0])
        self._keep(topics.order(self._run.run), payload)
        started = time.monotonic()
        self._collect(current, started, payload)
        self._learn(current)
        theta = current.average(order.theta)
        if current.num_answers == 0:
            # All devices refuse, without a charge: the round stays open.
            self.tally.begin(order.number, current.replies)
            return theta
        seconds = time.monotonic() - started
        self._checkpoints.close_round(order.number, theta, seconds)
        self.tally.close(order.number, current.replies, seconds)
        return theta

    def _order_bytes(self, order: Order) -> bytes:
        """Return the signed bytes of a round's order; always the same ones."""
        assert self._run is not None
        payload = self._checkpoints.order(order.number)
        if payload is None:
            theta, selected = theta_to_bytes(order.theta, self.precision), None
            planned = order.plan.takes_part(order.number)
            if self._participation is not None:
                self._participation.returned(self.roster.returned)
                self.roster.returned.clear()
                asked = self._participation.asked(
                    order.number, planned, self.roster.clones
                )
                selected = None if (asked == planned).all() else pack_bits(asked)
            message = RoundOrder(
                run=self._run.run, round=order.number, theta=theta, selected=selected
            )
            payload = self._signer.sign(message)
            self._checkpoints.add_order(order.number, payload, selected)
        return payload

    def _asked_by(self, payload: bytes, order: Order) -> NDArray[np.bool_]:
        """Return whom a signed order asks; the same after a restart."""
        planned = order.plan.takes_part(order.number)
        selected = read_order(payload).selected
        if selected is None:
            return planned
        return planned & unpack_bits(selected, self.num_devices)

    def _learn(self, current: OpenRound) -> None:
        """Note who was silent in a round, and who was late."""
        silence = {n: self._silence[n] + 1 for n in current.silent}
        not_asked = {n: s for n, s in self._silence.items() if not current.asks(n)}
        self._silence = Counter(not_asked | silence)
        if self._participation is not None:
            online = self.roster.online
            late = [
                name
                for name in current.waiting - current.replies.keys()
                if online.get(name) or name not in current.silent
            ]
            answered = current.answered
            self._participation.closed(
                current.context.round, late=late, answered=answered
            )

    def _collect(self, current: OpenRound, started: float, order: bytes) -> None:
        """Receive replies until the round is over; repeat the order until answered.

        A device that has answered sends its stored answer again, without a charge.
        """
        repeats = Backoff(max(_FIRST_REPEAT, 2 * self._half_seconds), _LONGEST_REPEAT)
        reconnects, publishes = Backoff(DEAF), Backoff(self.deadline / 2)
        heard, half_seconds = 0.0, None
        self._quorum_seconds = math.inf
        while not self._is_over(current, time.monotonic() - started):
            elapsed = time.monotonic() - started
            if publishes.is_due(elapsed):  # a broker may not have retained it
                self._keep(topics.order(current.context.run), order)
            if repeats.is_due(elapsed):
                self._repeat(self._reachable(current.waiting), order)
            if reconnects.is_due(elapsed - heard):
                _log.warning("no message for %.0f s: connecting again", elapsed - heard)
                self._channel.reconnect()
            times = [repeats.at, heard + reconnects.at, publishes.at]
            times += [self.deadline, self.deadline * self.patience]
            times += [2 * self._quorum_seconds]
            wait = min(time_ - elapsed for time_ in times if time_ > elapsed)
            if self._receive(current, wait):
                heard = time.monotonic() - started
            if half_seconds is None and 2 * current.num_answers > current.num_selected:
                self._half_seconds = half_seconds = time.monotonic() - started

    def _reachable(self, devices: Iterable[str]) -> list[str]:
        """Return the devices that the broker does not call offline.

        For an offline one, the retained order waits, which the broker withdraws if this
        coordinator dies. A repeated order would wait for ever, and be paid for.
        """
        online = self.roster.online
        return [name for name in devices if online.get(name) is not False]

    def _is_over(self, current: OpenRound, elapsed: float) -> bool:
        waiting = current.waiting - self.roster.clones.keys()
        answers = current.num_answers
        needed = min(self.minimum, current.num_selected)  # devices may stop as planned
        enough = answers >= needed
        if not waiting and (answers == 0 or enough):
            return True  # without any answer, all devices have refused
        # Wait once for an offline device, twice for one that the broker calls online.
        gone = {
            name
            for name, missed in self._silence.items()
            if missed > bool(self.roster.online.get(name))
        }
        if enough and (elapsed >= self.deadline or waiting <= gone):
            return True
        if enough and answers >= math.ceil(self.quorum * current.num_selected):
            self._quorum_seconds = min(self._quorum_seconds, elapsed)
            if elapsed >= 2 * self._quorum_seconds:
                return True
        if not waiting or elapsed >= self.deadline * self.patience:
            raise TrainingError(
                f"round {current.context.round} has {answers} answers after "
                f"{elapsed:.0f} s, of at least {needed}: start more devices and "
                "run the same command to resume, or lower the minimum"
            )
        return False

    def _receive(self, current: Receiver, seconds: float) -> bool:
        """Wait for a message and store all that have arrived, in one transaction.

        Returns whether any has arrived.
        """
        message = self._channel.receive(seconds)
        if message is None:
            return False
        batch = [message]
        while len(batch) < _BATCH and (message := self._channel.receive(0)) is not None:
            batch.append(message)
        owners = [(topics.reply_owner(m.topic), m.payload) for m in batch]
        self._keys.check_ahead([(o, payload) for o, payload in owners if o])
        with self._checkpoints.transaction():
            for message in batch:
                self._take(current, message)
        self._channel.acknowledge(*batch)
        self.roster.send_notices(self._channel, self._signer)
        return True

    def _take(self, current: Receiver, message: Message) -> None:
        """Store one message, or drop it."""
        device = "(unknown)"
        try:
            kind, device = topics.parse(message.topic)
            if kind != "reply":
                # A broker may echo what this coordinator has sent.
                if not self.roster.take(message):
                    _log.debug("ignored a message on %s", message.topic)
                elif kind == "declare" and device in self.roster.declarations:
                    self._keys.learn(self.roster.declarations[device])
                return
            if device in self.roster.clones:
                raise MessageError(f"refused, {self.roster.clones[device]}")
            payload = self._joiner.add(device, message.payload)
            if payload is not None:
                current.take(device, self._keys.open(device, payload))
        except CloneError as error:
            self.roster.refuse(device, str(error))
            current.drop(device, str(error))
        except MessageError as error:
            current.drop(device, str(error))

    def _repeat(self, devices: Iterable[str], order: bytes | None = None) -> None:
        """Send these devices their offers again, and an order to them alone."""
        pieces = [] if order is None else split("", order)
        for device in sorted(devices):
            for topic, payload in split(topics.offer(device), self._offers[device]):
                self._channel.publish(topic, payload, retain=True)
            for chunk, piece in pieces:
                self._channel.publish(topics.order_again(device) + chunk, piece)

    def _keep(self, topic: str, payload: bytes) -> None:
        for part, piece in split(topic, payload):
            self._channel.keep(part, piece)


def offers_of(
    plan: Plan,
    declarations: Sequence[Declaration],
    *,
    run: bytes,
    name: str,
    precision: Precision,
) -> Iterator[RunOffer]:
    """Yield the offers to all devices that take part in the plan."""
    grid = grid_of_plan(plan) if plan.trust == "sum" else None
    noise_std = plan.noise_std_of(1)
    for index, declaration in enumerate(declarations):
        if plan.device_rounds[index] > 0:
            yield RunOffer(
                run=run,
                name=name,
                device=declaration.device,
                tau=plan.tau,
                rounds=int(plan.device_rounds[index]),
                learning_rate=plan.learning_rate,
                sampling=plan.sampling,
                num_samples=int(plan.num_samples[index]),
                batch_size=int(plan.batch_size[index]),
                noise_std=float(noise_std[index]),
                loss=plan.loss,
                num_classes=plan.num_classes,
                l2=plan.l2,
                dim=plan.dim,
                precision=precision,
                drift_momentum=plan.momentum if plan.drift_correction else None,
                noise_decay=plan.noise_decay if plan.noise_decay < 1 else None,
                sum_terms=None
                if grid is None
                else terms_of_plan(plan, index, grid).to_bytes(),
                index=index if (declaration.wire or 1) >= 2 else None,
            )


def precision_of(payload: bytes) -> Precision:
    """Return the precision of a run's models, from a signed offer."""
    body, _ = decode(payload)
    return RunOffer.from_bytes(body).precision
