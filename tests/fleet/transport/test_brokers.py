"""Real brokers: deliveries, refusals, and recovery after a kill."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from fedbudget.fleet.transport import mqtt
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import (
    COORDINATOR,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Connection, _tls
from fedbudget.fleet.wire import topics
from tests.fleet.brokers import BrokerProcess

RUN = bytes(16)
END = b"end"  # arrives last: what has not arrived before it was not delivered


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no broker take a client for dead whose machine is busy for some seconds."""
    monkeypatch.setattr(mqtt, "_KEEP_ALIVE", 60)


@contextmanager
def connected(
    broker: BrokerProcess, name: str, *, holds: str | None = None
) -> Iterator[Connection]:
    """Connect under a name, with the certificate of that name or of another."""
    reads = topics.device_reads(name)
    if name == COORDINATOR:
        reads = topics.coordinator_reads()
    address = BrokerAddress(
        port=broker.port, identity=identity_of(broker.certs, holds or name)
    )
    will = None
    if name != COORDINATOR:
        will = (topics.status(name), topics.OFFLINE)
    connection = Connection(address, name=name, topics=reads, will=will)
    with connection:
        assert not tried(connection) or connection.flush(20)
        if name == COORDINATOR:
            # Messages left by earlier tests come before the one it sends to itself.
            connection.publish(topics.status("nobody"), END)
            while payloads(received(connection, 1)) != [END]:
                assert connection.connected
        yield connection
        if name == COORDINATOR:
            connection.publish(topics.order(RUN), b"", retain=True)
            connection.flush(5)


def tried(connection: Connection) -> bool:
    """Wait until the broker has accepted or refused us; return whether accepted."""
    accepted = connection.wait_tried(60)
    assert accepted or connection.problem
    return accepted


def received(connection: Connection, count: int, seconds: float = 60) -> list[Message]:
    """Return the next messages, acknowledged."""
    messages: list[Message] = []
    end = time.monotonic() + seconds
    while len(messages) < count and time.monotonic() < end:
        message = connection.receive(0.1)
        if message is not None:
            connection.acknowledge(message)
            messages.append(message)
    return messages


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def test_orders_go_out_and_replies_come_in(broker: BrokerProcess) -> None:
    with (
        connected(broker, COORDINATOR) as server,
        connected(broker, "device-0") as one,
        connected(broker, "device-1") as two,
    ):
        server.publish(topics.order(RUN), b"order", retain=True)
        server.publish(topics.offer("device-0"), b"offer", retain=True)
        server.publish(topics.order(RUN), END)
        assert payloads(received(one, 3)) == [b"order", b"offer", END]
        assert payloads(received(two, 2)) == [b"order", END]
        one.publish(topics.reply("device-0"), b"answer")
        assert payloads(received(server, 1)) == [b"answer"]


def test_a_device_that_slept_catches_up(broker: BrokerProcess) -> None:
    with connected(broker, COORDINATOR) as server:
        server.publish(topics.order(RUN), b"order", retain=True)
        assert server.flush(5)
        with connected(broker, "device-2") as late:
            assert payloads(received(late, 1)) == [b"order"]


def test_a_device_publishes_and_reads_only_as_itself(broker: BrokerProcess) -> None:
    with (
        connected(broker, COORDINATOR) as server,
        connected(broker, "device-4") as thief,
        connected(broker, "device-5") as victim,
    ):
        thief.publish(topics.reply("device-5"), b"forged")
        thief.publish(topics.order(RUN), b"forged")
        thief.publish(topics.declare("device-5"), b"forged", retain=True)
        thief.subscribe("fedbudget/#", topics.offer("device-5"))
        thief.publish(topics.reply("device-4"), b"honest")
        thief.publish(topics.reply("device-4"), END)
        assert payloads(received(server, 2)) == [b"honest", END]
        server.publish(topics.offer("device-5"), b"secret", retain=True)
        server.publish(topics.order(RUN), END)
        assert payloads(received(victim, 2)) == [b"secret", END]
        assert payloads(received(thief, 1)) == [END]


def test_a_certificate_of_another_name_does_not_help(broker: BrokerProcess) -> None:
    with (
        connected(broker, COORDINATOR) as server,
        connected(broker, "device-9") as honest,
        connected(broker, "device-7", holds="device-6") as thief,
    ):
        # mosquitto uses the certificate's name instead, amqtt refuses.
        accepted = thief.connected
        thief.publish(topics.reply("device-7"), b"forged")
        assert not accepted or thief.flush(10)
        honest.publish(topics.reply("device-9"), END)
        assert payloads(received(server, 1)) == [END]
        server.publish(topics.offer("device-7"), b"secret", retain=True)
        server.publish(topics.order(RUN), END)
        assert payloads(received(honest, 1)) == [END]
        arrived = received(thief, 1, seconds=60 if accepted else 0)
        assert payloads(arrived) == [END] * accepted


@pytest.mark.parametrize("name, clean", [("device-13", False), ("device-15", True)])
def test_connecting_under_another_name_does_not_touch_that_session(
    broker: BrokerProcess, name: str, clean: bool
) -> None:
    with connected(broker, COORDINATOR) as server, connected(broker, name) as victim:
        thief = intruder(broker, name, holds="device-14", clean=clean)
        answer = threading.Event()  # accepted or refused
        thief.on_connect = lambda *_: answer.set()
        thief.on_connect_fail = thief.on_disconnect = lambda *_: answer.set()
        thief.loop_start()
        assert answer.wait(30)
        server.publish(topics.order(RUN), b"order")
        assert payloads(received(victim, 1)) == [b"order"]
        cable = victim._client.socket()
        assert cable is not None
        cable.close()  # the broker publishes the last will of the victim: its own
        messages = received(server, 1)
        assert payloads(messages) == [topics.OFFLINE]
        assert messages[0].topic == topics.status(name)
        assert payloads(received(server, 1, seconds=1)) == []
        thief.disconnect()
        thief.loop_stop()


def intruder(
    broker: BrokerProcess, name: str, *, holds: str, clean: bool
) -> paho.Client:
    """Connect under another's name, with a last will in that name."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean
    )
    client.tls_set_context(_tls(identity_of(broker.certs, holds)))
    client.will_set(topics.reply(name), b"forged", qos=1)
    client.connect("127.0.0.1", broker.port)
    return client


def test_a_client_that_dies_is_reported(broker: BrokerProcess) -> None:
    with connected(broker, COORDINATOR) as server:
        with connected(broker, "device-8") as device:
            device.publish(topics.status("device-8"), topics.ONLINE, retain=True)
            assert payloads(received(server, 1)) == [topics.ONLINE]
            cable = device._client.socket()
            assert cable is not None
            cable.close()  # as if it were pulled
            assert topics.OFFLINE in payloads(received(server, 1))


def test_clients_reconnect_to_a_broker_that_was_killed(broker: BrokerProcess) -> None:
    with (
        connected(broker, COORDINATOR) as server,
        connected(broker, "device-10") as device,
    ):
        broker.kill()
        server.publish(topics.order(RUN), b"while it was away", retain=True)
        broker.start()
        assert payloads(received(device, 1)) == [b"while it was away"]


def test_a_broker_without_our_certificate_is_refused(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "other", ["device-12"])
    address = BrokerAddress(
        port=broker.port, identity=identity_of(tmp_path / "other", "device-12")
    )
    with Connection(address, name="device-12", topics=()) as stranger:
        assert not tried(stranger)
