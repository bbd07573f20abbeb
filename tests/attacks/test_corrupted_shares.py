"""Attack: corrupted, truncated, oversized and misdirected shares.

A share that its sender did not encrypt for this device and this attempt is left out; a
message that is not what the codec writes is refused. Nothing else is revealed instead,
and the sum is right or is not there.
"""

from dataclasses import replace

import pytest

from fedbudget.errors import MessageError
from fedbudget.fleet.secure.protocol import SEALED_BYTES
from fedbudget.fleet.wire.secure_messages import (
    MOST_PEERS,
    AttemptRoster,
    RevealedShares,
    RevealOrder,
    pack_records,
    unpack_records,
)
from tests.fleet.sums import Hostile

EVERYBODY = [0, 1, 2, 3, 4, 5]


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("change", ["corrupted", "swapped", "zero"])
def test_wrong_shares_are_left_out(hostile: Hostile, change: str) -> None:
    keys, _ = hostile.up_to_uploads()
    signatures = hostile.confirmed(EVERYBODY)
    order = hostile.reveal("device-0", keys, signatures)
    sealed = unpack_records(order.sealed, SEALED_BYTES)
    sealed[2] = {
        "corrupted": flip(sealed[2]),
        "swapped": sealed[3],
        "zero": bytes(SEALED_BYTES),
    }[change]
    reply = hostile.order("device-0", replace(order, sealed=pack_records(sealed)))
    assert isinstance(reply, RevealedShares)
    assert set(unpack_records(reply.shares, 32)) == {1, 3, 4, 5}


def test_shares_for_somebody_else_are_left_out(hostile: Hostile) -> None:
    keys, _ = hostile.up_to_uploads()
    signatures = hostile.confirmed(EVERYBODY)
    order = hostile.reveal("device-0", keys, signatures)
    others = hostile.reveal("device-1", keys, signatures).sealed
    reply = hostile.order("device-0", replace(order, sealed=others))
    assert isinstance(reply, RevealedShares)
    assert unpack_records(reply.shares, 32) == {}


@pytest.mark.parametrize("cut", [1, 3, 83])
def test_truncated_records_are_refused(hostile: Hostile, cut: int) -> None:
    keys, _ = hostile.up_to_uploads()
    signatures = hostile.confirmed(EVERYBODY)
    order = hostile.reveal("device-0", keys, signatures)
    reply = hostile.order("device-0", replace(order, sealed=order.sealed[:-cut]))
    assert not isinstance(reply, RevealedShares)
    assert hostile.fleet.entries("device-0", "reveal") == []


def test_oversized_messages_are_refused_before_they_are_read(hostile: Hostile) -> None:
    where = hostile.where(1, 1)
    with pytest.raises(MessageError, match="bytes"):
        AttemptRoster(**where, keys=bytes(132 * (MOST_PEERS + 1)), others=b"")
    with pytest.raises(MessageError, match="bytes"):
        AttemptRoster(**where, keys=bytes(132), others=bytes(36 * (MOST_PEERS + 1)))
    with pytest.raises(MessageError, match="bytes"):
        RevealOrder(
            **where,
            device="device-0",
            confirmations=b"",
            sealed=bytes(84 * (MOST_PEERS + 1)),
        )


@pytest.mark.parametrize(
    "data", [pack_records({1: b"ab"}) * 2, pack_records({2: b"ab"}) + b"\0\0\0\1ab"]
)
def test_records_are_sorted_and_unique(data: bytes) -> None:
    with pytest.raises(MessageError, match="twice, or unsorted"):
        unpack_records(data, 2)


@pytest.mark.parametrize("liar", ["device-0", "device-3"])
def test_the_sum_is_right_although_one_device_reveals_wrong_shares(
    hostile: Hostile, liar: str
) -> None:
    fleet = hostile.fleet

    def changed(name: str, kind: str, payload: bytes) -> bool:
        if (name, kind) == (liar, "revealed-shares"):
            plain = hostile.reply_keys.open(name, payload)
            message = RevealedShares.from_bytes(plain)
            shares = dict.fromkeys(unpack_records(message.shares, 32), bytes(32))
            hostile.lie(name, replace(message, shares=pack_records(shares)))
            return False
        return True

    fleet.loop.from_device = changed
    run = fleet.train()
    assert [r.answered for r in run.rounds] == [6, 6]
