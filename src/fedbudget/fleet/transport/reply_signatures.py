"""Replies that a device signs with the key of its certificate.

A broker decides who speaks for a device. With signatures, a broker that is broken into
can lose or delay replies, but it cannot invent or change any. A device declares its
certificate and signs all its replies; a coordinator that knows the fleet's authority
plans only for devices whose certificates it has issued, and drops every other reply.

A signed reply is a CBOR list of the reply's exact bytes and their ECDSA signature.
"""

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.transport.certificates import Identity, certified_key
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.messages import Declaration

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

# Signed together with the reply: a signature for another purpose is invalid.
_PURPOSE = b"fedbudget reply 1\x00"
_LIST_OF_TWO = encode([0, 0])[:1]  # the first byte of a signed reply


class ReplySigner:
    """A device's key.

    Raises:
        InvalidInputError: The files cannot be used.
    """

    def __init__(self, identity: Identity) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key: Any = load_pem_private_key(Path(identity.key).read_bytes(), None)
            self.certificate = ssl.PEM_cert_to_DER_cert(
                Path(identity.certificate).read_text().strip()
            )
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInputError(
                f"certificate {identity.certificate} cannot be used ({error}): create "
                "it with fedbudget certs"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInputError(
                f"{identity.key} is not an elliptic-curve key, which replies are "
                "signed with: create it with fedbudget certs"
            )
        self._key, self._algorithm = key, ec.ECDSA(SHA256())

    def sign(self, reply: bytes) -> bytes:
        """Return a signed reply."""
        return encode([reply, self._key.sign(_PURPOSE + reply, self._algorithm)])


class ReplyKeys:
    """The public keys of a run's devices, for their replies.

    Args:
        declarations: Of the devices.
        authority: Of their certificates; None: signatures are not checked.
    """

    def __init__(
        self, declarations: Iterable[Declaration], authority: Path | None
    ) -> None:
        self._keys: dict[str, EllipticCurvePublicKey] = {}
        self._is_checked = authority is not None
        declarations = list(declarations)
        self.devices = frozenset(d.device for d in declarations)
        self.problems: dict[str, str] = {}  # reason by device that has no valid key
        if authority is None:
            return
        for declaration in declarations:
            try:
                self._keys[declaration.device] = _declared_key(declaration, authority)
            except InvalidInputError as error:
                self.problems[declaration.device] = str(error)

    def open(self, device: str, payload: bytes) -> bytes:
        """Return the bytes of a reply whose signature is valid.

        Raises:
            MessageError: It is not signed by this device.
        """
        if not payload.startswith(_LIST_OF_TWO):
            if self._is_checked:
                raise MessageError("it is not signed with the device's certificate")
            return payload
        value = decode(payload)
        if [type(item) for item in value] != [bytes] * 2:
            raise MessageError("not a signed reply")
        body, signature = value
        if self._is_checked:
            self._check(device, body, signature)
        return bytes(body)

    def _check(self, device: str, body: bytes, signature: bytes) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        key = self._keys.get(device)
        if key is None:
            raise MessageError("no certificate of this device is known")
        try:
            key.verify(signature, _PURPOSE + body, ec.ECDSA(SHA256()))
        except InvalidSignature:
            raise MessageError(
                "its signature is not of the device's certificate: somebody else sent "
                "or changed it"
            ) from None


def _declared_key(
    declaration: Declaration, authority: Path
) -> "EllipticCurvePublicKey":
    """Return the key of the certificate that a device declares.

    Raises:
        InvalidInputError: It declares none, or one that is not valid.
    """
    if declaration.certificate is None:
        raise InvalidInputError(
            "it declares no certificate, so that its replies are not signed: install "
            "the same release there"
        )
    return certified_key(
        declaration.certificate,
        declaration.device,
        authority,
        whose="its certificate",
    )
