"""One round's messages over a real connection: an order comes, a reply goes."""

import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from fedbudget.errors import InvalidInputError, MeasuringError

if TYPE_CHECKING:
    import paho.mqtt.client as mqtt

_PATIENCE = 30.0  # seconds for one message


class Link(Protocol):
    """A connection over which a round can be carried out."""

    def round(self) -> None:
        """Receive an order and send a reply that is acknowledged."""
        ...


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Where an MQTT broker is, and how to get in."""

    host: str
    port: int
    ca: str | None = None  # file; with it, the connection is TLS
    certificate: str | None = None  # of the device, for mutual TLS
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_broker(text: str) -> tuple[str, int]:
    """Read HOST or HOST:PORT.

    >>> parse_broker("localhost")
    ('localhost', 1883)
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, 1883
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInputError(
            f"broker {text!r} is not HOST:PORT: write, for one, localhost:1883"
        )
    return host, int(port)


@contextmanager
def loopback(order: bytes, reply: bytes) -> Iterator[Link]:
    """Talk TCP to a server in this process: what the machine adds, and no network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(
            target=_serve, args=(server, order, len(reply)), daemon=True
        )
        thread.start()
        with socket.create_connection(server.getsockname(), _PATIENCE) as device:
            device.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield _TcpLink(device, reply)
        thread.join(_PATIENCE)


class _TcpLink:
    def __init__(self, device: socket.socket, reply: bytes) -> None:
        self._device, self._reply = device, reply

    def round(self) -> None:
        self._device.sendall(b"?")  # ready for an order
        (size,) = struct.unpack("!I", _exactly(self._device, 4))
        _exactly(self._device, size)
        self._device.sendall(self._reply)
        _exactly(self._device, 1)  # acknowledged


def _serve(server: socket.socket, order: bytes, reply_size: int) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1):
            connection.sendall(struct.pack("!I", len(order)) + order)
            _exactly(connection, reply_size)
            connection.sendall(b"!")


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(min(size - len(received), 1 << 16))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)


@contextmanager
def through_broker(broker: Broker, order: bytes, reply: bytes) -> Iterator[Link]:
    """Talk MQTT as a device does: a retained order is fetched, a reply is published.

    Raises:
        MeasuringError: The broker cannot be reached, or does not answer.
    """
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
    arrived: SimpleQueue[str] = SimpleQueue()
    client.on_connect = lambda _c, _u, _f, reason, _p: arrived.put(f"connect {reason}")
    client.on_socket_open = lambda _c, _u, opened: _send_at_once(opened)
    client.on_message = lambda _c, _u, _message: arrived.put("order")
    topic = f"fedbudget/measure/{secrets.token_hex(8)}"
    try:
        if broker.ca is not None:
            client.tls_set(broker.ca, broker.certificate, broker.key)
        client.connect(broker.host, broker.port)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise MeasuringError(
            f"broker {broker} cannot be reached ({error}): check --broker and --ca"
        ) from None
    client.loop_start()
    try:
        link = _MqttLink(client, arrived, broker, topic, reply)
        if (answer := link.next_event()) != "connect Success":
            raise MeasuringError(f"broker {broker} refused: {answer}")
        link.publish(f"{topic}/order", order, retain=True)
        yield link
        link.publish(f"{topic}/order", b"", retain=True)  # leave nothing behind
    finally:
        client.disconnect()
        client.loop_stop()


def _send_at_once(opened: object) -> None:
    """Wait for no more bytes to send along: a device's messages are single ones."""
    if isinstance(opened, socket.socket):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _MqttLink:
    def __init__(
        self,
        client: "mqtt.Client",
        arrived: "SimpleQueue[str]",
        broker: Broker,
        topic: str,
        reply: bytes,
    ) -> None:
        self._client, self._arrived = client, arrived
        self._broker, self._topic, self._reply = broker, topic, reply

    def round(self) -> None:
        self._client.subscribe(f"{self._topic}/order", qos=1)
        self.next_event()
        self._client.unsubscribe(f"{self._topic}/order")
        self.publish(f"{self._topic}/reply", self._reply)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        sent.wait_for_publish(_PATIENCE)
        if not sent.is_published():
            raise MeasuringError(
                f"broker {self._broker} did not acknowledge {len(payload)} bytes in "
                f"{_PATIENCE:g} s: raise its message size limit, or check the network"
            )

    def next_event(self) -> str:
        try:
            return self._arrived.get(timeout=_PATIENCE)
        except Empty:
            raise MeasuringError(
                f"broker {self._broker} sent nothing in {_PATIENCE:g} s: check that "
                "this device may read and write fedbudget/measure/#"
            ) from None
