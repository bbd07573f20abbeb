"""Measure a released model on a fleet: one noisy answer of each device, an interval.

The devices of a run of sums answer in one secure sum, and share its noise.

The answers are sums over rows that no device trains on. What is reported follows from
the sums and from public numbers of rows, so it is post-processing. The interval has two
parts: the noise, which is known, and the sampling of the held-out rows, as if they were
drawn independently. It says nothing about rows of another kind than the held-out ones.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.checks import Array, one_of, within
from fedbudget.errors import InvalidInputError, MessageError, TrainingError
from fedbudget.files import whole_file
from fedbudget.fleet.coordinator.checkpoints import StoredRun
from fedbudget.fleet.coordinator.roster import read_declaration
from fedbudget.fleet.coordinator.rounds import read_reply
from fedbudget.fleet.coordinator.sum_evaluation import (
    SummedAnswers,
    summed_answers,
    terms_for,
)
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.transport.reply_signatures import ReplyKeys
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.evaluation import (
    CORRECT,
    MEASURES,
    PER_CLASS,
    SQUARED_ERROR,
    EvaluationOrder,
    EvaluationSum,
    num_values,
    sensitivity,
)
from fedbudget.fleet.wire.framing import split
from fedbudget.fleet.wire.messages import Declaration, theta_from_bytes, theta_to_bytes
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning import Plan
from fedbudget.privacy import GDP, ZCDP, PrivacyStatement

_QUANTILE = 1.959963984540054  # of the normal distribution: a 95 % interval
_REPEAT = 2.0  # seconds until the order is sent again to silent devices


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over held-out rows, with its 95 % interval, clipped to possible values."""

    value: float
    low: float
    high: float
    rows: float  # of a class, an estimate, too


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of an evaluation."""

    measure: str
    epsilon: float  # that each device was charged, at most, at its own delta
    noise_std: float  # of each number of a device; in a sum, of its share
    answered: tuple[str, ...]
    refused: Mapping[str, str]  # reason by device
    silent: tuple[str, ...]  # may have been charged
    total: Estimate  # accuracy, or mean squared error
    classes: tuple[Estimate, ...] = ()  # recall of each class
    statement: str = ""  # of privacy, if only the sum of the answers was seen
    least_answers: int | None = None  # of a sum
    colluders: int | None = None
    epsilon_alone: float | None = None  # if everybody else colludes

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dict."""
        return asdict(self)


def noise_for(
    declarations: Sequence[Declaration], epsilon: float, measure: str
) -> float:
    """Return the noise with which an answer costs each device at most this epsilon.

    >>> from fedbudget.fleet.coordinator.evaluation import noise_for
    >>> noise_for([], 1.0, "correct")
    Traceback (most recent call last):
    fedbudget.errors.InvalidInputError: no device of this run answers evaluations: ...
    """
    if not declarations:
        raise InvalidInputError(
            "no device of this run answers evaluations: their owners allow it with "
            "[evaluation] in the policy"
        )
    within("epsilon", epsilon, above=0)
    for d in declarations:
        if epsilon > (d.evaluation_epsilon or 0.0):
            raise InvalidInputError(
                f"epsilon {epsilon:g} is above the {d.evaluation_epsilon or 0:g} that "
                f"device {d.device} grants for evaluations: lower it"
            )
    mu = min(
        float(
            (ZCDP if d.accountant == "zcdp" else GDP).mu_from_epsilon(epsilon, d.delta)
        )
        for d in declarations
    )
    # The device's own rounding must not exceed its share.
    return sensitivity(measure) / mu * (1 + 1e-9)


def _mu(declaration: Declaration, epsilon: float) -> float:
    """Return the Gaussian DP of an epsilon, by the device's own accountant."""
    accountant = ZCDP if declaration.accountant == "zcdp" else GDP
    return float(accountant.mu_from_epsilon(epsilon, declaration.delta))


def with_reserve(
    declaration: Declaration, epsilon: float, *, trust: str = "uploads"
) -> Declaration:
    """Return a declaration whose epsilon leaves room for an evaluation of this epsilon.

    Both together spend what the device declares, as its ledger adds them up: mu^2 of
    training and of the evaluation, and the cost of one more round with one step.

    Raises:
        InvalidInputError: Nothing is left for training.
    """
    if not declaration.evaluation_samples:
        return declaration  # it answers none
    if epsilon >= declaration.epsilon:
        raise InvalidInputError(
            f"an evaluation of epsilon {epsilon:g} leaves nothing of the "
            f"{declaration.epsilon:g} that device {declaration.device} declares: lower "
            "it"
        )
    whole, part = (_mu(declaration, e) for e in (declaration.epsilon, epsilon))
    accountant = ZCDP if declaration.accountant == "zcdp" else GDP
    # Rounded towards privacy: the sum must not exceed the whole.
    rest = float(np.sqrt(whole**2 - part**2)) * (1 - 1e-9)
    left = float(accountant.epsilon_from_mu(rest, declaration.delta))
    price = declaration.round_price(trust) + declaration.computation_price
    cost = max(0.0, declaration.cost - price)
    return replace(declaration, epsilon=min(left, declaration.epsilon), cost=cost)


def evaluate(
    channel: Channel,
    run: StoredRun,
    theta: Array,
    *,
    signer: Signer,
    epsilon: float,
    measure: str,
    seconds: float,
    authority: Path | None = None,
) -> Evaluation:
    """Ask the devices of a run, collect their answers, and return the estimates.

    Args:
        channel: To the devices.
        run: Whose devices are selected.
        theta: The model.
        signer: The coordinator's key.
        epsilon: That an answer costs each device.
        measure: correct, per-class or squared-error.
        seconds: To wait for answers.
        authority: Of the devices' certificates, with which answers must be signed;
            None: signatures are not checked.

    Raises:
        TrainingError: No device has answered; in a sum, too few have.
    """
    plan = Plan.from_dict(run.plan)
    one_of("measure", measure, MEASURES)
    if (measure == SQUARED_ERROR) != (plan.loss == "huber"):
        raise InvalidInputError(
            f"measure {measure!r} is not for loss {plan.loss!r}: use "
            f"{SQUARED_ERROR if plan.loss == 'huber' else f'{CORRECT} or {PER_CLASS}'}"
        )
    selected = [d for d in run.declarations if d.evaluation_samples]
    noise_std, terms = noise_for(selected, epsilon, measure), None
    if plan.trust == "sum":
        terms = terms_for(
            noise_std,
            least_answers=plan.least_answers,
            colluders=plan.colluders,
            declarations=selected,
        )
        noise_std = terms.noise_std
    order = EvaluationOrder(
        evaluation=os.urandom(16),
        run=run.run,
        measure=measure,
        noise_std=noise_std,
        loss=plan.loss,
        num_classes=plan.num_classes,
        dim=plan.dim,
        precision="float64",
        theta=theta_to_bytes(theta, "float64"),
        sum_terms=None if terms is None else terms.to_bytes(),
    )
    if terms is not None:
        summed = summed_answers(
            channel,
            run,
            order,
            terms,
            declarations=selected,
            signer=signer,
            seconds=seconds,
            authority=authority,
        )
        return _of_sum(summed, order, terms, selected, epsilon)
    keys = ReplyKeys(selected, authority)
    answers, refused = _collect(channel, signer.sign(order), order, keys, seconds)
    if not answers:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise TrainingError(
            f"none of {len(selected)} devices has answered in {seconds:g} s "
            f"({reasons or 'all are silent'}): try again later"
        )
    rows = {d.device: int(d.evaluation_samples or 0) for d in selected}
    total, classes = estimates(
        np.array([answers[name] for name in sorted(answers)]),
        np.array([rows[name] for name in sorted(answers)]),
        noise_std=noise_std,
        measure=measure,
    )
    return Evaluation(
        measure=measure,
        epsilon=epsilon,
        noise_std=noise_std,
        answered=tuple(sorted(answers)),
        refused=refused,
        silent=tuple(sorted(set(rows) - set(answers) - set(refused))),
        total=total,
        classes=classes,
    )


def _of_sum(
    summed: SummedAnswers,
    order: EvaluationOrder,
    terms: EvaluationSum,
    selected: Sequence[Declaration],
    epsilon: float,
) -> Evaluation:
    """Return the estimates from a sum; its noise is that of all who are in it."""
    rows = {d.device: int(d.evaluation_samples or 0) for d in selected}
    total, classes = estimates(
        summed.total[None, :],
        np.array([rows[name] for name in summed.answered]),
        noise_std=terms.share_std * math.sqrt(len(summed.answered)),
        measure=order.measure,
    )
    mu = sensitivity(order.measure) / terms.share_std
    alone = max(
        float((ZCDP if d.accountant == "zcdp" else GDP).epsilon_from_mu(mu, d.delta))
        for d in selected
    )
    promise = PrivacyStatement(
        epsilon=epsilon,
        delta=max(d.delta for d in selected),
        accountant="zcdp" if any(d.accountant == "zcdp" for d in selected) else "gdp",
        trust="sum",
        least_answers=terms.least_answers,
        colluders=terms.colluders,
        epsilon_alone=alone,
        kind="release",
    )
    gone = set(rows) - set(summed.answered) - set(summed.refused)
    return Evaluation(
        measure=order.measure,
        epsilon=epsilon,
        noise_std=terms.share_std,
        answered=summed.answered,
        refused={n: w for n, w in summed.refused.items() if n not in summed.answered},
        silent=tuple(sorted(gone)),
        total=total,
        classes=classes,
        statement=str(promise),
        least_answers=terms.least_answers,
        colluders=terms.colluders,
        epsilon_alone=alone,
    )


def _collect(
    channel: Channel,
    payload: bytes,
    order: EvaluationOrder,
    keys: ReplyKeys,
    seconds: float,
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the answers and the refusals, by device; no order stays at the broker."""
    answers: dict[str, Array] = {}
    refused: dict[str, str] = {}
    names = keys.devices
    length = num_values(order.measure, order.num_classes)
    pieces = split(topics.order(order.evaluation), payload)
    for topic, piece in pieces:
        channel.keep(topic, piece)
    end, again = time.monotonic() + seconds, time.monotonic() + _REPEAT
    while len(answers) + len(refused) < len(names) and time.monotonic() < end:
        if time.monotonic() >= again:  # devices send stored answers again, uncharged
            again += _REPEAT
            for topic, piece in pieces:
                channel.publish(topic, piece, retain=True)
        message = channel.receive(min(0.5, max(0.0, end - time.monotonic())))
        if message is None:
            continue
        try:
            kind, device = topics.parse(message.topic)
            if kind == "declare" and message.payload:
                # Its certificate may have been renewed since the run.
                keys.learn(read_declaration(device, message.payload))
            if kind == "reply" and device in names:
                run = order.evaluation
                body = keys.open(device, message.payload)
                reply = read_reply(body, device=device, run=run)
                if reply is not None and reply.theta is not None:
                    answers[device] = theta_from_bytes(reply.theta, "float64", length)
                elif reply is not None and device not in answers:
                    refused[device] = f"{reply.code}: {reply.reason}"
        except MessageError:
            pass  # untrusted: as if it had not come
        finally:
            channel.acknowledge(message)
    for topic, _ in pieces:
        channel.withdraw(topic)
    channel.flush(10)
    return answers, {name: why for name, why in refused.items() if name not in answers}


def estimates(
    answers: Array, rows: Array, *, noise_std: float, measure: str
) -> tuple[Estimate, tuple[Estimate, ...]]:
    """Return the mean over all held-out rows, and the recall of each class.

    Args:
        answers: One row per device.
        rows: Held-out rows of each device.
        noise_std: Of each number.
        measure: Of the answers.
    """
    sums, count = answers.sum(axis=0), float(rows.sum())
    noise = len(answers) * noise_std**2  # variance of each sum
    if measure == PER_CLASS:
        correct, wrong = sums[0::2], sums[1::2]
        classes = tuple(
            _ratio(float(right), float(right + bad), noise, 2 * noise)
            for right, bad in zip(correct, wrong, strict=True)
        )
        total = _mean(float(correct.sum()), count, noise * len(correct))
        return total, classes
    if measure == SQUARED_ERROR:  # errors were divided by 4
        one = _mean(float(sums[0]), count, noise)
        scaled = Estimate(
            value=4 * one.value, low=4 * one.low, high=4 * one.high, rows=count
        )
        return scaled, ()
    return _mean(float(sums[0]), count, noise), ()


def _mean(total: float, count: float, noise: float) -> Estimate:
    """Return a mean of numbers in [0, 1]; their variance is at most p (1 - p)."""
    value = min(max(total / count, 0.0), 1.0)
    # As if one row more were right and one wrong: a share of 0 or 1 has a spread, too.
    share = (value * count + 1) / (count + 2)
    deviation = float(np.sqrt(share * (1 - share) / count + noise / count**2))
    return Estimate(
        value=value,
        low=max(0.0, value - _QUANTILE * deviation),
        high=min(1.0, value + _QUANTILE * deviation),
        rows=count,
    )


def _ratio(right: float, both: float, noise: float, noise_of_both: float) -> Estimate:
    """Return the share of right rows of a class, whose number is noisy, too."""
    if both <= 2 * np.sqrt(noise_of_both):  # the class may have no row at all
        return Estimate(value=float("nan"), low=0.0, high=1.0, rows=max(0.0, both))
    one = _mean(right, both, noise)
    # A relative error of the number of rows moves the share by as much, at most.
    extra = _QUANTILE * float(np.sqrt(noise_of_both)) / both
    return Estimate(
        value=one.value,
        low=max(0.0, one.low - extra),
        high=min(1.0, one.high + extra),
        rows=both,
    )


def keep(folder: Path, result: Evaluation) -> Path:
    """Store a result beside its run, and return the path."""
    path = folder / "evaluations" / f"{int(time.time())}.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with whole_file(path, permissions=0o600) as file:
        json.dump(result.to_dict(), file, indent=2)
    return path
