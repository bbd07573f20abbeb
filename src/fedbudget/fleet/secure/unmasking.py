"""The last step of a secure sum, on the server: secrets from shares, then the sum.

Devices may reveal wrong shares, or have dealt wrong ones. A secret is known to be right
by what its device announced: a commitment to a self-mask, the public key of a mask key.
"""

import logging
import random
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import masks, shamir
from fedbudget.fleet.secure.masks import Words
from fedbudget.fleet.secure.peers import Roster
from fedbudget.fleet.secure.protocol import commitment_to, pair_mask, self_mask
from fedbudget.fleet.secure.reed_solomon import corrected

_log = logging.getLogger(__name__)
_WORK = 10**6  # multiplications for one secret, about: a second
_MOST_LOST = 3  # secrets in vain, before a sum is given up
_CHECKED = 16  # shares of a device that has revealed a wrong one
_MOST_NAMED = 8  # devices in a message


def unmask(
    roster: Roster,
    uploads: Mapping[int, Words],
    shares: Mapping[int, Mapping[int, bytes]],
    *,
    ring_bits: int,
) -> Words:
    """Return the sum of the vectors in these uploads, modulo 2^ring_bits.

    Devices whose shares were found wrong are named in the log.

    Args:
        roster: Of the attempt.
        uploads: By device: exactly those in the confirmed list of answers.
        shares: By the device that revealed them, then by the device they are of.
        ring_bits: The sum is modulo 2^ring_bits.

    Raises:
        InvalidInputError: Too few right shares to reconstruct a secret; the message
            names devices whose shares are missing or wrong.
    """
    recovery = Recovery(roster, shares, answered=frozenset(uploads))
    secrets = recovery.secrets()
    total = np.asarray(sum(uploads.values()))
    count = len(total)
    for index, secret in secrets.items():
        if index in uploads:
            mask = self_mask(roster, index, secret, count, ring_bits=ring_bits)
            total = total - mask
            continue
        for other in recovery.remaining(index):
            mask = pair_mask(roster, index, other, secret, count, ring_bits)
            # `other` has added this if its index is the lower one.
            total = total - mask if other < index else total + mask
    return masks.reduced(total, ring_bits=ring_bits)


class Recovery:
    """The secrets of an attempt, from shares of which some may be wrong.

    Args:
        roster: Of the attempt.
        shares: By the device that revealed them, then by the device they are of.
        answered: The devices in the confirmed list of answers.
    """

    def __init__(
        self,
        roster: Roster,
        shares: Mapping[int, Mapping[int, bytes]],
        *,
        answered: frozenset[int],
    ) -> None:
        self._roster, self._shares, self._answered = roster, shares, answered
        self._threshold = roster.peers.neighbourhood.threshold
        self._wrong: dict[int, set[int]] = {}  # holder -> whose shares were wrong
        self._right: dict[int, list[int]] = {}  # device -> points of T right shares
        # Which sets are tried must not be known to who makes up wrong shares.
        self._random = random.SystemRandom()

    def secrets(self) -> dict[int, int]:
        """Return the secrets that stand between the uploads and their sum, by device.

        Raises:
            InvalidInputError: One cannot be reconstructed.
        """
        secrets: dict[int, int] = {}
        lost: list[int] = []
        for index in sorted(self._roster.keys):
            if index not in self._answered and not self.remaining(index):
                continue  # its masks are in no upload
            secret = self.secret(index)
            if secret is not None:
                secrets[index] = secret
                continue
            lost.append(index)
            if len(lost) == _MOST_LOST:
                break
        self._check_suspects(secrets)
        if self._wrong:
            _log.warning("%s", self._suspects())
        if lost:
            raise InvalidInputError(self._why(lost))
        return secrets

    def remaining(self, index: int) -> list[int]:
        """Return the neighbours of a device that have answered."""
        return [v for v in self._roster.neighbours(index) if v in self._answered]

    def secret(self, index: int) -> int | None:
        """Return the secret of a device that the answers ask for; none if it is lost.

        It is the self-mask's if the device has answered, or else its mask key.
        """
        held = self._held(index)
        # Who has revealed one wrong share is likely to have revealed others.
        points = sorted(held, key=lambda point: point - 1 in self._wrong)
        if len(points) < self._threshold:
            return None
        first = points[: self._threshold]
        secret = shamir.combine({point: held[point] for point in first})
        if self._is_right(index, secret):
            self._right[index] = first
            return secret
        code = corrected(held, threshold=self._threshold)
        if code is not None and self._is_right(index, code[0]):
            self._right[index] = [p for p in held if p not in code[1]]
            self._note(index, code[1])
            return code[0]
        return self._searched(index, held)

    def _held(self, index: int) -> dict[int, int]:
        """Return the shares of a device's secret by point, without unreadable ones."""
        held = {}
        for holder in self._roster.neighbours(index):
            share = self._shares.get(holder, {}).get(index)
            if share is None:
                continue
            try:
                held[holder + 1] = shamir.from_bytes(share)
            except InvalidInputError:
                self._note(index, [holder + 1])
        return held

    def _is_right(self, index: int, secret: int) -> bool:
        key = self._roster.keys[index]
        if index in self._answered:
            return commitment_to(secret) == key.commitment
        return masks.public_key(shamir.to_bytes(secret)) == key.mask_key

    def _searched(self, index: int, held: Mapping[int, int]) -> int | None:
        """Return a secret of which more shares are wrong than `corrected` can find.

        T right ones among them are enough; sets of T are drawn until one is right.
        """
        if len(held) == self._threshold:
            return None  # the only set was tried
        points = sorted(held)
        for _ in range(max(100, _WORK // self._threshold**2)):
            drawn = self._random.sample(points, self._threshold)
            secret = shamir.combine({point: held[point] for point in drawn})
            if self._is_right(index, secret):
                self._right[index] = drawn
                self._note(index, self._off(index, secret, held.keys() - set(drawn)))
                return secret
        return None

    def _off(self, index: int, secret: int, points: Iterable[int]) -> list[int]:
        """Return the points whose shares are not on the polynomial of a secret."""
        held = self._held(index)
        base = {p: held[p] for p in self._right[index][: self._threshold]}
        off = []
        for point in points:
            if point in held and point not in base:
                others = dict(list(base.items())[1:])
                if shamir.combine(others | {point: held[point]}) != secret:
                    off.append(point)
        return off

    def _note(self, index: int, points: Iterable[int]) -> None:
        for point in points:
            self._wrong.setdefault(point - 1, set()).add(index)

    def _check_suspects(self, secrets: Mapping[int, int]) -> None:
        """Check other shares of those who have revealed a wrong one.

        It tells who reveals wrong shares from who was dealt one.
        """
        for holder in list(self._wrong):
            others = [v for v in self._roster.neighbours(holder) if v in secrets]
            for index in self._random.sample(others, min(len(others), _CHECKED)):
                self._note(index, self._off(index, secrets[index], [holder + 1]))

    def _suspects(self) -> str:
        """Return who has sent wrong shares, in words.

        Up to c devices may collude, and deal wrong shares to one that reveals them as
        they are. So only who has revealed those of more devices has made them up.
        """
        least = min(max(1, self._roster.peers.colluders), _CHECKED - 1)
        liars = {h for h, owners in self._wrong.items() if len(owners) > least}
        parts = [f"{self._names(liars)} revealed wrong shares"] if liars else []
        for index in sorted(set[int]().union(*self._wrong.values())):
            holders = {h for h, of in self._wrong.items() if index in of} - liars
            if holders:
                parts.append(
                    f"{self._names(holders)} revealed a wrong share of "
                    f"{self._names([index])}, or was dealt it"
                )
        return "; ".join(parts[:_MOST_NAMED])

    def _why(self, lost: list[int]) -> str:
        """Return why a sum is lost, in words."""
        index = lost[0]
        held, threshold = self._held(index), self._threshold
        kind = "self-mask" if index in self._answered else "mask key"
        message = (
            f"{len(held)} shares of the {kind} of {self._names([index])} do not give "
            f"it: {threshold} right ones are needed"
        )
        missing = {v for v in self.remaining(index) if v + 1 not in held}
        if self._wrong:
            message += f"; {self._suspects()}"
        if len(held) < threshold:
            return f"{message}; {self._names(missing)} revealed none"
        if len(lost) == 1:  # others' secrets were found from the same holders' shares
            return (
                f"{message}; it has dealt wrong ones, or too many revealed wrong ones"
            )
        return f"{message}; too many devices revealed wrong ones"

    def _names(self, indices: Collection[int]) -> str:
        members = self._roster.peers.members
        names = [repr(members[index].name) for index in sorted(indices)]
        if len(names) > _MOST_NAMED:
            names[_MOST_NAMED:] = [f"{len(names) - _MOST_NAMED} more"]
        return ", ".join(names)
