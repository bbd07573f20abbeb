"""A fleet behind the `Devices` seam: the loop of `train` runs it over any channel.

Each device is offered its own part of the plan, once per run.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fedbudget.checks import Array, one_of, whole, within
from fedbudget.errors import (
    InvalidInputError,
    MessageError,
    RecordError,
    TrainingError,
)
from fedbudget.fleet.coordinator.checkpoints import Checkpoints, StoredRun
from fedbudget.fleet.coordinator.defaults import (
    DEADLINE,
    MINIMUM,
    NAME,
    PATIENCE,
    PRECISION,
)
from fedbudget.fleet.coordinator.roster import Roster, check_fit
from fedbudget.fleet.coordinator.rounds import Asked, OpenRound, Reach, theta_of
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.transport.channel import Channel, Message
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
from fedbudget.training import Order, Replies


def offers_of(
    plan: Plan,
    declared: Sequence[Declaration],
    *,
    run: bytes,
    name: str,
    precision: Precision,
) -> Iterator[RunOffer]:
    """Yield the offers to all devices that have a part in the plan."""
    for index, told in enumerate(declared):
        if plan.device_rounds[index] > 0:
            yield RunOffer(
                run=run,
                name=name,
                device=told.device,
                tau=plan.tau,
                rounds=int(plan.device_rounds[index]),
                learning_rate=plan.learning_rate,
                sampling=plan.sampling,
                num_samples=int(plan.num_samples[index]),
                batch_size=int(plan.batch_size[index]),
                noise_std=float(plan.noise_std[index]),
                loss=plan.loss,
                num_classes=plan.num_classes,
                l2=plan.l2,
                dim=plan.dim,
                precision=precision,
                drift_momentum=plan.momentum if plan.drift_control else None,
            )


def precision_of(payload: bytes) -> Precision:
    """Return the precision of a run's models, from a signed offer of ours."""
    body, _ = decode(payload)
    return RunOffer.from_bytes(body).precision


_log = logging.getLogger(__name__)

_DRAIN = 256  # replies that are written together
_ENVELOPE = 4096  # bytes of a reply around its model, at most


class FleetDevices:
    """Devices that answer over a channel; each enforces its own budgets.

    Args:
        channel: To the devices: a broker's connection, or Flower's messages.
        declared: The devices of the run, in the order of the plan.
        signer: Signs offers and orders.
        checkpoints: Where the run is kept; one file per run.
        name: Of the run, for people and for the devices' policies.
        deadline: Seconds for a round, by a clock that nobody can set.
        minimum: Answers without which a round does not end at its deadline.
        patience: Deadlines after which a round without enough answers ends the run.
        precision: Of the models that are sent.
        roster: Who is connected; what devices say during the run goes there.
    """

    def __init__(
        self,
        channel: Channel,
        declared: Sequence[Declaration],
        *,
        signer: Signer,
        checkpoints: Checkpoints,
        name: str = NAME,
        deadline: float = DEADLINE,
        minimum: int = MINIMUM,
        patience: int = PATIENCE,
        precision: str = PRECISION,
        roster: Roster | None = None,
    ) -> None:
        within("deadline", deadline, above=0)
        one_of("precision", precision, tuple(PRECISIONS))
        self.declared, self.name = tuple(declared), name
        self.deadline, self.patience = float(deadline), whole("patience", patience)
        self.minimum = whole("minimum", minimum, most=len(self.declared))
        self.precision = precision
        self.roster = Roster() if roster is None else roster
        self._channel, self._signer = channel, signer
        self._checkpoints = checkpoints
        self._run: StoredRun | None = None
        self._reach: Reach | None = None
        self._silence: Counter[str] = Counter()  # deadlines missed in a row
        self._joiner = Joiner(max_bytes=_ENVELOPE)
        self.tally: Tally | None = None

    @property
    def num_devices(self) -> int:
        """M."""
        return len(self.declared)

    @property
    def names(self) -> tuple[str, ...]:
        """The devices, in the order of the plan."""
        return tuple(told.device for told in self.declared)

    def begin(self, plan: Plan) -> None:
        """Store a run of this plan, or take up the stored one, and offer it.

        Offers are signed and sent to every device that has a part in the plan. What
        devices refused before an interruption is forgotten: they are asked again.

        Raises:
            InvalidInputError: The plan does not fit what devices declared.
            RecordError: The stored run is of another plan, of other devices or of
                another precision.
        """
        check_fit(plan, self.declared)
        stored = self._checkpoints.run()
        if stored is None:
            stored = self._store(plan)
        elif stored.plan != StoredRun.plain(plan) or stored.declared != self.declared:
            raise RecordError(
                f"{self._checkpoints.path} holds a run of another plan or of other "
                "devices: choose another folder"
            )
        else:
            self._go_on()
        self._run = stored
        self._reach = Reach(plan, self._checkpoints, self.precision)
        self.tally = Tally(plan, self.declared, self._checkpoints)
        size = plan.model.num_params(plan.dim) * PRECISIONS[self.precision].itemsize
        self._joiner = Joiner(max_bytes=size + _ENVELOPE)
        for device, payload in self._checkpoints.offers():
            self._keep(topics.offer(device), payload)

    def run_round(self, order: Order) -> Replies:
        """Carry out one round; one that is over is not carried out again."""
        if self._run is None or self.tally is None:
            raise InvalidInputError("no run has begun: begin one first")
        theta = self._checkpoints.closed_round(order.number)
        if theta is None:
            theta = self._carry_out(order)
        return self.tally.replies(order.number, theta)

    def status(self) -> dict[str, Any]:
        """Return the state of the run as plain values; any thread may ask."""
        found: dict[str, Any] = {"name": self.name, "devices": []}
        if self._run is not None and self.tally is not None:
            found["run"] = self._run.run.hex()
            found |= self.tally.summary(self.roster.online)
        return found

    def finish(self) -> None:
        """Take offers and the last order back: who wakes up later pays nothing."""
        run = self._checkpoints.run()
        if run is None:
            return
        order, left = topics.order(run.run), set(self._channel.kept)
        for device, payload in self._checkpoints.offers():
            left |= {topic for topic, _ in split(topics.offer(device), payload)}
        left |= {
            topic for topic, _ in split(order, self._checkpoints.last_order() or b"")
        }
        for topic in sorted(left):
            self._channel.withdraw(topic)
        self._channel.flush(10)

    def _store(self, plan: Plan) -> StoredRun:
        run = os.urandom(16)
        begun = StoredRun(
            run=run,
            name=self.name,
            plan=StoredRun.plain(plan),
            declared=self.declared,
        )
        offers = offers_of(
            plan,
            self.declared,
            run=run,
            name=self.name,
            precision=self.precision,  # type: ignore[arg-type]  # checked above
        )
        signed = [(offer.device, self._signer.sign(offer)) for offer in offers]
        self._checkpoints.begin(begun, signed)
        return begun

    def _go_on(self) -> None:
        """Prepare to go on with the run in the file; nothing is sent yet."""
        held = precision_of(self._checkpoints.offers()[0][1])
        if held != self.precision:
            raise RecordError(
                f"{self._checkpoints.path} holds a run whose models are {held}, not "
                f"{self.precision}: give the precision that it was begun with"
            )
        # Owners may have corrected what they had refused for: they are asked again.
        self._checkpoints.forget_refusals()

    def _carry_out(self, order: Order) -> Array:
        """Send the order, collect answers until the round is over, and average."""
        assert self._run is not None and self.tally is not None
        assert self._reach is not None
        payload = self._order_bytes(order)
        asked = Asked(
            run=self._run.run,
            round=order.number,
            theta=theta_of(payload, self.precision, len(order.theta)),
            plan=order.plan,
            precision=self.precision,
            reach=self._reach.before(order.number),
        )
        current = OpenRound(asked, self.names, self._checkpoints, self.tally)
        self._send_again(set(self._silence), order=False)  # an offer met a full disk
        self._keep(topics.order(self._run.run), payload)
        started = time.monotonic()
        self._collect(current, started)
        self._silence = Counter({n: self._silence[n] + 1 for n in current.silent})
        theta = current.average(order.theta)
        if current.num_answers == 0:
            return theta  # all refuse: the round stays open until somebody answers
        seconds = time.monotonic() - started
        self._checkpoints.close_round(order.number, theta, seconds)
        self.tally.close(order.number, current.replies, seconds)
        return theta

    def _order_bytes(self, order: Order) -> bytes:
        """Return the round's signed bytes: the same ones whenever it is asked for."""
        assert self._run is not None
        payload = self._checkpoints.order(order.number)
        if payload is None:
            theta = theta_to_bytes(order.theta, self.precision)
            told = RoundOrder(run=self._run.run, round=order.number, theta=theta)
            payload = self._signer.sign(told)
            self._checkpoints.add_order(order.number, payload)
        return payload

    def _collect(self, current: OpenRound, started: float) -> None:
        nudged = False
        while not self._is_over(current, time.monotonic() - started):
            elapsed = time.monotonic() - started
            if not nudged and elapsed >= self.deadline / 2:
                nudged = True  # a broker may have lost something, or not retained it
                self._send_again(current.silent)
            marks = (self.deadline / 2, self.deadline, self.deadline * self.patience)
            wait = min(mark - elapsed for mark in marks if mark > elapsed)
            self._take_in(current, wait)

    def _is_over(self, current: OpenRound, elapsed: float) -> bool:
        waiting, answers = current.waiting, current.num_answers
        least = min(self.minimum, current.num_wanted)  # some may leave as planned
        enough = answers >= least
        if not waiting and (answers == 0 or enough):
            return True  # if nobody answered, all have refused
        # Who is offline is waited for once, who only seems to be there twice.
        gone = {
            name
            for name, missed in self._silence.items()
            if missed > bool(self.roster.online.get(name))
        }
        if enough and (elapsed >= self.deadline or waiting <= gone):
            return True
        if not waiting or elapsed >= self.deadline * self.patience:
            raise TrainingError(
                f"round {current.asked.round} has {answers} answers after "
                f"{elapsed:.0f} s, of at least {least}: start more devices and "
                "run the same command to go on, or lower the minimum"
            )
        return False

    def _take_in(self, current: OpenRound, seconds: float) -> None:
        """Wait for messages and take in all that are there, written at once."""
        message = self._channel.receive(seconds)
        if message is None:
            return
        batch = [message]
        while len(batch) < _DRAIN and (more := self._channel.receive(0)) is not None:
            batch.append(more)
        with self._checkpoints.together():
            for message in batch:
                self._take(current, message)
        for message in batch:
            self._channel.acknowledge(message)

    def _take(self, current: OpenRound, message: Message) -> None:
        """Take in one message, or drop it."""
        device = "(unknown)"
        try:
            _, device = topics.parse(message.topic)
            if self.roster.take(message):
                return
            whole = self._joiner.add(device, message.payload)
            if whole is not None:
                current.take(device, whole)
        except MessageError as error:
            current.drop(device, str(error))

    def _send_again(self, devices: set[str], *, order: bool = True) -> None:
        """Send these devices' offers, and the order, once more."""
        assert self._run is not None
        starts = [*map(topics.offer, sorted(devices)), topics.order(self._run.run)]
        for start in starts if order else starts[:-1]:
            for topic, payload in self._channel.kept.items():
                if topic == start or topic.startswith(f"{start}/"):
                    self._channel.publish(topic, payload, retain=True)

    def _keep(self, topic: str, payload: bytes) -> None:
        for part, piece in split(topic, payload):
            self._channel.keep(part, piece)
