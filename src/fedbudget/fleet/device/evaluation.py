"""How good is a model? A device answers with noisy counts on rows it never trains on.

The rows are the last ones of a period (`evaluation.num_samples` of the policy), after
those that runs may use. The numbers are, by the order's measure:

    correct         how many rows the model predicts right
    per-class       the same for each class, and how many it predicts wrong
    squared-error   the sum of (y - prediction)^2 / 4, for targets in [-1, 1], with
                    predictions clipped to that range: each row adds 0 to 1

**Statement.** An answer with noise of standard deviation sigma is the Gaussian
mechanism with mu = s / sigma, s = 1 or sqrt(2) (`wire.evaluation.sensitivity`), for
replacing one row. It is charged as one step with noise multiplier 2 sigma / s to the
budget of the period, and to the evaluations' own share of its epsilon.

**Proof sketch.** The numbers are whole numbers q over a unit U (1, or 2^-20 for errors,
each rounded on its own). Released is (q K + round(2^b N)) / (K U), with a whole number
K of at most 2^b / (sigma U): q K + round(2^b N) = round(q K + 2^b N) is the Gaussian
mechanism, followed by rounding; replacing a row moves q K by at most s U K, and
s U K / 2^b <= s / sigma. No floating-point number of several rows is computed before
the noise. The charge is too high: held-out rows are not in training, and training rows
are not held out, yet both are added up.

Asked again, a device sends its stored answer: no noise is averaged away.

**In a secure sum** (`sum_terms` of the order; `sum_guard` has the steps), a row is F
grid steps, an error is rounded to whole steps on its own, and a device adds a share
round(2^b N) of the noise to q F. The numbers are whole from the start: replacing a row
moves them by at most s F, and the sum of t - c honest shares is the Gaussian mechanism
(`exact_uploads` has the proof), so that mu = s F / (2^b sqrt(t - c)), which is charged.
"""

import hashlib
import logging
import math
from collections.abc import Callable

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.device.data_file import DeviceRows, loss_of
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers
from fedbudget.fleet.device.exact_steps import LARGEST_WEIGHT, ExactRows
from fedbudget.fleet.device.exact_uploads import LEAST_SCALE_BITS, MOST_SCALE_BITS
from fedbudget.fleet.device.ledger_file import (
    SHARE,
    JoinedRun,
    LedgerFile,
    StoredAnswer,
)
from fedbudget.fleet.device.periods import RowRange
from fedbudget.fleet.device.policy import Policy
from fedbudget.fleet.wire.evaluation import (
    CORRECT,
    SQUARED_ERROR,
    EvaluationOrder,
    EvaluationSum,
    num_values,
    sensitivity,
)
from fedbudget.fleet.wire.messages import ACCEPTED, ANSWERED, Reply, theta_from_bytes
from fedbudget.ledger import Charge

_log = logging.getLogger(__name__)
_ERROR_UNIT = 1 << 20  # errors are multiples of 2^-20
_SCALE_BITS = 48  # of the noise: its grid is far finer than any use
_MOST = 10_000  # evaluations in one ledger


def sum_terms_of(order: EvaluationOrder) -> EvaluationSum:
    """Return the terms of an evaluation in a sum.

    Raises:
        InvalidInputError: It is not one.
        MessageError: They are damaged.
    """
    if order.sum_terms is None:
        raise InvalidInputError("this evaluation is not a sum: its answers are seen")
    return EvaluationSum.from_bytes(order.sum_terms)


def charge_of_evaluation(order: EvaluationOrder, cost: float) -> Charge:
    """Return the charge of an evaluation."""
    noise = order.noise_std
    if order.sum_terms is not None:
        noise = sum_terms_of(order).noise_std
    multiplier = 2 * noise / sensitivity(order.measure)
    return Charge(steps=1, noise_multiplier=multiplier, cost=cost)


def exact_counts(
    order: EvaluationOrder, theta: Array, rows: ExactRows, unit: int | None = None
) -> list[int]:
    """Return the numbers without noise: whole numbers, of which `unit` are one row.

    None: `unit_of` the measure.
    """
    unit = unit_of(order.measure) if unit is None else unit
    loss = loss_of(order.loss, order.num_classes)
    # Scores and predictions are of one row each: no number depends on two rows.
    predictions = np.asarray(loss.predictions(loss.scores(theta, rows.x)))
    if order.measure == SQUARED_ERROR:
        clipped = np.clip(np.nan_to_num(predictions.astype(np.float64)), -1, 1)
        errors = (np.asarray(rows.y, dtype=np.float64) - clipped) ** 2 / 4
        units = np.clip(np.rint(errors * unit), 0, unit)
        return [int(units.astype(np.int64).sum())]
    is_correct = predictions == rows.y
    if order.measure == CORRECT:
        return [unit * int(is_correct.sum())]
    classes = num_values(order.measure, order.num_classes) // 2
    cells = 2 * np.asarray(rows.y, dtype=np.int64) + ~is_correct
    return [unit * int(n) for n in np.bincount(cells, minlength=2 * classes)]


def unit_of(measure: str) -> int:
    """Return how many units are one row."""
    return _ERROR_UNIT if measure == SQUARED_ERROR else 1


def with_noise(
    counts: list[int],
    noise_std: float,
    unit: int,
    normals: ExactNormals | None = None,
) -> Array:
    """Return whole numbers over a unit, with exact Gaussian noise of this deviation."""
    from fractions import Fraction  # late: few devices measure often

    factor = int(Fraction(1 << _SCALE_BITS) / (Fraction(noise_std) * unit))
    if factor < 1:
        raise InvalidInputError(f"noise_std {noise_std:g} is too large for its grid")
    source = ExactNormals() if normals is None else normals
    noise = source.draw(len(counts), scale_bits=_SCALE_BITS)
    released = [
        Fraction(count * factor + int(drawn), factor * unit)
        for count, drawn in zip(counts, noise, strict=True)
    ]
    return np.array([float(number) for number in released])


def sum_vector(order: EvaluationOrder, theta: Array, rows: ExactRows) -> Integers:
    """Return what a device adds to a sum: the numbers, and its share of the noise."""
    terms = sum_terms_of(order)
    counts = np.array(exact_counts(order, theta, rows, terms.row_steps), dtype=np.int64)
    return counts + ExactNormals().draw(len(counts), scale_bits=terms.scale_bits)


class Evaluator:
    """Answers evaluations within the owner's policy.

    Args:
        policy: The owner's.
        ledger: Of the device.
        check_overdrafts: Raises if a coordinator has asked for too much before.
    """

    def __init__(
        self,
        policy: Policy,
        ledger: LedgerFile,
        check_overdrafts: Callable[[str, bytes], None],
    ) -> None:
        self._policy, self._ledger = policy, ledger
        self._check_overdrafts = check_overdrafts

    def refusal(self, order: EvaluationOrder, rows: DeviceRows) -> str:
        """Return why an order is outside the policy; empty if it is not."""
        policy = self._policy
        if policy.evaluation is None:
            return "the owner allows no evaluation"
        shape = (policy.data.loss, rows.num_classes, rows.dim)
        if (order.loss, order.num_classes, order.dim) != shape:
            return f"loss, num_classes and dim must be {shape}"
        if (order.measure == SQUARED_ERROR) != (order.loss == "huber"):
            return f"measure {order.measure!r} is not for loss {order.loss!r}"
        return "" if order.sum_terms is None else self._sum_refusal(order)

    def _sum_refusal(self, order: EvaluationOrder) -> str:
        """Return why the terms of a sum are outside the policy."""
        from fedbudget.fleet.device.sum_terms import check_answers_policy

        try:
            terms = sum_terms_of(order)
            check_answers_policy(terms.least_answers, terms.colluders, self._policy)
        except (InvalidInputError, MessageError) as error:
            return str(error)
        if not LEAST_SCALE_BITS <= terms.scale_bits <= MOST_SCALE_BITS:
            return f"scale_bits must be {LEAST_SCALE_BITS} to {MOST_SCALE_BITS}"
        if not math.isclose(order.noise_std, terms.noise_std, rel_tol=1e-6):
            return f"noise_std must be that of the sum, {terms.noise_std:g}"
        return ""

    def answer(
        self,
        body: bytes,
        key: str,
        rows: DeviceRows,
        held_out: Callable[[], RowRange],
    ) -> Reply | None:
        """Answer an evaluation, or refuse; none if the message is another one.

        One in a sum is recorded, not yet charged, and the reply says that it is
        accepted.

        Args:
            body: Of a message that a trusted coordinator signed.
            key: That coordinator's.
            rows: Of the device.
            held_out: Returns the range of held-out rows.
        """
        try:
            order = EvaluationOrder.from_bytes(body)
        except MessageError:
            return None
        reason = self.refusal(order, rows)
        if reason:
            return self._refused(order, "policy", reason)
        try:
            theta = theta_from_bytes(order.theta, order.precision, order.num_params)
        except MessageError as error:
            return self._refused(order, "bad-model", str(error))
        if not (abs(theta) <= LARGEST_WEIGHT).all():
            return self._refused(order, "bad-model", "a weight is too large")
        stored = self._stored(order, body, key)
        if stored is not None:
            return stored
        refused = self._join(order, (body, key), rows, held_out())
        if refused is not None:
            return refused
        if order.sum_terms is not None:
            return self._accepted(order)
        return self._answer(order, theta, rows)

    def _stored(self, order: EvaluationOrder, body: bytes, key: str) -> Reply | None:
        """Return the answer that this very order had before."""
        joined = self._ledger.evaluation(order.evaluation)
        if joined is None:
            return None
        if (joined.offer, joined.key) != (_recorded(order, body), key):
            return self._refused(order, "policy", "it had a different order before")
        if order.sum_terms is not None:
            return self._accepted(order)
        stored = self._ledger.answer(order.evaluation, 1)
        if stored is not None:
            return Reply.from_bytes(stored)
        if self._ledger.last_round(order.evaluation) > 0:
            return self._refused(order, "already-charged", "the answer was lost")
        return None

    def _join(
        self,
        order: EvaluationOrder,
        signed: tuple[bytes, str],
        rows: DeviceRows,
        held_out: RowRange,
    ) -> Reply | None:
        """Record an evaluation and its rows, or return why it is refused."""
        ledger, (body, key) = self._ledger, signed
        self._check_overdrafts(key, order.evaluation)
        if ledger.num_evaluations >= _MOST:
            return self._refused(order, "policy", f"there were {_MOST} evaluations")
        fingerprint = rows.fingerprint(held_out.count, start=held_out.first_row)
        earlier = ledger.evaluation(order.evaluation)
        if earlier is None:
            joined = JoinedRun(
                offer=_recorded(order, body),
                key=key,
                fingerprint=fingerprint,
                rows=held_out,
            )
            ledger.join_evaluation(order.evaluation, joined)
        elif earlier.fingerprint != fingerprint:
            return self._refused(
                order, "data-changed", "the held-out rows have changed"
            )
        return None

    def charge(self, order: EvaluationOrder) -> Reply | None:
        """Charge a recorded evaluation, on disk; or return why it is refused."""
        ledger, policy = self._ledger, self._policy
        assert policy.evaluation is not None
        prices = policy.prices
        price = prices.communication if order.sum_terms is None else prices.sum_round
        charge = charge_of_evaluation(order, price + prices.computation)
        overdrawn = ledger.charge(
            order.evaluation, 1, charge, share=policy.evaluation.epsilon
        )
        if overdrawn == SHARE:
            return self._refused(order, "policy", "evaluations have spent their share")
        if overdrawn is not None:
            ledger.note_overdraft(order.evaluation, overdrawn)
            reason = "this evaluation would overdraw the budget"
            return self._refused(order, overdrawn, reason)
        return None

    def _answer(self, order: EvaluationOrder, theta: Array, rows: DeviceRows) -> Reply:
        refused = self.charge(order)
        if refused is not None:
            return refused
        ledger, policy = self._ledger, self._policy
        joined = ledger.evaluation(order.evaluation)
        assert joined is not None
        held_out = joined.row_range
        part = rows.rows.part(held_out.first_row, held_out.stop)
        counts = exact_counts(order, theta, part)
        numbers = with_noise(counts, order.noise_std, unit_of(order.measure))
        reply = Reply(
            device=policy.device,
            run=order.evaluation,
            round=1,
            code=ANSWERED,
            theta=numbers.astype("<f8").tobytes(),
        )
        ledger.store_answer(order.evaluation, StoredAnswer(1, reply.to_bytes()))
        _log.info("evaluation %s is answered", order.evaluation.hex())
        return reply

    def _accepted(self, order: EvaluationOrder) -> Reply:
        return Reply(
            device=self._policy.device, run=order.evaluation, round=0, code=ACCEPTED
        )

    def _refused(self, order: EvaluationOrder, code: str, reason: str) -> Reply:
        _log.warning("an evaluation is refused, %s: %s", code, reason)
        return Reply(
            device=self._policy.device,
            run=order.evaluation,
            round=1,
            code=code,
            reason=reason[:200],
        )


def _recorded(order: EvaluationOrder, body: bytes) -> bytes:
    """Return what the ledger has of an order: its digest, and the terms of its sum."""
    return hashlib.sha256(body).digest() + (order.sum_terms or b"")


def recorded_terms(offer: bytes) -> EvaluationSum | None:
    """Return the terms of a sum in what the ledger has of an evaluation."""
    terms = offer[hashlib.sha256().digest_size :]
    return EvaluationSum.from_bytes(terms) if terms else None
