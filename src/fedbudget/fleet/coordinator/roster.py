"""The devices of a fleet: declarations, connection states, and the plan for them.

Declarations are untrusted and cost nothing. A device is left out of the plan, with a
warning, if it cannot pay for a round, if it has other columns or another loss than most
devices, or if it demands much more noise than the others. So no single declaration can
end the run or ruin the model. The device is sent the reason, as a signed notice.

Columns must agree in more than their number: devices whose schemas differ in order,
bounds, categories or label values would train a model of nothing. They declare the
digest of their schema.

A device declares the identity of its ledger, too. If it changes during a run, or back
and forth before it, two processes use the device's certificate: each charges its own
ledger, and neither knows what the other has released. Such a device is refused until
the coordinator is started again. One change before a run is a device that was set up
anew: a broker may still deliver what it declared before.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, identity
from fedbudget.errors import (
    InfeasibleBudgetError,
    InvalidInputError,
    MessageError,
    TrainingError,
)
from fedbudget.fleet.transport.channel import Channel, Message
from fedbudget.fleet.transport.reply_signatures import ReplyKeys
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import MAX_NOTICE, WIRE, Declaration, Notice
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning import Plan, plan
from fedbudget.planning.plans import share_size
from fedbudget.planning.settings import PLANNER
from fedbudget.problem import USUAL_DISSIMILARITY, Problem
from fedbudget.version import __version__

_log = logging.getLogger(__name__)

_DECLARATION_BYTES = 4096  # more than any declaration needs
_MOST_NOTICES = 100_000  # in one process: hostile declarations must not fill memory
_MIN_EPSILON = 1e-6  # below this, a device's answers are only noise
_MAX_EXCESS = 10.0  # a device that demands more noise than this factor is left out
_MOST_LEDGERS = 8  # of one device, before a run
# Seconds. A broker delivers old declarations first: enough devices are the right ones
# only when no newer declaration follows, but a busy fleet is never quite silent.
_QUIET, _MOST_QUIET = 0.5, 5.0


class Roster:
    """The devices that have declared themselves, by name.

    Args:
        declarations: Of a run that is resumed; a device must still have its ledger.
    """

    def __init__(self, declarations: Iterable[Declaration] = ()) -> None:
        self.declarations: dict[str, Declaration] = {}
        self.online: dict[str, bool] = {}
        self.returned: set[str] = set()  # that have connected since it was cleared
        self.clones: dict[str, str] = {}  # reason by device
        self._ledgers: dict[str, list[str]] = {}  # by device, the latest is the last
        self._in_run: set[str] = set()  # devices whose ledger must not change any more
        self.begin(declarations)
        self._notices: dict[str, str] = {}  # to be sent, by device
        self._noticed: set[tuple[str, str]] = set()

    def begin(self, declarations: Iterable[Declaration]) -> None:
        """Begin a run of these devices: from now on each must keep its ledger."""
        for declaration in declarations:
            if declaration.ledger:
                self._ledgers[declaration.device] = [declaration.ledger]
                self._in_run.add(declaration.device)

    def take(self, message: Message) -> bool:
        """Store a declaration or a connection state; return whether it was one."""
        kind, device = topics.parse(message.topic)
        if kind == "status":
            self._status(device, message.payload)
        elif kind == "declare":
            self._declare(device, message.payload)
        return kind in ("status", "declare")

    def _status(self, device: str, payload: bytes) -> None:
        online = payload == topics.ONLINE
        if self.online.get(device) != online:
            _log.info("device %s is %s", device, "online" if online else "offline")
        if online:
            self.returned.add(device)
        self.online[device] = online

    def _declare(self, device: str, payload: bytes) -> None:
        if not payload:  # withdrawn
            self.declarations.pop(device, None)
            return
        try:
            declaration = read_declaration(device, payload)
        except MessageError as error:
            self.notify(device, f"its declaration cannot be read by {_here()}: {error}")
            raise
        self.declarations[device] = declaration
        self._check_ledger(declaration)

    def _check_ledger(self, declaration: Declaration) -> None:
        device, ledger = declaration.device, declaration.ledger
        if ledger is None:
            return
        known = self._ledgers.setdefault(device, [ledger])
        if ledger == known[-1]:
            return
        is_new = ledger not in known and len(known) < _MOST_LEDGERS
        if device not in self._in_run and is_new:
            _log.warning(
                "device %s has ledger %s, not %s as before", device, ledger, known[-1]
            )
            known.append(ledger)
            return
        self.refuse(
            device,
            f"it declared ledger {known[-1][:12]} first and {ledger[:12]} "
            "later: two processes use its certificate, or its ledger was replaced; "
            "stop one of them, and start the coordinator again",
        )

    def refuse(self, device: str, reason: str) -> None:
        """Refuse a device of which there are two, or whose ledger was replaced."""
        if device not in self.clones:
            _log.error("device %s is refused: %s", device, reason)
            self.clones[device] = reason
            self.notify(device, reason)

    def notify(self, device: str, reason: str) -> None:
        """Have a notice sent to a device, once for every reason."""
        try:
            identity("device", device)
        except InvalidInputError:
            return  # no device can have this name
        if (device, reason) not in self._noticed and len(self._noticed) < _MOST_NOTICES:
            self._noticed.add((device, reason))
            self._notices[device] = reason

    def send_notices(self, channel: Channel, signer: Signer) -> None:
        """Send the notices that are waiting."""
        while self._notices:
            device, reason = self._notices.popitem()
            notice = Notice(device=device, reason=reason[:MAX_NOTICE])
            channel.publish(topics.notice(device), signer.sign(notice))


def read_declaration(device: str, payload: bytes) -> Declaration:
    """Read the declaration of a device from its own topic.

    Raises:
        MessageError: It cannot be read, or it is of another device.
    """
    declaration = Declaration.from_bytes(payload, limit=_DECLARATION_BYTES)
    if declaration.device != device:
        raise MessageError(
            f"declares {declaration.device!r} on the topic of {device!r}"
        )
    return declaration


def _here() -> str:
    """Return the coordinator's side of a mismatch, in words."""
    return f"the coordinator's release {__version__}, wire {WIRE}"


def gather(
    channel: Channel,
    roster: Roster,
    *,
    count: int | None,
    seconds: float,
    signer: Signer | None = None,
) -> list[Declaration]:
    """Wait for `count` declarations, and return them sorted by device name.

    Declarations that arrive at once after them count, too. With a signer, devices whose
    declarations cannot be read are sent a notice.

    Raises:
        TrainingError: Fewer devices have declared themselves in time.
    """
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        wait = remaining
        if count is not None and len(roster.declarations) >= count:
            end, wait = min(end, time.monotonic() + _MOST_QUIET), min(wait, _QUIET)
        message = channel.receive(wait)
        if message is None:
            break
        _store(channel, roster, message)
        if signer is not None:
            roster.send_notices(channel, signer)
    num_declared = len(roster.declarations)
    if num_declared < (count or 1):
        trouble = f", and {channel.trouble}" if channel.trouble else ""
        raise TrainingError(
            f"{num_declared} devices have declared themselves in {seconds:g} s, of "
            f"the {count or 1} to wait for{trouble}: start more devices, or wait longer"
        )
    return [roster.declarations[name] for name in sorted(roster.declarations)]


def _store(channel: Channel, roster: Roster, message: Message) -> None:
    """Store a message that arrives before the run; drop it if it is invalid."""
    try:
        roster.take(message)
    except MessageError as error:
        _log.warning("message on %s dropped: %s", message.topic, error)
    channel.acknowledge(message)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The devices to plan for, and the reasons why others are left out."""

    declarations: list[Declaration]
    left_out: Mapping[str, str]  # reason by device name


def _select(
    declarations: Sequence[Declaration], left_out: Mapping[str, str]
) -> Selection:
    selected = [d for d in declarations if d.device not in left_out]
    return Selection(declarations=selected, left_out=left_out)


def _with_budget(declarations: Sequence[Declaration], trust: str) -> Selection:
    """Select the devices whose budgets allow one round with one step."""
    left_out: dict[str, str] = {}
    for declaration in declarations:
        price = declaration.round_price(trust) + declaration.computation_price
        if not 0 < declaration.cost >= price:
            left_out[declaration.device] = (
                f"its cost budget {declaration.cost:g} does not pay for one round "
                f"with one step, {price:g}"
            )
        elif declaration.epsilon < _MIN_EPSILON:
            left_out[declaration.device] = (
                f"its epsilon {declaration.epsilon:g} is below {_MIN_EPSILON:g}"
            )
    return _select(declarations, left_out)


def compatible(declarations: Sequence[Declaration]) -> Selection:
    """Select the largest group of devices that can share one model.

    >>> compatible([])
    Traceback (most recent call last):
    fedbudget.errors.InvalidInputError: no device to plan for: start some
    """
    if not declarations:
        raise InvalidInputError("no device to plan for: start some")
    kinds = Counter(map(_kind, declarations))
    kind = kinds.most_common(1)[0][0]
    like = [d.device for d in declarations if _kind(d) == kind]
    names = ", ".join(like[:3]) + (f" and {len(like) - 3} more" if like[3:] else "")
    left_out = {
        d.device: f"it has {_shape_text(_kind(d))}, but {names} have "
        f"{_shape_text(kind)}: give all devices one schema and one loss"
        for d in declarations
        if _kind(d) != kind
    }
    return _select(declarations, left_out)


def _kind(declaration: Declaration) -> tuple[int, str, int, str | None]:
    """Return what devices that share a model have in common."""
    d = declaration
    return d.dim, d.loss, d.num_classes, d.schema


def _shape_text(kind: tuple[int, str, int, str | None]) -> str:
    dim, loss, classes, schema = kind
    digest = "no schema" if schema is None else f"schema {schema[:12]}"
    scores = f", {classes} classes" if classes > 1 else ""
    return f"{dim} columns, loss {loss}{scores}, {digest}"


def _with_schema(declarations: Sequence[Declaration], digest: str | None) -> Selection:
    """Select the devices that declare this schema, or none."""
    left_out = {
        d.device: f"it has schema {d.schema[:12]}, but the coordinator's --schema is "
        f"{digest[:12]}: give both the same file"
        for d in declarations
        if digest is not None and d.schema is not None and d.schema != digest
    }
    return _select(declarations, left_out)


def _with_our_messages(declarations: Sequence[Declaration]) -> Selection:
    """Select the devices that read what this coordinator sends."""
    left_out = {
        d.device: f"its release {d.software or 'is unknown'}, wire {d.wire or 1}, does "
        f"not read the orders of {_here()}: install the same release"
        for d in declarations
        if (d.wire or 1) < WIRE
    }
    return _select(declarations, left_out)


def check_fit(plan: Plan, declarations: Sequence[Declaration]) -> None:
    """Raise unless the plan is for exactly these devices and their rows."""
    if plan.num_devices != len(declarations):
        raise InvalidInputError(
            f"the plan is for {plan.num_devices} devices, and {len(declarations)} have "
            "declared themselves: plan again"
        )
    if plan.trust == "uploads" and plan.unit != "sample":
        raise InvalidInputError(
            f"unit {plan.unit!r} with trust 'uploads' is not for real devices, whose "
            "noise per step protects samples: plan again with trust 'sum'"
        )
    if plan.sampling == "poisson":
        raise InvalidInputError(
            "sampling poisson is not for real devices, which claim no amplification: "
            "plan again with accountant gdp or zcdp"
        )
    if plan.sampling == "cyclic":
        raise InvalidInputError(
            "sampling cyclic is not for real devices, which count every step in full: "
            "plan again with sampling fixed"
        )
    for d, num_samples in zip(declarations, plan.num_samples.tolist(), strict=True):
        pairs: dict[str, tuple[Any, Any]] = {
            "columns": (plan.dim, d.dim),
            "loss": (plan.loss, d.loss),
            "scores per row": (plan.num_classes, d.num_classes),
            "training rows": (num_samples, d.num_samples),
        }
        for name, (planned, declared) in pairs.items():
            if planned != declared:
                raise InvalidInputError(
                    f"the plan is for {name} {planned}, device {d.device} declares "
                    f"{declared}: plan again for these devices"
                )


def plan_fleet(
    declarations: Sequence[Declaration],
    *,
    dissimilarity: str | float = USUAL_DISSIMILARITY,
    planner: str = PLANNER,
    roster: Roster | None = None,
    schema: str | None = None,
    promise: Mapping[str, Any] | None = None,
    participation: float = 1.0,
    authority: Path | None = None,
) -> tuple[Plan, list[Declaration]]:
    """Plan for the devices that can take part together; return the plan and them.

    The others are logged with the reason, and noted in the roster for their notices.
    `schema` is the digest of the one that devices must have, if it is known; `promise`
    has arguments of a `Budget`: trust, unit, least answers and colluders. With a
    `participation` below 1, every device spends what it declares over more rounds, each
    of which asks that share of them. Devices must have certificates of the
    `authority`, if it is given, to sign their replies.

    Raises:
        InfeasibleBudgetError: No device can take part.
    """
    roster = Roster() if roster is None else roster
    declarations = _logged(_select(declarations, roster.clones), roster)
    declarations = _logged(_with_our_messages(declarations), roster)
    unsigned = ReplyKeys(declarations, authority).problems
    declarations = _logged(_select(declarations, unsigned), roster)
    declarations = _logged(_with_schema(declarations, schema), roster)
    if not declarations:
        raise InfeasibleBudgetError(
            "no device can take part: the log has the reason for each of them"
        )
    trust = str((promise or {}).get("trust", "uploads"))
    selected = _logged(_with_budget(declarations, trust), roster)
    if not selected:
        raise InfeasibleBudgetError(
            f"none of the {len(declarations)} devices has a budget for one round with "
            "one step: their owners have to raise it, or lower their prices"
        )
    selected = _logged(compatible(selected), roster)
    if trust == "sum":
        candidate = _plan(
            selected, dissimilarity=dissimilarity, planner=planner, promise=promise
        )
        return _with_demanded_sum_noise(candidate, selected), selected
    all_asked = participation == 1
    while True:
        candidate = _plan(
            selected,
            dissimilarity=dissimilarity,
            planner=planner,
            # Both take it that a device answers every round.
            noise_schedule=all_asked,
            drift_correction=all_asked,
        )
        if _falls_too_far(candidate, selected):
            # Noise that owners demand in every round would cost more in all of them.
            candidate = _plan(
                selected,
                dissimilarity=dissimilarity,
                planner=planner,
                noise_schedule=False,
            )
        selection = _without_excessive_noise(candidate, selected)
        if not selection.left_out:
            candidate = _with_demanded_noise(candidate, selected)
            return by_turns(candidate, participation), selected
        selected = _logged(selection, roster)


def _logged(selection: Selection, roster: Roster) -> list[Declaration]:
    """Return the selected devices; log the others, and have notices sent to them."""
    for device, reason in selection.left_out.items():
        _log.warning("device %s is left out: %s", device, reason)
        roster.notify(device, reason)
    return selection.declarations


def _plan(
    declarations: Sequence[Declaration],
    *,
    dissimilarity: str | float,
    planner: str,
    noise_schedule: bool = True,
    drift_correction: bool = True,
    promise: Mapping[str, Any] | None = None,
) -> Plan:
    first = declarations[0]
    problem = Problem(
        num_samples=[d.num_samples for d in declarations],
        dim=first.dim,
        loss=first.loss,
        num_classes=first.num_classes if first.loss == "softmax" else None,
        dissimilarity=dissimilarity,
    )
    budget = Budget(
        epsilon=[d.epsilon for d in declarations],
        delta=[d.delta for d in declarations],
        cost=[d.cost for d in declarations],
        **(promise or {}),
    )
    prices = Prices(
        communication=[d.round_price(budget.trust) for d in declarations],
        computation=[d.computation_price for d in declarations],
    )
    # A plan within budget under zCDP is within budget under GDP too, not vice versa.
    strict = any(d.accountant == "zcdp" for d in declarations)
    return plan(
        problem,
        budget,
        prices,
        planner=planner,
        accountant="zcdp" if strict else "gdp",
        noise_schedule=noise_schedule,
        drift_correction=drift_correction,
    )


def by_turns(plan: Plan, participation: float) -> Plan:
    """Return a plan whose rounds ask a share of the devices, at the same spending.

    There are as many more rounds as there are fewer devices in each, and steps are as
    much shorter. Then all rounds together move the model as far, and average as many
    noisy answers with the same weights, as when every round asks all devices.

    >>> import fedbudget as fb
    >>> usual = fb.plan(fb.Problem(num_samples=[500] * 20, dim=5),
    ...                 fb.Budget(epsilon=4, cost=1000), fb.Prices(communication=100,
    ...                 computation=1), noise_schedule=False, drift_correction=False)
    >>> turns = by_turns(usual, 0.1)
    >>> turns.rounds == 10 * usual.rounds
    True
    >>> bool((turns.paid_rounds == usual.rounds).all())
    True
    """
    if participation == 1:
        return plan
    count, size = plan.num_devices, share_size(participation, plan.num_devices)
    last = plan.last_round
    return replace(
        plan,
        rounds=plan.rounds * count // size,
        last_round=None if last is None else last * count // size,
        learning_rate=plan.learning_rate * size / count,
        participation=participation,
        reasons=(
            *plan.reasons,
            f"a round asks {size} of {count} devices, by turns: each carries out "
            f"{plan.rounds} rounds at most; no amplification is claimed",
        ),
    )


def _falls_too_far(plan: Plan, declarations: Sequence[Declaration]) -> bool:
    """Return whether falling noise ends below what an owner demands."""
    if plan.noise_decay == 1:
        return False
    noise = plan.noise_std_of(plan.rounds)
    return bool((noise < _demanded_noise(plan, declarations, noise)).any())


def _with_demanded_noise(plan: Plan, declarations: Sequence[Declaration]) -> Plan:
    """Raise the noise to the minimum that owners demand; that spends less privacy.

    A device's weight decreases as its noise grows: a demand costs nothing, and the
    noise of one device must not dominate the average.
    """
    noise = _demanded_noise(plan, declarations, plan.noise_std)
    if (plan.noise_std >= noise).all():
        return plan
    weights = plan.weights / _excess(plan, noise)
    return replace(plan, noise_std=noise, weights=weights / weights.sum())


def _with_demanded_sum_noise(plan: Plan, declarations: Sequence[Declaration]) -> Plan:
    """Raise the noise of a sum to the minimum that owners demand; all carry it.

    Raises:
        InfeasibleBudgetError: An owner demands far more than the others.
    """
    minimum = np.array([d.least_noise_multiplier for d in declarations])
    factors = np.where(plan.weights > 0, minimum / plan.noise_multiplier, 0.0)
    m, factor = int(np.argmax(factors)), float(factors.max()) * (1 + 1e-12)
    if factor <= 1:
        return plan
    if factor > _MAX_EXCESS:
        raise InfeasibleBudgetError(
            f"device {declarations[m].device} demands {factor:.3g} times the noise of "
            f"the sum, above {_MAX_EXCESS:g} times: its owner has to lower "
            f"least_noise_multiplier {minimum[m]:g}, or it has to be left out"
        )
    return replace(plan, noise_std=plan.noise_std * factor)


def _without_excessive_noise(
    plan: Plan, declarations: Sequence[Declaration]
) -> Selection:
    """Select the devices whose demand for noise is at most `_MAX_EXCESS` times."""
    excess = _excess(plan, _demanded_noise(plan, declarations, plan.noise_std))
    left_out = {
        d.device: f"its least noise multiplier {d.least_noise_multiplier:g} is "
        f"{factor:.3g} times what its epsilon needs or the median device has, above "
        f"{_MAX_EXCESS:g} times"
        for d, factor in zip(declarations, excess, strict=True)
        if factor > _MAX_EXCESS
    }
    return _select(declarations, left_out)


def _demanded_noise(
    plan: Plan, declarations: Sequence[Declaration], noise: Array
) -> Array:
    """Return this noise, or the owner's minimum if that is more."""
    minimum = np.array([d.least_noise_multiplier for d in declarations])
    # The factor covers the rounding of the device's own division.
    demanded = minimum * plan.lipschitz / plan.batch_size * (1 + 1e-12)
    return np.maximum(noise, demanded)


def _excess(plan: Plan, noise: Array) -> Array:
    """Return the factor by which each device is too noisy; at least 1.

    The reference is the noise that the device's own budget needs, or that of the median
    device if it is larger: a device with a large epsilon may demand the others' noise.
    """
    # The lower median: of two devices, a noisy one must not be its own reference.
    median = np.quantile(noise[plan.weights > 0], 0.5, method="lower")
    return np.maximum(1.0, noise / np.maximum(plan.noise_std, median))
