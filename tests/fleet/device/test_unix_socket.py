"""The guard's socket: any client may connect, only signed orders are obeyed."""

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


class Server:
    """A guard that serves a socket, in a thread of this process."""

    def __init__(self, folder: Path) -> None:
        path = write_device(folder)
        text = path.read_text()
        path.write_text(
            text[: text.index("[broker]")] + "[socket]\nfile = 'guard.sock'\n"
        )
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
        """Send raw bytes and return the response."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(self.path))
            client.sendall((HEAD.pack(len(data)) if head is None else head) + data)
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as file:
                return file.read()

    def exchange(self, *messages: tuple[str, bytes]) -> list[Reply]:
        """Send a parcel; return the replies of the response."""
        answer = self.send(pack(messages))
        (length,) = HEAD.unpack(answer[: HEAD.size])
        assert length == len(answer) - HEAD.size
        response = unpack(answer[HEAD.size :], limit=1 << 20)
        assert [topic for topic, _ in response[:2]] == [
            topics.declare("sensor-1"),
            topics.status("sensor-1"),
        ]
        assert Declaration.from_bytes(response[0][1]).num_samples == 100
        return [Reply.from_bytes(payload) for _, payload in response[2:]]

    @property
    def cost(self) -> float:
        return read_statement(self.policy.ledger).cost

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()
    assert not server.path.exists()


def parcel(signer: Signer, **changes: object) -> list[tuple[str, bytes]]:
    return [
        (topics.offer("sensor-1"), signer.sign(offer())),
        (topics.order(RUN), signer.sign(order(**changes))),
    ]


def test_a_signed_order_is_answered_once_and_sent_again_free_of_charge(
    server: Server,
) -> None:
    accepted, answered = server.exchange(*parcel(SIGNER))
    assert (accepted.code, answered.code) == ("accepted", "answered")
    assert server.cost == 105  # one round, five steps
    assert server.exchange(*parcel(SIGNER))[1] == answered
    assert server.cost == 105


def test_a_client_without_a_key_learns_only_public_facts(server: Server) -> None:
    assert server.exchange(*parcel(Signer.generate())) == []
    assert server.exchange() == []
    assert server.cost == 0


def test_garbage_is_dropped_and_the_next_client_is_served(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (item,) = parcel(SIGNER)[:1]
    for data in (b"", b"\xff" * 40, pack([item])[:-1], pack([("x" * 300, b"")])):
        assert server.send(data) == b""
    assert server.send(b"", head=b"\x00\x00") == b""  # cut off
    assert server.send(b"", head=HEAD.pack(1 << 31)) == b""  # gigantic
    assert "above the limit" in caplog.text
    assert server.exchange(("fedbudget/1/nonsense", b"?"), ("", b"")) == []
    assert [reply.code for reply in server.exchange(*parcel(SIGNER))] == [
        "accepted",
        "answered",
    ]


def test_only_the_owner_and_the_group_may_connect(server: Server) -> None:
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o660


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="Linux only")
def test_the_owner_is_warned_once_if_the_client_could_read_the_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        # Not the fixture: its first connection, during setup, warns already.
        server = Server(tmp_path)
        server.exchange()
        server.exchange()
        server.close()
    assert caplog.text.count("run it as another user than the guard") == 1


def test_a_socket_left_by_a_crash_is_replaced_and_a_file_is_not(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "guard.sock"))
    server = Server(tmp_path)
    assert server.exchange() == []
    server.close()
    (tmp_path / "guard.sock").write_text("precious")
    device = Device(server.policy)
    with pytest.raises(fb.InvalidInputError, match="cannot be used"):
        serve_socket(device, server.path, threading.Event())
    device.close()
    assert (tmp_path / "guard.sock").read_text() == "precious"


def test_the_socket_appears_once_it_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client that waits for the file is refused now and then."""
    appeared_early = []
    real = os.chmod

    def chmod(path: Path, mode: int) -> None:  # comes before `listen`
        appeared_early.append((tmp_path / "guard.sock").exists())
        real(path, mode)

    monkeypatch.setattr(os, "chmod", chmod)
    server = Server(tmp_path)
    server.close()
    assert appeared_early and not any(appeared_early)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]


def test_two_guards_may_start_at_the_same_moment_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have one process number, too, in containers of their own."""
    device, stop, real = Device(read_policy(write_device(tmp_path))), [], os.chmod
    paths = [tmp_path / "one.sock", tmp_path / "two.sock"]
    threads: list[threading.Thread] = []

    def start(path: Path) -> threading.Thread:
        stop.append(threading.Event())
        serve = threading.Thread(target=serve_socket, args=(device, path, stop[-1]))
        threads.append(serve)
        serve.start()
        while serve.is_alive() and not path.exists():
            serve.join(0.01)
        return serve

    def chmod(path: Path, mode: int) -> None:
        if len(threads) == 1:  # the other one starts in the middle of this one's start
            start(paths[1])
        real(path, mode)

    monkeypatch.setattr(os, "chmod", chmod)
    start(paths[0])
    try:
        for path in paths:
            with socket.socket(socket.AF_UNIX) as client:
                assert client.connect_ex(str(path)) == 0
    finally:
        for event in stop:
            event.set()
        for thread in threads:
            thread.join(10)
        device.close()
