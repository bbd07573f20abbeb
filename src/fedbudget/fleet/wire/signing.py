"""Signed messages: a device obeys only coordinators whose key its owner trusts.

A signed message is a CBOR list of the message's exact bytes and their Ed25519
signature. The signature is verified before the bytes are decoded. A public key is
written as ``ed25519:`` and the base64 of its 32 bytes; a private key is a PEM file.
"""

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.wire.codec import decode_pair, encode
from fedbudget.fleet.wire.messages import Message

# Signed together with the message: a signature for another purpose is invalid.
_PURPOSE = b"fedbudget signed message 1\x00"
_PREFIX = "ed25519:"


class Signer:
    """A coordinator's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> "Signer":
        """Return a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: str | Path) -> "Signer":
        """Read a PEM file.

        Raises:
            InvalidInputError: It has no Ed25519 private key.
        """
        # Imported lazily: devices sign nothing, and save a megabyte.
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(Path(path).read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidInputError(
                f"{path} is not an unencrypted Ed25519 private key in PEM: create one"
            )
        return cls(key)

    def to_pem(self) -> bytes:
        """Return the private key as PEM."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        return self._key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )

    @property
    def public_key(self) -> str:
        """The public key, as a policy lists it."""
        raw = self._key.public_key().public_bytes_raw()
        return _PREFIX + base64.b64encode(raw).decode()

    def sign(self, message: Message) -> bytes:
        """Return the signed message."""
        body = message.to_bytes()
        return encode([body, self._key.sign(_PURPOSE + body)])


class Trust:
    """The coordinators' public keys that an owner trusts."""

    def __init__(self, public_keys: Iterable[str]) -> None:
        self._keys = {text: read_public_key(text) for text in public_keys}

    def open(self, data: bytes) -> tuple[bytes, str]:
        """Return the bytes of the message, and the public key that signed them.

        Raises:
            MessageError: The bytes are not a signed message.
            UntrustedError: No trusted coordinator signed it.
        """
        pair = decode_pair(data)
        if pair is None:
            raise MessageError("not a signed message")
        body, signature = pair
        for text, key in self._keys.items():
            try:
                key.verify(signature, _PURPOSE + body)
            except InvalidSignature:
                continue
            return body, text
        raise UntrustedError("no trusted coordinator signed this")


class UntrustedError(MessageError):
    """A signed message is well formed, but no trusted coordinator signed it."""


def read_public_key(text: str) -> Ed25519PublicKey:
    """Read a public key as a policy lists it.

    Raises:
        InvalidInputError: It is not written as ``ed25519:BASE64``.
    """
    try:
        if not text.startswith(_PREFIX):
            raise ValueError
        raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        return Ed25519PublicKey.from_public_bytes(raw)
    except (ValueError, binascii.Error):
        raise InvalidInputError(
            f"public key {text!r} is invalid: write ed25519: and the base64 of its "
            "32 bytes"
        ) from None
