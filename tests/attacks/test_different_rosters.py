"""Attack: give devices different rosters, or different lists of peers.

A device would add masks with keys that the server made up, or leave some out. Masks are
derived from the digest of the roster, so that those of different rosters do not cancel;
and a device takes one list of peers per run and one roster per attempt.
"""

from dataclasses import replace

import numpy as np

from fedbudget.fleet.secure import unmasking
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


def test_masks_of_different_rosters_do_not_cancel() -> None:
    """One device has another roster: the sum of all is noise.

    The rosters differ in a commitment, which no mask is made of: only the digest does.
    """
    current = SecureRound(4)
    inputs = np.zeros((4, 50), dtype=np.int64)
    announced = current.announce(range(4))
    key = announced[3].key._replace(commitment=bytes(32))
    changed = {**announced, 3: replace(announced[3], key=key)}
    rosters = [current.roster(announced), current.roster(changed)]
    uploads = current.upload(rosters[0], inputs, [0, 1])
    uploads |= current.upload(rosters[1], inputs, [2])
    uploads |= current.upload(rosters[0], inputs, [3])
    everybody = [0, 1, 2, 3]
    shares = current.reveal(rosters[0], announced, everybody, everybody)
    total = unmasking.unmask(rosters[0], uploads, shares, ring_bits=32)
    assert not (total == 0).any()
    right = current.upload(rosters[0], inputs, everybody)
    assert not unmasking.unmask(rosters[0], right, shares, ring_bits=32).any()
