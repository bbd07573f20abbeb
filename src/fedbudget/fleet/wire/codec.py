"""CBOR as messages use it: one way to write a value, and a strict reader.

The reader looks at every head of the bytes before anything is built from them. It
allows maps, lists, texts, bytes, numbers, true, false and null, to a small depth, with
lengths that the bytes really have. Tags, references, indefinite lengths and repeated
keys are refused, and so is any other spelling than the one that `encode` gives.
"""

from typing import Any

import cbor2

from fedbudget.errors import MessageError

MAX_DEPTH = 4  # maps and lists inside each other
MAX_ITEMS = 4096  # values in one message, large ones are bytes
MAX_BYTES = 1 << 28  # of one whole message: the reader's own limit is usually lower

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP, _TAG, _SIMPLE = range(8)
_SIMPLE_ALLOWED = (20, 21, 22)  # false, true, null
_FLOATS = (25, 26, 27)  # 2, 4 and 8 bytes


def encode(value: Any) -> bytes:
    """Return the canonical CBOR of a value.

    >>> encode({"b": 1, "a": [True, b"x"]}).hex()
    'a2616182f54178616201'
    """
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes, *, limit: int = MAX_BYTES) -> Any:
    """Return the value of canonical CBOR from an untrusted source.

    Raises:
        MessageError: The bytes are too long, damaged, or not what `encode` would give.
    """
    if len(data) > limit:
        raise MessageError(f"{len(data)} bytes are above the limit of {limit}")
    _check_heads(data)
    try:
        value = cbor2.loads(data)
        again = encode(value)
    except (cbor2.CBORDecodeError, cbor2.CBOREncodeError, ValueError) as error:
        raise MessageError(f"not CBOR: {type(error).__name__}") from None
    if again != data:
        raise MessageError("not canonical CBOR: it has a shorter or sorted form")
    return value


def _check_heads(data: bytes) -> None:
    """Refuse bytes that a plain reader would stumble over, without recursion."""
    place, items = 0, 0
    still: list[int] = [1]  # values to come at each depth
    is_map = [False]
    while still:
        if still[-1] == 0:
            still.pop(), is_map.pop()
            continue
        is_key = is_map[-1] and still[-1] % 2 == 0
        still[-1] -= 1
        items += 1
        if items > MAX_ITEMS:
            raise MessageError(f"more than {MAX_ITEMS} values in one message")
        major, argument, place = _head(data, place)
        if is_key and major != _TEXT:
            raise MessageError("a key that is not a text")
        if major in (_BYTES, _TEXT):
            place += argument
        elif major in (_LIST, _MAP):
            if len(still) > MAX_DEPTH:
                raise MessageError(f"nested deeper than {MAX_DEPTH}")
            if argument > len(data):
                raise MessageError("a list or map is longer than the message")
            still.append(argument * (1 + (major == _MAP)))
            is_map.append(major == _MAP)
    if place != len(data):
        raise MessageError(f"ends at byte {place} of {len(data)}")


def _head(data: bytes, place: int) -> tuple[int, int, int]:
    """Return the type, the argument and where the next byte is."""
    if place >= len(data):
        raise MessageError(f"cut off at byte {len(data)}")
    major, info = data[place] >> 5, data[place] & 31
    if major == _TAG:
        raise MessageError(f"a CBOR tag at byte {place}")
    if info > 27:
        raise MessageError(f"an indefinite or reserved length at byte {place}")
    if major == _SIMPLE and info not in (*_SIMPLE_ALLOWED, *_FLOATS):
        raise MessageError(f"an unknown simple value at byte {place}")
    size = 1 << (info - 24) if info >= 24 else 0
    end = place + 1 + size
    if end > len(data):
        raise MessageError(f"cut off at byte {len(data)}")
    argument = int.from_bytes(data[place + 1 : end]) if size else info
    if major in (_BYTES, _TEXT) and argument > len(data) - end:
        raise MessageError(f"cut off at byte {len(data)}")
    return major, argument, end
