"""Steps and rounds on this device, timed, and what they cost in seconds or joules."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from fedbudget.checks import choice, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_steps import MOST_ROWS
from fedbudget.fleet.wire.messages import (
    ANSWERED,
    RUN_BYTES,
    Reply,
    RoundOrder,
    theta_to_bytes,
)
from fedbudget.losses import Loss
from fedbudget.metering.energy import Rapl
from fedbudget.metering.links import Broker, loopback, through_broker
from fedbudget.metering.steps import TAU, step_runner

UNITS = ("seconds", "joules")
_LEAST_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Meter:
    """What was measured of one kind of work."""

    seconds: float  # of one; a median
    joules: float | None  # of one, a mean; None where nothing tells
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a step and a round cost on this device."""

    tau: int  # steps in a round: each pays for its share of what comes once
    step: Meter
    round: Meter
    order_bytes: int  # down, each round
    reply_bytes: int  # up
    link: str  # over what a round's messages went
    energy: str  # where joules come from

    @property
    def units(self) -> tuple[str, ...]:
        """The units in which prices can be given."""
        return UNITS if self.step.joules is not None else UNITS[:1]

    def prices(self, unit: str) -> tuple[float, float]:
        """Return c1 and c2: of a round, and of a local step.

        Raises:
            InvalidInputError: Nothing tells how many joules were used.
        """
        choice("unit", unit, UNITS)
        if unit not in self.units:
            raise InvalidInputError(
                "unit 'joules' needs a reading of energy: give --watts, or run where "
                "RAPL counters can be read (on Linux, as root)"
            )
        return getattr(self.round, unit), getattr(self.step, unit)


def measure(
    loss: Loss,
    *,
    num_samples: int,
    dim: int,
    seconds: float = 1.0,
    watts: float | None = None,
    broker: Broker | None = None,
    rapl: Rapl | None = None,
) -> Measured:
    """Time local steps and rounds on this device.

    Args:
        loss: What the steps minimise; they are those of a real device.
        num_samples: Rows in a step.
        dim: Columns of a row.
        seconds: How long to repeat each kind of work; at least five times.
        watts: What the device draws while it works; else RAPL is read, if it can be.
        broker: An MQTT broker for the rounds; without it they stay on this machine.
        rapl: The energy counters; by default those of this machine.
    """
    whole("num_samples", num_samples, most=MOST_ROWS)
    whole("dim", dim, most=10**8)
    within("seconds", seconds, above=0, most=3600)
    if watts is not None:
        within("watts", watts, above=0)
    counters = Rapl() if rapl is None else rapl
    if watts is not None:
        energy = f"{watts:g} W given, times seconds"
    else:
        readable = counters.readable
        energy = "RAPL, the processor and all that it did" if readable else "none"
    order, reply = round_messages(loss.num_params(dim))

    def metered(work: Callable[[], None], at_once: int) -> Meter:
        rapl = counters if watts is None else None
        return _repeat(work, at_once, seconds, watts, rapl)

    step = metered(step_runner(loss, num_samples=num_samples, dim=dim), TAU)
    if broker is None:
        connection, link = loopback(order, reply), "TCP on this machine, no network"
    else:
        connection, link = through_broker(broker, order, reply), f"MQTT, {broker}"
    with connection as connected:
        round_ = metered(connected.round, 1)
    return Measured(
        tau=TAU,
        step=step,
        round=round_,
        order_bytes=len(order),
        reply_bytes=len(reply),
        link=link,
        energy=energy,
    )


def round_messages(num_params: int) -> tuple[bytes, bytes]:
    """Return an order and a reply, as the fleet sends them in float32."""
    theta = theta_to_bytes(np.ones(num_params), "float32")
    run = bytes(RUN_BYTES)
    order = RoundOrder(run=run, round=1, theta=theta)
    reply = Reply(device="device-1", run=run, round=1, code=ANSWERED, theta=theta)
    return order.to_bytes(), reply.to_bytes()


def _repeat(
    work: Callable[[], None],
    at_once: int,
    seconds: float,
    watts: float | None,
    rapl: Rapl | None,
) -> Meter:
    """Repeat work that does `at_once` of a kind; the first time is not counted."""
    work()
    times: list[float] = []
    before = rapl.read() if rapl is not None and rapl.readable else None
    started = time.perf_counter()
    while len(times) < _LEAST_REPEATS or time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) / at_once)
    repeats, joules = at_once * len(times), None
    if watts is not None:
        joules = watts * median(times)
    elif rapl is not None and before is not None:
        joules = rapl.joules_since(before) / repeats
    return Meter(seconds=median(times), joules=joules, repeats=repeats)
