"""Untrusted bytes: one encoding per value, everything else refused."""

from typing import Any

import cbor2
import pytest
from hypothesis import given, strategies as st

from fedbudget.errors import MessageError
from fedbudget.fleet.wire.codec import MAX_DEPTH, decode, encode

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(plain)
def test_what_was_encoded_is_read_again(value: object) -> None:
    if depth(value) <= MAX_DEPTH:
        assert decode(encode(value)) == value
    else:
        with pytest.raises(MessageError, match="nested deeper"):
            decode(encode(value))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = decode(data)
    except MessageError:
        return
    assert encode(value) == data


REFUSED = {
    "empty": ("", "cut off"),
    "cut off": ("4403", "cut off"),
    "cut off in a head": ("19", "cut off"),
    "something behind it": ("0102", "ends at byte 1 of 2"),
    "a tag": ("c100", "tag"),
    "a shared reference": ("d81c80", "tag"),
    "a bignum": ("c249010000000000000000", "tag"),
    "an indefinite list": ("9f01ff", "indefinite"),
    "a break alone": ("ff", "indefinite"),
    "undefined": ("f7", "simple value"),
    "a simple value of a byte": ("f820", "simple value"),
    "a number in a long form": ("1801", "canonical"),
    "a float in a long form": ("fb3ff0000000000000", "canonical"),
    "unsorted keys": ("a2616201616100", "canonical"),
    "a key twice": ("a2616101616101", "canonical|not CBOR"),
    "text that is not UTF-8": ("61ff", "not CBOR"),
    "a list as long as memory": ("9b7fffffffffffffff", "longer than the message"),
    "a text as long as memory": ("7b7fffffffffffffff", "cut off"),
    "a list as a key": ("a1800a", "a key is not a text"),
    "a number as a key": ("a10101", "a key is not a text"),
    "a map as a key": ("a1a00a", "a key is not a text"),
}


@pytest.mark.parametrize("data, reason", REFUSED.values(), ids=REFUSED)
def test_other_spellings_are_refused(data: str, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        decode(bytes.fromhex(data))


def test_a_million_brackets_do_not_recurse() -> None:
    with pytest.raises(MessageError, match="nested deeper"):
        decode(b"\x81" * 1_000_000)


def test_many_small_values_are_refused_early() -> None:
    with pytest.raises(MessageError, match="more than"):
        decode(cbor2.dumps([0] * 100_000))


def test_too_many_bytes_are_refused() -> None:
    with pytest.raises(MessageError, match="101 bytes are above the limit of 100"):
        decode(bytes(101), limit=100)
