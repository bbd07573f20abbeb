"""A guard behind a socket: anybody may knock, and only signed orders are obeyed."""

import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedbudget as fb
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.process import Device
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.device.unix_socket import HEAD, serve_socket
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import pack, unpack
from fedbudget.fleet.wire.messages import Declaration, Reply
from fedbudget.fleet.wire.signing import Signer
from tests.fleet.devices import SIGNER, write_device
from tests.fleet.examples import RUN, offer, order

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets"
)


class Door:
    """A guard that serves a socket, in a thread of this process."""

    def __init__(self, folder: Path) -> None:
        path = write_device(folder)
        text = path.read_text()
        path.write_text(text[: text.index("[broker]")] + "[socket]\nfile = 'door'\n")
        self.policy = read_policy(path)
        assert self.policy.socket is not None and self.policy.broker is None
        self.path = self.policy.socket
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        while not self._open():
            assert self.thread.is_alive()
            self.thread.join(0.01)

    def _serve(self) -> None:
        device = Device(self.policy)
        serve_socket(device, self.path, self.stop)
        device.close()

    def _open(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.path)) == 0

    def send(self, data: bytes, *, head: bytes | None = None) -> bytes:
        """Send raw bytes and return what comes back."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(self.path))
            client.sendall((HEAD.pack(len(data)) if head is None else head) + data)
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as file:
                return file.read()

    def ask(self, *messages: tuple[str, bytes]) -> list[Reply]:
        """Send a parcel; return the replies in what comes back."""
        answer = self.send(pack(messages))
        (length,) = HEAD.unpack(answer[: HEAD.size])
        assert length == len(answer) - HEAD.size
        said = unpack(answer[HEAD.size :], limit=1 << 20)
        assert [topic for topic, _ in said[:2]] == [
            topics.declare("sensor-1"),
            topics.status("sensor-1"),
        ]
        assert Declaration.from_bytes(said[0][1]).num_samples == 100
        return [Reply.from_bytes(payload) for _, payload in said[2:]]

    @property
    def cost(self) -> float:
        return read_statement(self.policy.ledger).cost

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    found = Door(tmp_path)
    yield found
    found.close()
    assert not found.path.exists()


def parcel(signer: Signer, **changes: object) -> list[tuple[str, bytes]]:
    return [
        (topics.offer("sensor-1"), signer.sign(offer())),
        (topics.order(RUN), signer.sign(order(**changes))),
    ]


def test_a_signed_order_is_answered_once_and_sent_again_free_of_charge(
    door: Door,
) -> None:
    accepted, answered = door.ask(*parcel(SIGNER))
    assert (accepted.code, answered.code) == ("accepted", "answered")
    assert door.cost == 105  # one round, five steps
    assert door.ask(*parcel(SIGNER))[1] == answered
    assert door.cost == 105


def test_who_cannot_sign_learns_only_what_is_public(door: Door) -> None:
    assert door.ask(*parcel(Signer.generate())) == []
    assert door.ask() == []
    assert door.cost == 0


def test_garbage_is_given_up_and_the_next_one_is_served(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    (item,) = parcel(SIGNER)[:1]
    for data in (b"", b"\xff" * 40, pack([item])[:-1], pack([("x" * 300, b"")])):
        assert door.send(data) == b""
    assert door.send(b"", head=b"\x00\x00") == b""  # cut off
    assert door.send(b"", head=HEAD.pack(1 << 31)) == b""  # gigantic
    assert "above the limit" in caplog.text
    assert door.ask(("fedbudget/1/nonsense", b"?"), ("", b"")) == []
    assert [reply.code for reply in door.ask(*parcel(SIGNER))] == [
        "accepted",
        "answered",
    ]


def test_only_the_owner_and_the_group_may_knock(door: Door) -> None:
    assert stat.S_IMODE(os.stat(door.path).st_mode) == 0o660


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux tells")
def test_the_owner_is_told_once_if_the_carrier_could_read_the_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        # Not the fixture: its first knock, while pytest still sets up, tells already.
        door = Door(tmp_path)
        door.ask()
        door.ask()
        door.close()
    assert caplog.text.count("run it as another user than the guard") == 1


def test_a_socket_left_by_a_crash_is_replaced_and_a_file_is_not(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "door"))
    door = Door(tmp_path)
    assert door.ask() == []
    door.close()
    (tmp_path / "door").write_text("precious")
    device = Device(door.policy)
    with pytest.raises(fb.InvalidInputError, match="cannot be used"):
        serve_socket(device, door.path, threading.Event())
    device.close()
    assert (tmp_path / "door").read_text() == "precious"
