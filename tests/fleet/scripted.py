"""A coordinator whose devices a test scripts, without a broker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import Declaration, Notice, Reply, RoundOrder
from fedbudget.fleet.wire.signing import Signer
from fedbudget.training import Order, Replies
from tests.fleet import examples

SIGNER = Signer.generate()
NAMES = ("a", "b", "c", "d")
DECLARATIONS = [examples.declaration(device=name) for name in NAMES]
PLAN = fb.plan(
    fb.Problem(num_samples=[100] * 4, dim=4),
    fb.Budget(epsilon=4, cost=1000),
    fb.Prices(communication=100, computation=1),
    weights="uniform",
    drift_correction=False,
    noise_schedule=False,
)
ROUND_COST = 100.0 + PLAN.tau
THETA = np.array([0.5, -0.5, 0.25, 0.0])

# The payloads that a device sends in reply to an order.
Script = Callable[[RoundOrder], list[Any]]


def moved(order: RoundOrder, by: float) -> bytes:
    return (np.frombuffer(order.theta, "<f8") + by).tobytes()


def reply_to(order: RoundOrder, device: str, **changes: Any) -> Reply:
    usual: dict[str, Any] = {
        "device": device,
        "run": order.run,
        "round": order.round,
        "code": "answered",
        "theta": moved(order, 0.1 * (1 + NAMES.index(device))),
    }
    return Reply(**(usual | changes))


def refusal(order: RoundOrder, device: str, code: str) -> Reply:
    return reply_to(order, device, code=code, theta=None, reason="no")


class Scripted(Connection):
    """A connection to devices that a test scripts."""

    def __init__(self, scripts: dict[str, Script] | None = None) -> None:
        super().__init__(BrokerAddress(), name="coordinator", topics=())
        self.scripts = scripts or {}
        self.orders: list[bytes] = []
        self.offers: list[str] = []
        self.repeats: list[str] = []  # devices to which an order was sent again
        self.notices: dict[str, str] = {}  # reason by device
        self.reconnects = 0
        self.ends: list[str] = []  # topics of signed messages that are no orders
        self.wills: list[str] = []  # topics that a dead coordinator's broker clears

    def reconnect(self) -> None:
        self.reconnects += 1

    def clear_at_death(self, topic: str) -> None:
        self.wills.append(topic)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        kind, device = topics.parse(topic)
        content = topics.content(topic)
        if content == "offer" and payload:
            self.offers.append(device)
        if content == "notice":
            self.notices[device] = Notice.from_bytes(decode(payload)[0]).reason
        if content != "order" or not payload:
            return
        if decode(decode(payload)[0])["kind"] != RoundOrder.kind:
            self.ends.append(topic)
            return
        self.orders.append(payload)
        if kind == "offer":
            self.repeats.append(device)
        order = RoundOrder.from_bytes(decode(payload)[0])
        for name in NAMES if kind == "order" else (device,):
            script = self.scripts.get(name, lambda o, n=name: [reply_to(o, n)])
            for reply in script(order):
                self.send(name, reply)

    def send(self, name: str, reply: Any) -> None:
        payload = reply if isinstance(reply, bytes) else reply.to_bytes()
        self.inbox.put(
            Message(topic=topics.reply(name), payload=payload, receiver=self.name)
        )

    def flush(self, seconds: float) -> bool:
        return True


class Site:
    """A coordinator that can be killed and started again."""

    def __init__(self, path: Path, connection: type[Scripted] = Scripted) -> None:
        self.path, self.connection = path, connection
        self.checkpoints: Checkpoints | None = None

    def start(
        self,
        scripts: dict[str, Script] | None = None,
        plan: fb.Plan = PLAN,
        declarations: list[Declaration] = DECLARATIONS,
        **settings: Any,
    ) -> tuple[FleetDevices, Scripted]:
        self.stop()
        self.checkpoints = Checkpoints(self.path / "coordinator.sqlite")
        connection = self.connection(scripts)
        usual: dict[str, Any] = {"deadline": 5.0, "precision": "float64"}
        devices = FleetDevices(
            connection,
            declarations,
            signer=SIGNER,
            checkpoints=self.checkpoints,
            **(usual | settings),
        )
        devices.begin(plan)
        return devices, connection

    def stop(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.close()
            self.checkpoints = None


def ordered(number: int = 1, theta: Array = THETA, plan: fb.Plan = PLAN) -> Order:
    return Order(number=number, theta=theta, plan=plan)


def mean_of(replies: Replies, *names: str) -> None:
    """Assert that the answer is the mean of exactly these devices' models."""
    expected = np.mean([0.1 * (1 + NAMES.index(name)) for name in names])
    assert replies.theta == pytest.approx(THETA + expected, abs=1e-12)
    assert [n for n, a in zip(NAMES, replies.answered, strict=True) if a] == [*names]
