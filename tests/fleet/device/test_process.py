"""The device's process: topics in and out, its memory, its imports, its commands."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbudget.fleet.device.availability import Availability
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.process import Device, serve
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.authority import renew
from fedbudget.fleet.transport.certificates import (
    Identity,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.reply_signatures import ReplyKeys
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import Joiner, split
from fedbudget.fleet.wire.messages import Declaration, Reply, theta_from_bytes
from tests.cli.running import assert_one_line, run
from tests.fleet.devices import SIGNER, write_device
from tests.fleet.examples import RUN, offer, order

PAUSED = Availability(pause_file=Path(__file__))  # there is such a file
FEDBUDGET = [sys.executable, "-m", "fedbudget"]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    device = Device(read_policy(write_device(tmp_path)))
    yield device
    device.close()


def test_it_publishes_its_declaration_and_status(device: Device) -> None:
    declared, online = device.hello()
    assert (declared.topic, declared.retain) == ("fedbudget/1/declare/sensor-1", True)
    assert Declaration.from_bytes(declared.payload).num_samples == 100
    assert online == ("fedbudget/1/status/sensor-1", b"online", True)
    assert device.will == ("fedbudget/1/status/sensor-1", b"offline")
    assert device.topics == ("fedbudget/1/offer/sensor-1/#", "fedbudget/1/order/#")


def test_a_pause_that_ends_while_it_works_leaves_it_online(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connected in the pause, as offline, and never waited for its end."""
    stop, published = threading.Event(), []

    class Link:  # a connection that was made in a pause
        def __init__(self, *_: object, on_connect: Callable[[], None], **__: object):
            self.on_connect = on_connect

        def __enter__(self) -> "Link":
            with monkeypatch.context() as during:
                during.setattr(device, "availability", PAUSED)
                self.on_connect()
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
            published.append((topic, payload))

        def receive(self, seconds: float) -> None:
            stop.set()

        def flush(self, seconds: float) -> None:
            pass

    monkeypatch.setattr("fedbudget.fleet.device.process.Connection", Link)
    serve(device, BrokerAddress(), stop)
    states = [payload for topic, payload in published if topic == device.will[0]]
    assert states == [topics.OFFLINE, topics.ONLINE, topics.OFFLINE]


def test_a_round_from_topic_to_topic(device: Device) -> None:
    (accepted,) = device.handle(topics.offer("sensor-1"), SIGNER.sign(offer()))
    assert Reply.from_bytes(accepted.payload).code == "accepted"
    (answer,) = device.handle(topics.order(RUN), SIGNER.sign(order()))
    assert (answer.topic, answer.retain) == ("fedbudget/1/reply/sensor-1", False)
    assert Reply.from_bytes(answer.payload).code == "answered"
    assert device.handle(topics.order(RUN), SIGNER.sign(order())) == [answer]


def test_an_order_repeated_to_one_device_gets_the_stored_answer(
    device: Device,
) -> None:
    device.handle(topics.offer("sensor-1"), SIGNER.sign(offer()))
    (answer,) = device.handle(topics.order(RUN), SIGNER.sign(order()))
    again = topics.order_again("sensor-1")
    assert device.handle(again, SIGNER.sign(order())) == [answer]
    # A device that never received the order carries it out.
    (second,) = device.handle(again, SIGNER.sign(order(round=2)))
    assert Reply.from_bytes(second.payload).code == "answered"
    assert device.handle(topics.order_again("sensor-2"), SIGNER.sign(order())) == []


def test_messages_for_others_get_no_answer(device: Device) -> None:
    offered, ordered = SIGNER.sign(offer()), SIGNER.sign(order())
    for topic, payload in (
        ("elsewhere", offered),
        (topics.offer("sensor-2"), offered),
        (topics.reply("sensor-1"), ordered),
        (topics.offer("sensor-1"), b""),
        (topics.offer("sensor-1"), b"\xff"),
        (topics.order(RUN), bytes(1 << 20)),
        (topics.order(RUN), ordered),
    ):
        assert device.handle(topic, payload) == []


def test_a_large_model_comes_and_goes_in_chunks(tmp_path: Path) -> None:
    write_device(tmp_path)
    dim = 30_000
    x = np.zeros((100, dim), dtype=np.float32)
    x[:, 0] = 1.0
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(100) % 2)
    device = Device(read_policy(tmp_path / "policy.toml"))
    device.handle(topics.offer("sensor-1"), SIGNER.sign(offer(dim=dim, tau=1)))
    signed = SIGNER.sign(order(theta=np.zeros(dim).tobytes()))
    pieces = split(topics.order(RUN), signed)
    assert len(pieces) == 3
    random.Random(0).shuffle(pieces)
    *early, answered = (device.handle(*piece) for piece in pieces)
    assert early == [[], []] and len(answered) == 3
    joiner = Joiner(max_bytes=1 << 20)
    whole = [joiner.add("sensor-1", out.payload) for out in answered][-1]
    assert whole is not None
    theta = theta_from_bytes(Reply.from_bytes(whole).theta or b"", "float64", dim)
    assert 0.15 < theta.std() < 0.25  # the noise of the offer
    device.close()


def test_a_declaration_follows_the_columns_but_not_the_rows(
    device: Device, tmp_path: Path
) -> None:
    assert device.refresh() == []
    x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "rows.npz", x=np.tile(x, (50, 1)), y=np.tile(y, 50))
    assert device.refresh() == []
    np.savez(tmp_path / "rows.npz", x=np.tile(x, (50, 2)) / 2, y=np.tile(y, 50))
    (declared,) = device.refresh()
    facts = Declaration.from_bytes(declared.payload)
    assert (facts.num_samples, facts.dim) == (100, 8)
    (tmp_path / "rows.npz").write_bytes(b"half a file")
    assert device.refresh() == []  # the rows that were read before stay
    assert Declaration.from_bytes(device.hello()[0].payload) == facts


def test_a_device_loads_nothing_heavy() -> None:
    script = """
import sys
from fedbudget.cli import main
try:
    main(["device", "no.toml"])
except SystemExit as stopped:
    assert stopped.code == 2, stopped.code
heavy = "numba llvmlite scipy pandas pyarrow sklearn matplotlib typer rich asyncio"
heavy += " numpy.random fedbudget.planning fedbudget.training fedbudget.simulation"
assert "fedbudget.fleet.device.guard" in sys.modules
print(sorted(set(heavy.split()) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert done.stderr.startswith("error: policy 'no.toml' cannot be read")


def test_the_commands_for_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown_by(*arguments: str) -> str:
        result = run(capsys, *arguments)
        assert (result.code, result.err) == (0, "")
        return result.out

    policy, ledger = str(write_device(tmp_path)), str(tmp_path / "ledger.sqlite")
    checked = json.loads(shown_by("device", policy, "--check", "--json"))
    assert checked["declaration"]["num_samples"] == 100
    assert checked["ledger"]["epsilon"] == 0.0
    assert "least noise multiplier  5.0" in shown_by("device", policy, "--check")
    site = Device(read_policy(policy))
    site.handle(topics.offer("sensor-1"), SIGNER.sign(offer()))
    site.handle(topics.order(RUN), SIGNER.sign(order()))
    shown = json.loads(shown_by("ledger", "show", ledger, "--json"))  # while in use
    site.close()
    assert (shown["cost"], shown["runs"][0]["answered"]) == (105.0, 1)
    text = shown_by("ledger", "show", ledger)
    assert "105 of 1000" in text and "alarms 00010203" in text
    assert shown["head"] in shown_by("ledger", "verify", ledger)
    os.truncate(tmp_path / "ledger.sqlite.head", 3)
    cut = run(capsys, "ledger", "verify", ledger)
    assert_one_line(cut, code=1, says=(".head file is missing or damaged",))


def test_an_invalid_policy_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_device(tmp_path)
    path.write_text(path.read_text().replace("delta = 1e-4", "delta = 2"))
    for options in ([], ["--check"]):
        refused = run(capsys, "device", str(path), *options)
        assert_one_line(refused, code=2, says=("budget.delta must be",))


def test_a_certificate_that_is_missing_is_named_before_the_rows_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_device(tmp_path)
    files = 'ca = "ca.pem"\ncertificate = "roof.pem"\nkey = "roof.key"\n'
    path.write_text(path.read_text().replace("[broker]\n", f"[broker]\n{files}"))
    (tmp_path / "rows.npz").unlink()
    refused = run(capsys, "device", str(path))
    assert_one_line(refused, code=2, says=("ca.pem' does not exist", "fedbudget certs"))


def test_a_device_without_a_broker_waits_and_stops_on_sigterm(tmp_path: Path) -> None:
    path = write_device(tmp_path, port=1)  # where nobody listens
    command = [*FEDBUDGET, "device", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert "no connection (nothing listens there); trying again" in line
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()  # leaving the block waits for its end


def add_files(policy: Path, files: Identity) -> None:
    """Add the files of an identity to the broker's section, the last one."""
    tls = "".join(f'{key} = "{file}"\n' for key, file in vars(files).items())
    policy.write_text(policy.read_text() + tls)


def test_the_certificate_of_another_device_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """mosquitto would let it in, and drop all that it sends."""
    make_certificates(tmp_path / "keys", ["sensor-2"])
    path = write_device(tmp_path)
    add_files(path, identity_of(tmp_path / "keys", "sensor-2"))
    for more in ((), ("--check",)):
        says = ("'sensor-1' is not the name in its certificate", "'sensor-2'")
        assert_one_line(run(capsys, "device", str(path), *more), code=2, says=says)


def test_a_renewed_certificate_is_declared_and_signs(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_certificates(keys, ["sensor-1"])
    path, files = write_device(tmp_path), identity_of(keys, "sensor-1")
    add_files(path, files)
    device = Device(read_policy(path))
    try:
        first = Declaration.from_bytes(device.hello()[0].payload)
        assert device.refresh() == []
        old = files.key.read_bytes()
        renew(keys, within=400, days=500)
        new = files.key.read_bytes()
        # Files are copied one after the other: a pair that does not fit is not used.
        files.key.write_bytes(old)
        assert device.refresh() == []
        files.key.write_bytes(new)
        (declared,) = device.refresh()
        second = Declaration.from_bytes(declared.payload)
        assert second.certificate != first.certificate
        (reply,) = device.handle(topics.offer("sensor-1"), SIGNER.sign(offer()))
        opened = ReplyKeys([second], keys / "ca.pem").open("sensor-1", reply.payload)
        assert Reply.from_bytes(opened).code == "accepted"
    finally:
        device.close()
