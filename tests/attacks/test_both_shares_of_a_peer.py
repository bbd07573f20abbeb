"""Attack: obtain both shares of one peer, its self-mask's and its mask key's.

With both secrets of a device the server removes all masks of its upload, and sees it
with nothing but the device's own share of the noise. A device must reveal at most one
of the two shares of each peer, whatever it is asked, also after a restart.
"""

import pytest

from fedbudget.fleet.secure import shamir
from fedbudget.fleet.secure.masks import public_key
from fedbudget.fleet.secure.protocol import commitment_to
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import RevealedShares
from tests.fleet.sums import Hostile

EVERYBODY, WITHOUT_5 = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4]


@pytest.mark.parametrize("restart", [False, True])
def test_a_second_request_gets_the_same_shares(hostile: Hostile, restart: bool) -> None:
    keys, _ = hostile.up_to_uploads()
    signatures = hostile.confirmed(EVERYBODY)
    assert len(signatures) == 6
    order = hostile.reveal("device-0", keys, signatures)
    first = hostile.order("device-0", order)
    assert isinstance(first, RevealedShares)
    if restart:
        hostile.fleet.restart("device-0")
    # The other list is not signed any more, and the same request gets the same bytes.
    other = hostile.order("device-0", hostile.answers(WITHOUT_5))
    assert isinstance(other, Reply) and other.refused
    assert hostile.order("device-0", order) == first
    later = hostile.keys(["device-0"], attempt=2)["device-0"]
    assert isinstance(later, Reply) and later.code == "wrong-round"
    for (_, _), shares in hostile.revealed("device-0").items():
        assert len(shares) == 1
    assert len(hostile.fleet.entries("device-0", "reveal")) == 1


def test_the_attack_works_against_a_device_that_reveals_both(inside: Hostile) -> None:
    """Unguarded, the library reveals what it is asked: both secrets fall."""
    keys, _ = inside.up_to_uploads()
    roster_order = inside.roster(keys)
    devices = inside.fleet.loop.devices
    victim, both = 5, []
    for answered in (EVERYBODY, WITHOUT_5):
        shares = {}
        for name in inside.fleet.names[:5]:
            guard = devices[name]._guard
            joined = guard._ledger.run(inside.run_id)
            run = guard._run(inside.run_id, joined)
            roster = guard._roster(roster_order, run)
            sealed = inside.reveal(name, keys, {}).sealed
            opened = {
                int.from_bytes(sealed[i : i + 4]): sealed[i + 4 : i + 84]
                for i in range(0, len(sealed), 84)
            }
            revealed = run.participant.reveal(roster, answered, opened)
            shares[run.participant.index + 1] = shamir.from_bytes(revealed[victim])
        threshold = inside.peers.neighbourhood.threshold
        points = dict(list(shares.items())[:threshold])
        both.append(shamir.combine(points))
    key = keys["device-5"].key
    assert commitment_to(both[0]) == key.commitment
    assert public_key(shamir.to_bytes(both[1])) == key.mask_key
