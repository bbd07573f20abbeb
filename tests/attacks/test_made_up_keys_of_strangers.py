"""Attack: make up the key of a device, and tell only those who do not check it.

Above 100 devices, each has the keys of its neighbours, and of the others digests of
keys, whose signatures it cannot check. The server makes up a key of a device that sent
none, says that it has answered, and hopes for a sum in which its noise is missing. Its
neighbours refuse, and masks that they share with others stay in the sum.
"""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device import sum_guard
from fedbudget.fleet.device.exact_uploads import exact_upload
from fedbudget.fleet.secure import masks, protocol, shamir, unmasking
from fedbudget.fleet.secure.peers import AnnouncedKey, Roster
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import (
    AttemptRoster,
    AttemptUpload,
    RevealedShares,
    unpack_records,
)
from tests.attacks.conftest import NUM_DEVICES
from tests.fleet.sums import DIM, Hostile

VICTIM = 5
MADE_UP = AnnouncedKey(masks.public_key(os.urandom(32)), bytes(32), bytes(64))


def parts(hostile: Hostile, roster: Roster) -> dict[str, Any]:
    """Return the orders to all devices: each has the keys of its neighbours."""
    return {
        name: AttemptRoster.of_roster(roster.for_device(m))
        for m, name in enumerate(hostile.fleet.names)
    }


def whole_roster(hostile: Hostile) -> tuple[Roster, Any]:
    keys = hostile.keys(hostile.fleet.names)
    return hostile.roster(keys).read(hostile.peers), keys


def test_parts_of_one_roster_have_one_digest(circle: Hostile) -> None:
    roster, _ = whole_roster(circle)
    for m, (name, order) in enumerate(parts(circle, roster).items()):
        part = order.read(circle.peers)
        assert len(part.keys) == 7 and part.digest == roster.digest
        assert part.neighbours(m) == roster.neighbours(m)
        assert isinstance(circle.order(name, order), AttemptUpload)


def test_a_neighbour_without_its_key_is_refused_before_a_charge(
    circle: Hostile,
) -> None:
    roster, _ = whole_roster(circle)
    part = roster.for_device(0)
    around = roster.neighbours(0)
    hidden = replace(
        part,
        keys={m: key for m, key in part.keys.items() if m != around[0]},
        others={**part.others, around[0]: roster.keys[around[0]].digest},
    )
    twice = replace(part, others={**part.others, around[0]: bytes(32)})
    stranger = replace(part, others={**part.others, NUM_DEVICES: bytes(32)})
    for changed in (hidden, twice, stranger):
        name = circle.fleet.names[0]
        reply = circle.order(name, AttemptRoster.of_roster(changed))
        assert isinstance(reply, Reply) and "the roster has" in str(reply.reason)
        assert circle.fleet.entries(name, "charge") == []


def test_with_a_made_up_key_nothing_can_be_unmasked(circle: Hostile) -> None:
    roster, keys = whole_roster(circle)
    forged = replace(roster, keys={**roster.keys, VICTIM: MADE_UP})
    around = {VICTIM, *circle.peers.neighbours[VICTIM]}
    uploads, everybody = {}, list(range(NUM_DEVICES))
    for m, (name, order) in enumerate(parts(circle, forged).items()):
        reply = circle.order(name, order)
        if m in around:
            assert isinstance(reply, Reply) and reply.code == "policy"
            assert circle.fleet.entries(name, "charge") == []
        else:
            uploads[m] = np.frombuffer(reply.vector, dtype="<u4")
    signatures = circle.confirmed(everybody)
    assert set(signatures) == set(uploads) and len(signatures) >= circle.peers.quorum
    shares = {}
    for m in uploads:
        name = circle.fleet.names[m]
        reply = circle.order(name, circle.reveal(name, keys, signatures))
        assert isinstance(reply, RevealedShares)
        shares[m] = unpack_records(reply.shares, 32)
    # Of those who refused, no share of a mask key was revealed; and the next devices on
    # the circle have too few neighbours left for their self-masks. The order of the
    # circle is random, and with it which of the two comes first.
    with pytest.raises(InvalidInputError, match=r"shares of the (mask key|self-mask)"):
        unmasking.unmask(forged, uploads, shares, ring_bits=32)


@pytest.mark.parametrize("is_forged", [False, True])
def test_pair_masks_hide_the_partial_sum_from_who_knows_all_self_masks(
    circle: Hostile, monkeypatch: pytest.MonkeyPatch, is_forged: bool
) -> None:
    """What remains is the sum of the vectors under one roster, and not under the other.

    The self-masks are taken from the devices' ledgers, more than any server has.
    """
    computed: list[Any] = []

    def noted(*arguments: Any, **settings: Any) -> Any:
        computed.append(exact_upload(*arguments, **settings))
        return computed[-1]

    monkeypatch.setattr(sum_guard, "exact_upload", noted)
    roster, _ = whole_roster(circle)
    if is_forged:
        roster = replace(roster, keys={**roster.keys, VICTIM: MADE_UP})
    remainder = np.zeros(DIM, dtype=np.uint32)
    for m, (name, order) in enumerate(parts(circle, roster).items()):
        reply = circle.order(name, order)
        if isinstance(reply, AttemptUpload):
            secret = self_secret(circle, name)
            own = protocol.self_mask(roster, m, secret, DIM, ring_bits=32)
            remainder += np.frombuffer(reply.vector, dtype="<u4") - own
    assert len(computed) == (NUM_DEVICES - 7 if is_forged else NUM_DEVICES)
    partial = masks.ring(np.sum(computed, axis=0), ring_bits=32)
    assert (remainder == partial).all() == (not is_forged)
    assert not is_forged or (remainder != partial).all()


def self_secret(hostile: Hostile, name: str) -> int:
    guard: Any = hostile.fleet.loop.devices[name]._guard
    state = guard._ledger.state(hostile.run_id)
    return shamir.from_bytes(state.self_secret)
