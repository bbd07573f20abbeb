"""Introductions of peers: keys of a run, signed with the key of a certificate.

A device takes part in a sum only with peers whose certificates the authority in its
owner's policy has issued. Whoever holds that authority's key can invent peers.
"""

import ssl
from collections.abc import Sequence
from pathlib import Path

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure.masks import agree
from fedbudget.fleet.secure.peers import Member, Peers, RunKeys
from fedbudget.fleet.transport.certificates import (
    certified_key,
    check_name,
    private_key,
)
from fedbudget.fleet.wire.codec import encode
from fedbudget.fleet.wire.secure_messages import Introduction

_PURPOSE = b"fedbudget introduction 1"


def _statement(run: bytes, member: Member) -> bytes:
    plain = [run, member.name, member.verify_key, member.share_key]
    return _PURPOSE + encode(plain)


def introduce(
    run: bytes, name: str, keys: RunKeys, *, certificate: Path, key: Path
) -> Introduction:
    """Return the introduction of a device, signed with its certificate's key.

    Raises:
        InvalidInputError: The files cannot be used.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    member = keys.member(name)
    try:
        secret = private_key(_read(key))
        der = ssl.PEM_cert_to_DER_cert(_read(certificate).decode("ascii").strip())
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"certificate {str(certificate)!r} or its key cannot be read ({error}): "
            "create them with fedbudget certs"
        ) from None
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise InvalidInputError(
            f"{str(key)!r} is not an elliptic-curve key, which introductions are "
            "signed with: create it with fedbudget certs"
        )
    return Introduction(
        run=run,
        device=name,
        verify_key=member.verify_key,
        share_key=member.share_key,
        certificate=der,
        signature=secret.sign(_statement(run, member), ec.ECDSA(SHA256())),
    )


def peers_of(
    run: bytes,
    introductions: Sequence[Introduction],
    *,
    least_answers: int,
    colluders: int,
    terms: bytes,
) -> Peers:
    """Return the peers of a run, whose introductions were checked.

    Raises:
        InvalidInputError: They are unsorted, or too few.
    """
    names = [introduction.device for introduction in introductions]
    if names != sorted(names):  # the order decides who are neighbours
        raise InvalidInputError("the list of peers is not sorted by their names")
    members = tuple(map(member_of, introductions))
    return Peers.for_sums(
        run,
        members,
        least_answers=least_answers,
        colluders=colluders,
        terms=terms,
    )


def check_introductions(introductions: Sequence[Introduction], authority: Path) -> None:
    """Raise unless devices of this authority signed all these keys.

    Raises:
        InvalidInputError: A certificate is not of the authority, or of another name or
            expired; or a signature is invalid.
    """
    for introduction in introductions:
        check_introduction(introduction, authority)


def member_of(introduction: Introduction) -> Member:
    """Return the keys of an introduction."""
    return Member(
        name=introduction.device,
        verify_key=introduction.verify_key,
        share_key=introduction.share_key,
    )


def check_introduction(introduction: Introduction, authority: Path) -> None:
    """Raise unless a device of this authority signed these keys.

    Raises:
        InvalidInputError: The certificate or the signature is invalid.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    # The server has certificates of the same authority: its own names are no peers.
    name = check_name(introduction.device)
    key = certified_key(
        introduction.certificate,
        name,
        authority,
        whose=f"the certificate of peer {name!r}",
    )
    agree(bytes(32), introduction.share_key)  # refuses points of small order
    statement = _statement(introduction.run, member_of(introduction))
    try:
        key.verify(introduction.signature, statement, ec.ECDSA(SHA256()))
    except InvalidSignature:
        raise InvalidInputError(
            f"the keys of peer {name!r} are not signed with its certificate: somebody "
            "replaced them"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"{str(path)!r} cannot be read ({error.strerror}): create it with "
            "fedbudget certs"
        ) from None
