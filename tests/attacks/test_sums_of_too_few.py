"""Attack: have a sum of fewer answers unmasked than the noise was counted for.

The sum of one answer is the upload itself. A device signs no list of fewer than t
answers, uploads to no roster of fewer, and accepts no list of peers of fewer.
"""

from pathlib import Path

import numpy as np
import pytest

from fedbudget.fleet.wire.messages import Reply
from tests.fleet.sums import Hostile, SumFleet


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


def test_fewer_colluders_than_the_owner_wants_to_survive_are_refused(
    inside: Hostile,
) -> None:
    """Also in a run that was joined before the owner asked for more."""
    path = inside.fleet.paths["device-0"]
    path.write_text(path.read_text().replace("colluders = 0", "colluders = 1"))
    inside.fleet.restart("device-0")
    other = Hostile(inside.fleet, run=bytes(16))
    assert sorted(other.introductions) == list(inside.fleet.names[1:])
    for reply in (other.sent[0], inside.order("device-0", inside.attempt())):
        assert isinstance(reply, Reply) and reply.code == "policy"
        assert "colluders 0 is below the 1" in str(reply.reason)
    assert inside.fleet.entries("device-0", "charge") == []


def test_noise_of_colluders_is_not_counted(tmp_path: Path, sum_certs: Path) -> None:
    (tmp_path / "certs").symlink_to(sum_certs)
    fleet = SumFleet(tmp_path, 6, 5, colluders=2)
    try:
        hostile = Hostile(fleet)
        hostile.meet()
        hostile.up_to_uploads()
        uploads, (charge,) = fleet.plan().uploads, fleet.entries("device-0", "charge")
        honest = np.sqrt(3) * uploads.noise_std  # of 5 answers, 2 know their own noise
        moved = uploads.steps.sensitivity[0] * fleet.plan().weights[0]
        assert charge.body["noise_multiplier"] == pytest.approx(2 * honest / moved)
    finally:
        fleet.close()
