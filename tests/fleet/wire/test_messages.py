"""Messages: bytes, refusals, and sizes."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedbudget.errors import MessageError
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.messages import (
    AnswerReader,
    Declaration,
    Message,
    Reply,
    RunOffer,
    run_of,
    theta_from_bytes,
    theta_to_bytes,
)
from fedbudget.fleet.wire.signing import Signer
from tests.fleet.examples import RUN, declaration, notice, offer, order, reply, theta

MESSAGES = [
    declaration(),
    declaration(schema="0f" * 32),
    offer(),
    offer(index=3),
    offer(drift_momentum=0.5),
    offer(noise_decay=0.9),
    order(),
    order(selected=b"\x05"),
    notice(),
    reply(),
    reply(previous=0),
    reply(code="policy", theta=None, reason="tau 900 is above 100"),
    reply(code="accepted", theta=None, round=0),
]


OPTIONAL = {
    *(
        "theta",
        "reason",
        "drift_momentum",
        "noise_decay",
        "index",
        "selected",
        "previous",
    ),
    *("wire", "software", "schema", "ledger"),
}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_a_message_survives_its_bytes(message: Message) -> None:
    assert type(message).from_bytes(message.to_bytes()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_the_bytes_carry_kind_and_version(message: Message) -> None:
    plain = decode(message.to_bytes())
    assert (plain["kind"], plain["v"]) == (message.kind, 1)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_every_key_is_needed_and_no_other_is_accepted(message: Message) -> None:
    plain = decode(message.to_bytes())
    for key in plain:
        if key not in OPTIONAL:
            less = {name: value for name, value in plain.items() if name != key}
            with pytest.raises(MessageError):
                type(message).from_value(less)
    with pytest.raises(MessageError, match="unknown key 'extra'"):
        type(message).from_value(plain | {"extra": 1})
    with pytest.raises(MessageError, match="version 2 is not supported"):
        type(message).from_value(plain | {"v": 2})
    with pytest.raises(MessageError, match="kind"):
        type(message).from_value(plain | {"kind": "other"})


WRONG: list[tuple[str, Any]] = [
    ("run", b"short"),
    ("run", "text"),
    ("device", "a/b"),
    ("device", ""),
    ("device", "x" * 65),
    ("device", "café"),
    ("name", "two\nlines"),
    ("name", "x" * 201),
    ("tau", 0),
    ("tau", True),
    ("tau", 1.0),
    ("rounds", 1 << 62),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("learning_rate", -1.0),
    ("learning_rate", "1"),
    ("learning_rate", 10**400),
    ("sampling", "poisson"),
    ("sampling", "cyclic"),
    ("noise_std", -0.1),
    ("loss", "deep"),
    ("dim", 1 << 40),
    ("precision", "float16"),
    ("noise_decay", 0.0),
    ("noise_decay", -0.5),
    ("noise_decay", 1.0),
    ("noise_decay", 1.5),
    ("noise_decay", math.nan),
    ("noise_decay", True),
    ("noise_decay", 1),
    ("noise_decay", "0.9"),
    ("drift_momentum", -0.1),
    ("drift_momentum", 1.1),
    ("drift_momentum", math.nan),
    ("drift_momentum", True),
    ("drift_momentum", "0.5"),
    ("index", -1),
    ("index", 1 << 25),
]


@pytest.mark.parametrize("name, value", WRONG, ids=range(len(WRONG)))
def test_a_wrong_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(MessageError, match=f"^{name} "):
        RunOffer.from_value(decode(offer().to_bytes()) | {name: value})


@pytest.mark.parametrize("digest", ["", "0f", "0F" * 32, "0g" * 32, b"0f" * 32])
def test_a_digest_has_its_digits(digest: Any) -> None:
    with pytest.raises(MessageError, match="schema must be"):
        declaration(schema=digest)


def test_a_whole_number_passes_for_a_float() -> None:
    plain = decode(offer().to_bytes()) | {"learning_rate": 2}
    assert RunOffer.from_value(plain).learning_rate == 2.0


@pytest.mark.parametrize(
    "changes",
    [{"theta": None}, {"code": "policy"}, {"reason": "why"}],
)
def test_a_reply_does_not_contradict_itself(changes: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="code"):
        reply(**changes)


def test_messages_of_the_first_release_are_read() -> None:
    # Ledgers and checkpoints hold their bytes.
    for message in (declaration(), offer(), order(), reply()):
        plain = decode(message.to_bytes())
        old = {k: v for k, v in plain.items() if k not in OPTIONAL or k == "theta"}
        read = type(message).from_bytes(encode(old))
        assert read.to_bytes() == encode(old)  # nothing is added


@pytest.mark.parametrize(
    "selected, chosen",
    [(None, range(20)), (b"\x05", [0, 2]), (b"\x00\x81", [8, 15])],
)
def test_an_order_selects_by_index(selected: bytes | None, chosen: Any) -> None:
    message = order(selected=selected)
    assert [i for i in range(20) if message.selects(i)] == list(chosen)
    # A device without an index cannot be selected one by one.
    assert message.selects(None) == (selected is None)


def test_run_and_round_are_found_in_messages_of_other_releases() -> None:
    later = {"v": 9, "kind": "order", "new": 1, "run": RUN, "round": 7}
    assert run_of(encode(later), "order") == (RUN, 7)
    assert run_of(offer().to_bytes(), "offer") == (RUN, 0)
    assert run_of(offer().to_bytes(), "order") is None
    for changes in ({"run": b"x"}, {"run": 1}, {"round": -1}, {"round": "1"}):
        assert run_of(encode(later | changes), "order") is None
    for damaged in (b"\xff", encode([RUN]), encode(5), encode({"kind": "order"})):
        assert run_of(damaged, "order") is None


def test_a_refusal_is_one() -> None:
    assert reply(code="cost-budget", theta=None).refused
    assert not reply().refused


@given(st.binary(max_size=300))
def test_any_bytes_are_a_reply_or_an_error(data: bytes) -> None:
    with pytest.raises(MessageError):
        Reply.from_bytes(data)


@given(st.data())
def test_a_changed_byte_never_crashes_a_reader(data: st.DataObject) -> None:
    good = bytearray(offer().to_bytes())
    index = data.draw(st.integers(0, len(good) - 1))
    good[index] = data.draw(st.integers(0, 255))
    try:
        read = RunOffer.from_bytes(bytes(good))
    except MessageError:
        return
    assert read.to_bytes() == bytes(good)


def test_a_round_adds_little_to_the_model() -> None:
    # The target: 10 % of the model and 300 bytes, for a model of 408 bytes.
    model = theta(102, "<f4")
    order_bytes = Signer.generate().sign(order(theta=model, round=1000))
    reply_bytes = reply(theta=model, round=1000, device="education-16").to_bytes()
    assert len(order_bytes) - len(model) < 130
    assert len(reply_bytes) - len(model) < 100


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_model_survives_its_bytes(precision: str) -> None:
    values = np.array([0.0, -1.5, 2.0**100])
    data = theta_to_bytes(values, precision)
    np.testing.assert_array_equal(theta_from_bytes(data, precision, 3), values)


def test_a_model_that_is_not_one_is_refused() -> None:
    with pytest.raises(MessageError, match="16 bytes, not the 24 of 3 parameters"):
        theta_from_bytes(bytes(16), "float64", 3)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(MessageError, match="not finite"):
            theta_from_bytes(np.array([0.0, bad]).tobytes(), "float64", 2)
    with pytest.raises(MessageError, match="does not fit float32"):
        theta_to_bytes(np.array([1e300]), "float32")


def test_numbers_are_little_endian() -> None:
    assert theta_to_bytes(np.array([1.0]), "float32") == b"\x00\x00\x80?"


def test_encoding_is_stable() -> None:
    # Stored answers and signatures depend on these bytes: only VERSION may change them.
    encoded = "a5617601"  # a map of 5: v = 1; then keys by length, then by letter
    encoded += "6372756e50000102030405060708090a0b0c0d0e0f"  # run
    encoded += "646b696e64656f72646572"  # kind = order
    encoded += "65726f756e6401"  # round = 1
    encoded += "6574686574614400000000"  # theta
    assert order(theta=bytes(4)).to_bytes().hex() == encoded
    assert encode(decode(bytes.fromhex(encoded))).hex() == encoded


@pytest.mark.parametrize(
    "name, value",
    [
        ("epsilon", 1e308),
        ("delta", 0.999999999999),
        ("cost", 1e300),
        ("communication_price", 1e300),
        ("computation_price", 1.1e12),
        ("least_noise_multiplier", 1e300),
    ],
)
def test_no_declaration_holds_a_number_that_no_owner_means(
    name: str, value: float
) -> None:
    plain = decode(declaration().to_bytes())
    with pytest.raises(MessageError, match=f"{name} must be at least .* and at most"):
        Declaration.from_value(plain | {name: value})


@given(
    round=st.integers(1, 1 << 30),
    previous=st.one_of(st.none(), st.integers(0, 1 << 30)),
    device=st.sampled_from(["a", "oven", "device-000001", "x" * 30]),
    model=st.binary(min_size=4, max_size=600),
    change=st.one_of(st.none(), st.tuples(st.integers(0, 700), st.integers(1, 255))),
)
def test_fast_reader_of_answers_agrees_with_the_strict_one(
    round: int,
    previous: int | None,
    device: str,
    model: bytes,
    change: tuple[int, int] | None,
) -> None:
    run = bytes(range(16))
    reader = AnswerReader(run, round, len(model))
    for last in (previous, round - 1, None):
        answer = Reply(
            device=device,
            run=run,
            round=round,
            code="answered",
            theta=model,
            previous=last,
        )
        data = bytearray(answer.to_bytes())
        if change is not None:
            data[change[0] % len(data)] ^= change[1]
        read = reader.read(device, bytes(data))
        if read is not None:
            assert read == Reply.from_bytes(bytes(data))
        elif change is None:
            assert last not in (None, round - 1)


def test_fast_reader_leaves_everything_else_alone() -> None:
    run = bytes(16)
    reader = AnswerReader(run, 3, 8)
    usual = Reply(device="a", run=run, round=3, code="answered", theta=bytes(8))
    assert reader.read("a", usual.to_bytes()) == usual
    others = [
        replace(usual, device="b"),
        replace(usual, run=bytes([1] * 16)),
        replace(usual, round=2),
        replace(usual, theta=bytes(12)),
        replace(usual, theta=None, code="policy", reason="no"),
    ]
    for other in others:
        assert reader.read("a", other.to_bytes()) is None
    assert reader.read("a", usual.to_bytes() + b"x") is None
    assert reader.read("a", b"") is None
