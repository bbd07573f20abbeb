"""The guard of a device: it alone uses the data, and only for permitted orders.

Every input is untrusted. A guard answers a round only if

1.  a coordinator that the owner trusts signed the order, and before it an offer of the
    run that is within the owner's policy;
2.  the round is later than every charged round of that run, and its model is finite and
    has the right size (the stored answer of a charged round is sent again unchanged);
3.  the rows of the run have not changed since the run was joined;
4.  both budgets can pay for it, and the charge is on disk.

Everything else is refused without a charge. That a round would overdraw a budget tells
something about what remains, for free. So it is recorded, told once per run, and after
`MOST_OVERDRAFTS` runs the coordinator's orders are refused, whatever they cost, until
the owner clears that: a hostile one learns the answers to so many comparisons.

The noise of the answer is at least that of the charge, for any model: see
`exact_steps`.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, LedgerError, MessageError
from fedbudget.fleet.device.data_file import DeviceRows, loss_of, read_rows, stamp_of
from fedbudget.fleet.device.drift import DriftState, LastAnswer, next_state
from fedbudget.fleet.device.evaluation import Evaluator
from fedbudget.fleet.device.exact_steps import (
    LARGEST_WEIGHT,
    ExactRows,
    NoiseGrid,
    noisy_steps,
)
from fedbudget.fleet.device.ledger_file import JoinedRun, LedgerFile, StoredAnswer
from fedbudget.fleet.device.periods import (
    RowRange,
    newest_with,
    next_first_row,
    num_usable,
)
from fedbudget.fleet.device.policy import Policy, PricePolicy
from fedbudget.fleet.device.renewal import check_earlier_rows, renewed
from fedbudget.fleet.device.withdrawals import ENDED, Withdrawals
from fedbudget.fleet.wire.evaluation import EvaluationOrder
from fedbudget.fleet.wire.messages import (
    ACCEPTED,
    ANSWERED,
    WIRE,
    Declaration,
    Notice,
    Reply,
    RoundOrder,
    RunOffer,
    run_of,
    theta_from_bytes,
    theta_to_bytes,
)
from fedbudget.ledger import Charge
from fedbudget.version import __version__

_log = logging.getLogger(__name__)
MOST_RUNS = 10_000  # in one ledger
MOST_OVERDRAFTS = 3  # runs of one coordinator
_OVERDRAWS = "this round would overdraw the budget"
_BLOCKED = "too many runs of this coordinator would overdraw a budget: ask the owner"
RELEASE = f"this device has release {__version__}, wire {WIRE}"
_WAITING = 4  # orders stored until their offer arrives


class _Refusal(Exception):  # noqa: N818  # an answer, not an error
    """Why an order is refused: a code of messages.REFUSALS and a reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def check_offer(
    offer: RunOffer, policy: Policy, rows: DeviceRows, num_samples: int
) -> None:
    """Refuse an offer outside the owner's policy or the shape of the data.

    `num_samples` is the declared number of rows. Noise never grows from round to round:
    the last round has the least, and the first the most.

    Raises:
        _Refusal: With the reason, which reveals only public facts.
    """
    limits = policy.orders
    if not limits.joins(offer.name):
        raise _Refusal("policy", "the owner does not join runs of this name")
    for name, value, limit in (
        ("tau", offer.tau, limits.most_tau),
        ("rounds", offer.rounds, limits.most_rounds),
        ("learning_rate", offer.learning_rate, limits.most_learning_rate),
        ("l2", offer.l2, limits.most_l2),
        ("num_samples", offer.num_samples, num_samples),
        ("batch_size", offer.batch_size, offer.num_samples),
    ):
        if value > limit:
            raise _Refusal("policy", f"{name} {value:g} is above the limit {limit:g}")
    shape = (policy.data.loss, rows.num_classes, rows.dim)
    if (offer.loss, offer.num_classes, offer.dim) != shape:
        raise _Refusal("policy", f"loss, num_classes and dim must be {shape}")
    if offer.sampling == "full" and offer.batch_size != offer.num_samples:
        raise _Refusal("policy", "the batch_size of full batches must be num_samples")
    if offer.sum_terms is not None:
        from fedbudget.fleet.device.sum_terms import check_sum

        try:
            check_sum(offer, policy)
        except (InvalidInputError, MessageError) as error:
            raise _Refusal("policy", str(error)) from None
        return
    if policy.sums is not None and policy.sums.trust == "sum":
        raise _Refusal("policy", "the owner takes part only in runs of sums")
    if policy.sums is not None and policy.sums.unit == "device":
        raise _Refusal("policy", "the owner takes part only with unit 'device'")
    for number in (1, offer.rounds):
        _check_noise(offer, number, limits.least_noise_multiplier)


def _check_noise(offer: RunOffer, round: int, least: float) -> None:
    """Refuse a round whose noise the owner forbids, or that cannot be drawn exactly."""
    multiplier = noise_multiplier(offer, round)
    if not multiplier >= least:
        when = f" in round {round}" if offer.noise_decay is not None else ""
        raise _Refusal(
            "policy",
            f"noise multiplier {multiplier:g}{when} is below the limit {least:g}",
        )
    try:
        NoiseGrid.of(
            noise_std=offer.noise_std_of(round),
            batch_size=offer.batch_size,
            lipschitz=loss_of(offer.loss, offer.num_classes).lipschitz,
            num_params=offer.num_params,
        )
    except InvalidInputError as error:
        raise _Refusal("policy", str(error)) from None


def noise_multiplier(offer: RunOffer, round: int) -> float:
    """Return a round's noise over one sample's share of a mean gradient."""
    lipschitz = loss_of(offer.loss, offer.num_classes).lipschitz
    return offer.noise_std_of(round) * offer.batch_size / lipschitz


def _round_charge(offer: RunOffer, round: int, prices: PricePolicy) -> Charge:
    """Return the charge of a round, by the noise of this very round."""
    return Charge(
        steps=offer.tau,
        noise_multiplier=noise_multiplier(offer, round),
        cost=prices.communication + prices.computation * offer.tau,
    )


@dataclass(frozen=True, kw_only=True)
class _FrozenRows:
    """The rows of a run, verified against the fingerprint of the joined run."""

    fingerprint: str
    rows: ExactRows


class Guard:
    """Owns a device's rows and ledger, and answers orders."""

    _ledger_type: ClassVar[type[LedgerFile]] = LedgerFile

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rows: DeviceRows = read_rows(policy.data)
        self._frozen: dict[bytes, _FrozenRows] = {}
        self._waiting: OrderedDict[bytes, bytes] = OrderedDict()
        self._ledger = self._ledger_type(
            policy.ledger, policy.budget, lineage=policy.data.lineage
        )
        try:
            if policy.sums is not None:
                # Imported late: other devices save the memory.
                from fedbudget.fleet.device.sum_terms import check_charged_unit

                check_charged_unit(self._ledger.charged, policy.sums.unit)
            self._withdrawals = Withdrawals(self._ledger, policy.orders)
            self._evaluator = Evaluator(policy, self._ledger, self._check_overdrafts)
            self._num_samples = self._declared_rows(self._rows)
            self._note_data(self._rows)
            self._renew(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the ledger."""
        self._ledger.close()

    @property
    def declaration(self) -> Declaration:
        """The public facts about this device."""
        policy = self._policy
        return Declaration(
            device=policy.device,
            num_samples=self._num_samples,
            dim=self._rows.dim,
            loss=policy.data.loss,
            num_classes=self._rows.num_classes,
            epsilon=policy.public.epsilon,
            delta=policy.budget.delta,
            cost=policy.public.cost,
            communication_price=policy.prices.communication,
            computation_price=policy.prices.computation,
            secure_round_price=policy.prices.secure_round,
            accountant=policy.budget.accountant,
            least_noise_multiplier=policy.orders.least_noise_multiplier,
            info=policy.public.info,
            wire=WIRE,
            software=__version__,
            schema=self._rows.schema,
            ledger=self._ledger.identity,
            evaluation_epsilon=(
                None if policy.evaluation is None else policy.evaluation.epsilon
            ),
            evaluation_samples=policy.held_out or None,
        )

    @property
    def num_params(self) -> int:
        """The number of parameters of a model for these rows."""
        loss = loss_of(self._policy.data.loss, self._rows.num_classes)
        return loss.num_params(self._rows.dim)

    def refresh(self) -> bool:
        """Read the data file again if it has changed; return whether it had.

        The declared number of rows stays, whatever was added or removed.

        Raises:
            InvalidInputError: The file or its schema has become invalid, or has fewer
                rows than declared; the previous rows stay in use.
        """
        if stamp_of(self._policy.data.file) == self._rows.stamp:
            return False
        rows = read_rows(self._policy.data)
        self._declared_rows(rows)
        self._note_data(rows)  # first: rows must be in the ledger before their use
        self._renew(rows)
        self._rows = rows
        self._frozen.clear()  # verified against the new rows before their next use
        return True

    def answer_offer(self, data: bytes) -> list[Reply]:
        """Join a run, or refuse; then answer an order that arrived before its offer."""
        try:
            body, key = self._withdrawals.coordinators.open(data)
        except MessageError as error:
            _log.warning("an offer is ignored: %s", error)
            return []  # no trusted coordinator sent it
        try:
            offer = RunOffer.from_bytes(body)
        except MessageError as error:
            return self._unsupported(RunOffer.kind, body, error)
        try:
            self._join(offer, body, key)
        except _Refusal as refusal:
            return [self._refused(offer.run, 0, refusal)]
        except (LedgerError, InvalidInputError) as error:
            return [self._trouble(offer.run, 0, error)]
        accepted = Reply(
            device=self._policy.device,
            run=offer.run,
            round=0,
            code=ACCEPTED,
            previous=self._ledger.last_round(offer.run),
        )
        early = self._waiting.pop(offer.run, None)
        return [accepted, *([] if early is None else self.answer_order(early))]

    def answer_order(self, data: bytes) -> list[Reply]:
        """Carry out a round, or refuse; ignore orders for other devices."""
        try:
            body, key = self._withdrawals.anyone.open(data)
            if self._withdrawals.take(body, key):
                return []
        except MessageError as error:
            _log.warning("an order is ignored: %s", error)
            return []
        try:
            order = RoundOrder.from_bytes(body)
        except MessageError as error:
            evaluated = self._evaluate(body, key)
            if evaluated is not None:
                return [evaluated]
            return self._unsupported(RoundOrder.kind, body, error)
        try:
            joined = self._ledger.run(order.run)
            if joined is None:
                self._wait_for_offer(order.run, data)
                return []
            if joined.key != key:
                raise _Refusal("untrusted", "another coordinator signed the offer")
            if not order.selects(RunOffer.from_bytes(joined.offer).index):
                return []  # other devices carry it out: nothing is charged here
            return [self._carry_out(order, joined)]
        except _Refusal as refusal:
            return [self._refused(order.run, order.round, refusal)]
        except (LedgerError, InvalidInputError) as error:
            return [self._trouble(order.run, order.round, error)]

    def _wait_for_offer(self, run: bytes, data: bytes) -> None:
        """Store an order whose offer may not have arrived yet.

        Or the run is for other devices.
        """
        self._waiting[run] = data
        while len(self._waiting) > _WAITING:
            self._waiting.popitem(last=False)

    def _evaluate(self, body: bytes, key: str) -> Reply | None:
        """Answer an evaluation, or refuse; none if the message is another one."""
        try:
            return self._evaluator.answer(body, key, self._rows, self._held_out)
        except _Refusal as refusal:
            order = EvaluationOrder.from_bytes(body)
            return self._refused(order.evaluation, 1, refusal)
        except (LedgerError, InvalidInputError) as error:
            return self._trouble(EvaluationOrder.from_bytes(body).evaluation, 1, error)

    def _held_out(self) -> RowRange:
        """Return the rows of the current period that no run trains on."""
        count = self._policy.held_out
        return self._current_rows(self._rows, count, after=self._num_samples)

    def take_notice(self, data: bytes) -> list[Reply]:
        """Log why a trusted coordinator leaves this device out."""
        try:
            notice = Notice.from_bytes(self._withdrawals.coordinators.open(data)[0])
        except MessageError as error:
            _log.warning("a notice is ignored: %s", error)
            return []
        if notice.device == self._policy.device:
            _log.error("the coordinator leaves this device out: %s", notice.reason)
        return []

    def _unsupported(self, kind: str, body: bytes, error: MessageError) -> list[Reply]:
        """Refuse a trusted coordinator's message that this release cannot read."""
        from fedbudget.fleet.device.sum_terms import is_sum_order

        # Sums of other devices are published to all.
        level = logging.DEBUG if is_sum_order(body) else logging.ERROR
        _log.log(level, "this %s of the coordinator cannot be read: %s", kind, error)
        run_and_round = run_of(body, kind)
        if run_and_round is None:
            return []
        refusal = _Refusal("unsupported", f"{RELEASE}: {error}")
        return [self._refused(*run_and_round, refusal)]

    def _carry_out(self, order: RoundOrder, joined: JoinedRun) -> Reply:
        offer = RunOffer.from_bytes(joined.offer)
        if offer.sum_terms is not None:  # a model would be seen with a share of noise
            raise _Refusal("policy", "this run is one of sums: its uploads are masked")
        stored = self._ledger.answer(order.run, order.round)
        if stored is not None:
            return Reply.from_bytes(stored)
        last = self._ledger.last_round(order.run)
        if self._ledger.has_ended(order.run, joined.key):
            raise _Refusal("policy", ENDED)
        if order.round == last:
            raise _Refusal(
                "already-charged", "the answer to this round was lost in a crash"
            )
        if not last < order.round <= offer.rounds:
            raise _Refusal("wrong-round", f"round must be {last + 1} to {offer.rounds}")
        try:
            theta = theta_from_bytes(order.theta, offer.precision, offer.num_params)
        except MessageError as error:
            raise _Refusal("bad-model", str(error)) from None
        if not (abs(theta) <= LARGEST_WEIGHT).all():
            raise _Refusal(
                "bad-model", f"a weight is above the limit {LARGEST_WEIGHT:g}"
            )
        self._check_overdrafts(joined.key, order.run)
        state = self._drift_state(offer, order.round, theta)
        # Again: the owner may have changed the policy since the run was joined.
        check_offer(offer, self._policy, self._rows, self._num_samples)
        # Noise between that of the first and the last round may miss the grid.
        _check_noise(offer, order.round, self._policy.orders.least_noise_multiplier)
        rows = self._rows_of(order.run, joined)
        charge = _round_charge(offer, order.round, self._policy.prices)
        overdrawn = self._ledger.charge(order.run, order.round, charge)
        if overdrawn is not None:
            self._ledger.note_overdraft(order.run, overdrawn)
            raise _Refusal(overdrawn, _OVERDRAWS)
        return self._compute(offer, order, state, rows, last)

    def _check_overdrafts(self, key: str, run: bytes) -> None:
        """Refuse, without a look at the budget, what could reveal more of it."""
        overdrawn = self._ledger.overdraft(run)
        if overdrawn is not None:
            raise _Refusal(overdrawn, _OVERDRAWS)
        if self._ledger.num_overdrafts(key) >= MOST_OVERDRAFTS:
            raise _Refusal("policy", _BLOCKED)

    def _drift_state(self, offer: RunOffer, round: int, theta: Array) -> DriftState:
        """Return the start and the shift of the steps; uses no row."""
        stored, last = None, None
        if offer.drift_momentum is not None:
            stored = self._ledger.last_answer(offer.run)
        if stored is not None:
            last = LastAnswer.read(stored, offer)
        momentum = offer.drift_momentum or 0.0
        state = next_state(last, theta, round=round, tau=offer.tau, momentum=momentum)
        if not (abs(state.shift) <= LARGEST_WEIGHT).all():
            raise _Refusal(
                "bad-model", "the model is too far from this device's last answer"
            )
        return state

    def _compute(
        self,
        offer: RunOffer,
        order: RoundOrder,
        state: DriftState,
        rows: ExactRows,
        previous: int,
    ) -> Reply:
        """Compute the charged steps, and store the answer."""
        theta = noisy_steps(
            state.start,
            rows,
            loss=loss_of(offer.loss, offer.num_classes, offer.l2),
            tau=offer.tau,
            learning_rate=offer.learning_rate,
            noise_std=offer.noise_std_of(order.round),
            batch_size=offer.batch_size,
            shift=state.shift,
        )
        try:
            if theta is None:
                raise MessageError(f"a weight grew above the limit {LARGEST_WEIGHT:g}")
            released = theta_to_bytes(theta, offer.precision)
        except MessageError as error:  # safe to reveal: it follows from noisy values
            raise _Refusal("bad-model", f"after {offer.tau} steps, {error}") from None
        reply = Reply(
            device=self._policy.device,
            run=order.run,
            round=order.round,
            code=ANSWERED,
            theta=released,
            previous=previous,
        )
        needed = offer.drift_momentum is not None and order.round < offer.rounds
        stored_state = state.to_bytes() if needed else None
        answer = StoredAnswer(order.round, reply.to_bytes(), stored_state)
        self._ledger.store_answer(order.run, answer)
        return reply

    def _join(self, offer: RunOffer, body: bytes, key: str) -> None:
        earlier = self._ledger.run(offer.run)
        if earlier is not None:
            if (earlier.offer, earlier.key) != (body, key):
                raise _Refusal("policy", "this run had a different offer before")
            return
        if offer.device != self._policy.device:
            raise _Refusal("policy", "this offer is for another device")
        if self._ledger.has_ended(offer.run, key):
            raise _Refusal("policy", ENDED)
        self._check_overdrafts(key, offer.run)
        if self._ledger.num_runs >= MOST_RUNS:
            raise _Refusal(
                "policy", f"the ledger already has {MOST_RUNS} runs, which is the limit"
            )
        check_offer(offer, self._policy, self._rows, self._num_samples)
        rows = self._current_rows(self._rows, offer.num_samples)
        fingerprint = self._rows.fingerprint(rows.count, start=rows.first_row)
        joined = JoinedRun(offer=body, key=key, fingerprint=fingerprint, rows=rows)
        self._ledger.join(offer.run, joined)

    def _rows_of(self, run: bytes, joined: JoinedRun) -> ExactRows:
        """Return the rows of a run, if they are the ones it was joined with."""
        frozen = self._frozen.get(run)
        if frozen is None or frozen.fingerprint != joined.fingerprint:
            rows = joined.row_range
            current = self._rows.fingerprint(rows.count, start=rows.first_row)
            if current != joined.fingerprint:
                raise _Refusal("data-changed", "the rows of this run have changed")
            frozen = _FrozenRows(
                fingerprint=joined.fingerprint,
                rows=self._rows.rows.part(rows.first_row, rows.stop),
            )
            self._frozen = {run: frozen}  # usually one run at a time
        return frozen.rows

    def _current_rows(
        self, rows: DeviceRows, count: int, *, after: int = 0
    ) -> RowRange:
        """Return a range of the newest period that has all its rows.

        Args:
            rows: Of the file.
            count: Of the range.
            after: Rows of the period before the range.

        Raises:
            InvalidInputError: No period has enough rows.
        """
        needed = self._num_samples + self._policy.held_out
        period = newest_with(self._ledger.periods, num_rows=len(rows), needed=needed)
        if period is None:
            raise InvalidInputError(f"no period of the data set has {needed} rows")
        first_row = period.first_row + after
        return RowRange(period=period.number, first_row=first_row, count=count)

    def _renew(self, rows: DeviceRows) -> None:
        """Start the next period as soon as the file has all its rows."""
        size = self._policy.period_rows
        while size is not None:
            start = next_first_row(
                self._ledger.periods[-1],
                size=size,
                used_until=self._ledger.used_until,
                num_rows=len(rows),
            )
            if start is None:
                return
            try:
                period = renewed(self._ledger, rows, start)
            except LedgerError as error:  # rows that were used have changed
                _log.error("the budget does not renew: %s", error)
                return
            _log.info("period %d starts at row %d", period.number, start)

    def _declared_rows(self, rows: DeviceRows) -> int:
        """Return the number of rows that is public: it never follows the file.

        A declaration that did would reveal that a row was added or removed. It is the
        policy's, or that of the first start, which the ledger has.

        Raises:
            InvalidInputError: There are fewer rows.
        """
        policy, first_rows = self._policy, self._ledger.first_rows
        check_earlier_rows(self._ledger, rows, str(policy.data.file))
        declared = policy.public.num_samples
        total = (
            policy.period_rows or first_rows or len(rows)
        )  # of training and held out
        needed = total if declared is None else declared + policy.held_out
        most = max(
            num_usable(self._ledger.periods, index, len(rows))
            for index in range(len(self._ledger.periods))
        )
        if needed > most:
            raise InvalidInputError(
                f"{str(policy.data.file)!r} has {most} rows, fewer than the "
                f"{needed} that this device declares: set public.num_samples in its "
                f"policy to {most - policy.held_out} or less, which publishes it"
            )
        if needed <= policy.held_out:
            raise InvalidInputError(
                f"evaluation.num_samples {policy.held_out} leaves none of {needed} "
                "rows for training: lower it"
            )
        return needed - policy.held_out

    def _note_data(self, rows: DeviceRows) -> None:
        """Record in the ledger whether the data set is new, grown or changed."""
        count, noted = len(rows), self._ledger.data
        fingerprint = rows.fingerprint(count)
        if noted == (count, fingerprint):
            return
        if noted is None:
            continues = "first"
        elif noted[0] <= count and rows.fingerprint(noted[0]) == noted[1]:
            continues = "grown"
        else:
            continues = "changed"
        self._ledger.note_data(count, fingerprint, continues=continues)

    def _refused(self, run: bytes, round: int, refusal: _Refusal) -> Reply:
        facts = {"run": run.hex(), "round": round, "code": refusal.code}
        _log.warning(
            "round %d is refused, %s: %s",
            round,
            refusal.code,
            refusal,
            extra={"facts": facts | {"reason": refusal.reason}},
        )
        return Reply(
            device=self._policy.device,
            run=run,
            round=round,
            code=refusal.code,
            reason=refusal.reason[:200],
        )

    def _trouble(self, run: bytes, round: int, error: Exception) -> Reply:
        """Report an error without its text, which goes to the owner's log only."""
        _log.error("%s", error)
        return Reply(
            device=self._policy.device,
            run=run,
            round=round,
            code="device-trouble",
            reason="see the device's log",
        )
