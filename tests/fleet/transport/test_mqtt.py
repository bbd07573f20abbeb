"""Connections: the nodes of a cluster, and which messages are received."""

from fedbudget.fleet.demo import HeldPort
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import identity_of
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Connection
from tests.fleet.brokers import BrokerProcess


def test_if_one_node_is_gone_the_next_is_tried(embedded: BrokerProcess) -> None:
    gone = HeldPort()
    address = BrokerAddress(
        host=f"127.0.0.1:{gone.number},127.0.0.1:{embedded.port}",
        identity=identity_of(embedded.certs, "device-0"),
    )
    with Connection(address, name="device-0", topics=()) as connection:
        assert connection.wait_connected(20)


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
