"""Connections: the nodes of a cluster, and which messages are received."""

import gc
import os
import signal
import threading
import weakref
from typing import Any

import pytest
from paho.mqtt.client import Client

from fedbudget.fleet.demo import HeldPort
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from tests.fleet.brokers import BrokerProcess
from tests.fleet.relay import Relay

LIMIT = 60.0  # seconds for what must happen; generous, for busy machines


def test_if_one_node_is_gone_the_next_is_tried(embedded: BrokerProcess) -> None:
    gone = HeldPort()
    address = BrokerAddress(
        host=f"127.0.0.1:{gone.number},127.0.0.1:{embedded.port}",
        identity=identity_of(embedded.certs, "device-0"),
    )
    with Connection(address, name="device-0", topics=()) as connection:
        assert connection.wait_connected(LIMIT)


def test_a_connection_that_passes_nothing_on_is_replaced(broker: BrokerProcess) -> None:
    # Half-open: neither end is told that the other is gone.
    relay = Relay(broker.port)
    address = BrokerAddress(
        port=relay.port, identity=identity_of(broker.certs, "device-1")
    )
    reads = topics.device_reads("device-1")
    direct = BrokerAddress(
        port=broker.port, identity=identity_of(broker.certs, COORDINATOR)
    )
    with (
        Connection(address, name="device-1", topics=reads) as device,
        Connection(direct, name=COORDINATOR, topics=()) as server,
    ):
        assert device.wait_connected(LIMIT) and device.flush(LIMIT)
        assert server.wait_connected(LIMIT)
        relay.freeze()
        server.publish(topics.offer("device-1"), b"offer")
        # Some 9 seconds; 80 with a keep-alive of half a minute.
        received = device.receive(45)
        assert received is not None and received.payload == b"offer"
    relay.close()


def test_a_connection_can_be_replaced_at_once(broker: BrokerProcess) -> None:
    connections: list[None] = []
    again = threading.Event()

    def count() -> None:
        connections.append(None)
        if len(connections) == 2:
            again.set()

    address = BrokerAddress(
        port=broker.port, identity=identity_of(broker.certs, "device-2")
    )
    with Connection(address, name="device-2", topics=(), on_connect=count) as device:
        device.reconnect()  # there is none yet
        assert device.wait_connected(LIMIT)
        device.reconnect()
        assert again.wait(LIMIT)


def test_messages_that_keep_arriving_keep_a_slow_connection_alive(
    embedded: BrokerProcess,
) -> None:
    # 10 seconds of messages: the answer to a ping comes after those on their way.
    relay = Relay(embedded.port, rate=400_000)
    connections: list[None] = []
    slow = BrokerAddress(
        port=relay.port, identity=identity_of(embedded.certs, "device-4")
    )
    direct = BrokerAddress(
        port=embedded.port, identity=identity_of(embedded.certs, COORDINATOR)
    )
    reads = topics.device_reads("device-4")
    with (
        Connection(
            slow,
            name="device-4",
            topics=reads,
            on_connect=lambda: connections.append(None),
        ) as device,
        Connection(direct, name=COORDINATOR, topics=()) as server,
    ):
        assert device.wait_connected(LIMIT) and device.flush(LIMIT)
        assert server.wait_connected(LIMIT)
        orders = {topics.order(number.to_bytes(16)) for number in range(45)}
        for topic in orders:
            server.publish(topic, bytes(90_000))
        received: set[str] = set()
        while received != orders:
            message = device.receive(LIMIT)
            assert message is not None
            received.add(message.topic)
            device.acknowledge(message)
    assert connections == [None]
    relay.close()


def test_of_many_stored_orders_the_newest_is_carried_out(broker: BrokerProcess) -> None:
    # More than a broker sends before some are acknowledged: 20.
    address = BrokerAddress(
        port=broker.port, identity=identity_of(broker.certs, "device-5")
    )
    direct = BrokerAddress(
        port=broker.port, identity=identity_of(broker.certs, COORDINATOR)
    )
    reads, order = topics.device_reads("device-5"), topics.order(bytes(16))
    with Connection(address, name="device-5", topics=reads) as device:
        assert device.wait_connected(LIMIT) and device.flush(LIMIT)
    with Connection(direct, name=COORDINATOR, topics=()) as server:
        assert server.wait_connected(LIMIT)
        for number in range(1, 251):
            server.publish(order, b"%d" % number, retain=True)
        assert server.flush(LIMIT)
        with Connection(
            address, name="device-5", topics=reads, newest_only=True
        ) as device:
            received = device.receive(LIMIT)
            assert received is not None and received.payload == b"250"
            device.acknowledge(received)
        server.withdraw(order)
        assert server.flush(LIMIT)


def test_a_client_that_is_stopped_while_it_connects_is_not_reported_as_dead(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, stopping = threading.Event(), threading.Event()
    create_socket, disconnect = Client._create_socket, Client.disconnect

    def create_late(self: Client) -> Any:
        if self._client_id == b"device-4" and not connecting.is_set():
            connecting.set()
            assert stopping.wait(LIMIT)
        return create_socket(self)

    def note(self: Client, *details: Any) -> Any:
        code = disconnect(self, *details)
        stopping.set()
        return code

    monkeypatch.setattr(Client, "_create_socket", create_late)
    monkeypatch.setattr(Client, "disconnect", note)
    status, end = topics.status("device-4"), b"end"
    addresses = [
        BrokerAddress(port=broker.port, identity=identity_of(broker.certs, name))
        for name in (COORDINATOR, "device-4")
    ]
    with Connection(addresses[0], name=COORDINATOR, topics=(status,)) as server:
        assert server.wait_connected(LIMIT) and server.flush(LIMIT)
        device = Connection(
            addresses[1], name="device-4", topics=(), will=(status, topics.OFFLINE)
        ).start()
        assert connecting.wait(LIMIT)
        device.stop()
        del device
        gc.collect()  # a socket that is still open is closed now
        with Connection(addresses[1], name="device-4", topics=()) as again:
            again.publish(status, end)
            received = server.receive(LIMIT)
            assert received is not None and received.payload == end


def test_a_handshake_that_the_broker_does_not_finish_leaves_no_socket_open(
    embedded: BrokerProcess,
) -> None:
    # Python warns of a socket that is left open, and a warning is an error here.
    address = BrokerAddress(
        port=embedded.port, identity=identity_of(embedded.certs, "device-5")
    )
    os.kill(embedded.pid, signal.SIGSTOP)
    try:
        connection = Connection(address, name="device-5", topics=())
        connection._client.connect_timeout = 0.2
        with connection:
            assert not connection.wait_tried(LIMIT)
            assert "does not answer" in connection.problem
            os.kill(embedded.pid, signal.SIGCONT)
            assert connection.wait_connected(LIMIT), connection.problem
    finally:
        os.kill(embedded.pid, signal.SIGCONT)
        gc.collect()


def test_the_sockets_of_a_connection_do_not_wait_for_the_garbage_collector() -> None:
    # It may collect a socket before the client that closes it, and warn of that.
    held = HeldPort()

    def connect() -> "weakref.ref[Client]":
        connection = Connection(
            BrokerAddress(port=held.number),
            name="device-6",
            topics=(),
            on_connect=lambda: connection.publish("a", b""),  # as a device's
        )
        with connection:
            return weakref.ref(connection._client)

    gc.disable()
    try:
        assert connect()() is None
    finally:
        gc.enable()


def test_messages_of_an_earlier_connection_are_not_acknowledged(
    embedded: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The new connection might not be made yet: brokers end one that begins with an
    # acknowledgement.
    acknowledged: list[int] = []

    def ack(self: Client, mid: int, qos: int) -> None:
        acknowledged.append(mid)

    monkeypatch.setattr(Client, "ack", ack)
    address = BrokerAddress(
        port=embedded.port, identity=identity_of(embedded.certs, COORDINATOR)
    )
    status = topics.status("device-3")
    connected = threading.Semaphore(0)
    with Connection(
        address, name=COORDINATOR, topics=(status,), on_connect=connected.release
    ) as server:
        assert connected.acquire(timeout=LIMIT) and server.wait_connected(LIMIT)
        server.publish(status, b"online")
        first = server.receive(LIMIT)
        assert first is not None
        server.acknowledge(first)
        assert len(acknowledged) == 1
        server.reconnect()
        again = server.receive(LIMIT)  # it is delivered again: the broker heard nothing
        assert again is not None and again.payload == b"online"
        server.acknowledge(first)
        assert len(acknowledged) == 1
        server.wait_connected(LIMIT)
        server.acknowledge(again)
        assert len(acknowledged) == 2


def test_trouble_names_the_port_of_each_node() -> None:
    connection = Connection(BrokerAddress(host="one,two:1"), name="device-0", topics=())
    assert connection.trouble == "no broker at one:8883 or two:1"


def message(topic: str, payload: bytes) -> Message:
    return Message(topic=topic, payload=payload, receiver="device-0")


def test_a_device_that_slept_receives_the_newest_of_each_topic() -> None:
    connection = Connection(
        BrokerAddress(), name="device-0", topics=(), newest_only=True
    )
    for topic, payload in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4")):
        connection.inbox.put(message(topic, payload))
    messages = [connection.receive(0) for _ in range(3)]
    assert [m and (m.topic, m.payload) for m in messages] == [
        ("b", b"2"),
        ("a", b"4"),
        None,
    ]


def test_a_coordinator_receives_every_message() -> None:
    connection = Connection(BrokerAddress(), name="coordinator", topics=())
    for payload in (b"1", b"2"):
        connection.inbox.put(message("a", payload))
    messages = [connection.receive(0) for _ in range(3)]
    assert [m and m.payload for m in messages] == [b"1", b"2", None]
