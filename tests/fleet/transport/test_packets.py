"""Packets that are read whole, and acknowledgements that are sent together."""

import random
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.transport.packets import (
    PacketSocket,
    Publish,
    acknowledgements,
    packet_at,
    publish_of,
)

PINGRESP = b"\xd0\x00"
LIMIT = 60.0  # seconds until a test gives up


def packet(first: int, body: bytes) -> bytes:
    """Return a packet as the standard has it, section 2.2."""
    length, head = len(body), bytearray([first])
    while True:
        length, low = divmod(length, 128)
        head.append(low | (128 if length else 0))
        if not length:
            return bytes(head) + body


def publish(topic: bytes, payload: bytes, number: int) -> bytes:
    """Return a message of QoS 1."""
    return packet(
        0x32, struct.pack("!H", len(topic)) + topic + message(number, payload)
    )


def message(number: int, payload: bytes) -> bytes:
    return struct.pack("!H", number) + payload


@pytest.fixture
def link(
    tmp_path: Path,
) -> Iterator[tuple[PacketSocket, ssl.SSLSocket]]:
    """Yield the two ends of a TLS connection; the first does not block."""
    make_certificates(tmp_path, ["a"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    broker = identity_of(tmp_path, "broker")
    server.load_cert_chain(broker.certificate, broker.key)
    client = ssl.create_default_context(cafile=str(broker.ca))
    client.sslsocket_class = PacketSocket
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(LIMIT)
    ends: list[ssl.SSLSocket] = []
    accept = threading.Thread(
        target=lambda: ends.append(server.wrap_socket(theirs, server_side=True))
    )
    accept.start()
    near = client.wrap_socket(ours, server_hostname="localhost")
    accept.join(LIMIT)
    assert isinstance(near, PacketSocket)
    near.setblocking(False)
    with near, ends[0] as far:
        yield near, far


def test_a_packet_that_never_ends_ends_the_connection(
    link: tuple[PacketSocket, ssl.SSLSocket],
) -> None:
    near, far = link
    near.settimeout(LIMIT)
    far.sendall(PINGRESP + b"\x32\xff\xff\xff\xff\x01")
    assert near.recv(2) == PINGRESP
    assert near.next_publish() is None and not near.is_empty
    with pytest.raises(ConnectionError, match="four bytes"):
        near.recv(1)


def test_a_packet_that_no_fleet_has_is_not_gathered(
    link: tuple[PacketSocket, ssl.SSLSocket],
) -> None:
    near, far = link
    near.settimeout(LIMIT)
    whole = packet(0x32, bytes(5 << 20))

    def send() -> None:
        with suppress(OSError):  # the other end closes in the middle
            far.sendall(whole)

    sender = threading.Thread(target=send)
    sender.start()
    assert near.next_publish() is None and not near.is_empty
    with pytest.raises(ConnectionError, match="more than 4194304 bytes"):
        near.recv(1)
    near.shutdown(socket.SHUT_RDWR)
    sender.join(LIMIT)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_packet_ends_where_its_length_says(size: int) -> None:
    data = b"before" + packet(0x32, bytes(size))
    body = len(data) - size
    assert packet_at(data + b"after", 6) == (body, body + size)
    assert packet_at(data[:-1], 6) is None
    assert packet_at(data, len(data)) is None


def test_a_message_is_read_as_the_broker_sent_it() -> None:
    body = b"\x00\x03a/b" + message(258, b"payload")
    assert publish_of(0x32, body) == Publish("a/b", b"payload", 1, 258)
    assert publish_of(0x3B, body) == Publish("a/b", b"payload", 1, 258)  # again
    assert publish_of(0x30, b"\x00\x03a/bx") == Publish("a/b", b"x", 0, 0)
    invalid = publish_of(0x30, b"\x00\x01\xffx")
    assert invalid is not None and invalid.topic == "\ufffd"


def test_other_packets_and_damaged_ones_are_left_to_the_client() -> None:
    assert publish_of(0xD0, b"") is None  # the answer to a ping
    assert publish_of(0x34, b"\x00\x03a/b\x00\x01x") is None  # QoS 2
    for cut in (b"", b"\x00", b"\x00\x03a/", b"\x00\x03a/b\x00"):
        assert publish_of(0x32, cut) is None


def read_all(near: PacketSocket, count: int) -> list[Publish | bytes]:
    """Return packets in their order, as a client reads them that asks for bytes."""
    packets: list[Publish | bytes] = []
    end = time.monotonic() + LIMIT
    while len(packets) < count:
        assert time.monotonic() < end, f"{len(packets)} of {count} have arrived"
        if (arrived := near.next_publish()) is not None:
            packets.append(arrived)
        elif not near.is_empty:
            packets.append(near.recv(1) + near.recv(1))
    return packets


def test_packets_arrive_whole_and_in_order_however_they_are_cut(
    link: tuple[PacketSocket, ssl.SSLSocket],
) -> None:
    near, far = link
    rng = random.Random(7)
    expected: list[Publish | bytes] = []
    stream = b""
    for number in range(1, 201):
        payload = rng.randbytes(rng.choice([0, 5, 130, 20_000]))
        stream += publish(b"t", payload, number)
        expected.append(Publish("t", payload, 1, number))
        if rng.random() < 0.2:
            stream += PINGRESP
            expected.append(PINGRESP)

    def send() -> None:
        position = 0
        while position < len(stream):
            size = rng.choice([1, 3, 600, 30_000])
            far.sendall(stream[position : position + size])
            position += size

    sender = threading.Thread(target=send)
    sender.start()
    assert read_all(near, len(expected)) == expected
    sender.join(LIMIT)
    assert near.pending() == 0


def test_an_incomplete_packet_is_not_pending(
    link: tuple[PacketSocket, ssl.SSLSocket],
) -> None:
    # A client that is told of bytes it cannot have would ask again without a pause.
    near, far = link
    whole = publish(b"t", b"payload", 1)
    far.sendall(whole[:-1])
    near.settimeout(0.2)
    assert near.next_publish() is None and near.pending() == 0
    far.sendall(whole[-1:])
    near.settimeout(LIMIT)
    assert near.next_publish() == Publish("t", b"payload", 1, 1)


def test_the_end_of_a_connection_is_seen(
    link: tuple[PacketSocket, ssl.SSLSocket],
) -> None:
    near, far = link
    far.sendall(publish(b"t", b"last", 1) + publish(b"t", b"cut off", 2)[:-1])
    far.shutdown(socket.SHUT_RDWR)
    near.settimeout(LIMIT)
    assert near.next_publish() == Publish("t", b"last", 1, 1)
    assert near.next_publish() is None and not near.is_empty
    assert near.recv(1) == b""


def test_acknowledgements_never_end_up_inside_a_packet(
    link: tuple[PacketSocket, ssl.SSLSocket],
) -> None:
    near, far = link
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # it will block
    received = bytearray()

    def receive() -> None:
        while not received.endswith(PINGRESP):
            received.extend(far.recv(1 << 16))

    reader = threading.Thread(target=receive)
    packets = [publish(b"t", bytes([n]) * 400_000, n + 1) for n in range(50)]
    number = 0
    for data in [*packets, PINGRESP]:
        near.waiting.append(acknowledgements(range(number + 1, number + 8)))
        number += 7
        left = data
        while left:
            try:
                left = left[near.send(left) :]
            except ssl.SSLWantWriteError:
                number += 1  # another thread adds more meanwhile
                near.waiting.append(acknowledgements([number]))
                if not reader.is_alive():  # after the first one has blocked
                    reader.start()
                assert select.select([], [near], [], LIMIT)[1], "nobody reads"
    reader.join(LIMIT)
    data, position, sent, acknowledged = bytes(received), 0, [], []
    while (packet_range := packet_at(data, position)) is not None:
        start, end = packet_range
        if data[position] == 0x40:
            acknowledged.append(int.from_bytes(data[start:end]))
        else:
            sent.append(data[position:end])
        position = end
    assert position == len(data)
    assert sent == [*packets, PINGRESP]
    unsent = len(b"".join(near.waiting)) // 4  # added while the last packet was sent
    assert acknowledged == list(range(1, number + 1 - unsent))
    assert number > 7 * 51  # it has blocked, and more than once


def test_what_paho_needs_for_a_proxy_is_loaded_when_it_is_used() -> None:
    script = """
import sys
from fedbudget.fleet.transport.packets import client_class
client_class()
assert "urllib.request" not in sys.modules
import paho.mqtt.client as paho
assert "localhost" in str(paho.urllib.request.Request("http://localhost").full_url)
import urllib.request
assert paho.urllib.request is urllib.request and urllib.request.urlopen
client_class()
assert sys.modules["urllib.request"].urlopen
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
