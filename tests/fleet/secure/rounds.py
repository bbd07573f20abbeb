"""Secure sums in this process: devices, keys and messages without a network."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbudget.fleet.secure import protocol, unmasking
from fedbudget.fleet.secure.peers import Attempt, Peers, Roster, RunKeys
from fedbudget.fleet.secure.protocol import (
    Announcement,
    AttemptSecrets,
    Participant,
)

RUN = bytes(range(16))


def stream(label: str) -> Callable[[int], bytes]:
    """Return a source of bytes that is the same in every run of a test."""
    count = 0

    def read(size: int) -> bytes:
        nonlocal count
        data = b""
        while len(data) < size:
            data += hashlib.sha256(f"{label}/{count}".encode()).digest()
            count += 1
        return data[:size]

    return read


@dataclass
class SecureRound:
    """All devices of one attempt; each step is one method."""

    num_devices: int
    colluders: int = 0
    dropouts: int = 0
    ring_bits: int = 32
    attempt: Attempt = field(default_factory=lambda: Attempt(RUN, 1, 1))
    label: str = "round"

    def __post_init__(self) -> None:
        keys = [
            RunKeys(stream(f"{self.label}/run keys {m}")(64))
            for m in range(self.num_devices)
        ]
        self.peers = Peers(
            run=self.attempt.run,
            members=tuple(key.member(f"device-{m}") for m, key in enumerate(keys)),
            colluders=self.colluders,
            dropouts=self.dropouts,
        )
        self.devices = [
            Participant(keys=key, peers=self.peers, index=m)
            for m, key in enumerate(keys)
        ]
        self.secrets = [
            AttemptSecrets.generate(stream(f"{self.label}/secrets {m}"))
            for m in range(self.num_devices)
        ]

    def announce(self, indices: Iterable[int]) -> dict[int, Announcement]:
        return {
            m: self.devices[m].announce(
                self.attempt,
                self.secrets[m],
                random=stream(f"{self.label}/shares {m}"),
            )
            for m in indices
        }

    def roster(self, announced: dict[int, Announcement]) -> Roster:
        return Roster(
            peers=self.peers,
            attempt=self.attempt,
            keys={m: announcement.key for m, announcement in announced.items()},
        )

    def upload(self, roster: Roster, vectors: Any, indices: Iterable[int]) -> Any:
        return {
            m: self.devices[m].masked(
                vectors[m],
                roster.for_device(m),
                self.secrets[m],
                ring_bits=self.ring_bits,
            )
            for m in indices
        }

    def reveal(
        self,
        roster: Roster,
        announced: dict[int, Announcement],
        answered: list[int],
        indices: Iterable[int],
    ) -> dict[int, dict[int, bytes]]:
        return {
            m: self.devices[m].reveal(
                roster.for_device(m), answered, sealed_for(m, announced)
            )
            for m in indices
        }

    def run(
        self, vectors: Any, *, announced: list[int], answered: list[int], revealed: Any
    ) -> Any:
        """Return the unmasked sum, with dropouts in every step."""
        announcements = self.announce(announced)
        roster = self.roster(announcements)
        for m in announced:
            roster.for_device(m).check(m)
        uploads = self.upload(roster, vectors, answered)
        signatures = {m: self.devices[m].confirm(roster, answered) for m in answered}
        protocol.check_confirmations(roster, answered, signatures)
        shares = self.reveal(roster, announcements, answered, revealed)
        return unmasking.unmask(roster, uploads, shares, ring_bits=self.ring_bits)


def sealed_for(receiver: int, announced: dict[int, Announcement]) -> dict[int, bytes]:
    return {
        m: announcement.sealed[receiver]
        for m, announcement in announced.items()
        if receiver in announcement.sealed
    }


def vectors(num_devices: int, count: int, *, bits: int = 31, seed: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    limit = 1 << (bits - 1)
    return rng.integers(-limit, limit, size=(num_devices, count), dtype=np.int64)
