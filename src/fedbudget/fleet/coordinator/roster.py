"""Who is there: what devices declare, and whether they are connected."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedbudget.errors import InvalidInputError, MessageError, TrainingError
from fedbudget.fleet.transport.channel import Channel, Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.planning import Plan

_log = logging.getLogger(__name__)

_DECLARATION_BYTES = 4096  # far more than one has
_LEAST_EPSILON = 1e-6  # who spends less than this releases nothing but noise


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
        take_in(channel, roster, message)
    found = len(roster.declared)
    if found < (count or 1):
        trouble = f", and {channel.trouble}" if channel.trouble else ""
        raise TrainingError(
            f"{found} devices have declared themselves in {seconds:g} s, of the "
            f"{count or 1} to wait for{trouble}: start them, or wait longer"
        )
    return [roster.declared[name] for name in sorted(roster.declared)]


def take_in(channel: Channel, roster: Roster, message: Message) -> None:
    """Take in a message from before a run; what is damaged is dropped by name."""
    try:
        roster.take(message)
    except MessageError as error:
        _log.warning("message on %s dropped: %s", message.topic, error)
    channel.acknowledge(message)


def able(declared: list[Declaration]) -> tuple[list[Declaration], Mapping[str, str]]:
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
