"""Messages of secure sums: bytes, records and refusals."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedbudget.errors import MessageError
from fedbudget.fleet.secure.peers import AnnouncedKey, Attempt, Peers, Roster, RunKeys
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.messages import Message
from fedbudget.fleet.wire.secure_messages import (
    MOST_PEERS,
    AttemptAnswers,
    AttemptConfirmation,
    AttemptKeys,
    AttemptOrder,
    AttemptRoster,
    AttemptUpload,
    Introduction,
    PeerList,
    RevealedShares,
    RevealOrder,
    SumTerms,
    pack_records,
    unpack_records,
)

RUN = bytes(16)
WHERE: dict[str, Any] = {"run": RUN, "round": 1, "attempt": 2}
FROM = WHERE | {"device": "oven"}
KEY = AnnouncedKey(bytes(32), b"\1" * 32, bytes(64))
PEERS = Peers(
    run=RUN,
    members=tuple(RunKeys.generate().member(f"device-{m}") for m in range(4)),
    colluders=0,
)
ROSTER = Roster(
    peers=PEERS,
    attempt=Attempt(RUN, 1, 2),
    keys={0: KEY, 3: KEY},
    others={1: KEY.digest},
)
HELLO = Introduction(
    run=RUN,
    device="oven",
    verify_key=bytes(32),
    share_key=bytes(32),
    certificate=b"der",
    signature=b"signed",
)
MESSAGES: list[Message] = [
    SumTerms(
        unit="sample",
        least_answers=4,
        colluders=1,
        weight=0.25,
        step=1e-6,
        scale_bits=20,
        ring_bits=32,
        largest_norm=1e3,
    ),
    HELLO,
    PeerList.of(RUN, [HELLO]),
    AttemptOrder(**WHERE, theta=bytes(8)),
    AttemptRoster.of_roster(ROSTER),
    AttemptAnswers(**WHERE, answered=pack_records({0: b"", 3: b""})),
    RevealOrder(
        **FROM,
        confirmations=pack_records({1: bytes(64)}),
        sealed=pack_records({2: bytes(80)}),
    ),
    AttemptKeys(**FROM, **KEY._asdict(), sealed=pack_records({2: bytes(80)})),
    AttemptUpload(**FROM, vector=bytes(16)),
    AttemptConfirmation(**FROM, signature=bytes(64)),
    RevealedShares(**FROM, shares=pack_records({2: bytes(32)})),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_a_message_survives_its_bytes(message: Message) -> None:
    assert type(message).from_bytes(message.to_bytes()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_every_key_is_needed_and_no_other_is_accepted(message: Message) -> None:
    plain = decode(message.to_bytes())
    for key in plain:
        less = {name: value for name, value in plain.items() if name != key}
        with pytest.raises(MessageError):
            type(message).from_value(less)
    with pytest.raises(MessageError, match="unknown key 'extra'"):
        type(message).from_value(plain | {"extra": 1})
    with pytest.raises(MessageError, match="version 2 is not supported"):
        type(message).from_value(plain | {"v": 2})


def test_kinds_are_different() -> None:
    assert len({message.kind for message in MESSAGES}) == len(MESSAGES)


@given(
    records=st.dictionaries(
        st.integers(0, 2**32 - 1), st.binary(min_size=3, max_size=3), max_size=20
    )
)
def test_records_survive_their_bytes(records: dict[int, bytes]) -> None:
    assert unpack_records(pack_records(records), 3) == records


def test_rosters_and_lists_are_read() -> None:
    roster = AttemptRoster.of_roster(ROSTER)
    assert roster.of == Attempt(RUN, 1, 2)
    assert roster.read(PEERS) == ROSTER
    answers = AttemptAnswers(**WHERE, answered=pack_records({7: b"", 2: b""}))
    assert answers.read() == [2, 7]


@pytest.mark.parametrize(
    "introductions",
    [
        encode({}),
        encode([1]),
        encode([b"damaged"]),
        encode([HELLO.to_bytes()] * (MOST_PEERS + 1)),
        encode([Introduction(**(vars(HELLO) | {"run": b"\1" * 16})).to_bytes()]),
    ],
)
def test_bad_lists_of_peers_are_refused(introductions: bytes) -> None:
    with pytest.raises(MessageError):
        PeerList(run=RUN, introductions=introductions).read()
