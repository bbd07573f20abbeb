"""Many devices in one process, for benchmarks: plain MQTT 3.1.1 over mutual TLS.

    python benchmarks/fleet/clients.py CERTS PORT FIRST COUNT signed|unsigned

Every device has its own certificate, connection and session. It answers an order with
the order's own model, signed with its certificate's key or not: what is measured is the
broker and the coordinator, in processes of their own. The protocol is written out here,
because a client library costs as much per message as the coordinator that is to be
measured.
"""

import selectors
import signal
import socket
import ssl
import struct
import sys
import time
from pathlib import Path

from fedbudget.errors import MessageError
from fedbudget.fleet.transport.certificates import identity_of
from fedbudget.fleet.transport.reply_signatures import ReplySigner
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import WIRE, Declaration, Reply, RoundOrder

DIM = 102
READY = "connected"  # printed when all devices are
_KEEP_ALIVE = 600  # seconds; to connect all devices takes a while
_PUBLISH, _PUBACK = 3, 4  # kinds of packets


def name_of(number: int) -> str:
    """Return the name of a device; all have the same length."""
    return f"device-{number:06d}"


def declaration_of(name: str, signer: ReplySigner | None) -> Declaration:
    """Return what a device declares."""
    return Declaration(
        device=name,
        num_samples=100,
        dim=DIM,
        loss="logistic",
        num_classes=1,
        epsilon=4.0,
        delta=1e-4,
        cost=1000.0,
        communication_price=100.0,
        computation_price=1.0,
        accountant="gdp",
        least_noise_multiplier=1.0,
        wire=WIRE,
        certificate=None if signer is None else signer.certificate,
    )


def packet(kind: int, flags: int, body: bytes) -> bytes:
    """Return an MQTT packet.

    >>> packet(12, 0, b"").hex()
    'c000'
    """
    length, head = len(body), bytearray([kind << 4 | flags])
    while True:
        length, low = divmod(length, 128)
        head.append(low | (128 if length else 0))
        if not length:
            return bytes(head) + body


def text(value: str) -> bytes:
    """Return a text as MQTT writes it."""
    data = value.encode()
    return struct.pack("!H", len(data)) + data


class Client:
    """One connection; not blocking once it is made."""

    def __init__(
        self,
        name: str,
        port: int,
        context: ssl.SSLContext,
        signer: ReplySigner | None,
    ) -> None:
        self.name, self.data, self.unsent, self.number = name, b"", b"", 0
        self.signer = signer
        link = socket.create_connection(("127.0.0.1", port), timeout=60)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link = context.wrap_socket(link, server_hostname="localhost")
        hello = text("MQTT") + struct.pack("!BBH", 4, 2, _KEEP_ALIVE) + text(name)
        self.link.sendall(packet(1, 0, hello))
        if self.link.recv(4) != b"\x20\x02\x00\x00":
            raise SystemExit(f"the broker refuses {name}")
        reads = b"".join(text(t) + b"\1" for t in topics.device_reads(name))
        self.link.sendall(packet(8, 2, struct.pack("!H", 1) + reads))
        self.link.setblocking(False)
        self.topic = text(topics.reply(name))
        self.send(
            self.publish(
                text(topics.declare(name)),
                declaration_of(name, signer).to_bytes(),
                retain=True,
            )
        )

    def publish(self, topic: bytes, payload: bytes, *, retain: bool = False) -> bytes:
        """Return a message for the broker, at least once."""
        self.number = self.number % 65535 + 1
        body = topic + struct.pack("!H", self.number) + payload
        return packet(_PUBLISH, 2 | retain, body)

    def send(self, data: bytes) -> None:
        """Send now, or when the connection can take it."""
        self.unsent += data
        try:
            while self.unsent:
                self.unsent = self.unsent[self.link.send(self.unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def packets(self) -> list[tuple[int, bytes]]:
        """Return the packets that have arrived: first byte and body."""
        try:
            while piece := self.link.recv(65536):
                self.data += piece
            raise SystemExit(f"the broker has closed the connection of {self.name}")
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        arrived, start = [], 0
        while (end := packet_end(self.data, start)) is not None:
            head, stop = end
            arrived.append((self.data[start], self.data[head:stop]))
            start = stop
        self.data = self.data[start:]
        return arrived


def packet_end(data: bytes, start: int) -> tuple[int, int] | None:
    """Return where the body of a packet begins and ends; none if it is incomplete."""
    length, position, shift = 0, start + 1, 0
    while position < len(data):
        length |= (data[position] & 127) << shift
        if data[position] < 128:
            end = position + 1 + length
            return (position + 1, end) if end <= len(data) else None
        position, shift = position + 1, shift + 7
    return None


class Answers:
    """Answers to orders; encoded once per order, with the name put in for a device."""

    def __init__(self) -> None:
        self._order, self._answer = b"", b""

    def of(self, payload: bytes, name: str) -> bytes:
        """Return a device's reply to a signed order."""
        if payload != self._order:
            order = RoundOrder.from_bytes(decode(payload)[0])
            reply = Reply(
                device=name_of(0),
                run=order.run,
                round=order.round,
                code="answered",
                theta=order.theta,
                previous=order.round - 1,
            )
            self._order, self._answer = payload, reply.to_bytes()
        return self._answer.replace(name_of(0).encode(), name.encode())


def handle(client: Client, first: int, body: bytes, answers: Answers) -> bytes:
    """Return what a device sends for a packet."""
    if first >> 4 != _PUBLISH:
        return b""
    size = struct.unpack_from("!H", body)[0] + 2
    topic, content = body[2:size].decode(), body[size:]
    sent = b""
    if first & 6:
        sent, content = packet(_PUBACK, 0, content[:2]), content[2:]
    if topics.content(topic) == "order" and content:
        try:
            reply = answers.of(content, client.name)
        except MessageError:  # the end of a run
            return sent
        if client.signer is not None:
            reply = client.signer.sign(reply)
        sent += client.publish(client.topic, reply)
    return sent


def main() -> None:
    certs, port, first, count = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    is_signed = sys.argv[5] == "signed"
    selector, answers = selectors.DefaultSelector(), Answers()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    clients = []
    for number in range(first, first + count):
        identity = identity_of(certs, name_of(number))
        context = ssl.create_default_context(cafile=str(identity.ca))
        context.load_cert_chain(identity.certificate, identity.key)
        signer = ReplySigner(identity) if is_signed else None
        client = Client(name_of(number), port, context, signer)
        selector.register(client.link, selectors.EVENT_READ, client)
        clients.append(client)
    print(READY, flush=True)
    pinged = time.monotonic()
    while True:
        for key, _ in selector.select(1.0):
            client = key.data
            for kind, body in client.packets():
                reply = handle(client, kind, body, answers)
                if reply:
                    client.send(reply)
        if time.monotonic() - pinged > _KEEP_ALIVE / 2:
            pinged = time.monotonic()
            for client in clients:
                client.send(packet(12, 0, b""))


if __name__ == "__main__":
    main()
