"""The protocol of one secure sum: what devices compute, and what the server asks.

After Bonawitz et al., "Practical secure aggregation for privacy-preserving machine
learning" (CCS 2017), with the neighbourhoods of Bell et al. (CCS 2020). `reference` has
the same in plain Python, to be read beside the papers. Indices u, v are those of the
list of peers; N(u) are the neighbours of u. In every attempt at a round:

1.  *Announce.* u draws a mask key s_u, S_u and a self-mask secret b_u, both elements of
    Shamir's field. It shares both among N(u), any T of whom can reconstruct them, and
    encrypts the two shares for each. Signed: S_u and a commitment to b_u.
2.  *Upload.* The server returns the roster, all S_v. u sends, modulo 2^ring_bits,
    y_u = x_u + PRG(b_u) + sum over v in N(u): +PRG(s_u, S_v) if u < v, else -PRG.
3.  *Confirm.* The server names the devices whose y_u it has. u signs that list.
4.  *Reveal.* The server returns a quorum of signatures of the same list. For each
    neighbour u reveals its share of b_v if v has answered, of s_v if not; never both.
5.  *Unmask.* The server reconstructs b_v of those who answered and s_v of those who did
    not, and subtracts their masks. What remains is the sum of x_u: see `unmasking`.

**Why one list.** Each honest device signs one list per attempt and reveals once per
round. Two lists with a quorum of (n + c) // 2 + 1 signatures would share an honest
device; so all shares of an attempt belong to one list, and no subset of it can be
unmasked. Two attempts of one round cannot both be unmasked if a device is in both: each
would need more than half of its honest neighbours to reveal, who reveal once.

Keys for shares are derived from both devices' run keys, the list of peers, the attempt
and S_u, which is fresh: no key encrypts twice. The digest of the list is also the
associated data of the encryption.

**Why a list must be spread.** With k neighbours on a circle, a server that says that
all neighbours of u have dropped out would obtain their mask keys, and see u's upload
alone; of a longer part, its sum. `graph` has how many answers there must be in every
part of the circle; devices check that before they upload, and before they sign.

**Who must have uploaded.** The server names who has answered, also falsely. If it names
an honest device that has not uploaded under this roster, one of those that masks
connect it with is a neighbour who has: their mask stays in the sum, for nobody reveals
a share of either mask key. So all honest devices of an unmasked list have uploaded,
with their noise. It also follows that a device need not check signatures of keys other
than those of its neighbours: a made-up key keeps honest neighbours of its device from
uploading.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import masks, shamir
from fedbudget.fleet.secure.masks import Words
from fedbudget.fleet.secure.peers import (
    AnnouncedKey,
    Attempt,
    Peers,
    Roster,
    RunKeys,
    key_statement,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

SEALED_BYTES = 2 * shamir.SECRET_BYTES + 16  # two shares and the tag


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A device's part in all attempts of a run."""

    keys: RunKeys
    peers: Peers
    index: int  # of this device

    def announce(
        self,
        attempt: Attempt,
        secrets: "AttemptSecrets",
        *,
        random: shamir.Random = os.urandom,
    ) -> "Announcement":
        """Share this attempt's secrets among the neighbours, and sign its keys."""
        holders = self.peers.neighbours[self.index]
        points = [holder + 1 for holder in holders]
        threshold = self.peers.neighbourhood.threshold
        shares = [
            shamir.split(secret, points, threshold=threshold, random=random)
            for secret in (secrets.mask_secret, secrets.self_secret)
        ]
        mask_key, commitment = secrets.mask_key, secrets.commitment
        statement = key_statement(self.peers, attempt, self.index, mask_key, commitment)
        key = AnnouncedKey(mask_key, commitment, self.keys.sign(statement))
        sealed = {
            holder: self._cipher(attempt, self.index, holder, mask_key).encrypt(
                bytes(12),
                b"".join(shamir.to_bytes(share[holder + 1]) for share in shares),
                self.peers.digest,
            )
            for holder in holders
        }
        return Announcement(key=key, sealed=sealed)

    def masked(
        self,
        vector: NDArray[np.int64],
        roster: Roster,
        secrets: "AttemptSecrets",
        *,
        ring_bits: int,
    ) -> Words:
        """Return a vector of whole numbers under all masks of this device.

        Raises:
            InvalidInputError: The roster has another key of this device than its own.
        """
        own = roster.keys.get(self.index)
        if own is None or own.mask_key != secrets.mask_key:
            raise InvalidInputError(
                "the roster does not have this device's own mask key: refuse it"
            )
        total = masks.ring(vector, ring_bits=ring_bits)
        total = total + self_mask(
            roster, self.index, secrets.self_secret, len(total), ring_bits=ring_bits
        )
        for other in roster.neighbours(self.index):
            mask = pair_mask(
                roster, self.index, other, secrets.mask_secret, len(total), ring_bits
            )
            total = total + mask if self.index < other else total - mask
        return masks.reduced(total, ring_bits=ring_bits)

    def confirm(self, roster: Roster, answered: Sequence[int]) -> bytes:
        """Sign the list of devices that have answered."""
        return self.keys.sign(answers_statement(roster, answered))

    def reveal(
        self,
        roster: Roster,
        answered: Sequence[int],
        sealed: Mapping[int, bytes],
    ) -> dict[int, bytes]:
        """Return one share for each neighbour: of its self-mask, or of its mask key.

        A share that its sender did not encrypt for this attempt is left out.
        """
        shares = {}
        for other in roster.neighbours(self.index):
            pair = self._opened(roster, other, sealed.get(other, b""))
            if pair is not None:
                shares[other] = pair[1] if other in answered else pair[0]
        return shares

    def _opened(
        self, roster: Roster, sender: int, sealed: bytes
    ) -> tuple[bytes, bytes] | None:
        from cryptography.exceptions import InvalidTag

        mask_key = roster.keys[sender].mask_key
        cipher = self._cipher(roster.attempt, sender, self.index, mask_key)
        try:
            plain = cipher.decrypt(bytes(12), sealed, self.peers.digest)
        except InvalidTag:
            return None
        if len(plain) != 2 * shamir.SECRET_BYTES:
            return None
        return plain[: shamir.SECRET_BYTES], plain[shamir.SECRET_BYTES :]

    def _cipher(
        self, attempt: Attempt, sender: int, receiver: int, mask_key: bytes
    ) -> "ChaCha20Poly1305":
        """Return the cipher for the shares of one attempt, from sender to receiver."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        other = receiver if sender == self.index else sender
        secret = masks.agree(
            self.keys.share_secret, self.peers.members[other].share_key
        )
        parts = (attempt.to_bytes(), sender.to_bytes(4), receiver.to_bytes(4), mask_key)
        info = b"fedbudget share 1" + b"".join(parts)
        return ChaCha20Poly1305(masks.derive(secret, salt=self.peers.digest, info=info))


@dataclass(frozen=True, kw_only=True)
class AttemptSecrets:
    """The secrets of one device for one attempt: elements of Shamir's field."""

    mask_secret: int  # s_u
    self_secret: int  # b_u

    @classmethod
    def generate(cls, random: shamir.Random = os.urandom) -> "AttemptSecrets":
        """Return new secrets."""
        return cls(
            mask_secret=shamir.random_element(random),
            self_secret=shamir.random_element(random),
        )

    @property
    def mask_key(self) -> bytes:
        """S_u."""
        return masks.public_key(shamir.to_bytes(self.mask_secret))

    @property
    def commitment(self) -> bytes:
        """A commitment to b_u, by which wrong shares are noticed."""
        return commitment_to(self.self_secret)


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The first message of a device in an attempt."""

    key: AnnouncedKey
    sealed: Mapping[int, bytes]  # encrypted pair of shares, by neighbour


def commitment_to(self_secret: int) -> bytes:
    """Return the commitment to a self-mask's secret, which has 255 random bits."""
    secret = shamir.to_bytes(self_secret)
    return hashlib.sha256(b"fedbudget self mask commitment 1" + secret).digest()


def self_mask(
    roster: Roster, index: int, secret: int, count: int, *, ring_bits: int
) -> Words:
    """Return the mask that a device adds on its own account."""
    info = b"fedbudget self mask 1" + roster.attempt.to_bytes() + index.to_bytes(4)
    seed = masks.derive(shamir.to_bytes(secret), salt=roster.digest, info=info)
    return masks.expand(seed, count, ring_bits=ring_bits)


def pair_mask(
    roster: Roster, own: int, other: int, secret: int, count: int, ring_bits: int
) -> Words:
    """Return the mask of a pair, from the mask secret of one and the other's key."""
    low, high = sorted((own, other))
    shared = masks.agree(shamir.to_bytes(secret), roster.keys[other].mask_key)
    parts = (roster.attempt.to_bytes(), low.to_bytes(4), high.to_bytes(4))
    info = b"fedbudget pair mask 1" + b"".join(parts)
    seed = masks.derive(shared, salt=roster.digest, info=info)
    return masks.expand(seed, count, ring_bits=ring_bits)


def answers_statement(roster: Roster, answered: Sequence[int]) -> bytes:
    """Return the bytes that a device signs to confirm a list of answers."""
    indices = b"".join(index.to_bytes(4) for index in answered)
    return b"fedbudget answers 1" + roster.digest + indices


def check_answers_list(roster: Roster, answered: Sequence[int], *, least: int) -> None:
    """Raise unless a list of answers is sorted, in the roster, long enough and spread.

    Raises:
        InvalidInputError: It is not: no share may be revealed for it.
    """
    if list(answered) != sorted(set(answered)):
        raise InvalidInputError("a list of answers names a device twice, or unsorted")
    if not roster.members.issuperset(answered):
        raise InvalidInputError("a list of answers names a device that has no mask key")
    if len(answered) < least:
        raise InvalidInputError(
            f"a list of {len(answered)} answers is below the least number {least}"
        )
    if not roster.peers.is_spread(set(answered)):
        raise InvalidInputError(
            f"a list of {len(answered)} answers leaves out so many neighbours of each "
            "other that a part of the sum could be seen"
        )


def check_confirmations(
    roster: Roster, answered: Sequence[int], signatures: Mapping[int, bytes]
) -> None:
    """Raise unless a quorum of the attempt's devices signed this list of answers."""
    statement = answers_statement(roster, answered)
    members, quorum = roster.peers.members, roster.peers.quorum
    count = sum(
        index in roster.members and members[index].verify(signature, statement)
        for index, signature in signatures.items()
    )
    if count < quorum:
        raise InvalidInputError(
            f"{count} devices have signed this list of answers, below the {quorum} "
            "that are needed: others may have been given another list"
        )
