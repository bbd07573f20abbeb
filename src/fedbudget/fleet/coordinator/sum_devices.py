"""A fleet whose coordinator sees only sums of uploads; see `fleet.secure.protocol`.

A round has phases. Each ends when all devices that it waits for have sent their part,
or at its deadline if enough have. What was received, and what was published, is in the
checkpoints: a coordinator that is killed in any phase publishes the same bytes again.
If too few devices upload or confirm, the round is tried again under fresh masks;
devices send the same noisy vector, and are not charged again. Once shares were
requested there is no other attempt: devices would refuse it. If the sum is lost then,
the round ends without a step.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator.checkpoints import Outcome, StoredReply
from fedbudget.fleet.coordinator.defaults import DEAF
from fedbudget.fleet.coordinator.devices import Backoff, FleetDevices
from fedbudget.fleet.coordinator.sum_rounds import (
    Collector,
    Phase,
    SumAttempt,
    SumContext,
    most_moved,
)
from fedbudget.fleet.device.sum_terms import grid_of, terms_of
from fedbudget.fleet.secure.introductions import member_of
from fedbudget.fleet.secure.peers import Peers
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.framing import Joiner, split
from fedbudget.fleet.wire.messages import (
    Message,
    RunOffer,
    theta_from_bytes,
    theta_to_bytes,
)
from fedbudget.fleet.wire.secure_messages import (
    MOST_PEERS,
    AttemptAnswers,
    AttemptOrder,
    AttemptRoster,
    Introduction,
    PeerList,
    RevealOrder,
)
from fedbudget.planning import Plan
from fedbudget.privacy import Trust
from fedbudget.training import Order

_log = logging.getLogger(__name__)
_REPEAT = 1.0, 16.0  # seconds: the first and the longest until an order is repeated
_LIST_AGAIN = 3  # repeats of an order, from which on the list of peers is sent, too
_MOST_ATTEMPTS = 5  # at one round, since the coordinator's start
_MOST_WRECKED = 3  # sums in a row, before the run stops
_PEER = 160  # bytes of a message for each peer, at most


class _TooFewError(Exception):
    """A phase has ended with too few messages."""


def _reasons(current: Collector) -> str:
    reasons = sorted({str(entry.reason) for entry in current.refused.values()})
    return "; ".join(reasons[:3]) or "none"


class SumDevices(FleetDevices):
    """Devices whose uploads the coordinator sees only in sums.

    Args:
        arguments: Those of `FleetDevices`. `deadline` is for every phase.
        settings: Those of `FleetDevices`. An introduction of another `authority` is
            dropped; None: the devices alone check it.
    """

    trust: Trust = "sum"
    remedy = "start more devices and run the same command to resume"

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._phase: Phase | None = None
        self._attempt = 0
        self._lost = 0  # sums in a row
        self._outside: dict[str, StoredReply] = {}  # who refused to be a peer
        self._wrecked: list[set[str]] = []  # who was in the last sums, all wrecked
        self._sound: set[str] = set()  # devices of sums that were not
        self._known_peers: Peers | None = None  # of the run, once it was published
        self._peer_list = b""  # the signed message
        self._met: set[str] = set()  # devices that have shown that they know it

    def begin(self, plan: Plan) -> None:
        """Store a run of this plan, or resume the stored one, and send the offers."""
        if int((plan.weights > 0).sum()) > MOST_PEERS:
            raise InvalidInputError(
                f"{plan.num_devices} devices are above the {MOST_PEERS} of one secure "
                "sum: split the fleet"
            )
        if self._share < 1:
            raise InvalidInputError(
                f"participation {self._share:g} is not for sums, which ask all devices "
                "in every round: set it to 1"
            )
        super().begin(plan)
        self._known_peers = None
        offer = RunOffer.from_bytes(decode(next(iter(self._offers.values())))[0])
        self._grid = grid_of(terms_of(offer))
        self._terms = terms_of(offer).common
        size = 8 * plan.model.num_params(plan.dim) + 8192
        self._joiner = Joiner(max_bytes=size + _PEER * plan.num_devices)

    def status(self) -> dict[str, Any]:
        """Return the state of the run, with the phase of the open round."""
        return super().status() | {
            "phase": None if self._phase is None else str(self._phase),
            "attempt": self._attempt,
        }

    def _run_open_round(self, order: Order) -> Array:
        """Run the phases of a round, until its sum is there or lost."""
        assert self._run is not None and self.tally is not None
        started = time.monotonic()
        context = SumContext(
            run=self._run.run,
            round=order.number,
            plan=order.plan,
            grid=self._grid,
            length=len(order.theta),
            names=self.names,
            checkpoints=self._checkpoints,
            tally=self.tally,
            authority=self._authority,
        )
        self.tally.begin(order.number, self._checkpoints.replies(order.number))
        if self._known_peers is None:  # it is published once: it is long
            self._known_peers = self._peers(context)
        attempt, total = self._attempts(context, self._known_peers, order)
        start = theta_from_bytes(self._theta(attempt), self.precision, len(order.theta))
        answered = attempt.names_of(attempt.answered)
        if total is not None and not self._is_sound(attempt, total, start, answered):
            total = None
        theta = start if total is None else start + total / attempt.weight
        attempt.refused |= self._outside
        attempt.note_outcomes(set() if total is None else answered)
        seconds = time.monotonic() - started
        replies = self._checkpoints.replies(order.number)
        late = {n for n, reply in replies.items() if reply.outcome == Outcome.LATE}
        self._checkpoints.close_round(order.number, theta, seconds)
        in_time = {n: reply for n, reply in replies.items() if n not in late}
        self.tally.close(order.number, in_time, seconds)
        for name in late:
            self.tally.late(name, was_refused=False)
        self._phase = None
        return np.asarray(theta)

    def _theta(self, attempt: SumAttempt) -> bytes:
        signed = attempt.sent(AttemptOrder.kind)
        assert signed is not None  # published before anything else
        return AttemptOrder.from_bytes(decode(signed)[0]).theta

    def _peers(self, context: SumContext) -> Peers:
        """Return the peers of the run; introduce the devices to each other first."""
        run = Collector(context, 0)
        if run.sent(PeerList.kind) is None:
            least = context.plan.least_answers
            wanted = self._selected(context.plan)
            self._wait(
                run, Phase.INTRODUCTIONS, wanted, least, lambda name: self._offers[name]
            )
            introductions = run.received(Phase.INTRODUCTIONS)
            ordered = [introductions[name] for name in sorted(introductions)]
            peers = PeerList.of(context.run, map(Introduction.from_bytes, ordered))
            self._store_order(run, peers)
            self._outside = dict(run.refused)
        signed = run.sent(PeerList.kind)
        assert signed is not None
        self._peer_list = signed
        self._keep(topics.peers(context.run), signed)
        listed = PeerList.from_bytes(decode(signed)[0]).read()
        try:
            return Peers.for_sums(
                context.run,
                tuple(map(member_of, listed)),
                least_answers=context.plan.least_answers,
                colluders=context.plan.colluders,
                terms=self._terms,
            )
        except InvalidInputError as error:
            raise TrainingError(str(error)) from None

    def _selected(self, plan: Plan) -> set[str]:
        pairs = zip(self.names, plan.device_rounds.tolist(), strict=True)
        return {name for name, rounds in pairs if rounds > 0}

    def _attempts(
        self, context: SumContext, peers: Peers, order: Order
    ) -> tuple[SumAttempt, Array | None]:
        """Try a round until its sum is there; None if it is lost."""
        first = max(1, self._checkpoints.last_sum_attempt(context.round))
        for number in range(first, first + _MOST_ATTEMPTS):
            self._attempt = number
            attempt = SumAttempt(context, peers, number)
            try:
                self._until_reveal(attempt, order)
            except _TooFewError as error:
                _log.warning("round %d is tried again: %s", context.round, error)
                continue
            return attempt, self._unmasked(attempt)
        raise TrainingError(
            f"round {context.round} failed in {_MOST_ATTEMPTS} attempts: "
            f"{self.remedy}; refusals: {_reasons(attempt)}"
        )

    def _until_reveal(self, attempt: SumAttempt, order: Order) -> None:
        """Publish and collect all that comes before shares are requested.

        Raises:
            _TooFewError: The attempt has failed; no share was requested.
        """
        run, names = attempt.of.run, {m.name for m in attempt.peers.members}
        if attempt.sent(AttemptOrder.kind) is None:
            message = AttemptOrder(
                run=run,
                round=attempt.of.round,
                attempt=attempt.of.number,
                theta=theta_to_bytes(order.theta, self.precision),
            )
            self._store_order(attempt, message)
        if attempt.sent(AttemptRoster.kind) is None:
            self._phase_of(attempt, Phase.KEYS, names, AttemptOrder.kind)
            self._store_order(attempt, attempt.roster_order())
        if attempt.sent(AttemptAnswers.kind) is None:
            self._collect_uploads(attempt)
            self._store_order(attempt, attempt.answers_order())
        if attempt.sent(RevealOrder.kind) is None:
            members = attempt.names_of(attempt.answered)
            self._phase_of(attempt, Phase.CONFIRMATIONS, members, AttemptAnswers.kind)
            # From here on there is no other attempt at this round.
            attempt.store(RevealOrder.kind, b"")

    def _collect_uploads(self, attempt: SumAttempt) -> None:
        """Send the roster: all of it to all, or to each what concerns its neighbours.

        Raises:
            _TooFewError: Too few devices have uploaded.
        """
        names = attempt.names_of(attempt.roster.keys)
        if attempt.peers.is_complete:
            self._phase_of(attempt, Phase.UPLOADS, names, AttemptRoster.kind)
            return
        orders = {
            name: self._signer.sign(attempt.roster_order_for(name)) for name in names
        }
        self._ask_each(attempt, Phase.UPLOADS, orders, attempt.least)

    def _ask_each(
        self, attempt: SumAttempt, phase: Phase, orders: dict[str, bytes], least: int
    ) -> None:
        """Send every device an order of its own, and wait for their part."""
        self._phase = phase
        missing = orders.keys() - set(attempt.received(phase))
        for name in sorted(self._reachable(missing)):
            self._send_to(name, orders[name])
        self._wait(attempt, phase, set(orders), least, lambda name: orders[name])

    def _phase_of(
        self, attempt: SumAttempt, phase: Phase, names: set[str], order: str
    ) -> None:
        """Publish an order of an attempt to all devices, and wait for their part."""
        self._phase = phase
        signed = attempt.sent(order)
        assert signed is not None
        topic = topics.order(attempt.of.run)
        # Not in the first round: the list of peers was just sent to all.
        if phase is Phase.KEYS and self._met:
            self._send_list(names - self._met)
        # If this coordinator dies, no device shall pay for its order.
        self._channel.clear_at_death(split(topic, signed)[0][0])
        self._keep(topic, signed)
        least = max(attempt.least, self.minimum if phase is Phase.KEYS else 0)
        self._wait(attempt, phase, names, least, lambda _: signed)

    def _unmasked(self, attempt: SumAttempt) -> Array | None:
        """Request the shares, and return the sum; None if it is lost."""
        names = attempt.names_of(attempt.answered)
        orders = {name: self._signer.sign(attempt.reveal_order(name)) for name in names}
        try:
            self._ask_each(attempt, Phase.SHARES, orders, len(names))
        except _TooFewError:
            pass  # fewer shares may be enough
        try:
            total = attempt.total()
        except InvalidInputError as error:
            _log.error("the sum of round %d is lost: %s", attempt.of.round, error)
            self._lost += 1
            if self._lost < _MOST_WRECKED:
                return None
            raise TrainingError(
                f"{_MOST_WRECKED} sums in a row were lost, for which all devices "
                f"paid: {error}; leave out devices that reveal none or wrong ones"
            ) from None
        self._lost = 0
        return total

    def _wait(
        self,
        current: Collector,
        phase: Phase,
        wanted: set[str],
        least: int,
        order_for: Callable[[str], bytes],
    ) -> None:
        """Wait for the messages of a phase; repeat its order until they come.

        Raises:
            TrainingError: Too few devices take part: nothing was charged.
            _TooFewError: Too few uploads, confirmations or shares.
        """
        self._phase = phase
        early = phase in (Phase.INTRODUCTIONS, Phase.KEYS)
        most = self.deadline * (self.patience if early else 1)
        repeats, reconnects = Backoff(*_REPEAT), Backoff(DEAF)
        started, heard = time.monotonic(), 0.0
        number, away = 0, wanted - set(self._reachable(wanted))
        while True:
            elapsed = time.monotonic() - started
            received = wanted & set(current.received(phase))
            waiting = wanted - received - set(current.refused)
            enough = len(received) >= least and current.suffices(phase, received)
            if not waiting or (enough and waiting <= self._gone()):
                break
            if elapsed >= (self.deadline if enough else most):
                break
            if repeats.is_due(elapsed):
                number += 1
                self._send_again(phase, waiting, order_for, number=number, away=away)
            if reconnects.is_due(elapsed - heard):
                self._channel.reconnect()
            times = (repeats.at, heard + reconnects.at, self.deadline, most)
            pause = min(time_ - elapsed for time_ in times if time_ > elapsed)
            if self._receive(current, pause):
                heard = time.monotonic() - started
        if phase is Phase.KEYS:
            self._met |= received
        if early:
            self._silence = Counter({n: self._silence[n] + 1 for n in waiting})
        if enough:
            return
        message = f"{len(received)} devices sent {phase}, of at least {least}"
        if len(received) >= least:
            message += ", but the missing ones are neighbours of each other"
        if not early:
            raise _TooFewError(message)
        raise TrainingError(
            f"{message}, after {elapsed:.0f} s: {self.remedy}; refusals: "
            f"{_reasons(current)}"
        )

    def _gone(self) -> set[str]:
        """Return the devices that are not worth waiting for: see `FleetDevices`."""
        return {
            name
            for name, missed in self._silence.items()
            if missed > bool(self.roster.online.get(name))
        }

    def _store_order(self, current: Collector, message: Message) -> None:
        """Sign and store an order, before it is published."""
        current.store(message.kind, self._signer.sign(message))

    def _send_again(
        self,
        phase: Phase,
        waiting: set[str],
        order_for: Callable[[str], bytes],
        *,
        number: int,
        away: set[str],
    ) -> None:
        """Repeat an order for the nth time; remove from `away` who came online."""
        reachable = set(self._reachable(waiting))
        if phase is Phase.KEYS:
            unsure = reachable if number >= _LIST_AGAIN else reachable & away
            self._send_list(unsure - self._met)
            away -= reachable
        for name in sorted(reachable):
            self._send_to(name, order_for(name), again=phase)

    def _send_list(self, names: set[str]) -> None:
        """Send the list of peers again; it is the longest message by far."""
        for name in sorted(names):
            self._send_to(name, self._peer_list)

    def _send_to(self, name: str, signed: bytes, again: Phase | None = None) -> None:
        """Send an order, or an offer, to one device."""
        is_offer = again is Phase.INTRODUCTIONS
        topic = topics.offer(name) if is_offer else topics.order_again(name)
        for chunk, piece in split("", signed):
            self._channel.publish(topic + chunk, piece, retain=is_offer)

    def _is_sound(
        self, attempt: SumAttempt, total: Array, theta: Array, answered: set[str]
    ) -> bool:
        """Return whether honest devices can have produced a sum.

        Raises:
            TrainingError: Several sums in a row were wrecked.
        """
        length = float(np.linalg.norm(total))
        limit = most_moved(
            attempt.context.plan, theta, weight=attempt.weight, answers=len(answered)
        )
        if length <= limit:
            self._sound |= answered
            self._wrecked.clear()
            return True
        _log.error(
            "the sum of round %d has norm %.4g, above %.4g: a device sent garbage, and "
            "the round ends without a step",
            *(attempt.of.round, length, limit),
        )
        self._wrecked.append(answered)
        if len(self._wrecked) < _MOST_WRECKED:
            return False
        suspects = set.intersection(*self._wrecked)
        never_sound = sorted(suspects - self._sound) or sorted(suspects)
        raise TrainingError(
            f"{_MOST_WRECKED} sums in a row were wrecked by garbage; one of these "
            f"{len(never_sound)} devices was in all of them: "
            f"{', '.join(never_sound[:8])}; leave them out"
        )
