"""Who takes part in a secure sum: keys of a run, the list of peers, a round's roster.

A device has two keys per run: one that signs (Ed25519), one that encrypts shares
(X25519). Its *introduction* holds both, signed with the key of its certificate. All
introductions are the list of peers, which is fixed for the run; its digest is in every
signature, every key and every encrypted share of the run.

A round is tried under *fresh* mask keys: a mask key that becomes known, because its
device dropped out, opens masks of that attempt alone. The roster of an attempt has the
mask keys of those who announced one; its digest is in every mask.
"""

import hashlib
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import graph
from fedbudget.fleet.secure.masks import KEY_BYTES, agree, public_key
from fedbudget.fleet.wire.codec import encode

SIGNATURE_BYTES = 64


class Attempt(NamedTuple):
    """One attempt at a round of a run."""

    run: bytes
    round: int  # from 1
    number: int  # from 1

    def to_bytes(self) -> bytes:
        """Return the bytes that stand for it in derivations and signatures."""
        return self.run + self.round.to_bytes(4) + self.number.to_bytes(4)


class RunKeys:
    """The secret keys of a device for one run."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
        )

        if len(secret) != 2 * KEY_BYTES:
            raise InvalidInputError(f"the keys of a run have {2 * KEY_BYTES} bytes")
        self.secret = secret
        self.share_secret = secret[KEY_BYTES:]
        self._signing = Ed25519PrivateKey.from_private_bytes(secret[:KEY_BYTES])

    @classmethod
    def generate(cls) -> "RunKeys":
        """Return new keys from the operating system's generator."""
        return cls(os.urandom(2 * KEY_BYTES))

    def member(self, name: str) -> "Member":
        """Return the public keys."""
        return Member(
            name=name,
            verify_key=self._signing.public_key().public_bytes_raw(),
            share_key=public_key(self.share_secret),
        )

    def sign(self, data: bytes) -> bytes:
        """Return the signature of 64 bytes."""
        return self._signing.sign(data)


@dataclass(frozen=True, kw_only=True)
class Member:
    """The public keys of one device for one run."""

    name: str
    verify_key: bytes  # Ed25519
    share_key: bytes  # X25519

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether this device has signed the data."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(self.verify_key)
            key.verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The devices of a run, in a fixed order, and how they share secrets."""

    run: bytes
    members: tuple[Member, ...]
    colluders: int  # c: devices that may be on the server's side
    dropouts: int = 0  # tolerated, for the number of neighbours above 100
    terms: bytes = b""  # of the sum: they must be the same for all devices

    @classmethod
    def for_sums(
        cls,
        run: bytes,
        members: tuple[Member, ...],
        *,
        least_answers: int,
        colluders: int,
        terms: bytes,
    ) -> "Peers":
        """Return the peers of sums of at least this many answers.

        All other devices may drop out.
        """
        least = max(least_answers, _quorum(len(members), colluders))
        return cls(
            run=run,
            members=members,
            colluders=colluders,
            dropouts=max(0, len(members) - least),
            terms=terms,
        )

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        keys = {member.verify_key for member in self.members}
        keys |= {member.share_key for member in self.members}
        if len(set(names)) < len(names) or len(keys) < 2 * len(names):
            raise InvalidInputError(
                f"a name or a key is twice among {len(names)} peers: each device needs "
                "keys of its own"
            )
        _ = self.neighbourhood  # refuses too few devices

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the list, of which every device must have the same."""
        members = [[m.name, m.verify_key, m.share_key] for m in self.members]
        plain: list[object] = ["fedbudget peers 1", self.run, self.colluders]
        plain += [self.dropouts, members, *([self.terms] if self.terms else [])]
        return hashlib.sha256(encode(plain)).digest()

    @cached_property
    def neighbourhood(self) -> graph.Neighbourhood:
        """The number of neighbours and the threshold of shares."""
        return graph.neighbourhood(
            len(self.members), colluders=self.colluders, dropouts=self.dropouts
        )

    @cached_property
    def neighbours(self) -> list[tuple[int, ...]]:
        """The indices of each device's neighbours."""
        degree = self.neighbourhood.degree
        return graph.neighbours(len(self.members), degree, self.digest)

    @property
    def quorum(self) -> int:
        """Confirmations that a list of answers needs before shares are revealed.

        More than (n + c) / 2: two different lists would need an honest device that
        confirmed both.
        """
        return _quorum(len(self.members), self.colluders)

    @property
    def least_answers(self) -> int:
        """Devices that must stay to the end of a round, whatever the plan needs.

        A quorum of them, and T besides each one of them.
        """
        return max(self.quorum, self.neighbourhood.threshold + 1)

    @property
    def is_complete(self) -> bool:
        """Whether everybody shares masks with everybody."""
        return self.neighbourhood.degree >= len(self.members) - 1

    @cached_property
    def circle(self) -> list[int]:
        """The devices in the order in which each has the next ones as neighbours."""
        return graph.circle(len(self.members), self.digest)

    def is_spread(self, members: Container[int]) -> bool:
        """Return whether masks connect the honest ones of these devices.

        Everybody shares masks with everybody, or no part of the circle lacks them.
        """
        size = self.neighbourhood
        return not size.least_nearby or graph.is_spread(
            self.circle, members, half=size.degree // 2, least=size.least_nearby
        )

    def index(self, name: str) -> int:
        """Return the index of a device.

        Raises:
            InvalidInputError: It is not among the peers.
        """
        for index, member in enumerate(self.members):
            if member.name == name:
                return index
        raise InvalidInputError(f"{name!r} is not among the {len(self.members)} peers")


def _quorum(num_devices: int, colluders: int) -> int:
    return (num_devices + colluders) // 2 + 1


class AnnouncedKey(NamedTuple):
    """What a device announces for one attempt, besides encrypted shares."""

    mask_key: bytes  # X25519
    commitment: bytes  # SHA-256 of the self-mask's secret
    signature: bytes  # of the device's run key

    @property
    def digest(self) -> bytes:
        """SHA-256 of key and commitment."""
        parts = b"fedbudget roster key 1", self.mask_key, self.commitment
        return hashlib.sha256(b"".join(parts)).digest()


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The devices of an attempt, by index: the keys that masks are made of.

    A device has no masks with others than its neighbours: of those it needs digests of
    keys only, which fix the digest of the whole as the keys do.
    """

    peers: Peers
    attempt: Attempt
    keys: Mapping[int, AnnouncedKey]
    others: Mapping[int, bytes] = field(default_factory=dict)  # digests of keys

    @cached_property
    def members(self) -> frozenset[int]:
        """The indices of all devices of this attempt."""
        return frozenset(self.keys) | frozenset(self.others)

    @cached_property
    def _digests(self) -> dict[int, bytes]:
        own = {index: key.digest for index, key in self.keys.items()}
        return own | dict(self.others)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the roster; it is the salt of all masks."""
        plain = [
            "fedbudget roster 1",
            self.peers.digest,
            self.attempt.to_bytes(),
            [list(item) for item in sorted(self._digests.items())],
        ]
        return hashlib.sha256(encode(plain)).digest()

    def neighbours(self, index: int) -> list[int]:
        """Return the neighbours of a device that are in this attempt."""
        around = self.peers.neighbours[index]
        return [other for other in around if other in self.members]

    def for_device(self, index: int) -> "Roster":
        """Return the part that one device needs: the keys of its neighbours."""
        needed = {index, *self.peers.neighbours[index]}
        keys = {m: key for m, key in self.keys.items() if m in needed}
        others = {m: d for m, d in self._digests.items() if m not in needed}
        return replace(self, keys=keys, others=others)

    def check(self, index: int) -> None:
        """Raise unless a device can use it: each key is signed for this attempt.

        Keys of devices that are not neighbours may be digests. If one was made up, the
        neighbours of its device, who check its signature, do not upload, and the masks
        that they share with others stay in the sum: see `protocol`.

        Raises:
            InvalidInputError: A key of a neighbour is missing, or a signature or an
                index is invalid.
        """
        hidden = self.others.keys() & {index, *self.peers.neighbours[index]}
        twice = self.others.keys() & self.keys.keys()
        if hidden or twice or max(self.members) >= len(self.peers.members):
            raise InvalidInputError(
                f"the roster has {len(hidden)} neighbours without their keys, "
                f"{len(twice)} devices twice, or one that is not among the "
                f"{len(self.peers.members)} peers"
            )
        for member, key in self.keys.items():
            check_key(self.peers, self.attempt, member, key)


def key_statement(
    peers: Peers, attempt: Attempt, index: int, mask_key: bytes, commitment: bytes
) -> bytes:
    """Return the bytes that a device signs to announce its key."""
    parts = (peers.digest, attempt.to_bytes(), index.to_bytes(4), mask_key, commitment)
    return b"fedbudget mask key 1" + b"".join(parts)


def check_key(peers: Peers, attempt: Attempt, index: int, key: AnnouncedKey) -> None:
    """Raise unless a device signed this key for this attempt."""
    if not 0 <= index < len(peers.members):
        raise InvalidInputError(
            f"device number {index} is not among the {len(peers.members)} peers"
        )
    member = peers.members[index]
    statement = key_statement(peers, attempt, index, key.mask_key, key.commitment)
    sizes = (len(key.mask_key), len(key.commitment))
    if sizes != (KEY_BYTES, KEY_BYTES) or not member.verify(key.signature, statement):
        raise InvalidInputError(
            f"the mask key of {member.name!r} is not signed by it for round "
            f"{attempt.round}, attempt {attempt.number}: somebody replaced it"
        )
    agree(bytes(32), key.mask_key)  # refuses points of small order, before a charge
