"""Replies that a device signs with the key of its certificate.

A broker decides who speaks for a device. With signatures, a broker that is broken into
can lose or delay replies, but it cannot invent or change any. A device declares its
certificate and signs all its replies; a coordinator that knows the fleet's authority
plans only for devices whose certificates it has issued, and drops every other reply.

A signed reply is a CBOR list of the reply's exact bytes and their ECDSA signature.
"""

import os
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedbudget.errors import InvalidInputError, MessageError
from fedbudget.fleet.transport.certificates import (
    Identity,
    certified_key,
    private_key,
)
from fedbudget.fleet.wire.codec import decode_pair, encode
from fedbudget.fleet.wire.messages import Declaration

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

# Signed together with the reply: a signature for another purpose is invalid.
_PURPOSE = b"fedbudget reply 1\x00"
_MOST_KEYS = 3  # of one device at a time: more renewals within a run are a mistake
_LEAST_AHEAD = 16  # replies for which other threads are worth their start


def _workers() -> int:
    return os.cpu_count() or 1


@cache
def _pool() -> "ThreadPoolExecutor":
    # Imported late: devices check no replies, and save the memory.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_workers(), thread_name_prefix="signatures")


class ReplySigner:
    """A device's key.

    Raises:
        InvalidInputError: The files cannot be used.
    """

    def __init__(self, identity: Identity) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            # Refuses a pair of which only one file has been renewed yet.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(identity.certificate, identity.key)
            key = private_key(Path(identity.key).read_bytes())
            self.certificate = identity.der()
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
        # By device and certificate, the newest first: a renewed one may have a new key,
        # while replies under the old one are still on their way.
        self._keys: dict[str, dict[bytes, EllipticCurvePublicKey]] = {}
        self._authority = authority
        declarations = list(declarations)
        self.devices = frozenset(d.device for d in declarations)
        self.problems: dict[str, str] = {}  # reason by device that has no valid key
        self._ahead: set[tuple[str, bytes]] = set()  # replies that were checked
        if authority is None:
            return
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        self._algorithm, self._invalid = ec.ECDSA(SHA256()), InvalidSignature
        for declaration in declarations:
            try:
                self._keys[declaration.device] = _declared_key(declaration, authority)
            except InvalidInputError as error:
                self.problems[declaration.device] = str(error)

    def learn(self, declaration: Declaration) -> None:
        """Take the key of a certificate that a device of the run declares anew.

        Only the authority makes such certificates: whoever carries the declaration
        cannot add a key of his own. Earlier ones that have expired or were revoked do
        not count any more.

        Raises:
            MessageError: The certificate is not valid.
        """
        device, certificate = declaration.device, declaration.certificate
        if self._authority is None or device not in self.devices:
            return
        earlier = self._keys.get(device, {})
        if certificate == next(iter(earlier), None):
            return  # declared again at every connection
        try:
            keys = _declared_key(declaration, self._authority)
        except InvalidInputError as error:
            raise MessageError(str(error)) from None
        for older in list(earlier)[: _MOST_KEYS - 1]:
            with suppress(InvalidInputError):
                again = replace(declaration, certificate=older)
                keys = keys | _declared_key(again, self._authority)
        self._keys[device] = keys

    def open(self, device: str, payload: bytes) -> bytes:
        """Return the bytes of a reply whose signature is valid.

        Raises:
            MessageError: It is not signed by this device.
        """
        pair = decode_pair(payload)
        if pair is None:
            if self._authority is not None:
                raise MessageError("it is not signed with the device's certificate")
            return payload
        body, signature = pair
        if self._authority is not None and (device, payload) not in self._ahead:
            self._check(device, body, signature)
        return body

    def check_ahead(self, replies: Sequence[tuple[str, bytes]]) -> None:
        """Check the signatures of these replies on all processors, for `open`.

        A verification takes longer than all else that an answer needs. It runs outside
        Python's lock. What is invalid is left to `open`, and to its error.

        Args:
            replies: Device and payload of each.
        """
        self._ahead.clear()
        if self._authority is None or len(replies) < _LEAST_AHEAD:
            return
        size = -(-len(replies) // _workers())
        parts = [replies[i : i + size] for i in range(0, len(replies), size)]
        for valid in _pool().map(self._valid, parts):
            self._ahead.update(valid)

    def _valid(self, replies: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Return the replies whose signatures are valid."""
        valid = []
        for device, payload in replies:
            try:
                pair = decode_pair(payload)
                if pair is not None:
                    self._check(device, *pair)
                    valid.append((device, payload))
            except MessageError:
                pass
        return valid

    def _check(self, device: str, body: bytes, signature: bytes) -> None:
        keys = self._keys.get(device)
        if keys is None:
            raise MessageError("no certificate of this device is known")
        for key in keys.values():
            try:
                key.verify(signature, _PURPOSE + body, self._algorithm)
            except self._invalid:
                continue
            return
        raise MessageError(
            "its signature is not of the device's certificate: somebody else sent or "
            "changed it"
        )


def _declared_key(
    declaration: Declaration, authority: Path
) -> "dict[bytes, EllipticCurvePublicKey]":
    """Return the certificate that a device declares, with its key.

    Raises:
        InvalidInputError: It declares none, or one that is not valid.
    """
    if declaration.certificate is None:
        raise InvalidInputError(
            "it declares no certificate, so that its replies are not signed: install "
            "the same release there"
        )
    certificate = declaration.certificate
    return {
        certificate: certified_key(
            certificate, declaration.device, authority, whose="its certificate"
        )
    }
