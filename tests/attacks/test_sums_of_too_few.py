"""Attack: have a sum of fewer answers unmasked than the noise was counted for.

The sum of one answer is the upload itself. A device signs no list of fewer than t
answers, uploads to no roster of fewer, and accepts no list of peers of fewer.
"""

import pytest

from fedbudget.fleet.wire.messages import Reply
from tests.fleet.sums import Hostile


@pytest.mark.parametrize("answered", [[0], [0, 1], [0, 1, 2]])
def test_a_short_list_is_not_signed(hostile: Hostile, answered: list[int]) -> None:
    hostile.up_to_uploads()
    reply = hostile.order("device-0", hostile.answers(answered))
    assert isinstance(reply, Reply) and "below the least number 4" in str(reply.reason)
    assert hostile.fleet.entries("device-0", "reveal") == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_short_roster_gets_no_upload_and_no_charge(
    hostile: Hostile, count: int
) -> None:
    names = hostile.fleet.names
    keys = hostile.keys(names)
    few = {name: keys[name] for name in names[:count]}
    reply = hostile.order(names[0], hostile.roster(few))
    assert isinstance(reply, Reply) and "below the 4 that" in str(reply.reason)
    assert hostile.fleet.entries(names[0], "charge") == []


def test_a_short_list_of_peers_is_refused(hostile: Hostile) -> None:
    other = Hostile(hostile.fleet, run=bytes(16))
    some = list(other.introductions.values())[:3]
    reply = other.order("device-0", other.peer_list(some))
    assert isinstance(reply, Reply) and reply.code == "policy"
    assert "below the least number" in str(reply.reason)


def test_devices_that_announced_nothing_do_not_fill_a_list(hostile: Hostile) -> None:
    names = hostile.fleet.names[:4]
    keys = hostile.keys(names)
    for name in names:
        hostile.order(name, hostile.roster(keys))
    reply = hostile.order("device-0", hostile.answers([0, 1, 2, 4, 5]))
    assert isinstance(reply, Reply) and "no mask key" in str(reply.reason)
