"""Several messages in one piece of bytes, for transports that have no topics.

A parcel is a CBOR list of (topic, payload). What opens one trusts nothing in it.
"""

from collections.abc import Iterable

from fedbudget.errors import MessageError
from fedbudget.fleet.wire.codec import decode, encode

_TOPIC_BYTES = 256  # far more than one has, with its frame


def pack(messages: Iterable[tuple[str, bytes]]) -> bytes:
    """Return messages as one piece of bytes.

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
    found = []
    for item in value:
        match item:
            case [str(topic), bytes(payload)] if len(topic) <= _TOPIC_BYTES:
                found.append((topic, payload))
            case _:
                raise MessageError("not a parcel: an item is not a topic and bytes")
    return found
