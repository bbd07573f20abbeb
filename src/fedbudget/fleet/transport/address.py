"""Broker addresses: the only parser of HOST and HOST:PORT in the package."""

import ipaddress
import re
from dataclasses import dataclass

from fedbudget.checks import whole
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.transport.certificates import Identity

HOST = "127.0.0.1"  # the default
TLS_PORT = 8883  # of MQTT over TLS, by IANA
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# [ADDRESS] or NAME, then optionally :PORT. A name has no URL delimiters.
_NODE = re.compile(
    r"(\[(?P<address>[^\[\]]+)\]|(?P<name>[^\s:/\[\]@?#%]+))(:(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """The address of a broker, and the identity with which to connect.

    Separate the nodes of a cluster by commas, such as ``one,two:8884``: if one cannot
    be reached, the next is tried. An IPv6 address with a port needs brackets:
    ``[::1]:8883``.
    """

    host: str = HOST
    port: int = TLS_PORT  # of hosts without a port of their own
    identity: Identity | None = None  # None: no TLS, for loopback and tests only

    def __post_init__(self) -> None:
        whole("port", self.port, least=1, most=65535)
        self.nodes  # noqa: B018  # reading it checks them

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """Each host with its port.

        >>> BrokerAddress(host="one,two:8884").nodes
        (('one', 8883), ('two', 8884))
        """
        return tuple(parse_node(text, self.port) for text in self.host.split(","))

    @property
    def is_local(self) -> bool:
        """Whether every node is this machine."""
        return all(host in _LOOPBACK for host, _ in self.nodes)

    def __str__(self) -> str:
        return " or ".join(map(node_text, self.nodes))


def parse_node(text: str, port: int = TLS_PORT) -> tuple[str, int]:
    """Read HOST or HOST:PORT.

    >>> parse_node("localhost"), parse_node("[::1]:1883")
    (('localhost', 8883), ('::1', 1883))

    Raises:
        InvalidInputError: It is neither.
    """
    text = text.strip()
    if not text:
        raise InvalidInputError("host '' is empty: name the broker's machine")
    if _is_ipv6(text):  # without brackets, all of it is the address
        return text, port
    node = _NODE.fullmatch(text)
    if node is not None and (node["name"] or _is_ipv6(node["address"])):
        number = int(node["port"] or port)
        if 1 <= number <= 65535:
            return node["name"] or node["address"], number
    raise InvalidInputError(
        f"broker {text!r} is not HOST or HOST:PORT with a port from 1 to 65535: "
        "write, for example, broker.example:8883 or [::1]:8883"
    )


def node_text(node: tuple[str, int]) -> str:
    """Return a node as `parse_node` reads it.

    >>> node_text(("::1", 8883))
    '[::1]:8883'
    """
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
