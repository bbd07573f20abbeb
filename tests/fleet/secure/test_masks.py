"""Masks: the RFCs' own vectors, and the reference in plain Python."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import masks, reference

BYTES_32 = st.binary(min_size=32, max_size=32)


def test_the_key_stream_of_rfc_8439() -> None:
    # Appendix A.1, test vector 1: key, counter and nonce are zero.
    start = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1a")
    assert masks.expand(bytes(32), 6, ring_bits=32).tobytes() == start
    assert reference.chacha20(bytes(32), 6) == np.frombuffer(start, "<u4").tolist()


def test_the_derivation_of_rfc_5869() -> None:
    # Appendix A.1, of whose 42 bytes this is the first block.
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    secret = b"\x0b" * 22
    assert masks.derive(secret, salt=salt, info=info).hex() == expected
    assert reference.hkdf(secret, salt, info).hex() == expected


def test_the_iterations_of_rfc_7748() -> None:
    # Section 5.2: the function applied once to k = u = 9.
    nine = (9).to_bytes(32, "little")
    expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert reference.x25519(nine, nine).hex() == expected
    assert masks.agree(nine, nine).hex() == expected


@given(first=BYTES_32, second=BYTES_32)
def test_key_agreement_is_the_references(first: bytes, second: bytes) -> None:
    key = masks.public_key(second)
    assert key == reference.x25519(second)
    assert masks.agree(first, key) == reference.x25519(first, key)
    assert masks.agree(first, key) == masks.agree(second, masks.public_key(first))


@given(seed=BYTES_32, count=st.integers(0, 70))
def test_masks_are_the_references(seed: bytes, count: int) -> None:
    mask = masks.expand(seed, count, ring_bits=32)
    assert mask.tolist() == reference.chacha20(seed, count)


@pytest.mark.parametrize("ring_bits", [16, 20, 32, 33, 48, 62])
def test_masks_fill_the_ring(ring_bits: int) -> None:
    mask = masks.expand(bytes(32), 4000, ring_bits=ring_bits)
    assert int(mask.max()) < 1 << ring_bits
    assert int(mask.max()) > 0.99 * (1 << ring_bits)
    negative = masks.ring(np.array([-1, 0, 1]), ring_bits=ring_bits)
    assert negative.tolist() == [(1 << ring_bits) - 1, 0, 1]


@pytest.mark.parametrize("ring_bits", [8, 63, 64])
def test_other_rings_are_refused(ring_bits: int) -> None:
    with pytest.raises(InvalidInputError, match="ring_bits"):
        masks.expand(bytes(32), 1, ring_bits=ring_bits)


@pytest.mark.parametrize("key", [bytes(32), b"short", (1).to_bytes(32, "little")])
def test_keys_of_small_order_are_refused(key: bytes) -> None:
    """They would make the shared secret zero, known to everybody."""
    with pytest.raises(InvalidInputError, match="X25519"):
        masks.agree(b"\x11" * 32, key)
