"""Attack: list a device as dropped out although its upload arrived, or arrives late.

The others then reveal its mask key, which removes all masks that it shares with them.
Its self-mask remains, and nobody reveals that: the upload stays uniform.
"""

from typing import Any

import numpy as np

from fedbudget.fleet.secure import masks, protocol, shamir
from fedbudget.fleet.wire.secure_messages import RevealedShares, unpack_records
from tests.fleet.sums import Hostile


def test_the_self_mask_of_a_dropped_device_stays_secret(inside: Hostile) -> None:
    names, victim = inside.fleet.names, 5
    keys, uploads = inside.up_to_uploads()
    answered = [0, 1, 2, 3, 4]
    ledger: Any = inside.fleet.loop.devices["device-5"]._guard._ledger
    honest = np.frombuffer(ledger.state(inside.run_id).vector, dtype="<i8")
    signatures = inside.confirmed(answered)
    assert sorted(signatures) == answered  # the victim has no part in it
    shares = {}
    for m, name in enumerate(names[:5]):
        reply = inside.order(name, inside.reveal(name, keys, signatures))
        assert isinstance(reply, RevealedShares)
        shares[m] = unpack_records(reply.shares, 32)
    held = {m + 1: shamir.from_bytes(shares[m][victim]) for m in answered}
    key = keys["device-5"].key
    threshold = inside.peers.neighbourhood.threshold
    secret = shamir.combine(dict(list(held.items())[:threshold]))
    assert masks.public_key(shamir.to_bytes(secret)) == key.mask_key
    assert protocol.commitment_to(secret) != key.commitment
    # Without its pair masks, the upload still has its self-mask in every coordinate.
    order = inside.roster(keys)
    roster = order.read(inside.peers)
    vector = np.frombuffer(uploads["device-5"].vector, dtype="<u4")
    for other in roster.neighbours(victim):
        mask = protocol.pair_mask(roster, victim, other, secret, len(vector), 32)
        vector = vector - mask if victim < other else vector + mask
    assert len(honest) == len(vector)
    assert not (vector == masks.ring(honest, ring_bits=32)).any()
    assert sorted(inside.fleet.entries("device-0", "reveal")[0].body["mask_keys"]) == [
        "device-5"
    ]


def test_a_late_upload_is_no_answer(hostile: Hostile) -> None:
    """After its list is signed, an attempt takes no other list with the late one."""
    names = hostile.fleet.names
    keys = hostile.keys(names)
    roster = hostile.roster(keys)
    for name in names[:5]:
        hostile.order(name, roster)
    assert len(hostile.confirmed([0, 1, 2, 3, 4])) == 5
    hostile.order(names[5], roster)  # late
    assert len(hostile.confirmed([0, 1, 2, 3, 4, 5])) <= 1  # the late one alone
