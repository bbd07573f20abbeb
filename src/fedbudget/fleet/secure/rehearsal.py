"""A round of a secure sum as one device does it, to measure what it costs.

All other devices are played once, by this process; `run` then repeats the part of the
first device: keys and encrypted shares, the signatures of the roster, masks, its
signature of the list of answers, those of the others, and the shares that it reveals.
"""

import os
from functools import cached_property
from typing import Any

import numpy as np

from fedbudget.fleet.secure import protocol
from fedbudget.fleet.secure.peers import Attempt, Peers, Roster, RunKeys
from fedbudget.fleet.secure.protocol import AttemptSecrets, Participant
from fedbudget.fleet.wire.messages import Message
from fedbudget.fleet.wire.secure_messages import (
    AttemptAnswers,
    AttemptConfirmation,
    AttemptKeys,
    AttemptOrder,
    AttemptRoster,
    AttemptUpload,
    RevealedShares,
    RevealOrder,
    pack_records,
)
from fedbudget.fleet.wire.signing import Signer

EXCHANGES = 4  # of a device with the coordinator, in a round
RING_BITS = 32


class SumRound:
    """The first device of a sum, in which all take part and nobody colludes."""

    def __init__(self, num_devices: int, num_params: int) -> None:
        run = os.urandom(16)
        keys = [RunKeys.generate() for _ in range(num_devices)]
        members = tuple(key.member(f"device-{m:04}") for m, key in enumerate(keys))
        self.peers = Peers.for_sums(
            run, members, least_answers=num_devices * 4 // 5, colluders=0, terms=b""
        )
        self._devices = [
            Participant(keys=key, peers=self.peers, index=m)
            for m, key in enumerate(keys)
        ]
        self._attempt = Attempt(run, 1, 1)
        self._secrets = [AttemptSecrets.generate() for _ in keys]
        self._announced = {
            m: device.announce(self._attempt, secrets)
            for m, (device, secrets) in enumerate(
                zip(self._devices, self._secrets, strict=True)
            )
        }
        announced = {m: announcement.key for m, announcement in self._announced.items()}
        roster = Roster(peers=self.peers, attempt=self._attempt, keys=announced)
        self._roster = roster.for_device(0)
        self._answered = list(range(num_devices))
        self._signatures = {
            m: self._devices[m].confirm(roster, self._answered)
            for m in self._answered[: self.peers.quorum]
        }
        self._sealed = {
            m: announcement.sealed[0]
            for m, announcement in self._announced.items()
            if 0 in announcement.sealed
        }
        self._vector = np.arange(num_params, dtype=np.int64)

    def run(self) -> dict[int, bytes]:
        """Take the steps of the first device; return the shares that it reveals."""
        device, secrets = self._devices[0], self._secrets[0]
        device.announce(self._attempt, secrets)
        # Nothing that an earlier run has computed may be left in it.
        roster = AttemptRoster.of_roster(self._roster).read(self.peers)
        roster.check(0)
        device.masked(self._vector, roster, secrets, ring_bits=RING_BITS)
        device.confirm(roster, self._answered)
        protocol.check_answers_list(roster, self._answered, least=self.peers.quorum)
        protocol.check_confirmations(roster, self._answered, self._signatures)
        return device.reveal(roster, self._answered, self._sealed)

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """The bytes of all messages to the device and from it, in a round."""
        attempt: dict[str, Any] = {
            "run": self._attempt.run,
            "round": self._attempt.round,
            "attempt": self._attempt.number,
        }
        own = attempt | {"device": self.peers.members[0].name}
        key, sealed = self._announced[0].key, self._announced[0].sealed
        size = len(self._vector)
        orders: list[Message] = [
            AttemptOrder(**attempt, theta=bytes(4 * size)),
            AttemptRoster.of_roster(self._roster),
            AttemptAnswers(
                **attempt, answered=pack_records(dict.fromkeys(self._answered, b""))
            ),
            RevealOrder(
                **own,
                confirmations=pack_records(self._signatures),
                sealed=pack_records(self._sealed),
            ),
        ]
        replies: list[Message] = [
            AttemptKeys(**own, **key._asdict(), sealed=pack_records(sealed)),
            AttemptUpload(**own, vector=bytes(RING_BITS // 8 * size)),
            AttemptConfirmation(**own, signature=self._signatures[0]),
            RevealedShares(**own, shares=pack_records(self.run())),
        ]
        signer = Signer.generate()
        return (
            sum(len(signer.sign(order)) for order in orders),
            sum(len(reply.to_bytes()) for reply in replies),
        )
