"""The guard of a device that takes part in secure sums.

It is a `Guard` whose runs may be sums: `fleet.secure.protocol` has the steps of a
round. Every input is untrusted. In addition to what a guard checks, this one

1.  takes part only with peers whose certificates are of the authority in its owner's
    policy, and with one list of peers per run;
2.  charges a round, and uses rows, only for a roster of enough devices: the keys of
    its neighbours are signed by them; that the others announced theirs is, above 100
    devices, the server's word, without which nothing can be unmasked;
3.  sends its noisy vector only under masks: the same vector again in a later attempt,
    under fresh ones, and never once it has revealed a share of that round;
4.  signs one list of answers per attempt, of at least as many devices as its noise was
    counted for, itself among them, of which masks connect all honest ones;
5.  reveals, once per round and only for a list that a quorum has signed, one of the two
    shares of each peer. What it reveals is in its ledger, on disk, before it is sent.

An evaluation in a sum (`EvaluationOrder.sum_terms`) is a run of one round under its own
identity: `joined` from its order instead of an offer, with keys and peers of its own,
charged from the evaluations' share, on the held-out rows. What its peers have in common
is the order itself (`sum_purpose`): no key, share or mask fits another run or order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, LedgerError, MessageError
from fedbudget.fleet.device.data_file import loss_of
from fedbudget.fleet.device.evaluation import sum_terms_of, sum_vector
from fedbudget.fleet.device.exact_uploads import exact_upload
from fedbudget.fleet.device.guard import RELEASE, Guard, _Refusal, check_offer
from fedbudget.fleet.device.ledger_file import JoinedRun, LedgerFile
from fedbudget.fleet.device.policy import Policy, SumPolicy
from fedbudget.fleet.device.sum_ledger import SumLedger, SumState
from fedbudget.fleet.device.sum_terms import (
    grid_of,
    is_sum_order,
    sum_charge,
    terms_of,
    upload_of,
)
from fedbudget.fleet.device.withdrawals import ENDED
from fedbudget.fleet.secure import protocol, shamir
from fedbudget.fleet.secure.introductions import (
    check_introductions,
    introduce,
    peers_of,
)
from fedbudget.fleet.secure.peers import SIGNATURE_BYTES, Peers, Roster, RunKeys
from fedbudget.fleet.secure.protocol import (
    SEALED_BYTES,
    AttemptSecrets,
    Participant,
)
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.evaluation import (
    EvaluationOrder,
    EvaluationSum,
    sum_purpose,
)
from fedbudget.fleet.wire.messages import (
    ACCEPTED,
    Message,
    Reply,
    RunOffer,
    run_of,
    theta_from_bytes,
)
from fedbudget.fleet.wire.secure_messages import (
    ORDERS,
    AttemptAnswers,
    AttemptConfirmation,
    AttemptKeys,
    AttemptMessage,
    AttemptOrder,
    AttemptRoster,
    AttemptUpload,
    Introduction,
    PeerList,
    RevealedShares,
    RevealOrder,
    SumTerms,
    pack_records,
    unpack_records,
)

SumOrder: TypeAlias = (
    PeerList | AttemptOrder | AttemptRoster | AttemptAnswers | RevealOrder
)


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """An attempt for which keys were sent, and no upload yet; not on disk.

    A device that is killed now drops out of the attempt.
    """

    order: AttemptOrder
    theta: Array
    secrets: AttemptSecrets
    keys: AttemptKeys  # as sent


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a device knows of a run of sums."""

    joined: JoinedRun
    offer: RunOffer | EvaluationOrder
    terms: SumTerms | EvaluationSum
    participant: Participant

    @property
    def peers(self) -> Peers:
        return self.participant.peers

    @property
    def least_answers(self) -> int:
        """Answers below which this device signs and reveals nothing."""
        return max(self.terms.least_answers, self.peers.least_answers)


class SumGuard(Guard):
    """Owns a device's rows and ledger, and answers orders, also those of sums."""

    _ledger_type: ClassVar[type[LedgerFile]] = SumLedger
    _ledger: SumLedger

    def __init__(self, policy: Policy) -> None:
        if policy.sums is None:
            raise InvalidInputError("the policy has no [sums]: use an ordinary guard")
        self._sums: SumPolicy = policy.sums
        self._runs: dict[bytes, _Run] = {}  # whose peers are verified; the last one
        self._pending: dict[bytes, _Pending] = {}  # by run; the last one
        self._early: dict[bytes, bytes] = {}  # orders that wait for the peers
        super().__init__(policy)

    def answer_offer(self, data: bytes) -> list[Message]:  # type: ignore[override]
        """Join a run, or refuse; introduce this device to its peers."""
        replies: list[Message] = list(super().answer_offer(data))
        first = replies[0] if replies else None
        if isinstance(first, Reply) and not first.refused:
            try:
                introduction = self._introduction(first.run)
            except (LedgerError, InvalidInputError) as error:
                return [self._trouble(first.run, 0, error)]
            if introduction is not None:
                replies.insert(1, introduction)
        return replies

    def answer_order(self, data: bytes) -> list[Message]:  # type: ignore[override]
        """Take the next step of a sum, or refuse; ignore orders for other devices."""
        try:
            body, key = self._withdrawals.coordinators.open(data)
        except MessageError:
            return list(super().answer_order(data))  # not from a coordinator
        if not is_sum_order(body):
            return list(super().answer_order(data))
        try:
            order = _read_order(body)
        except MessageError as error:
            return self._unreadable(body, error)
        number = order.round if isinstance(order, AttemptMessage) else 0
        try:
            joined = self._ledger.run(order.run)
            if joined is None:
                joined = self._ledger.evaluation(order.run)
            if joined is None:
                self._wait_for_offer(order.run, data)
                return []
            if joined.key != key:
                raise _Refusal("untrusted", "another coordinator signed the offer")
            if self._ledger.has_ended(order.run, key):
                raise _Refusal("policy", ENDED)
            if isinstance(order, PeerList):
                return self._meet(order, body, joined)
            return self._step(order, data, joined)
        except _Refusal as refusal:
            return [self._refused(order.run, number, refusal)]
        except (LedgerError, InvalidInputError, MessageError) as error:
            return [self._trouble(order.run, number, error)]

    def _unreadable(self, body: bytes, error: MessageError) -> list[Message]:
        """Refuse an order of sums of another release, if this device takes part."""
        run_and_round = run_of(body, str(decode(body)["kind"]))
        if run_and_round is None:
            return []
        try:
            run = run_and_round[0]
            joined = self._ledger.run(run) or self._ledger.evaluation(run)
        except LedgerError as trouble:
            return [self._trouble(*run_and_round, trouble)]
        if joined is None:
            return []  # a sum of other devices
        refusal = _Refusal("unsupported", f"{RELEASE}: {error}")
        return [self._refused(*run_and_round, refusal)]

    def _step(
        self, order: AttemptMessage, data: bytes, joined: JoinedRun
    ) -> list[Message]:
        run = self._run(order.run, joined)
        if run is None:
            self._early = {order.run: data}
            return []
        steps: dict[type[AttemptMessage], Callable[..., Message | None]] = {
            AttemptOrder: self._announce,
            AttemptRoster: self._upload,
            AttemptAnswers: self._confirm,
            RevealOrder: self._reveal,
        }
        reply = steps[type(order)](order, run)
        return [] if reply is None else [reply]

    def _introduction(self, run: bytes) -> Introduction | None:
        """Return this device's introduction to a run of sums; the same every time."""
        joined = self._ledger.run(run)
        if joined is None or RunOffer.from_bytes(joined.offer).sum_terms is None:
            return None
        return self._introduced(run)

    def _evaluate(self, body: bytes, key: str) -> Message | None:  # type: ignore[override]
        """Answer an evaluation; to one in a sum, with an introduction to its peers."""
        reply = super()._evaluate(body, key)
        if reply is None or reply.code != ACCEPTED:
            return reply
        try:
            return self._introduced(reply.run, evaluation=body)
        except (LedgerError, InvalidInputError) as error:
            return self._trouble(reply.run, 1, error)

    def _introduced(
        self, run: bytes, *, evaluation: bytes | None = None
    ) -> Introduction:
        """Return the introduction to a run, or to the evaluation of this order."""
        stored = self._ledger.keys(run)
        if stored is not None:
            return Introduction.from_bytes(stored[1])
        keys, identity = RunKeys.generate(), self._sums.identity
        introduction = introduce(
            run,
            self._policy.device,
            keys,
            certificate=identity.certificate,
            key=identity.key,
        )
        self._ledger.store_keys(
            run, keys.secret, introduction.to_bytes(), order=evaluation
        )
        return introduction

    def _meet(self, order: PeerList, body: bytes, joined: JoinedRun) -> list[Message]:
        """Accept the list of peers of a run, once."""
        stored = self._ledger.peers(order.run)
        if stored is not None and stored != body:
            raise _Refusal("policy", "this run had other peers before")
        if stored is None:
            try:
                run = self._verified(order, joined)
            except (InvalidInputError, MessageError) as error:
                raise _Refusal("policy", str(error)) from None
            self._ledger.accept_peers(order.run, body, run.peers.digest)
            self._runs = {order.run: run}
        early = self._early.pop(order.run, None)
        return [] if early is None else self.answer_order(early)

    def _run(self, run: bytes, joined: JoinedRun) -> _Run | None:
        """Return a run whose peers are known; after a restart, from the ledger."""
        if run not in self._runs:
            stored = self._ledger.peers(run)
            if stored is None:
                return None
            self._runs = {run: self._accepted(PeerList.from_bytes(stored), joined)}
        return self._runs[run]

    def _verified(self, order: PeerList, joined: JoinedRun) -> _Run:
        """Return a run after all checks on its peers."""
        introductions = order.read()
        check_introductions(introductions, self._sums.identity.ca)
        return self._with_peers(introductions, order.run, joined)

    def _accepted(self, order: PeerList, joined: JoinedRun) -> _Run:
        """Return a run whose peers were accepted before this device was restarted.

        Their certificates were valid then; one that has expired since ends no run.
        """
        run = self._with_peers(order.read(), order.run, joined)
        if run.peers.digest != self._ledger.peers_digest(order.run):
            raise LedgerError("the stored list of peers does not match its digest")
        return run

    def _with_peers(
        self, introductions: Sequence[Introduction], number: bytes, joined: JoinedRun
    ) -> _Run:
        """Return a run with these peers, of whom this device must be one."""
        name, stored = self._policy.device, self._ledger.keys(number)
        if stored is None:
            raise InvalidInputError("this device has not introduced itself to the run")
        offer, terms, common = self._terms(number, joined)
        peers = peers_of(
            number,
            introductions,
            least_answers=terms.least_answers,
            colluders=terms.colluders,
            terms=common,
        )
        keys, index = RunKeys(stored[0]), peers.index(name)
        if peers.members[index] != keys.member(name):
            raise InvalidInputError("the list of peers has other keys of this device")
        if len(peers.members) < terms.least_answers:
            raise InvalidInputError(
                f"{len(peers.members)} peers are below the least number of answers, "
                f"{terms.least_answers}"
            )
        participant = Participant(keys=keys, peers=peers, index=index)
        return _Run(joined=joined, offer=offer, terms=terms, participant=participant)

    def _terms(
        self, run: bytes, joined: JoinedRun
    ) -> tuple[RunOffer | EvaluationOrder, SumTerms | EvaluationSum, bytes]:
        """Return an offer, or an order, with its terms and what all peers have."""
        evaluation = self._ledger.evaluation_order(run)
        if evaluation is None:
            offer = RunOffer.from_bytes(joined.offer)
            terms = terms_of(offer)
            return offer, terms, terms.common
        order = EvaluationOrder.from_bytes(evaluation)
        return order, sum_terms_of(order), sum_purpose(evaluation)

    def _announce(self, order: AttemptOrder, run: _Run) -> Message | None:
        """Send keys for an attempt; nothing is charged yet."""
        state = self._ledger.state(order.run)
        if state is not None and order.of[1:] == (state.round, state.attempt):
            return None  # the upload was sent: keys are no longer needed
        self._check_attempt(order, run, state)
        theta = self._start_of(order, run)
        pending = self._pending.get(order.run)
        if pending is None or pending.order != order:
            secrets = AttemptSecrets.generate()
            announced = run.participant.announce(order.of, secrets)
            keys = AttemptKeys(
                **self._addressed(order),
                mask_key=announced.key.mask_key,
                commitment=announced.key.commitment,
                signature=announced.key.signature,
                sealed=pack_records(announced.sealed),
            )
            pending = _Pending(order=order, theta=theta, secrets=secrets, keys=keys)
            self._pending = {order.run: pending}
        return pending.keys

    def _check_attempt(
        self, order: AttemptOrder, run: _Run, state: SumState | None
    ) -> None:
        """Refuse a round that is over, or an attempt that is not a new one."""
        last = self._ledger.last_round(order.run)
        if state is not None and order.round == state.round:
            if state.revealed is not None:
                raise _Refusal("wrong-round", "shares of this round were revealed")
            if order.attempt <= state.attempt:
                raise _Refusal("wrong-round", "an attempt must be after the last one")
        elif order.round == last:
            raise _Refusal(
                "already-charged", "the answer to this round was lost in a crash"
            )
        elif not last < order.round <= run.offer.rounds:
            raise _Refusal(
                "wrong-round", f"round must be {last + 1} to {run.offer.rounds}"
            )

    def _start_of(self, order: AttemptOrder, run: _Run) -> Array:
        """Return the model of an order after all checks that cost nothing."""
        offer, terms = run.offer, run.terms
        try:
            theta = theta_from_bytes(order.theta, offer.precision, offer.num_params)
        except MessageError as error:
            raise _Refusal("bad-model", str(error)) from None
        self._check_overdrafts(run.joined.key, order.run)
        # Below again: the owner may have changed the policy since the run was joined.
        if isinstance(offer, EvaluationOrder):
            if order.theta != offer.theta:
                raise _Refusal("bad-model", "the evaluation is of another model")
            reason = self._evaluator.refusal(offer, self._rows)
            if reason:
                raise _Refusal("policy", reason)
            return theta
        assert isinstance(terms, SumTerms)
        length = float(np.linalg.norm(theta))
        if not length <= terms.largest_norm:
            raise _Refusal(
                "bad-model",
                f"the model has norm {length:g}, above {terms.largest_norm:g}",
            )
        check_offer(offer, self._policy, self._rows, self._num_samples)
        return theta

    def _upload(self, order: AttemptRoster, run: _Run) -> Message | None:
        """Charge the round, and send its noisy vector under masks."""
        state = self._ledger.state(order.run)
        if state is None or order.of[1:] != (state.round, state.attempt):
            pending = self._pending.get(order.run)
            if pending is None or pending.order.of != order.of:
                return None  # it sent no keys, or was restarted since
            state = self._charged_state(order, run, pending, state)
        elif order.to_bytes() != state.roster:
            raise _Refusal("policy", "this attempt had another roster before")
        if state.revealed is not None:
            return None
        masked = run.participant.masked(
            np.frombuffer(state.vector, dtype="<i8"),
            self._roster(order, run),
            AttemptSecrets(
                mask_secret=shamir.from_bytes(state.mask_secret),
                self_secret=shamir.from_bytes(state.self_secret),
            ),
            ring_bits=run.terms.ring_bits,
        )
        return AttemptUpload(**self._addressed(order), vector=masked.tobytes())

    def _charged_state(
        self,
        order: AttemptRoster,
        run: _Run,
        pending: _Pending,
        earlier: SumState | None,
    ) -> SumState:
        """Return the state after this upload; it is on disk, and so is the charge."""
        roster = self._roster(order, run)
        own = roster.keys.get(run.participant.index)
        if own != pending.keys.key:
            raise _Refusal("policy", "the roster has another key of this device")
        if len(roster.members) < run.least_answers:
            raise _Refusal(
                "policy",
                f"{len(roster.members)} devices have announced keys, below the "
                f"{run.least_answers} that are needed",
            )
        if not run.peers.is_spread(roster.members):
            raise _Refusal(
                "policy",
                "the roster leaves out so many neighbours of each other that a part of "
                "the sum could be seen",
            )
        try:
            roster.check(run.participant.index)
        except InvalidInputError as error:
            raise _Refusal("policy", str(error)) from None
        again = earlier is not None and earlier.round == order.round
        if again and earlier is not None:
            if earlier.revealed is not None or order.attempt <= earlier.attempt:
                raise _Refusal("wrong-round", "this round or attempt is over")
            vector = earlier.vector
        else:
            vector = self._new_vector(order, run, pending.theta)
        state = SumState(
            round=order.round,
            attempt=order.attempt,
            vector=vector,
            mask_secret=shamir.to_bytes(pending.secrets.mask_secret),
            self_secret=shamir.to_bytes(pending.secrets.self_secret),
            roster=order.to_bytes(),
        )
        if again:
            self._ledger.update(order.run, state)
        else:
            self._ledger.store_upload(order.run, state)
        return state

    def _new_vector(self, order: AttemptRoster, run: _Run, theta: Array) -> bytes:
        """Charge a round, then use the rows: the noisy vector of whole numbers."""
        offer, rows = run.offer, self._rows_of(order.run, run.joined)
        if isinstance(offer, EvaluationOrder):
            refused = self._evaluator.charge(offer)
            if refused is not None:
                raise _Refusal(refused.code, refused.reason or "")
            return sum_vector(offer, theta, rows).astype("<i8").tobytes()
        charge = sum_charge(offer, self._policy.prices)
        overdrawn = self._ledger.charge(order.run, order.round, charge)
        if overdrawn is not None:
            self._ledger.note_overdraft(order.run, overdrawn)
            raise _Refusal(overdrawn, "this round would overdraw the budget")
        vector = exact_upload(
            theta,
            rows,
            loss=loss_of(offer.loss, offer.num_classes, offer.l2),
            uploads=upload_of(offer),
            grid=grid_of(terms_of(offer)),
        )
        return vector.astype("<i8").tobytes()

    def _confirm(self, order: AttemptAnswers, run: _Run) -> Message | None:
        """Sign the list of answers; one per attempt."""
        state = self._state_of(order)
        if state is None:
            return None
        roster, answered = self._stored_roster(state, run), order.read()
        try:
            protocol.check_answers_list(roster, answered, least=run.least_answers)
        except InvalidInputError as error:
            raise _Refusal("policy", str(error)) from None
        if run.participant.index not in answered:
            return None  # its upload came too late, or the coordinator says so
        if state.answered is None:
            state = replace(state, answered=order.answered)
            self._ledger.update(order.run, state)
        if state.answered != order.answered:
            raise _Refusal("policy", "this attempt had another list of answers before")
        return AttemptConfirmation(
            **self._addressed(order),
            signature=run.participant.confirm(roster, answered),
        )

    def _reveal(self, order: RevealOrder, run: _Run) -> Message | None:
        """Reveal one share of each neighbour, once per round."""
        state = self._state_of(order)
        if state is None or order.device != self._policy.device:
            return None
        if state.answered is None:
            raise _Refusal("policy", "this device has confirmed no list of answers")
        if state.revealed is not None:
            return RevealedShares.from_bytes(state.revealed)
        roster = self._stored_roster(state, run)
        answered = list(unpack_records(state.answered, 0))
        signatures = unpack_records(order.confirmations, SIGNATURE_BYTES)
        try:
            protocol.check_confirmations(roster, answered, signatures)
        except InvalidInputError as error:
            raise _Refusal("policy", str(error)) from None
        sealed = unpack_records(order.sealed, SEALED_BYTES)
        shares = run.participant.reveal(roster, answered, sealed)
        message = RevealedShares(**self._addressed(order), shares=pack_records(shares))
        names = [member.name for member in run.peers.members]
        body = {
            "attempt": state.attempt,
            "answers": len(answered),
            "self_masks": [names[m] for m in shares if m in answered],
            "mask_keys": [names[m] for m in shares if m not in answered],
        }
        # Secrets and the vector are not needed any more: the round is over.
        empty = replace(state, vector=b"", mask_secret=b"", self_secret=b"")
        self._ledger.reveal(
            order.run, replace(empty, revealed=message.to_bytes()), body
        )
        return message

    def _state_of(self, order: AttemptMessage) -> SumState | None:
        """Return the state of an attempt; none if this device did not upload in it."""
        state = self._ledger.state(order.run)
        if state is None or order.of[1:] != (state.round, state.attempt):
            return None
        return state

    def _stored_roster(self, state: SumState, run: _Run) -> Roster:
        return self._roster(AttemptRoster.from_bytes(state.roster), run)

    def _roster(self, order: AttemptRoster, run: _Run) -> Roster:
        return order.read(run.peers)

    def _addressed(self, order: AttemptMessage) -> dict[str, Any]:
        """Return the fields that every reply about an attempt has."""
        return {
            "device": self._policy.device,
            "run": order.run,
            "round": order.round,
            "attempt": order.attempt,
        }


def _read_order(body: bytes) -> SumOrder:
    """Return an order of sums.

    Raises:
        MessageError: It is of another release, or damaged.
    """
    plain = decode(body)
    (message,) = (order for order in ORDERS if order.kind == plain["kind"])
    return message.from_value(plain)
