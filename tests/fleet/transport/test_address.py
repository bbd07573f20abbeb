"""Broker addresses: parsing, refusals, and text."""

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.transport.address import BrokerAddress, node_text, parse_node


@pytest.mark.parametrize(
    "host, nodes",
    [
        ("one", (("one", 8883),)),
        ("one, two:1", (("one", 8883), ("two", 1))),
        ("10.0.0.7:65535", (("10.0.0.7", 65535),)),
        ("::1", (("::1", 8883),)),
        ("[::1]", (("::1", 8883),)),
        ("[::1]:9", (("::1", 9),)),
        ("[fe80::1%eth0]:9,b", (("fe80::1%eth0", 9), ("b", 8883))),
    ],
)
def test_nodes_are_read_and_shown_so_that_they_are_read_again(
    host: str, nodes: tuple[tuple[str, int], ...]
) -> None:
    address = BrokerAddress(host=host)
    assert address.nodes == nodes
    assert tuple(parse_node(node_text(node)) for node in nodes) == nodes
    assert BrokerAddress(host=str(address).replace(" or ", ",")).nodes == nodes


@pytest.mark.parametrize(
    "port", ["", "x", "0", "99999", "-1", "+1", "1.5", " 1", "\u0661"]
)
def test_a_port_that_is_none_is_refused(port: str) -> None:
    for host in ("one", "[::1]"):
        with pytest.raises(InvalidInputError, match="with a port from 1 to 65535"):
            BrokerAddress(host=f"{host}:{port}")


@pytest.mark.parametrize(
    "host",
    (
        *(":8883", "one,:1", "one.2 ,x y", "a b", "a:b:1", "me@one:1", "one/two"),
        *("[one]:1", "[::1", "::1]:1", "[::1]x:1", "mqtt://one", "mqtts://one:1"),
    ),
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(InvalidInputError, match="is not HOST or HOST:PORT"):
        BrokerAddress(host=host)


@pytest.mark.parametrize("host", ["", ",", " ", "one,"])
def test_a_host_without_a_name_is_refused(host: str) -> None:
    with pytest.raises(InvalidInputError, match="is empty: name the broker's machine"):
        BrokerAddress(host=host)


@pytest.mark.parametrize(
    "host, local",
    [
        ("localhost", True),
        ("127.0.0.1:1883,[::1]:1", True),
        ("localhost,example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_only_this_machine_is_local(host: str, local: bool) -> None:
    assert BrokerAddress(host=host).is_local is local
