"""Who is there: what devices declare, and whether they are connected.

Planning for whoever has declared itself: declarations are untrusted, and free. Whoever
cannot take part, fits no other, or demands noise that would drown the others is left
out by name; no device can end a run for all, or wreck its model, by what it says.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array
from fedbudget.errors import (
    InfeasibleBudgetError,
    InvalidInputError,
    MessageError,
    TrainingError,
)
from fedbudget.fleet.transport.channel import Channel, Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.planning import Plan, plan
from fedbudget.planning.settings import PLANNER
from fedbudget.problem import USUAL_DISSIMILARITY, Problem

_log = logging.getLogger(__name__)

_DECLARATION_BYTES = 4096  # far more than one has
_LEAST_EPSILON = 1e-6  # who spends less than this releases nothing but noise
_MOST_EXCESS = 10.0  # who demands more noise than this many times is left out


class Roster:
    """The devices that have declared themselves, by name."""

    def __init__(self) -> None:
        self.declared: dict[str, Declaration] = {}
        self.online: dict[str, bool] = {}

    def take(self, message: Message) -> bool:
        """Take in a declaration or a presence; return whether it was one."""
        kind, device = topics.parse(message.topic)
        if kind == "status":
            self._status(device, message.payload)
        elif kind == "declare":
            self._declare(device, message.payload)
        return kind in ("status", "declare")

    def _status(self, device: str, payload: bytes) -> None:
        there = payload == topics.ONLINE
        if self.online.get(device) != there:
            _log.info("device %s is %s", device, "there" if there else "gone")
        self.online[device] = there

    def _declare(self, device: str, payload: bytes) -> None:
        if not payload:  # withdrawn
            self.declared.pop(device, None)
            return
        told = Declaration.from_bytes(payload, limit=_DECLARATION_BYTES)
        if told.device != device:
            raise MessageError(f"declares {told.device!r} over the topic of {device!r}")
        self.declared[device] = told


def gather(
    channel: Channel,
    roster: Roster,
    *,
    count: int | None,
    seconds: float,
) -> list[Declaration]:
    """Wait until so many devices have declared themselves, and return them by name.

    Raises:
        TrainingError: They have not, in time.
    """
    end = time.monotonic() + seconds
    while count is None or len(roster.declared) < count:
        left = end - time.monotonic()
        message = channel.receive(max(0.0, left)) if left > 0 else None
        if message is None:
            break
        _take_in(channel, roster, message)
    found = len(roster.declared)
    if found < (count or 1):
        trouble = f", and {channel.trouble}" if channel.trouble else ""
        raise TrainingError(
            f"{found} devices have declared themselves in {seconds:g} s, of the "
            f"{count or 1} to wait for{trouble}: start them, or wait longer"
        )
    return [roster.declared[name] for name in sorted(roster.declared)]


def _take_in(channel: Channel, roster: Roster, message: Message) -> None:
    """Take in a message from before a run; what is damaged is dropped by name."""
    try:
        roster.take(message)
    except MessageError as error:
        _log.warning("message on %s dropped: %s", message.topic, error)
    channel.acknowledge(message)


def _able(declared: list[Declaration]) -> tuple[list[Declaration], Mapping[str, str]]:
    """Return who can take part in a round at all, and why others are left out."""
    left_out: dict[str, str] = {}
    for told in declared:
        one = told.communication_price + told.computation_price
        if not 0 < told.cost >= one:
            left_out[told.device] = (
                f"its cost budget {told.cost:g} does not pay for one round with one "
                f"step, {one:g}"
            )
        elif told.epsilon < _LEAST_EPSILON:
            left_out[told.device] = f"epsilon {told.epsilon:g} is no privacy to spend"
    return [told for told in declared if told.device not in left_out], left_out


def alike(declared: list[Declaration]) -> tuple[list[Declaration], Mapping[str, str]]:
    """Return the largest group that one model serves, and why others are left out.

    >>> alike([])
    Traceback (most recent call last):
    fedbudget.errors.InvalidInputError: no device to plan for: start some
    """
    if not declared:
        raise InvalidInputError("no device to plan for: start some")
    kinds = Counter((told.dim, told.loss, told.num_classes) for told in declared)
    kind = kinds.most_common(1)[0][0]
    fitting = [t for t in declared if (t.dim, t.loss, t.num_classes) == kind]
    left_out = {
        told.device: f"{told.dim} columns, loss {told.loss}, not {kind[0]}, {kind[1]}"
        for told in declared
        if (told.dim, told.loss, told.num_classes) != kind
    }
    return fitting, left_out


def check_fit(plan: Plan, declared: Sequence[Declaration]) -> None:
    """Raise unless a plan is for just these devices and their rows."""
    if plan.num_devices != len(declared):
        raise InvalidInputError(
            f"the plan is for {plan.num_devices} devices, and {len(declared)} have "
            "declared themselves: plan again"
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
    for index, told in enumerate(declared):
        here = (told.dim, told.loss, told.num_classes, told.num_samples)
        there: tuple[Any, ...] = (plan.dim, plan.loss, plan.num_classes)
        there = (*there, int(plan.num_samples[index]))
        names = ("columns", "loss", "scores per row", "training rows")
        for name, ours, theirs in zip(names, there, here, strict=True):
            if ours != theirs:
                raise InvalidInputError(
                    f"the plan is for {name} {ours}, device {told.device} declares "
                    f"{theirs}: plan again for these devices"
                )


def plan_fleet(
    found: list[Declaration],
    *,
    dissimilarity: str | float = USUAL_DISSIMILARITY,
    planner: str = PLANNER,
) -> tuple[Plan, list[Declaration]]:
    """Plan for those who fit together, and return them; others are left out by name.

    Raises:
        InfeasibleBudgetError: Nobody can take part.
    """
    declared = _without(_able(found))
    if not declared:
        raise InfeasibleBudgetError(
            f"none of the {len(found)} devices has a budget for one round with one "
            "step: their owners have to raise it, or lower their prices"
        )
    declared = _without(alike(declared))
    while True:
        chosen = _plan(declared, dissimilarity=dissimilarity, planner=planner)
        quiet, left_out = _quiet_enough(chosen, declared)
        if not left_out:
            return _as_noisy_as_demanded(chosen, declared), declared
        declared = _without((quiet, left_out))


def _without(
    sorted_out: tuple[list[Declaration], Mapping[str, str]],
) -> list[Declaration]:
    """Return who stays, and tell who does not."""
    stays, left_out = sorted_out
    for device, reason in left_out.items():
        _log.warning("device %s is left out: %s", device, reason)
    return stays


def _plan(
    declared: Sequence[Declaration], *, dissimilarity: str | float, planner: str
) -> Plan:
    first = declared[0]
    problem = Problem(
        num_samples=[told.num_samples for told in declared],
        dim=first.dim,
        loss=first.loss,
        num_classes=first.num_classes if first.loss == "softmax" else None,
        dissimilarity=dissimilarity,
    )
    budget = Budget(
        epsilon=[told.epsilon for told in declared],
        delta=[told.delta for told in declared],
        cost=[told.cost for told in declared],
    )
    prices = Prices(
        communication=[told.communication_price for told in declared],
        computation=[told.computation_price for told in declared],
    )
    # What zCDP allows, the exact count allows too; not the other way round.
    strict = any(told.accountant == "zcdp" for told in declared)
    return plan(
        problem,
        budget,
        prices,
        planner=planner,
        accountant="zcdp" if strict else "gdp",
    )


def _as_noisy_as_demanded(chosen: Plan, declared: Sequence[Declaration]) -> Plan:
    """Raise the noise to what owners demand at least; that spends less privacy.

    A device's weight shrinks as its noise grows: demands are free, and the noise of one
    device is not to drown the others.
    """
    noise = _demanded_noise(chosen, declared)
    if (chosen.noise_std >= noise).all():
        return chosen
    weights = chosen.weights / _excess(chosen, noise)
    return replace(chosen, noise_std=noise, weights=weights / weights.sum())


def _quiet_enough(
    chosen: Plan, declared: Sequence[Declaration]
) -> tuple[list[Declaration], Mapping[str, str]]:
    """Return whose demand for noise a run can bear, and why others are left out."""
    excess = _excess(chosen, _demanded_noise(chosen, declared))
    left_out = {
        told.device: f"its least noise multiplier {told.least_noise_multiplier:g} is "
        f"{times:.3g} times what its epsilon needs or a middle device has"
        for told, times in zip(declared, excess, strict=True)
        if times > _MOST_EXCESS
    }
    return [told for told in declared if told.device not in left_out], left_out


def _demanded_noise(chosen: Plan, declared: Sequence[Declaration]) -> Array:
    """Return the planned noise, or what the owner demands if that is more."""
    least = np.array([told.least_noise_multiplier for told in declared])
    # A device divides again, and may round the other way.
    demanded = least * chosen.lipschitz / chosen.batch_size * (1 + 1e-12)
    return np.maximum(chosen.noise_std, demanded)


def _excess(chosen: Plan, noise: Array) -> Array:
    """Return how many times too noisy each device is; at least 1.

    Measured by what its own budget needs, or by what a middle device has, if that is
    more: who has a large epsilon may well demand the noise of the others.
    """
    # The lower of two in the middle: of two devices, one cannot be its own measure.
    middle = np.quantile(noise[chosen.weights > 0], 0.5, method="lower")
    return np.maximum(1.0, noise / np.maximum(chosen.noise_std, middle))
