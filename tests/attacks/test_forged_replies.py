"""A broker that is broken into invents or changes replies of devices.

The broker checks certificates, so nobody else could tell a forged reply from a true
one. Devices sign their replies; the coordinator knows their certificates' authority.
"""

import datetime
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from fedbudget.errors import InfeasibleBudgetError, InvalidInputError, MessageError
from fedbudget.fleet.coordinator.roster import plan_fleet
from fedbudget.fleet.transport.authority import renew, revoke
from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.reply_signatures import ReplyKeys, ReplySigner
from fedbudget.fleet.wire import topics
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
        "is not signed": encode([body, 1]),
        "shorter form": encode([body, signature]) + b"\0",
    }
    for words, payload in forged.items():
        with pytest.raises(MessageError, match=words):
            keys.open("a", payload)
    with pytest.raises(MessageError, match="no certificate"):
        keys.open("c", encode([body, signature]))
    with pytest.raises(MessageError, match="somebody else"):
        keys.open("a", signer(certs / "others", "a").sign(reply("a")))


def test_a_revoked_key_signs_nothing_once_the_device_has_a_new_one(
    tmp_path: Path,
) -> None:
    make_certificates(tmp_path, ["a"])
    stolen = signer(tmp_path, "a")
    keys = keys_of(tmp_path, declared(tmp_path, "a"))
    revoke(tmp_path, "a")
    make_certificates(tmp_path, ["a"])
    keys.learn(declared(tmp_path, "a"))
    assert keys.open("a", signer(tmp_path, "a").sign(reply("a"))) == reply("a")
    with pytest.raises(MessageError, match="somebody else"):
        keys.open("a", stolen.sign(reply("a")))


def test_replies_that_are_checked_together_are_checked_each(certs: Path) -> None:
    ours = certs / "ours"
    keys = keys_of(ours, declared(ours, "a"), declared(ours, "b"))
    names = ["a", "b"] * 20
    valid = [(name, signer(ours, name).sign(reply(name))) for name in names]
    others = certs / "others"
    forged = [
        *((name, reply(name)) for name in names),
        *((name, signer(others, name).sign(reply(name))) for name in names),
        ("b", valid[0][1]),  # another device's valid reply
        ("c", valid[0][1]),
        ("a", valid[0][1] + b"\0"),
        ("a/0", valid[0][1]),  # the topic of a chunk
    ]
    keys.check_ahead([*forged, *valid, *forged])
    for name, payload in valid:
        assert keys.open(name, payload) == reply(name)
    for name, payload in forged:
        with pytest.raises(MessageError):
            keys.open(name, payload)


def test_a_reply_that_was_checked_ahead_is_not_checked_again(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = certs / "ours"
    keys = keys_of(ours, declared(ours, "a"))
    replies = [("a", signer(ours, "a").sign(reply("a"))) for _ in range(20)]
    keys.check_ahead(replies)
    monkeypatch.setattr(keys, "_keys", {})
    assert [keys.open(*entry) for entry in replies] == [reply("a")] * 20
    keys.check_ahead([])  # what was checked counts for one batch
    with pytest.raises(MessageError, match="no certificate"):
        keys.open(*replies[0])


def self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1)
    )
    return builder.sign(key, SHA256())


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1()])
@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
def test_keys_of_every_usual_format_sign(
    certs: Path, tmp_path: Path, curve: ec.EllipticCurve, form: str
) -> None:
    key, kind = ec.generate_private_key(curve), getattr(PrivateFormat, form)
    path, certificate = tmp_path / "own.key", tmp_path / "own.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, kind, NoEncryption()))
    certificate.write_bytes(self_signed(key).public_bytes(Encoding.PEM))
    identity = identity_of(certs / "ours", "a")
    own = ReplySigner(replace(identity, key=path, certificate=certificate))
    body, signature = decode(own.sign(b"reply"))
    purpose = b"fedbudget reply 1\0"
    key.public_key().verify(signature, purpose + body, ec.ECDSA(SHA256()))


@pytest.mark.parametrize("text", ["", "-----BEGIN PRIVATE KEY-----\nAAAA", "\n"])
def test_a_damaged_key_is_an_error(certs: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.key"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="cannot be used"):
        ReplySigner(replace(identity_of(certs / "ours", "a"), key=path))


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


def test_a_renewed_certificate_signs_from_its_declaration_on(
    certs: Path, tmp_path: Path
) -> None:
    """Renewed in the middle of a run; a thief's certificates are not learned."""
    keys = tmp_path / "keys"
    make_certificates(keys, ["a", "b"])
    before, old = declared(keys, "a"), signer(keys, "a")
    known = keys_of(keys, before)
    renew(keys, within=400, days=500)
    new = signer(keys, "a")
    with pytest.raises(MessageError, match="somebody else"):
        known.open("a", new.sign(reply("a")))
    for words, bad in {
        "not of the authority": declared(certs / "others", "a"),
        "another name": replace(declared(keys, "b"), device="a"),
        "no certificate": declaration(device="a"),
    }.items():
        with pytest.raises(MessageError, match=words):
            known.learn(bad)
    with pytest.raises(MessageError, match="somebody else"):
        known.open("a", signer(certs / "others", "a").sign(reply("a")))
    known.learn(declared(keys, "b"))  # no device of the run
    with pytest.raises(MessageError, match="no certificate"):
        known.open("b", signer(keys, "b").sign(reply("b")))
    known.learn(declared(keys, "a"))
    for one in (new, old):  # an answer may have been on its way
        assert known.open("a", one.sign(reply("a"))) == reply("a")


def test_no_answer_is_lost_when_a_certificate_is_renewed_during_a_run(
    tmp_path: Path,
) -> None:
    keys, site = tmp_path / "keys", Site(tmp_path / "site")
    make_certificates(keys, NAMES)
    signers = {name: signer(keys, name) for name in NAMES}

    def honest(name: str) -> Script:
        return lambda order: [signers[name].sign(reply_to(order, name).to_bytes())]

    devices, connection = site.start(
        {name: honest(name) for name in NAMES},
        declarations=[declared(keys, name) for name in NAMES],
        authority=keys / "ca.pem",
    )
    mean_of(devices.run_round(ordered(1)), *NAMES)
    renew(keys, within=400, days=500)
    signers["b"] = signer(keys, "b")
    declares = Message(
        topic=topics.declare("b"),
        payload=declared(keys, "b").to_bytes(),
        receiver="coordinator",
    )
    connection.inbox.put(declares)
    mean_of(devices.run_round(ordered(2)), *NAMES)
    assert devices.tally is not None and not devices.tally.dropped
    site.stop()
