"""Faults of connections and devices, one at a time, and what rounds cost with them.

Guards in threads of this process, a coordinator and a real broker, over mutual TLS.
Every client has a relay between itself and the broker, which breaks its connections.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedbudget.fleet.device.policy import Policy
from fedbudget.fleet.device.process import Device
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.wire.framing import Outgoing
from fedbudget.training import Order
from tests.contract_devices import LARGE, PRICES, plan_for, rows_of
from tests.fleet.brokers import BrokerProcess
from tests.fleet.mqtt_fleet import MqttFleet
from tests.fleet.relay import Relay

NUM_DEVICES = 4
_DEADLINE = 300.0  # seconds for a round; all devices answer long before


@dataclass
class FaultyFleet(MqttFleet):
    """A fleet whose connections go through relays, and whose devices misbehave."""

    rng: random.Random | None = None  # cuts all connections, if given
    relays: dict[str, Relay] = field(default_factory=dict)
    # What a device does with its replies, by name; it may wait, or leave some out.
    habits: dict[str, Callable[[list[Outgoing]], list[Outgoing]]] = field(
        default_factory=dict
    )

    def _relay(self, name: str) -> Relay:
        if name not in self.relays:
            self.relays[name] = Relay(self.port, rng=self.rng)
        return self.relays[name]

    def serve(self, device: Device, policy: Policy) -> None:
        handle = device.handle

        def misbehave(topic: str, payload: bytes) -> list[Outgoing]:
            replies = handle(topic, payload)
            habit = self.habits.get(device.name)
            return replies if habit is None else habit(replies)

        device.handle = misbehave  # type: ignore[method-assign]
        try:
            super().serve(device, policy)
        finally:
            # Else a circle of references leaves the fleet, with the sockets of its
            # clients, to the garbage collector, which may warn of them in any test.
            del device.handle

    def address(self, name: str, direct: BrokerAddress) -> BrokerAddress:
        return BrokerAddress(port=self._relay(name).port, identity=direct.identity)

    def end(self) -> None:
        for relay in self.relays.values():
            relay.heal()
        super().end()
        for relay in self.relays.values():
            relay.close()


@dataclass(frozen=True, kw_only=True)
class Result:
    """Rounds with a fault."""

    rounds: int
    complete: int  # that all asked devices answered
    longest: float  # seconds of the slowest round
    seconds: float  # of all rounds


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and the goal for it."""

    # Called before every round, with the fleet and the round's number.
    before: Callable[[FaultyFleet, int], None] = lambda fleet, number: None
    cuts: bool = False  # all connections, at random
    quorum: float = 1.0
    most_seconds: float | None = None  # goal for the slowest round


def lose_replies(count: int) -> Callable[[FaultyFleet, int], None]:
    """Return a fault that loses the first replies of a device to rounds 3, 6, ..."""

    def before(fleet: FaultyFleet, number: int) -> None:
        left = count if number % 3 == 0 else 0

        def lose(replies: list[Outgoing]) -> list[Outgoing]:
            nonlocal left
            if left and any(b"answered" in reply.payload for reply in replies):
                left -= 1
                return []
            return replies

        fleet.habits["device-1"] = lose

    return before


def freeze(name: str) -> Callable[[FaultyFleet, int], None]:
    """Return a fault that leaves a client's connection half-open before round 3."""

    def before(fleet: FaultyFleet, number: int) -> None:
        if number == 3:
            fleet.relays[name].freeze()

    return before


def be_late(fleet: FaultyFleet, number: int) -> None:
    """Have a device answer after the others' rounds are over, always."""

    def wait(replies: list[Outgoing]) -> list[Outgoing]:
        if replies:
            threading.Event().wait(2.0)
        return replies

    fleet.habits["device-1"] = wait


def repeat_replies(fleet: FaultyFleet, number: int) -> None:
    """Have all devices send every reply three times."""
    for name in fleet.names:
        fleet.habits[name] = lambda replies: replies * 3


FAULTS: dict[str, Fault] = {
    "none": Fault(),
    "one reply lost": Fault(before=lose_replies(1), most_seconds=3.0),
    "two replies lost": Fault(before=lose_replies(2), most_seconds=6.0),
    "replies sent three times": Fault(before=repeat_replies),
    "device half-open": Fault(before=freeze("device-1"), most_seconds=10.0),
    "coordinator half-open": Fault(before=freeze("coordinator"), most_seconds=10.0),
    "connections cut at random": Fault(cuts=True),
    "one device always late": Fault(before=be_late, quorum=0.75),
}


def run_fault(
    fault: Fault, folder: Path, broker: BrokerProcess, *, rounds: int
) -> Result:
    """Run rounds with a fault."""
    data = rows_of([30] * NUM_DEVICES)
    plan = plan_for(data, rounds=rounds, noise_std=np.full(NUM_DEVICES, 0.1))
    rng = random.Random(7) if fault.cuts else None
    fleet = FaultyFleet(folder, broker.certs, port=broker.port, rng=rng)
    fleet.start(data, LARGE, PRICES)
    try:
        devices = fleet.coordinate(NUM_DEVICES, deadline=_DEADLINE, quorum=fault.quorum)
        devices.begin(plan)
        theta, seconds, complete = np.zeros(plan.dim), [], 0
        for number in range(1, rounds + 1):
            fault.before(fleet, number)
            began = time.monotonic()
            order = Order(number=number, theta=theta, plan=plan)
            replies = devices.run_round(order)
            seconds.append(time.monotonic() - began)
            complete += bool(replies.answered.all())
    finally:
        fleet.end()
    return Result(
        rounds=rounds, complete=complete, longest=max(seconds), seconds=sum(seconds)
    )
