"""Signatures: only unchanged messages of trusted coordinators are accepted."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.messages import RoundOrder
from fedbudget.fleet.wire.signing import Signer, Trust, UntrustedError
from tests.fleet.examples import order

SIGNER = Signer.generate()
TRUST = Trust([SIGNER.public_key])


def test_what_was_signed_is_opened() -> None:
    body, key = TRUST.open(SIGNER.sign(order()))
    assert RoundOrder.from_bytes(body) == order()
    assert key == SIGNER.public_key


def test_each_flipped_bit_is_detected() -> None:
    signed = SIGNER.sign(order())
    for bit in range(len(signed) * 8):
        changed = bytearray(signed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MessageError):
            TRUST.open(bytes(changed))


def test_a_strangers_signature_is_invalid() -> None:
    with pytest.raises(UntrustedError, match="no trusted coordinator"):
        TRUST.open(Signer.generate().sign(order()))


def test_a_signature_for_another_purpose_is_invalid() -> None:
    body = order().to_bytes()
    key = load_pem_private_key(SIGNER.to_pem(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    bare = key.sign(body)
    with pytest.raises(UntrustedError):
        TRUST.open(encode([body, bare]))


@pytest.mark.parametrize("value", [{}, [], [b"x"], [b"x", "y"], [b"x", b"y", b"z"], 7])
def test_another_shape_is_refused(value: object) -> None:
    with pytest.raises(MessageError, match="not a signed message"):
        TRUST.open(encode(value))


def test_an_unsigned_message_is_refused() -> None:
    with pytest.raises(MessageError, match="not a signed message"):
        TRUST.open(order().to_bytes())


def test_a_key_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.pem"
    path.write_bytes(SIGNER.to_pem())
    body, _ = TRUST.open(Signer.read(path).sign(order()))
    assert body == decode(SIGNER.sign(order()))[0]


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pem"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidInputError, match="not an unencrypted Ed25519"):
        Signer.read(path)


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:!!", "ed25519:AA", "rsa:x"])
def test_a_bad_public_key_is_named(text: str) -> None:
    with pytest.raises(InvalidInputError, match="public key"):
        Trust([text])
