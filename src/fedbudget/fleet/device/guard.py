"""The guard of a device: it alone touches the data, and only for orders it may obey.

Whatever comes in is untrusted. A guard answers a round only if

1.  a coordinator that the owner trusts signed the order, and had signed an offer of the
    run that lies within the owner's policy;
2.  it is a later round of that run than any that was charged, with a finite model of
    the right size (the answer to a charged round is sent again as it was stored);
3.  the rows that the run began with are still there;
4.  both budgets pay for it, and the charge is on disk.

Everything else is refused at no charge. The noise of the answer is at least what the
charge says, for any model whatsoever: see `exact_steps`.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, LedgerError, MessageError
from fedbudget.fleet.device.data_file import DeviceRows, loss_of, read_rows, stamp_of
from fedbudget.fleet.device.drift import Answered, Course, steer
from fedbudget.fleet.device.exact_steps import (
    LARGEST_WEIGHT,
    ExactRows,
    NoiseGrid,
    noisy_steps,
)
from fedbudget.fleet.device.ledger_file import Accounts, JoinedRun, StoredAnswer
from fedbudget.fleet.device.policy import Policy, PricePolicy
from fedbudget.fleet.wire.messages import (
    ACCEPTED,
    ANSWERED,
    Declaration,
    Reply,
    RoundOrder,
    RunOffer,
    theta_from_bytes,
    theta_to_bytes,
)
from fedbudget.fleet.wire.signing import Trust
from fedbudget.ledger import Charge


class _Refusal(Exception):  # noqa: N818  # an answer, not an error
    """Why an order is not carried out: a code of messages.REFUSALS, and words."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def check_offer(offer: RunOffer, policy: Policy, rows: DeviceRows) -> None:
    """Refuse what lies outside the owner's policy or the data's shape.

    Raises:
        Refusal: It says what is wrong; all of that is public.
    """
    limits = policy.orders
    if not limits.joins(offer.name):
        raise _Refusal("policy", "the owner does not join runs of this name")
    for name, given, most in (
        ("tau", offer.tau, limits.most_tau),
        ("rounds", offer.rounds, limits.most_rounds),
        ("learning_rate", offer.learning_rate, limits.most_learning_rate),
        ("l2", offer.l2, limits.most_l2),
        ("num_samples", offer.num_samples, len(rows)),
        ("batch_size", offer.batch_size, offer.num_samples),
    ):
        if given > most:
            raise _Refusal("policy", f"{name} {given:g} is above {most:g}")
    shape = (policy.data.loss, rows.num_classes, rows.dim)
    if (offer.loss, offer.num_classes, offer.dim) != shape:
        raise _Refusal("policy", f"loss, num_classes and dim must be {shape}")
    if offer.sampling == "full" and offer.batch_size != offer.num_samples:
        raise _Refusal("policy", "a full batch has all samples")
    multiplier, least = noise_multiplier(offer), limits.least_noise_multiplier
    if not multiplier >= least:
        raise _Refusal("policy", f"noise multiplier {multiplier:g} is below {least:g}")
    try:
        NoiseGrid.of(
            noise_std=offer.noise_std,
            batch_size=offer.batch_size,
            lipschitz=loss_of(offer.loss, offer.num_classes).lipschitz,
            num_params=offer.num_params,
        )
    except InvalidInputError as error:
        raise _Refusal("policy", str(error)) from None


def noise_multiplier(offer: RunOffer) -> float:
    """Return the noise over one sample's share of a mean gradient."""
    lipschitz = loss_of(offer.loss, offer.num_classes).lipschitz
    return offer.noise_std * offer.batch_size / lipschitz


def _round_charge(offer: RunOffer, prices: PricePolicy) -> Charge:
    """Return what one round of a run costs."""
    return Charge(
        steps=offer.tau,
        noise_multiplier=noise_multiplier(offer),
        cost=prices.communication + prices.computation * offer.tau,
    )


_log = logging.getLogger(__name__)

MOST_RUNS = 10_000  # that one ledger remembers
_WAITING = 4  # orders kept that came before their offer


@dataclass(frozen=True, kw_only=True)
class _Frozen:
    """The rows of a run, once they were compared with what the run began with."""

    fingerprint: str
    rows: ExactRows


class Guard:
    """Holds a device's rows and accounts, and answers orders."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._trust = Trust(policy.orders.trusted)
        self._rows: DeviceRows = read_rows(policy.data)
        self._frozen: dict[bytes, _Frozen] = {}
        self._waiting: OrderedDict[bytes, bytes] = OrderedDict()
        self._accounts = Accounts(
            policy.ledger, policy.budget, lineage=policy.data.lineage
        )
        try:
            self._note_data(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the ledger free."""
        self._accounts.close()

    @property
    def declaration(self) -> Declaration:
        """What the owner makes public."""
        policy = self._policy
        return Declaration(
            device=policy.device,
            num_samples=len(self._rows),
            dim=self._rows.dim,
            loss=policy.data.loss,
            num_classes=self._rows.num_classes,
            epsilon=policy.public.epsilon,
            delta=policy.budget.delta,
            cost=policy.public.cost,
            communication_price=policy.prices.communication,
            computation_price=policy.prices.computation,
            accountant=policy.budget.accountant,
            least_noise_multiplier=policy.orders.least_noise_multiplier,
            info=policy.public.info,
        )

    @property
    def num_params(self) -> int:
        """The length of a model for these rows."""
        loss = loss_of(self._policy.data.loss, self._rows.num_classes)
        return loss.num_params(self._rows.dim)

    def refresh(self) -> bool:
        """Read the data file again if it has changed, and say whether it had.

        Raises:
            InvalidInputError: The file or its schema cannot be used any more; the rows
                that were read before stay.
        """
        if stamp_of(self._policy.data.file) == self._rows.stamp:
            return False
        rows = read_rows(self._policy.data)
        self._note_data(rows)  # first: rows that the ledger does not know are not used
        self._rows = rows
        self._frozen.clear()  # to be compared with the new rows before their next use
        return True

    def answer_offer(self, data: bytes) -> list[Reply]:
        """Join a run, or refuse; and answer an order of it that came too early."""
        try:
            body, key = self._trust.open(data)
            offer = RunOffer.from_bytes(body)
        except MessageError as error:
            _log.warning("an offer is ignored: %s", error)
            return []  # nobody that we know has asked
        try:
            self._join(offer, body, key)
        except _Refusal as refusal:
            return [self._refused(offer.run, 0, refusal)]
        except (LedgerError, InvalidInputError) as error:
            return [self._trouble(offer.run, 0, error)]
        accepted = Reply(
            device=self._policy.device, run=offer.run, round=0, code=ACCEPTED
        )
        early = self._waiting.pop(offer.run, None)
        return [accepted, *([] if early is None else self.answer_order(early))]

    def answer_order(self, data: bytes) -> list[Reply]:
        """Carry out a round, or refuse; say nothing to what is not for this device."""
        try:
            body, key = self._trust.open(data)
            order = RoundOrder.from_bytes(body)
        except MessageError as error:
            _log.warning("an order is ignored: %s", error)
            return []
        try:
            joined = self._accounts.run(order.run)
            if joined is None:
                # Perhaps our offer is still on its way; perhaps the run is not ours.
                self._waiting[order.run] = data
                while len(self._waiting) > _WAITING:
                    self._waiting.popitem(last=False)
                return []
            if joined.key != key:
                raise _Refusal("untrusted", "another coordinator made the offer")
            return [self._carry_out(order, joined)]
        except _Refusal as refusal:
            return [self._refused(order.run, order.round, refusal)]
        except (LedgerError, InvalidInputError) as error:
            return [self._trouble(order.run, order.round, error)]

    def _carry_out(self, order: RoundOrder, joined: JoinedRun) -> Reply:
        offer = RunOffer.from_bytes(joined.offer)
        stored = self._accounts.answer(order.run, order.round)
        if stored is not None:
            return Reply.from_bytes(stored)
        last = self._accounts.last_round(order.run)
        if order.round == last:
            raise _Refusal("already-charged", "its answer was lost in a crash")
        if not last < order.round <= offer.rounds:
            raise _Refusal(
                "wrong-round", f"rounds {last + 1} to {offer.rounds} may come"
            )
        try:
            theta = theta_from_bytes(order.theta, offer.precision, offer.num_params)
        except MessageError as error:
            raise _Refusal("bad-model", str(error)) from None
        if not (abs(theta) <= LARGEST_WEIGHT).all():
            raise _Refusal("bad-model", f"a weight is above {LARGEST_WEIGHT:g}")
        course = self._course(offer, order.round, theta)
        # Again, for the owner may have changed the policy since.
        check_offer(offer, self._policy, self._rows)
        rows = self._rows_of(offer, joined.fingerprint)
        charge = _round_charge(offer, self._policy.prices)
        over = self._accounts.charge(order.run, order.round, charge)
        if over is not None:
            raise _Refusal(over, "this round would overdraw it")
        return self._compute(offer, order, course, rows)

    def _course(self, offer: RunOffer, round: int, theta: Array) -> Course:
        """Return where the steps start and what shifts them; no row is read for it."""
        stored, last = None, None
        if offer.drift_momentum is not None:
            stored = self._accounts.last_answer(offer.run)
        if stored is not None:
            last = Answered.read(stored, offer)
        momentum = offer.drift_momentum or 0.0
        course = steer(last, theta, round=round, tau=offer.tau, momentum=momentum)
        if not (abs(course.shift) <= LARGEST_WEIGHT).all():
            raise _Refusal("bad-model", "it is too far from this device's last answer")
        return course

    def _compute(
        self, offer: RunOffer, order: RoundOrder, course: Course, rows: ExactRows
    ) -> Reply:
        """Take the steps, which are paid for, and store the answer."""
        found = noisy_steps(
            course.start,
            rows,
            loss=loss_of(offer.loss, offer.num_classes, offer.l2),
            tau=offer.tau,
            learning_rate=offer.learning_rate,
            noise_std=offer.noise_std,
            batch_size=offer.batch_size,
            shift=course.shift,
        )
        try:
            if found is None:
                raise MessageError("it grew beyond all bounds")
            sent = theta_to_bytes(found, offer.precision)
        except MessageError as error:  # a public fact: noise came before it
            raise _Refusal("bad-model", f"after {offer.tau} steps, {error}") from None
        reply = Reply(
            device=self._policy.device,
            run=order.run,
            round=order.round,
            code=ANSWERED,
            theta=sent,
        )
        needed = offer.drift_momentum is not None and order.round < offer.rounds
        kept = course.to_bytes() if needed else None
        answer = StoredAnswer(order.round, reply.to_bytes(), kept)
        self._accounts.store_answer(order.run, answer)
        return reply

    def _join(self, offer: RunOffer, body: bytes, key: str) -> None:
        known = self._accounts.run(offer.run)
        if known is not None:
            if (known.offer, known.key) != (body, key):
                raise _Refusal("policy", "this run was offered before, and differently")
            return
        if offer.device != self._policy.device:
            raise _Refusal("policy", "this offer is for another device")
        if self._accounts.num_runs >= MOST_RUNS:
            raise _Refusal("policy", f"the ledger holds {MOST_RUNS} runs already")
        if offer.num_samples > len(self._rows):
            self.refresh()
        check_offer(offer, self._policy, self._rows)
        fingerprint = self._rows.fingerprint(offer.num_samples)
        joined = JoinedRun(offer=body, key=key, fingerprint=fingerprint)
        self._accounts.join(offer.run, joined)

    def _rows_of(self, offer: RunOffer, fingerprint: str) -> ExactRows:
        """Return the rows of a run: those that it began with, and no others."""
        frozen = self._frozen.get(offer.run)
        if frozen is None or frozen.fingerprint != fingerprint:
            if self._rows.fingerprint(offer.num_samples) != fingerprint:
                raise _Refusal("data-changed", "the rows of this run are gone")
            frozen = _Frozen(
                fingerprint=fingerprint, rows=self._rows.rows.first(offer.num_samples)
            )
            self._frozen = {offer.run: frozen}  # runs come one after the other
        return frozen.rows

    def _note_data(self, rows: DeviceRows) -> None:
        """Write the data set's lineage into the ledger."""
        count, known = len(rows), self._accounts.data
        fingerprint = rows.fingerprint(count)
        if known == (count, fingerprint):
            return
        if known is None:
            continues = "first"
        elif known[0] <= count and rows.fingerprint(known[0]) == known[1]:
            continues = "grown"
        else:
            continues = "changed"
        self._accounts.note_data(count, fingerprint, continues=continues)

    def _refused(self, run: bytes, round: int, refusal: _Refusal) -> Reply:
        _log.warning("round %d is refused, %s: %s", round, refusal.code, refusal)
        return Reply(
            device=self._policy.device,
            run=run,
            round=round,
            code=refusal.code,
            reason=refusal.reason[:200],
        )

    def _trouble(self, run: bytes, round: int, error: Exception) -> Reply:
        """Tell that something is wrong, but not what: that is for the owner's log."""
        _log.error("%s", error)
        return Reply(
            device=self._policy.device,
            run=run,
            round=round,
            code="device-trouble",
            reason="see the device's log",
        )
