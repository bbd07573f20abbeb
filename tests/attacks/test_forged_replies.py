"""A broker that is broken into invents or changes replies of devices.

The broker checks certificates, so nobody else could tell a forged reply from a true
one. Devices sign their replies; the coordinator knows their certificates' authority.
"""

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from fedbudget.errors import InfeasibleBudgetError, MessageError
from fedbudget.fleet.coordinator.roster import plan_fleet
from fedbudget.fleet.transport.authority import revoke
from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.transport.reply_signatures import ReplyKeys, ReplySigner
from fedbudget.fleet.wire.codec import decode, encode
from fedbudget.fleet.wire.messages import Declaration, Reply, RoundOrder
from tests.fleet.examples import declaration
from tests.fleet.scripted import (
    NAMES,
    Script,
    Site,
    mean_of,
    moved,
    ordered,
    reply_to,
)

RUN = bytes(16)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder / "ours", NAMES)
    make_certificates(folder / "others", NAMES)
    return folder


def signer(certs: Path, name: str) -> ReplySigner:
    return ReplySigner(identity_of(certs, name))


def declared(certs: Path, name: str) -> Declaration:
    certificate = signer(certs, name).certificate
    return declaration(device=name, certificate=certificate)


def keys_of(certs: Path, *declarations: Declaration) -> ReplyKeys:
    return ReplyKeys(declarations, certs / "ca.pem")


def reply(name: str) -> bytes:
    values = {"device": name, "run": RUN, "round": 1, "code": "answered"}
    return Reply(theta=bytes(8), **values).to_bytes()  # type: ignore[arg-type]


def test_what_a_device_has_signed_is_taken_unchanged(certs: Path) -> None:
    keys = keys_of(certs / "ours", declared(certs / "ours", "a"))
    signed = signer(certs / "ours", "a").sign(reply("a"))
    assert keys.open("a", signed) == reply("a")
    assert keys.problems == {}


def test_without_an_authority_signatures_are_removed_only() -> None:
    keys = ReplyKeys([], None)
    assert keys.open("a", encode([b"reply", b"signature"])) == b"reply"
    assert keys.open("a", b"reply") == b"reply"


def test_a_reply_that_nobody_or_somebody_else_signed_is_dropped(certs: Path) -> None:
    ours = certs / "ours"
    keys = keys_of(ours, declared(ours, "a"), declared(ours, "b"))
    body, signature = decode(signer(ours, "a").sign(reply("a")))
    forged = {
        "not signed": reply("a"),
        "somebody else": signer(ours, "b").sign(reply("a")),
        "or changed": encode([body.replace(b"answered", b"accepted"), signature]),
        "sent": encode([body, signature[:-1] + bytes([signature[-1] ^ 1])]),
        "not a signed reply": encode([body, 1]),
    }
    for words, payload in forged.items():
        with pytest.raises(MessageError, match=words):
            keys.open("a", payload)
    with pytest.raises(MessageError, match="no certificate"):
        keys.open("c", encode([body, signature]))
    with pytest.raises(MessageError, match="somebody else"):
        keys.open("a", signer(certs / "others", "a").sign(reply("a")))


def test_only_certificates_of_the_authority_are_planned_for(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = certs / "ours"
    good = declared(ours, "a")
    bad = {
        "no certificate": declaration(device="b"),
        "not of the authority": declared(certs / "others", "c"),
        "another name": replace(declared(ours, "b"), device="d"),
    }
    keys = keys_of(ours, good, *bad.values())
    for words, entry in bad.items():
        assert words in keys.problems[entry.device]
    _, selected = plan_fleet([good, *bad.values()], authority=ours / "ca.pem")
    assert [d.device for d in selected] == ["a"]
    with pytest.raises(InfeasibleBudgetError):
        plan_fleet(list(bad.values()), authority=ours / "ca.pem")
    garbage = replace(good, certificate=b"garbage")
    assert "not of the authority" in keys_of(ours, garbage).problems["a"]

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Later":
            return cls(2999, 1, 1, tzinfo=tz)

    monkeypatch.setattr("datetime.datetime", Later)
    assert "has expired" in keys_of(ours, good).problems["a"]


def test_a_revoked_certificate_signs_nothing_any_more(tmp_path: Path) -> None:
    make_certificates(tmp_path / "keys", ["a"])
    good = declared(tmp_path / "keys", "a")
    assert keys_of(tmp_path / "keys", good).problems == {}
    revoke(tmp_path / "keys", "a")
    assert "revoked" in keys_of(tmp_path / "keys", good).problems["a"]


def test_a_forged_answer_does_not_change_the_model(certs: Path, tmp_path: Path) -> None:
    ours = certs / "ours"
    signers = {name: signer(ours, name) for name in NAMES}

    def honest(name: str) -> Script:
        return lambda order: [signers[name].sign(reply_to(order, name).to_bytes())]

    def forged(order: RoundOrder) -> list[bytes]:
        answer = reply_to(order, "b", theta=moved(order, 0.3)).to_bytes()
        return [answer, signers["a"].sign(answer), *honest("b")(order)]

    site = Site(tmp_path)
    devices, _ = site.start(
        {name: honest(name) for name in NAMES} | {"b": forged},
        declarations=[declared(ours, name) for name in NAMES],
        authority=ours / "ca.pem",
    )
    mean_of(devices.run_round(ordered(1)), *NAMES)
    assert devices.tally is not None and devices.tally.dropped == {"b": 2}
    site.stop()
