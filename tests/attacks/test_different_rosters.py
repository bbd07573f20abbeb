"""Attack: give devices different rosters, or different lists of peers.

A device would add masks with keys that the server made up, or leave some out. Masks are
derived from the digest of the roster, so that those of different rosters do not cancel;
and a device takes one list of peers per run and one roster per attempt.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedbudget.fleet.secure import protocol
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import AttemptUpload
from tests.fleet.secure.rounds import SecureRound
from tests.fleet.sums import Hostile


def test_a_second_roster_of_an_attempt_is_refused(hostile: Hostile) -> None:
    names = hostile.fleet.names
    keys = hostile.keys(names)
    some = {name: keys[name] for name in names[:5]}
    first = hostile.order("device-0", hostile.roster(keys))
    assert isinstance(first, AttemptUpload)
    for restart in (False, True):
        if restart:
            hostile.fleet.restart("device-0")
        reply = hostile.order("device-0", hostile.roster(some))
        assert isinstance(reply, Reply) and "another roster" in str(reply.reason)
        assert hostile.order("device-0", hostile.roster(keys)) == first


def test_a_second_list_of_peers_is_refused(hostile: Hostile) -> None:
    for restart in (False, True):
        if restart:
            hostile.fleet.restart("device-0")
        fewer = list(hostile.introductions.values())[:5]
        reply = hostile.order("device-0", hostile.peer_list(fewer))
        assert isinstance(reply, Reply) and "other peers" in str(reply.reason)
        assert hostile.order("device-0", hostile.peer_list()) is None


@pytest.mark.parametrize("other", [None, 2])
def test_pair_masks_of_different_rosters_do_not_cancel(other: int | None) -> None:
    """Without their self-masks, uploads of zeros are sums of pair masks.

    The rosters differ in a commitment, which no mask is made of: only the digest does.
    """
    current = SecureRound(4)
    inputs = np.zeros((4, 50), dtype=np.int64)
    announced = current.announce(range(4))
    key = announced[3].key._replace(commitment=bytes(32))
    changed = {**announced, 3: replace(announced[3], key=key)}
    rosters = [current.roster(announced)] * 4
    if other is not None:
        rosters[other] = current.roster(changed)
    total = np.zeros(50, dtype=np.uint32)
    for m, roster in enumerate(rosters):
        secret = current.secrets[m].self_secret
        own = protocol.self_mask(roster, m, secret, 50, ring_bits=32)
        total += current.upload(roster, inputs, [m])[m] - own
    assert total.any() == (other is not None)
    assert other is None or np.count_nonzero(total) > 45
