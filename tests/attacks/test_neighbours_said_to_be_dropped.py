"""Attack: say that all neighbours of a device have dropped out, and see its upload.

Above 100 devices each shares masks with k neighbours only. If all of them count as
dropped, their mask keys are reconstructed, and nothing but the self-mask, which is
revealed, covers the upload. With two gaps on the circle the server sees the sum of a
part. Lists and rosters with such gaps are long enough otherwise: devices must refuse.
"""

from pathlib import Path

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import graph, masks, protocol, unmasking
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import AttemptConfirmation, AttemptUpload
from tests.attacks.conftest import FEW, LEAST, NUM_DEVICES
from tests.fleet.secure.rounds import SecureRound, vectors
from tests.fleet.sums import Hostile, SumFleet


def without_neighbours(hostile: Hostile, victim: int) -> list[int]:
    return [m for m in range(NUM_DEVICES) if m not in hostile.peers.neighbours[victim]]


def test_devices_refuse_a_list_without_the_neighbours_of_one(circle: Hostile) -> None:
    circle.up_to_uploads()
    answered = without_neighbours(circle, victim=5)
    assert len(answered) >= LEAST
    for name in circle.fleet.names:
        reply = circle.order(name, circle.answers(answered))
        assert isinstance(reply, Reply) and "a part of the sum" in str(reply.reason)
    everybody = list(range(NUM_DEVICES))
    reply = circle.order(circle.fleet.names[0], circle.answers(everybody))
    assert isinstance(reply, AttemptConfirmation)


def test_devices_refuse_such_a_roster_before_they_are_charged(circle: Hostile) -> None:
    names = circle.fleet.names
    keys = circle.keys(names)
    some = {names[m]: keys[names[m]] for m in without_neighbours(circle, victim=5)}
    for name in some:
        reply = circle.order(name, circle.roster(some))
        assert isinstance(reply, Reply) and "a part of the sum" in str(reply.reason)
        assert circle.fleet.entries(name, "charge") == []
    reply = circle.order(names[0], circle.roster(keys))
    assert isinstance(reply, AttemptUpload)


def test_a_device_that_is_said_to_be_dropped_signs_and_reveals_nothing(
    circle: Hostile,
) -> None:
    """Also without a gap: its shares would help to unmask the others without it."""
    keys, _ = circle.up_to_uploads()
    names, answered = circle.fleet.names, list(range(1, NUM_DEVICES))
    assert circle.order(names[0], circle.answers(answered)) is None
    signatures = circle.confirmed(answered)
    assert sorted(signatures) == answered
    reply = circle.order(names[0], circle.reveal(names[0], keys, signatures))
    assert isinstance(reply, Reply) and "confirmed no list" in str(reply.reason)


def test_the_order_on_the_circle_is_not_the_servers_choice(tmp_path: Path) -> None:
    fleet = SumFleet(tmp_path, 6, 4)
    hostile = Hostile(fleet)
    shuffled = list(hostile.introductions.values())[::-1]
    reply = hostile.order("device-0", hostile.peer_list(shuffled))
    assert isinstance(reply, Reply) and "not sorted" in str(reply.reason)
    fleet.close()


def test_the_attack_works_against_devices_that_do_not_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The victim's vector, to the last bit, from a list of 18 answers of 24."""
    monkeypatch.setattr(graph, "neighbourhood", lambda *_, **__: FEW)
    current = SecureRound(NUM_DEVICES, dropouts=NUM_DEVICES - LEAST)
    inputs, victim = vectors(NUM_DEVICES, 4), 5
    around = current.peers.neighbours[victim]
    everybody = list(range(NUM_DEVICES))
    answered = [m for m in everybody if m not in around]
    announced = current.announce(everybody)
    roster = current.roster(announced)
    with pytest.raises(InvalidInputError, match="a part of the sum"):
        protocol.check_answers_list(roster, answered, least=LEAST)
    seen = current.upload(roster, inputs, everybody)[victim]
    shares = current.reveal(roster, announced, answered, everybody)
    recovery = unmasking.Recovery(roster, shares, answered=frozenset(answered))
    secret = recovery.secret(victim)
    assert secret is not None
    seen = seen - protocol.self_mask(roster, victim, secret, 4, ring_bits=32)
    for other in around:
        secret = recovery.secret(other)
        assert secret is not None
        mask = protocol.pair_mask(roster, other, victim, secret, 4, 32)
        seen = seen - mask if victim < other else seen + mask
    assert seen.tolist() == masks.ring(inputs[victim], ring_bits=32).tolist()
