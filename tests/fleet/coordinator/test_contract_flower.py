"""The contract of the `Devices` seam, over Flower's messages and real guards.

Messages, records, the ClientApp and the guards behind sockets are real. A queue in
memory replaces the SuperLink; test_flower.py runs a real one.
"""

import importlib.util
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.fleet.coordinator.flower import PARCEL, FlowerChannel
from fedbudget.fleet.coordinator.roster import Roster, gather
from fedbudget.fleet.device.policy import Policy
from fedbudget.fleet.device.process import Device
from fedbudget.fleet.device.unix_socket import serve_socket
from fedbudget.fleet.transport.channel import Message as ReceivedMessage
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import pack
from tests.contract_devices import DATA, LARGE, PRICES, DevicesContract, Make, plan_for
from tests.fleet.devices import Fleet, fleets
from tests.fleet.examples import declaration

pytest.importorskip("flwr", reason="flwr is not installed: docs/fleet.md says how")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

APP = Path(__file__).parents[3] / "deploy" / "flower" / "fedbudget_flower"


@pytest.fixture(autouse=True)
def inside_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the sender's identity, as a ServerApp's process does."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def client_app() -> Any:
    """Return the ClientApp of deploy/flower."""
    spec = importlib.util.spec_from_file_location("app", APP / "client_app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


class MemoryGrid:
    """A Flower grid in memory; each node has the ClientApp and a guard."""

    def __init__(self) -> None:
        self.guards: dict[int, Path] = {}  # by node
        self.silent: set[int] = set()  # connected nodes that do not reply
        self.messages: list[Message] = []
        self.replies: dict[str, Message] = {}
        self._app = client_app()

    def get_node_ids(self) -> list[int]:
        return list(self.guards)

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            number = f"message-{len(self.messages)}"
            message.metadata.__dict__["_message_id"] = number
            self.messages.append(message)
            if message.metadata.dst_node_id not in self.silent:
                self.replies[number] = self.answer(message)
        return [message.metadata.message_id for message in messages]

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, {"guard": str(self.guards[node])}, RecordDict(), {})
        return self._app(message, context)

    def pull_messages(self, numbers: list[str]) -> list[Message]:
        return [self.replies.pop(n) for n in numbers if n in self.replies]


@dataclass
class FlowerFleet(Fleet):
    """Guards behind sockets, and a coordinator on a grid."""

    grid: MemoryGrid = field(default_factory=MemoryGrid)

    def socket_path(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def transport(self, name: str) -> dict[str, Any]:
        return {"socket": self.socket_path(name)}

    def serve(self, device: Device, policy: Policy) -> None:
        assert policy.socket is not None
        serve_socket(device, policy.socket, self.stop)

    def channel(self) -> FlowerChannel:
        return FlowerChannel(self.grid, ttl=20, poll=0.01)

    def start(self, data: Dataset, budget: fb.Budget, prices: fb.Prices) -> None:
        super().start(data, budget, prices)
        for m, name in enumerate(self.names):
            while not connects(self.socket_path(name)):
                assert self.threads[m].is_alive()
                self.threads[m].join(0.01)
            self.grid.guards[m + 10] = self.socket_path(name)

    def wake(self) -> None:
        """Connect to each socket: a waiting guard then checks whether to stop."""
        for name in self.names:
            connects(self.socket_path(name))


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


class TestFlowerDevices(DevicesContract):
    """The same contract that simulated and MQTT devices fulfil."""

    @pytest.fixture
    def make(self, certs: Path, tmp_path: Path) -> Iterator[Make]:
        yield from fleets(lambda folder: FlowerFleet(folder, certs), tmp_path)


@pytest.fixture
def fleet(certs: Path, tmp_path: Path) -> Iterator[FlowerFleet]:
    fleet = FlowerFleet(tmp_path, certs)
    fleet.start(DATA, LARGE, PRICES)
    yield fleet
    fleet.end()


def drain(channel: FlowerChannel) -> list[ReceivedMessage]:
    """Return all messages, until none arrives."""
    return list(iter(lambda: channel.receive(0.05), None))


def test_a_message_to_a_node_expires_after_the_deadline(fleet: FlowerFleet) -> None:
    fleet.coordinate(4)
    assert {message.metadata.ttl for message in fleet.grid.messages} == {20}


def test_a_device_that_was_offline_is_sent_only_the_newest_order(
    fleet: FlowerFleet,
) -> None:
    channel = FlowerChannel(fleet.grid, ttl=20, poll=0.01)
    gather(channel, Roster(), count=4, seconds=20)
    channel.keep(topics.offer("device-0"), b"offer")
    fleet.grid.silent = {10}
    for number in range(3):
        channel.keep(topics.order(bytes(16)), b"order %d" % number)
        drain(channel)
    sent = fleet.grid.messages[4:]
    assert len(sent) == 1  # the first is in transit, and the others wait
    fleet.grid.replies[sent[0].metadata.message_id] = fleet.grid.answer(sent[0])
    drain(channel)
    parcels = [m.content[PARCEL][PARCEL] for m in fleet.grid.messages[4:]]
    offer, order = topics.offer("device-0"), topics.order(bytes(16))
    assert parcels == [
        pack([(offer, b"offer"), (order, b"order 0")]),
        pack([(order, b"order 2")]),
    ]


def test_a_missing_guard_is_reported_and_tried_again(
    fleet: FlowerFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbudget.fleet.coordinator.flower._RETRY", 0.05)
    devices = fleet.coordinate(4)
    plan = plan_for(DATA)
    devices.begin(plan)
    path, forward = fleet.grid.guards[11], fleet.grid.answer
    fleet.grid.guards[11] = path.with_name("nobody.sock")
    parcels: list[bytes] = []

    def answer(message: Message) -> Message:
        reply = forward(message)
        if message.metadata.dst_node_id == 11:
            parcels.append(reply.content[PARCEL][PARCEL])
            fleet.grid.guards[11] = path  # back after one failure
        return reply

    monkeypatch.setattr(fleet.grid, "answer", answer)
    order = fb.training.Order(number=1, theta=np.zeros(3), plan=plan)
    replies = devices.run_round(order)
    assert parcels[0] == b"" and len(parcels) > 1
    assert replies.answered.all()
    assert replies.cost.tolist() == [14, 18, 22, 26]  # no device was charged twice


class Hostile(MemoryGrid):
    """A grid with a hostile node, which replies with any content."""

    content: Any = b""

    def answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != 66:
            return super().answer(message)
        if isinstance(self.content, Error | RecordDict):
            return Message(self.content, reply_to=message)
        record = ConfigRecord({PARCEL: self.content})
        return Message(RecordDict({PARCEL: record}), reply_to=message)


STOLEN = declaration(device="device-0", num_samples=9).to_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        "text",
        RecordDict(),
        RecordDict({PARCEL: ConfigRecord({"other": 1})}),
        Error(code=0, reason="crashed"),
        pack([("no/topic", b"")]),
        pack([(topics.reply("device-1"), b"before any declaration")]),
        pack([(topics.declare("device-0"), STOLEN)]),
    ],
    ids=[
        *("no guard", "no CBOR", "no bytes", "nothing", "another record", "a crash"),
        *("no topic", "no declaration", "another's name"),
    ],
)
def test_a_hostile_node_that_comes_later_speaks_for_nobody(
    fleet: FlowerFleet, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    monkeypatch.setattr("fedbudget.fleet.coordinator.flower._LOOK", 0.0)
    grid = Hostile()
    grid.guards, grid.content = dict(fleet.grid.guards), content
    channel, roster = FlowerChannel(grid, ttl=20, poll=0.01), Roster()
    honest = gather(channel, roster, count=4, seconds=20)
    grid.guards[66] = Path()
    for message in drain(channel):
        roster.take(message)
    assert grid.messages[-1].metadata.dst_node_id == 66
    assert [roster.declarations[name] for name in sorted(roster.declarations)] == honest
    assert channel.trouble == "SuperNodes without a guard: 1"


def test_a_node_speaks_only_for_its_own_device(fleet: FlowerFleet) -> None:
    mallory = declaration(device="mallory").to_bytes()
    grid = Hostile()
    grid.guards = fleet.grid.guards | {66: Path()}
    grid.content = pack(
        [(topics.declare("mallory"), mallory), (topics.reply("device-0"), b"forged")]
    )
    channel, roster = FlowerChannel(grid, ttl=20, poll=0.01), Roster()
    gather(channel, roster, count=5, seconds=20)
    assert b"forged" not in [message.payload for message in drain(channel)]
    assert "mallory" in roster.declarations
