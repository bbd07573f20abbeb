"""Large messages in chunks, parcels, and topics."""

import random

import pytest

from fedbudget.errors import MessageError
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.framing import Chunk, Joiner, split
from tests.fleet.examples import RUN, reply

LARGE = reply(theta=random.Random(1).randbytes(1 << 20)).to_bytes()
OTHER = reply(theta=random.Random(2).randbytes(1 << 20)).to_bytes()


def test_a_small_message_is_sent_as_it_is() -> None:
    small = reply().to_bytes()
    assert split("t", small) == [("t", small)]
    assert Joiner(max_bytes=1000).add("t", small) == small


def test_chunks_come_together_in_any_order_and_twice() -> None:
    pieces = split("t", LARGE, limit=10_000)
    assert [topic for topic, _ in pieces] == [f"t/{i}" for i in range(len(pieces))]
    assert max(len(piece) for _, piece in pieces) <= 10_000
    random.Random(0).shuffle(pieces)
    joiner = Joiner(max_bytes=2 << 20)
    got = [joiner.add("t", piece) for _, piece in [*pieces[:5], *pieces]]
    assert got[:-1] == [None] * (len(pieces) + 4)
    assert got[-1] == LARGE


def test_chunks_of_two_messages_do_not_mix() -> None:
    joiner = Joiner(max_bytes=2 << 20)
    one, other = split("t", LARGE), split("t", OTHER)
    for (_, a), (_, b) in zip(one[:-1], other[:-1], strict=True):
        assert joiner.add("t", a) is None
        assert joiner.add("t", b) is None
    assert joiner.add("t", one[-1][1]) == LARGE
    assert joiner.add("t", other[-1][1]) == OTHER


def test_memory_is_bounded() -> None:
    joiner = Joiner(max_bytes=1 << 20)
    with pytest.raises(MessageError, match="above the limit"):
        joiner.add("t", split("t", LARGE)[0][1])
    messages = [encode(random.Random(n).randbytes(200_000)) for n in range(50)]
    for message in messages:
        joiner.add("t", split("t", message)[0][1])
    # The first chunks of the two newest messages are still stored.
    newest = [ends(joiner, "t", message) for message in messages[:-3:-1]]
    assert newest == messages[:-3:-1]
    assert ends(joiner, "t", messages[-3]) is None


def ends(joiner: Joiner, sender: str, message: bytes) -> bytes | None:
    """Send all chunks but the first, and return the result of the last."""
    return [joiner.add(sender, piece) for _, piece in split("t", message)[1:]][-1]


def test_senders_are_bounded() -> None:
    joiner = Joiner(max_bytes=2 << 20, max_senders=3)
    pieces = split("t", LARGE)
    for sender in range(100):
        joiner.add(f"order/{sender}", pieces[0][1])
    joined = [ends(joiner, f"order/{sender}", LARGE) for sender in (97, 98, 99)]
    assert joined == [LARGE] * 3
    assert ends(joiner, "order/96", LARGE) is None


def test_chunks_that_lie_are_refused() -> None:
    pieces = [decode(piece) for _, piece in split("t", LARGE)]

    def joined(values: list[dict[str, object]]) -> None:
        joiner = Joiner(max_bytes=4 << 20)
        for value in values:
            joiner.add("t", encode(value))

    with pytest.raises(MessageError, match="do not match their size or digest"):
        joined([*pieces[:-1], pieces[-1] | {"data": b"short"}])
    with pytest.raises(MessageError, match="do not match their size or digest"):
        joined([pieces[0], pieces[1] | {"total": 3}])
    with pytest.raises(MessageError, match="do not match their size or digest"):
        joined([piece | {"size": len(LARGE) - 1} for piece in pieces])
    with pytest.raises(MessageError, match="must be below total"):
        joined([pieces[0] | {"index": pieces[0]["total"]}])


def test_a_chunk_is_a_message_like_others() -> None:
    chunk = Chunk(digest=bytes(16), size=9, total=2, index=1, data=b"x")
    assert Chunk.from_bytes(chunk.to_bytes()) == chunk


@pytest.mark.parametrize(
    "topic, kind, owner",
    [
        (topics.declare("a"), "declare", "a"),
        (topics.status("a"), "status", "a"),
        (topics.offer("a") + "/7", "offer", "a"),
        (topics.order(RUN), "order", RUN.hex()),
        (topics.reply("a.b") + "/0", "reply", "a.b"),
    ],
)
def test_topics_are_read_again(topic: str, kind: str, owner: str) -> None:
    assert topics.parse(topic) == (kind, owner)


@pytest.mark.parametrize(
    "topic",
    ["", "x", "fedbudget/2/reply/a", "fedbudget/1/reply", topics.reply("a/1/2")],
)
def test_foreign_topics_are_refused(topic: str) -> None:
    with pytest.raises(MessageError, match="is not a topic"):
        topics.parse(topic)
