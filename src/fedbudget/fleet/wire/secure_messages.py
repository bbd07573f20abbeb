"""The messages of a secure sum; `fleet.secure.protocol` has what they are for.

    SumTerms       inside a RunOffer: what the sum promises, and the grid of uploads
    Introduction   device -> coordinator: keys of the run, signed with its certificate
    PeerList       coordinator -> all devices: the introductions of all peers
    AttemptOrder   coordinator -> all: a round's model; asks for keys
    AttemptKeys    device: mask key, and encrypted shares for its neighbours
    AttemptRoster  coordinator -> all: all mask keys; asks for masked uploads
    AttemptUpload  device: its vector under masks
    AttemptAnswers coordinator -> all: who has uploaded; asks for signatures of the list
    AttemptConfirmation  device: its signature
    RevealOrder    coordinator -> one device: a quorum of signatures, and its shares
    RevealedShares device: one share per neighbour

Those of the coordinator are signed like any order. Lists of small records are one value
of bytes: records of a fixed size, each with the index of a device in the list of peers,
in ascending order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from fedbudget.errors import MessageError
from fedbudget.fleet.secure.masks import KEY_BYTES, LEAST_RING_BITS, MOST_RING_BITS
from fedbudget.fleet.secure.peers import (
    SIGNATURE_BYTES,
    AnnouncedKey,
    Attempt,
    Peers,
    Roster,
)
from fedbudget.fleet.secure.protocol import SEALED_BYTES
from fedbudget.fleet.secure.shamir import SECRET_BYTES
from fedbudget.fleet.wire.codec import MAX_BYTES, decode, encode
from fedbudget.fleet.wire.messages import (
    IDENTITY,
    RUN_BYTES,
    Check,
    Message,
    bytes_field,
    number_field,
    one_of_field,
    optional,
    whole_field,
)
from fedbudget.privacy.runs import UNITS

MOST_PEERS = 1000  # of a fleet
_INDEX_BYTES = 4
_KEY_RECORD = 2 * KEY_BYTES + SIGNATURE_BYTES
_COUNT = whole_field(most=1 << 20)
_SIGNATURE = bytes_field(least=SIGNATURE_BYTES, most=SIGNATURE_BYTES)
_KEY = bytes_field(least=KEY_BYTES, most=KEY_BYTES)


def _records(size: int, *, least: int = 0) -> Check:
    whole = _INDEX_BYTES + size
    return bytes_field(least=least * whole, most=MOST_PEERS * whole)


def pack_records(records: Mapping[int, bytes]) -> bytes:
    """Return records by index as one value.

    >>> unpack_records(pack_records({3: b"b", 1: b"a"}), 1)
    {1: b'a', 3: b'b'}
    """
    items = sorted(records.items())
    return b"".join(index.to_bytes(_INDEX_BYTES) + data for index, data in items)


def unpack_records(data: bytes, size: int) -> dict[int, bytes]:
    """Return records by index, from untrusted bytes.

    Raises:
        MessageError: They are cut off, unsorted, or an index is there twice.
    """
    step = _INDEX_BYTES + size
    if len(data) % step:
        raise MessageError(f"{len(data)} bytes are not records of {step}")
    records: dict[int, bytes] = {}
    last = -1
    for start in range(0, len(data), step):
        index = int.from_bytes(data[start : start + _INDEX_BYTES])
        if index <= last:
            raise MessageError(f"record {index} after {last}: twice, or unsorted")
        records[index] = data[start + _INDEX_BYTES : start + step]
        last = index
    return records


@dataclass(frozen=True, kw_only=True)
class SumTerms(Message):
    """What a sum promises, and the grid of its uploads; part of an offer."""

    unit: str  # sample | device
    least_answers: int  # t
    colluders: int  # c
    weight: float  # p_m
    step: float  # of the grid
    scale_bits: int
    ring_bits: int
    largest_norm: float
    clip: float | None = None

    kind: ClassVar[str] = "sum"
    checks: ClassVar[Mapping[str, Check]] = {
        "unit": one_of_field(*UNITS),
        "least_answers": _COUNT,
        "colluders": whole_field(least=0, most=1 << 20),
        "weight": number_field(least=0, most=1),
        "step": number_field(least=0),
        "scale_bits": whole_field(most=62),
        "ring_bits": whole_field(least=LEAST_RING_BITS, most=MOST_RING_BITS),
        "largest_norm": number_field(least=0),
        "clip": optional(number_field(least=0)),
    }

    @property
    def common(self) -> bytes:
        """What must be the same for all: each counts on the others' noise and t."""
        shared = (self.least_answers, self.colluders, self.scale_bits, self.ring_bits)
        return encode(list(shared))


@dataclass(frozen=True, kw_only=True)
class Introduction(Message):
    """The keys of a device for a run, signed with the key of its certificate."""

    run: bytes
    device: str
    verify_key: bytes
    share_key: bytes
    certificate: bytes  # DER
    signature: bytes  # of `statement`, by the certificate's key

    kind: ClassVar[str] = "introduction"
    checks: ClassVar[Mapping[str, Check]] = {
        "run": bytes_field(least=RUN_BYTES, most=RUN_BYTES),
        "device": IDENTITY,
        "verify_key": _KEY,
        "share_key": _KEY,
        "certificate": bytes_field(least=1, most=4096),
        "signature": bytes_field(least=1, most=1024),
    }


@dataclass(frozen=True, kw_only=True)
class PeerList(Message):
    """All peers of a run, in a fixed order: a CBOR list of introductions."""

    run: bytes
    introductions: bytes

    kind: ClassVar[str] = "peers"
    checks: ClassVar[Mapping[str, Check]] = {
        "run": bytes_field(least=RUN_BYTES, most=RUN_BYTES),
        "introductions": bytes_field(least=1, most=MAX_BYTES),
    }

    @classmethod
    def of(cls, run: bytes, introductions: Iterable[Introduction]) -> Self:
        """Return the list of these introductions."""
        plain = [introduction.to_bytes() for introduction in introductions]
        return cls(run=run, introductions=encode(plain))

    def read(self) -> list[Introduction]:
        """Return the introductions, from untrusted bytes.

        Raises:
            MessageError: One is damaged or of another run, or there are too many.
        """
        plain = decode(self.introductions)
        if not isinstance(plain, list) or len(plain) > MOST_PEERS:
            raise MessageError(f"not a list of at most {MOST_PEERS} introductions")
        if not all(isinstance(item, bytes) for item in plain):
            raise MessageError("an introduction is not bytes")
        introductions = [Introduction.from_bytes(item) for item in plain]
        if any(item.run != self.run for item in introductions):
            raise MessageError("an introduction is of another run")
        return introductions


_ATTEMPT: Mapping[str, Check] = {
    "run": bytes_field(least=RUN_BYTES, most=RUN_BYTES),
    "round": whole_field(most=1 << 30),
    "attempt": _COUNT,
}


@dataclass(frozen=True, kw_only=True)
class AttemptMessage(Message):
    """The base of messages about one attempt at a round."""

    run: bytes
    round: int
    attempt: int

    @property
    def of(self) -> Attempt:
        """The attempt."""
        return Attempt(self.run, self.round, self.attempt)


@dataclass(frozen=True, kw_only=True)
class AttemptOrder(AttemptMessage):
    """The model of a round; devices answer with keys, and are not charged yet."""

    theta: bytes

    kind: ClassVar[str] = "attempt"
    checks: ClassVar[Mapping[str, Check]] = {
        **_ATTEMPT,
        "theta": bytes_field(least=4, most=MAX_BYTES),
    }


@dataclass(frozen=True, kw_only=True)
class AttemptRoster(AttemptMessage):
    """The mask keys of all devices that announced one, or digests of keys.

    To all devices it has all keys; to one, those of its neighbours.
    """

    keys: bytes  # records of mask key, commitment and signature
    others: bytes  # records of digests

    kind: ClassVar[str] = "attempt-roster"
    checks: ClassVar[Mapping[str, Check]] = {
        **_ATTEMPT,
        "keys": _records(_KEY_RECORD, least=1),
        "others": _records(KEY_BYTES),
    }

    @classmethod
    def of_roster(cls, roster: Roster) -> Self:
        """Return the message of a roster."""
        attempt = roster.attempt
        keys = {index: b"".join(key) for index, key in roster.keys.items()}
        return cls(
            run=attempt.run,
            round=attempt.round,
            attempt=attempt.number,
            keys=pack_records(keys),
            others=pack_records(roster.others),
        )

    def read(self, peers: Peers) -> Roster:
        """Return the roster, of which nothing is checked yet."""
        middle = 2 * KEY_BYTES
        keys = {
            index: AnnouncedKey(data[:KEY_BYTES], data[KEY_BYTES:middle], data[middle:])
            for index, data in unpack_records(self.keys, _KEY_RECORD).items()
        }
        others = unpack_records(self.others, KEY_BYTES)
        return Roster(peers=peers, attempt=self.of, keys=keys, others=others)


@dataclass(frozen=True, kw_only=True)
class AttemptAnswers(AttemptMessage):
    """The devices whose masked uploads the coordinator has."""

    answered: bytes  # records of nothing but an index

    kind: ClassVar[str] = "attempt-answers"
    checks: ClassVar[Mapping[str, Check]] = {
        **_ATTEMPT,
        "answered": _records(0, least=1),
    }

    def read(self) -> list[int]:
        """Return the indices, sorted."""
        return list(unpack_records(self.answered, 0))


@dataclass(frozen=True, kw_only=True)
class RevealOrder(AttemptMessage):
    """Signatures of one list of answers, and the shares encrypted for one device."""

    device: str  # the receiver
    confirmations: bytes  # records of signatures
    sealed: bytes  # records of encrypted shares, by sender

    kind: ClassVar[str] = "reveal"
    checks: ClassVar[Mapping[str, Check]] = {
        **_ATTEMPT,
        "device": IDENTITY,
        "confirmations": _records(SIGNATURE_BYTES),
        "sealed": _records(SEALED_BYTES),
    }


@dataclass(frozen=True, kw_only=True)
class AttemptReply(AttemptMessage):
    """The base of a device's messages about an attempt."""

    device: str


_REPLY: Mapping[str, Check] = {**_ATTEMPT, "device": IDENTITY}


@dataclass(frozen=True, kw_only=True)
class AttemptKeys(AttemptReply):
    """The keys of a device for an attempt, and the shares of its secrets."""

    mask_key: bytes
    commitment: bytes
    signature: bytes
    sealed: bytes  # records of encrypted shares, by receiver

    kind: ClassVar[str] = "attempt-keys"
    checks: ClassVar[Mapping[str, Check]] = {
        **_REPLY,
        "mask_key": _KEY,
        "commitment": _KEY,
        "signature": _SIGNATURE,
        "sealed": _records(SEALED_BYTES, least=1),
    }

    @property
    def key(self) -> AnnouncedKey:
        """The signed key."""
        return AnnouncedKey(self.mask_key, self.commitment, self.signature)


@dataclass(frozen=True, kw_only=True)
class AttemptUpload(AttemptReply):
    """A vector under masks, as little-endian words."""

    vector: bytes

    kind: ClassVar[str] = "attempt-upload"
    checks: ClassVar[Mapping[str, Check]] = {
        **_REPLY,
        "vector": bytes_field(least=4, most=MAX_BYTES),
    }


@dataclass(frozen=True, kw_only=True)
class AttemptConfirmation(AttemptReply):
    """A signature of the list of answers."""

    signature: bytes

    kind: ClassVar[str] = "attempt-confirmation"
    checks: ClassVar[Mapping[str, Check]] = {**_REPLY, "signature": _SIGNATURE}


@dataclass(frozen=True, kw_only=True)
class RevealedShares(AttemptReply):
    """One share for each neighbour."""

    shares: bytes  # records of shares, by the device they are of

    kind: ClassVar[str] = "revealed-shares"
    checks: ClassVar[Mapping[str, Check]] = {
        **_REPLY,
        "shares": _records(SECRET_BYTES),
    }


ORDERS = (PeerList, AttemptOrder, AttemptRoster, AttemptAnswers, RevealOrder)
REPLIES = (AttemptKeys, AttemptUpload, AttemptConfirmation, RevealedShares)
