"""Attack: replay messages of other rounds, attempts and runs.

Keys, signatures and encrypted shares are bound to run, round and attempt: what was sent
in one of them is worth nothing in another. A round that is over is not begun again.
"""

from dataclasses import replace

from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.secure_messages import (
    AttemptUpload,
    RevealedShares,
    unpack_records,
)
from tests.fleet.sums import Hostile

EVERYBODY = [0, 1, 2, 3, 4, 5]


def finish(hostile: Hostile, round: int) -> tuple[dict[str, object], dict[int, bytes]]:
    keys, _ = hostile.up_to_uploads(round)
    signatures = hostile.confirmed(EVERYBODY, round)
    for name in hostile.fleet.names:
        order = hostile.reveal(name, keys, signatures, round)
        assert isinstance(hostile.order(name, order), RevealedShares)
    return keys, signatures


def test_rounds_that_are_over_are_not_begun_again(hostile: Hostile) -> None:
    finish(hostile, 1)
    finish(hostile, 2)
    for round, attempt in ((1, 1), (1, 2), (2, 2), (3, 1)):
        reply = hostile.order("device-0", hostile.attempt(round, attempt))
        assert isinstance(reply, Reply) and reply.code == "wrong-round"
    assert len(hostile.fleet.entries("device-0", "charge")) == 2


def test_keys_of_another_round_are_refused(hostile: Hostile) -> None:
    old, _ = finish(hostile, 1)
    hostile.keys(hostile.fleet.names, 2)
    reply = hostile.order("device-0", hostile.roster(old, 2))
    assert isinstance(reply, Reply) and reply.refused
    new = hostile.keys(hostile.fleet.names, 2)
    mixed = new | {"device-3": old["device-3"]}
    reply = hostile.order("device-0", hostile.roster(mixed, 2))
    assert isinstance(reply, Reply) and "not signed by it" in str(reply.reason)
    assert len(hostile.fleet.entries("device-0", "charge")) == 1


def test_signatures_of_another_round_are_no_quorum(hostile: Hostile) -> None:
    _, old = finish(hostile, 1)
    keys, _ = hostile.up_to_uploads(2)
    assert len(hostile.confirmed(EVERYBODY, 2)) == 6
    reply = hostile.order("device-0", hostile.reveal("device-0", keys, old, 2))
    assert isinstance(reply, Reply) and "have signed this list" in str(reply.reason)


def test_shares_of_another_round_are_not_opened(hostile: Hostile) -> None:
    old, _ = finish(hostile, 1)
    keys, _ = hostile.up_to_uploads(2)
    signatures = hostile.confirmed(EVERYBODY, 2)
    replayed = hostile.reveal("device-0", keys, signatures, 2)
    replayed = replace(replayed, sealed=hostile.reveal("device-0", old, {}).sealed)
    reply = hostile.order("device-0", replayed)
    assert isinstance(reply, RevealedShares)
    assert unpack_records(reply.shares, 32) == {}


def test_orders_of_another_run_are_ignored(hostile: Hostile) -> None:
    other = Hostile(hostile.fleet, run=bytes(16))  # joined, without peers yet
    assert other.order("device-0", other.attempt()) is None
    stranger = replace(hostile.attempt(), run=b"\x07" * 16)
    assert hostile.order("device-0", stranger) is None


def test_an_upload_is_repeated_without_a_charge(hostile: Hostile) -> None:
    names = hostile.fleet.names
    keys = hostile.keys(names)
    roster = hostile.roster(keys)
    first = hostile.order("device-0", roster)
    assert isinstance(first, AttemptUpload)
    assert all(hostile.order("device-0", roster) == first for _ in range(3))
    assert len(hostile.fleet.entries("device-0", "charge")) == 1
