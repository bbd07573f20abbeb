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
"""

import hashlib
import logging
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.device.data_file import DeviceRows, loss_of
from fedbudget.fleet.device.exact_noise import ExactNormals
from fedbudget.fleet.device.exact_steps import LARGEST_WEIGHT, ExactRows
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
    num_values,
    sensitivity,
)
from fedbudget.fleet.wire.messages import ANSWERED, Reply, theta_from_bytes
from fedbudget.ledger import Charge

_log = logging.getLogger(__name__)
_ERROR_UNIT = 1 << 20  # errors are multiples of 2^-20
_SCALE_BITS = 48  # of the noise: its grid is far finer than any use
_MOST = 10_000  # evaluations in one ledger


def charge_of_evaluation(order: EvaluationOrder, cost: float) -> Charge:
    """Return the charge of an evaluation."""
    multiplier = 2 * order.noise_std / sensitivity(order.measure)
    return Charge(steps=1, noise_multiplier=multiplier, cost=cost)


def exact_counts(order: EvaluationOrder, theta: Array, rows: ExactRows) -> list[int]:
    """Return the numbers without noise: whole numbers, in units of `unit_of`."""
    loss = loss_of(order.loss, order.num_classes)
    # Scores and predictions are of one row each: no number depends on two rows.
    predictions = np.asarray(loss.predictions(loss.scores(theta, rows.x)))
    if order.measure == SQUARED_ERROR:
        clipped = np.clip(np.nan_to_num(predictions.astype(np.float64)), -1, 1)
        errors = (np.asarray(rows.y, dtype=np.float64) - clipped) ** 2 / 4
        units = np.clip(np.rint(errors * _ERROR_UNIT), 0, _ERROR_UNIT)
        return [int(units.astype(np.int64).sum())]
    is_correct = predictions == rows.y
    if order.measure == CORRECT:
        return [int(is_correct.sum())]
    classes = num_values(order.measure, order.num_classes) // 2
    cells = 2 * np.asarray(rows.y, dtype=np.int64) + ~is_correct
    return [int(n) for n in np.bincount(cells, minlength=2 * classes)]


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
        return ""

    def answer(
        self,
        body: bytes,
        key: str,
        rows: DeviceRows,
        held_out: Callable[[], RowRange],
    ) -> Reply | None:
        """Answer an evaluation, or refuse; none if the message is another one.

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
        return self._stored(order, body, key) or self._answer(
            order, (body, key), theta, rows, held_out()
        )

    def _stored(self, order: EvaluationOrder, body: bytes, key: str) -> Reply | None:
        """Return the answer that this very order had before."""
        joined = self._ledger.evaluation(order.evaluation)
        if joined is None:
            return None
        if (joined.offer, joined.key) != (hashlib.sha256(body).digest(), key):
            return self._refused(order, "policy", "it had a different order before")
        stored = self._ledger.answer(order.evaluation, 1)
        if stored is not None:
            return Reply.from_bytes(stored)
        if self._ledger.last_round(order.evaluation) > 0:
            return self._refused(order, "already-charged", "the answer was lost")
        return None

    def _answer(
        self,
        order: EvaluationOrder,
        signed: tuple[bytes, str],
        theta: Array,
        rows: DeviceRows,
        held_out: RowRange,
    ) -> Reply:
        ledger, policy, (body, key) = self._ledger, self._policy, signed
        assert policy.evaluation is not None
        self._check_overdrafts(key, order.evaluation)
        if ledger.num_evaluations >= _MOST:
            return self._refused(order, "policy", f"there were {_MOST} evaluations")
        fingerprint = rows.fingerprint(held_out.count, start=held_out.first_row)
        earlier = ledger.evaluation(order.evaluation)
        if earlier is None:
            joined = JoinedRun(
                offer=hashlib.sha256(body).digest(),
                key=key,
                fingerprint=fingerprint,
                rows=held_out,
            )
            ledger.join_evaluation(order.evaluation, joined)
        elif earlier.fingerprint != fingerprint:
            return self._refused(
                order, "data-changed", "the held-out rows have changed"
            )
        cost = policy.prices.communication + policy.prices.computation
        charge = charge_of_evaluation(order, cost)
        overdrawn = ledger.charge(
            order.evaluation, 1, charge, share=policy.evaluation.epsilon
        )
        if overdrawn == SHARE:
            return self._refused(order, "policy", "evaluations have spent their share")
        if overdrawn is not None:
            ledger.note_overdraft(order.evaluation, overdrawn)
            reason = "this evaluation would overdraw the budget"
            return self._refused(order, overdrawn, reason)
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

    def _refused(self, order: EvaluationOrder, code: str, reason: str) -> Reply:
        _log.warning("an evaluation is refused, %s: %s", code, reason)
        return Reply(
            device=self._policy.device,
            run=order.evaluation,
            round=1,
            code=code,
            reason=reason[:200],
        )
