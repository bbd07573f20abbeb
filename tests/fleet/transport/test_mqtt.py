"""Where a connection goes: one broker, or the nodes of a cluster."""

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.transport.certificates import identity_of
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Broker, Connection
from fedbudget.fleet.trial import HeldPort
from tests.fleet.brokers import BrokerProcess


@pytest.mark.parametrize(
    "host, nodes",
    [
        ("one", (("one", 8883),)),
        ("one, two:1", (("one", 8883), ("two", 1))),
        ("::1", (("::1", 8883),)),
        ("[::1]:9", (("::1", 9),)),
    ],
)
def test_nodes_are_read(host: str, nodes: object) -> None:
    assert Broker(host=host).nodes == nodes


@pytest.mark.parametrize("host", ["one:x", "one:0", "one:99999"])
def test_a_port_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(InvalidInputError, match="port"):
        Broker(host=host)


def test_if_one_node_is_gone_the_next_is_taken(embedded: BrokerProcess) -> None:
    gone = HeldPort()
    where = Broker(
        host=f"127.0.0.1:{gone.number},127.0.0.1:{embedded.port}",
        identity=identity_of(embedded.certs, "device-0"),
    )
    with Connection(where, name="device-0", topics=()) as connection:
        assert connection.wait_connected(20)


def test_trouble_names_the_port_of_each_node() -> None:
    connection = Connection(Broker(host="one,two:1"), name="device-0", topics=())
    assert connection.trouble == "no broker at one:8883 or two:1"


def message(topic: str, payload: bytes) -> Message:
    return Message(topic=topic, payload=payload, receiver="device-0")


def test_a_device_that_slept_takes_the_newest_of_each_topic() -> None:
    connection = Connection(Broker(), name="device-0", topics=(), newest_only=True)
    for topic, payload in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4")):
        connection.inbox.put(message(topic, payload))
    found = [connection.receive(0) for _ in range(3)]
    assert [m and (m.topic, m.payload) for m in found] == [
        ("b", b"2"),
        ("a", b"4"),
        None,
    ]


def test_a_coordinator_takes_every_message() -> None:
    connection = Connection(Broker(), name="coordinator", topics=())
    for payload in (b"1", b"2"):
        connection.inbox.put(message("a", payload))
    found = [connection.receive(0) for _ in range(3)]
    assert [m and m.payload for m in found] == [b"1", b"2", None]
