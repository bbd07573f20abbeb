"""Chunks and parcels: large messages in pieces, several messages in one.

Brokers limit the size of an MQTT message. A message below the limit is sent as it is. A
larger one is split into chunks; chunk i of a message for topic T goes to T/i, so that a
broker can retain all of them. Each chunk has the digest of the whole message: chunks of
different messages never mix.

A parcel holds several messages, for transports without topics: a CBOR list of
(topic, payload). Its reader treats the content as untrusted.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedbudget.errors import MessageError
from fedbudget.fleet.wire.codec import MAX_BYTES, decode, encode
from fedbudget.fleet.wire.messages import Check, Message, bytes_field, whole_field

DIGEST_BYTES = 16
# Of one MQTT message. RabbitMQ and mosquitto allow far more, cloud brokers 128 KiB.
CHUNK_BYTES = 96 * 1024
_OVERHEAD = 128  # bytes of a chunk besides its data, at most
_PENDING = 2  # incomplete messages stored per sender: the newest ones
_TOPIC_BYTES = 256  # more than any topic needs
_CHUNK = encode("kind") + encode("chunk")  # in the bytes of every chunk


class Outgoing(NamedTuple):
    """A message to publish."""

    topic: str
    payload: bytes
    retain: bool


@dataclass(frozen=True, kw_only=True)
class Chunk(Message):
    """One piece of a message."""

    digest: bytes  # of the whole message
    size: int  # bytes of the whole message
    total: int  # number of chunks
    index: int  # from 0
    data: bytes

    kind: ClassVar[str] = "chunk"
    checks: ClassVar[Mapping[str, Check]] = {
        "digest": bytes_field(least=DIGEST_BYTES, most=DIGEST_BYTES),
        "size": whole_field(most=MAX_BYTES),
        "total": whole_field(least=2, most=1 << 20),
        "index": whole_field(least=0, most=1 << 20),
        "data": bytes_field(least=1, most=MAX_BYTES),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.index >= self.total:
            raise MessageError(
                f"chunk index {self.index} must be below total {self.total}"
            )


def split(
    topic: str, payload: bytes, *, limit: int = CHUNK_BYTES
) -> list[tuple[str, bytes]]:
    """Return one message as one or more (topic, payload) to publish.

    >>> [(t, len(p)) for t, p in split("a/order", bytes(10))]
    [('a/order', 10)]
    """
    if len(payload) <= limit:
        return [(topic, payload)]
    step = limit - _OVERHEAD
    if step < 1:
        raise ValueError(f"limit must be above {_OVERHEAD}, got {limit}")
    digest = _digest(payload)
    total = -(-len(payload) // step)
    return [
        (
            f"{topic}/{index}",
            Chunk(
                digest=digest,
                size=len(payload),
                total=total,
                index=index,
                data=payload[index * step : (index + 1) * step],
            ).to_bytes(),
        )
        for index in range(total)
    ]


class Joiner:
    """Joins chunks to messages, within limits on memory.

    Args:
        max_bytes: Of one message.
        max_senders: With incomplete messages at a time; the oldest is dropped.
    """

    def __init__(self, *, max_bytes: int, max_senders: int = 10_000) -> None:
        self._max_bytes, self._max_senders = max_bytes, max_senders
        self._pending: OrderedDict[str, OrderedDict[bytes, dict[int, Chunk]]]
        self._pending = OrderedDict()

    def add(self, sender: str, payload: bytes) -> bytes | None:
        """Return a complete message; none while chunks are missing.

        Args:
            sender: The sender, or the topic without a chunk's number.
            payload: A whole message, which is returned unchanged, or a chunk.

        Raises:
            MessageError: It is above the limit, or a damaged chunk, or the joined
                chunks do not match their digest.
        """
        if len(payload) <= self._max_bytes and _CHUNK not in payload:
            return payload  # whole: its reader decodes it, once
        value = decode(payload, limit=self._max_bytes)
        if not isinstance(value, dict) or value.get("kind") != Chunk.kind:
            return payload
        chunk = Chunk.from_value(value)
        if chunk.size > self._max_bytes:
            raise MessageError(
                f"a message of {chunk.size} bytes is above the limit of "
                f"{self._max_bytes}"
            )
        whole = self._pieces(sender, chunk)
        if whole is None:
            return None
        if len(whole) != chunk.size or _digest(whole) != chunk.digest:
            raise MessageError("the joined chunks do not match their size or digest")
        return whole

    def _pieces(self, sender: str, chunk: Chunk) -> bytes | None:
        messages = self._pending.setdefault(sender, OrderedDict())
        self._pending.move_to_end(sender)
        while len(self._pending) > self._max_senders:
            self._pending.popitem(last=False)
        pieces = messages.setdefault(chunk.digest, {})
        messages.move_to_end(chunk.digest)
        pieces[chunk.index] = chunk
        while len(messages) > _PENDING:
            messages.popitem(last=False)
        joined = sum(len(piece.data) for piece in pieces.values())
        if joined > chunk.size or any(p.total != chunk.total for p in pieces.values()):
            del messages[chunk.digest]
            raise MessageError("the joined chunks do not match their size or digest")
        if len(pieces) < chunk.total:
            return None
        del messages[chunk.digest]
        return b"".join(pieces[index].data for index in range(chunk.total))


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()[:DIGEST_BYTES]


def pack(messages: Iterable[tuple[str, bytes]]) -> bytes:
    """Return messages as one parcel.

    >>> unpack(pack([("a/b", b"c")]), limit=100)
    [('a/b', b'c')]
    """
    return encode([list(message) for message in messages])


def unpack(data: bytes, *, limit: int) -> list[tuple[str, bytes]]:
    """Return the messages in a parcel from an untrusted source.

    Raises:
        MessageError: It is too long, damaged, or anything but a list of messages.
    """
    value = decode(data, limit=limit)
    if not isinstance(value, list):
        raise MessageError(f"not a parcel: {type(value).__name__}, not a list")
    messages = []
    for item in value:
        match item:
            case [str(topic), bytes(payload)] if len(topic) <= _TOPIC_BYTES:
                messages.append((topic, payload))
            case _:
                raise MessageError("not a parcel: an item is not a topic and bytes")
    return messages
