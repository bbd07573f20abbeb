"""The packets of an MQTT 3.1.1 connection over TLS, many at a time.

paho-mqtt reads a packet in single bytes, and sends every acknowledgement in a TLS
record and a system call of its own: that is half of what an answer costs a coordinator.
Here messages are taken from the socket whole, all that have arrived before any is
handed on, and acknowledgements that wait are sent together. Everything else is paho's.
"""

import ssl
import struct
import sys
import time
import urllib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from paho.mqtt.client import Client

_READ = 1 << 16  # bytes that are read at once
_AT_ONCE = 500  # messages that are read before any of them is handed on
_MOST_PACKETS = 500  # others that are handled before anything is sent
_MOST_BYTES = 1 << 22  # of a packet that has not arrived whole; a fleet's have 2^17
_MOST_HEAD = 5  # bytes before the body of a packet: its kind, and its length in 4
_PUBLISH, _QOS_2 = 0x30, 0x04  # of a packet's first byte
_PUBACK = b"\x40\x02"  # kind and length


class Publish(NamedTuple):
    """A message of the broker, with the names of paho's."""

    topic: str
    payload: bytes
    qos: int
    mid: int  # for its acknowledgement


def packet_at(data: bytes, start: int) -> tuple[int, int] | None:
    """Return where the body of a packet begins and ends; none if it is incomplete.

    Raises:
        ConnectionError: Its length has more bytes than the standard allows.

    >>> packet_at(bytes([0xD0, 0]), 0), packet_at(bytes([0x40, 2, 0]), 0)
    ((2, 2), None)
    """
    length = shift = 0
    for position in range(start + 1, min(start + _MOST_HEAD, len(data))):
        byte = data[position]
        length |= (byte & 127) << shift
        if byte < 128:
            end = position + 1 + length
            return (position + 1, end) if end <= len(data) else None
        shift += 7
    if shift == 7 * (_MOST_HEAD - 1):
        raise ConnectionError("a packet's length has more than four bytes")
    return None


def publish_of(first: int, body: bytes) -> Publish | None:
    """Return the message of a packet, from its first byte and its body.

    None if it is another kind of packet, of QoS 2, or cut off.
    """
    if first & 0xF0 != _PUBLISH or first & _QOS_2 or len(body) < 2:
        return None
    stop = 2 + (body[0] << 8 | body[1])
    start = stop + (first & 2)  # QoS 1 has a number of two bytes here
    if len(body) < start:
        return None
    # A topic that is not UTF-8 is none of a fleet's: who reads the message drops it.
    topic = body[2:stop].decode(errors="replace")
    number = int.from_bytes(body[stop:start])
    return Publish(topic, body[start:], (first & 2) >> 1, number)


def acknowledgements(numbers: Sequence[int]) -> bytes:
    """Return the acknowledgements of messages of QoS 1.

    >>> acknowledgements([1, 258]).hex(" ", 4)
    '40020001 40020102'
    """
    return b"".join(_PUBACK + struct.pack("!H", number) for number in numbers)


class PacketSocket(ssl.SSLSocket):
    """A socket that is read packet by packet, and that gathers acknowledgements."""

    waiting: deque[bytes]  # acknowledgements, sent before the next packet
    is_empty = False  # nothing had arrived when a packet was wanted
    has_heard = False  # bytes have arrived since this was reset
    _data, _position = b"", 0  # what has arrived, and how much of it was read
    _left = 0  # bytes of a packet that the client is in the middle of reading
    _unsent = b""  # acknowledgements that are being sent
    _is_sending = False  # the client is in the middle of sending a packet

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Prepare what is per socket: Python's ssl module does not call __init__."""
        self = super().__new__(cls, *args, **kwargs)
        self.waiting = deque()
        return self

    def do_handshake(self, block: bool = False) -> None:
        """Begin TLS; if that fails, close the socket, which paho would leave open."""
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise  # it is not over
        except OSError:
            self.close()
            raise

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return bytes of one packet, once all of it has arrived; none at the end."""
        if not self._left:
            packet = self._next_packet()
            if packet is None:
                return b""
            self._left = packet[1] - self._position
        start, count = self._position, min(buflen, self._left)
        self._position += count
        self._left -= count
        return self._data[start : self._position]

    def next_publish(self) -> Publish | None:
        """Return a message, if the next packet is one and all of it has arrived."""
        try:
            packet = None if self._left else self._next_packet()
        except OSError:  # if it is more than an empty socket, the client finds out
            return None
        if packet is None:
            return None
        start, end = packet
        publish = publish_of(self._data[self._position], self._data[start:end])
        if publish is not None:
            self._position = end
        return publish

    def _next_packet(self) -> tuple[int, int] | None:
        """Return where the next packet is; none if the connection has ended.

        Raises:
            OSError: All of it has not arrived, or the connection has failed.
        """
        self.is_empty = False
        while (packet := packet_at(self._data, self._position)) is None:
            try:
                more = super().recv(_READ)
            except ssl.SSLWantReadError:
                self.is_empty = True
                raise
            if not more:
                return None
            self.has_heard = True
            if len(self._data) - self._position > _MOST_BYTES:
                raise ConnectionError(f"a packet has more than {_MOST_BYTES} bytes")
            self._data, self._position = self._data[self._position :] + more, 0
        return packet

    def pending(self) -> int:
        """Return how many bytes can be read now; none of an incomplete packet."""
        arrived = self._left
        if not arrived and packet_at(self._data, self._position) is not None:
            arrived = len(self._data) - self._position
        return arrived + super().pending()

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a packet or a part of it, after the acknowledgements that wait."""
        if not self._is_sending:
            self._send_waiting()
        # Until all of it is sent, TLS must be given the same bytes again.
        self._is_sending = True
        sent = super().send(data, flags)
        self._is_sending = sent < len(data)
        return sent

    def _send_waiting(self) -> None:
        while self._unsent or self.waiting:
            if not self._unsent:
                count = len(self.waiting)  # another thread may add some
                self._unsent = b"".join(self.waiting.popleft() for _ in range(count))
            self._unsent = self._unsent[super().send(self._unsent) :]


@contextmanager
def without_proxies() -> Iterator[None]:
    """Import paho without `urllib.request`, which it needs for a SOCKS proxy alone.

    That would import HTTP and e-mail too: two megabytes of a device. paho is given a
    module in its place which imports it when it is used.
    """
    name = "urllib.request"
    if name in sys.modules:
        yield
        return
    substitute = ModuleType(name)

    def restore() -> None:
        if sys.modules.get(name) is substitute:
            del sys.modules[name]

    def load(attribute: str) -> Any:
        restore()
        return getattr(import_module(name), attribute)

    substitute.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[name] = substitute
    vars(urllib)["request"] = substitute
    try:
        yield
    finally:
        restore()


def client_class() -> "type[Client]":
    """Return paho's client, but with all messages handled that have arrived.

    The client itself handles one packet, and waits for the next.
    """
    with without_proxies():
        from paho.mqtt.client import Client
    from paho.mqtt.enums import MQTTErrorCode

    class EagerClient(Client):
        def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
            link: object = self.socket()
            if not isinstance(link, PacketSocket):
                return super().loop_read(max_packets)
            for _ in range(_MOST_PACKETS):
                # All are read before any is handed on: its receiver, another thread of
                # Python, then finds all of them at once.
                messages = list(islice(iter(link.next_publish, None), _AT_ONCE))
                if link.has_heard:
                    # Without this, only other packets would count for the keep-alive,
                    # and the answer to a ping comes after all messages on their way.
                    with self._msgtime_mutex:
                        self._last_bytes_received = time.monotonic()
                    link.has_heard = False
                for message in messages:
                    if self.on_message is not None:  # none once it is stopped
                        self.on_message(self, None, message)  # type: ignore[arg-type]
                if link.is_empty:
                    break
                code = super().loop_read(max_packets)
                if code:
                    return code
            return MQTTErrorCode.MQTT_ERR_SUCCESS

    return EagerClient
