"""The authority after the first day: renewal, enrolment, revocation, offline keys."""

import datetime
import getpass
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.demo import MOSQUITTO, Child, HeldPort, listens, wait_until
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.authority import (
    read_certificate,
    renew,
    request,
    revoke,
    sign,
)
from fedbudget.fleet.transport.certificates import (
    Identity,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.mqtt import Connection
from tests.cli.running import run
from tests.fleet.brokers import FLEETS, SHIPPED
from tests.fleet.conftest import new_broker

WAIT = 60.0


def usage(path: Path) -> list[object]:
    extension = read_certificate(path).extensions.get_extension_for_class(
        x509.ExtendedKeyUsage
    )
    return list(extension.value)


def test_a_certificate_is_for_one_side_only(tmp_path: Path) -> None:
    make_certificates(tmp_path / "keys", ["oven"])
    keys = tmp_path / "keys"
    assert usage(keys / "broker.pem") == [ExtendedKeyUsageOID.SERVER_AUTH]
    for path in (keys / "coordinator.pem", keys / "devices" / "oven.pem"):
        assert usage(path) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_the_authoritys_keys_are_elsewhere(tmp_path: Path) -> None:
    make_certificates(tmp_path / "keys", ["oven"])
    assert not list((tmp_path / "keys").rglob("ca.key"))
    assert not list((tmp_path / "keys").rglob("recovery.sign"))
    offline = tmp_path / "keys-authority"
    assert {path.name for path in offline.iterdir()} == {"ca.key", "recovery.sign"}
    for path in (offline, tmp_path / "keys", tmp_path / "keys" / "devices"):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in offline.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    offline.rename(tmp_path / "stick")
    with pytest.raises(InvalidInputError, match="name its folder with --authority"):
        make_certificates(tmp_path / "keys", ["fridge"])
    make_certificates(tmp_path / "keys", ["fridge"], authority=tmp_path / "stick")
    assert (tmp_path / "keys" / "devices" / "fridge.pem").exists()


def test_folders_of_earlier_releases_work(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven"])
    (tmp_path / "keys-authority" / "ca.key").rename(keys / "ca.key")
    (keys / "crl.pem").unlink()
    (keys / "recovery.pub").unlink()
    made = make_certificates(keys, ["oven", "fridge"])
    assert {path.name for path in made} == {"fridge.pem", "fridge.key"}
    assert renew(keys) == [keys / "crl.pem"]  # which brokers now want


def test_only_what_ends_soon_is_renewed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven"], hosts=["broker.example", "10.0.0.1"])
    assert renew(keys, within=30) == []
    before = read_certificate(keys / "broker.pem")
    written = renew(keys, within=400, days=500)
    assert {path.name for path in written} == {
        *("ca.pem", "crl.pem", "broker.pem", "broker.key", "coordinator.pem"),
        *("coordinator.key", "measure.pem", "measure.key", "oven.pem", "oven.key"),
    }
    after = read_certificate(keys / "broker.pem")
    assert after.not_valid_after_utc > before.not_valid_after_utc
    names = [
        c.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for c in (before, after)
    ]
    assert names[0] == names[1]
    # Overlap: the new authority verifies old certificates, and the old one new ones.
    read_certificate(keys / "ca.pem").public_key()
    before.verify_directly_issued_by(read_certificate(keys / "ca.pem"))
    key = load_pem_private_key((keys / "broker.key").read_bytes(), None)
    assert key.public_key() == after.public_key() != before.public_key()


def test_a_device_keeps_its_key(tmp_path: Path) -> None:
    keys, device = tmp_path / "keys", tmp_path / "device"
    make_certificates(keys, [])
    secret, csr = request(device, "oven")
    assert secret.stat().st_mode & 0o777 == 0o600
    certificate = read_certificate(sign(keys, csr, "oven"))
    key = load_pem_private_key(secret.read_bytes(), None)
    assert certificate.public_key() == key.public_key()
    assert not (keys / "devices" / "oven.key").exists()
    (renewed,) = renew(keys, within=370, days=400)[-1:]  # its key is not here
    assert renewed == keys / "devices" / "oven.pem"
    assert read_certificate(renewed).public_key() == key.public_key()
    with pytest.raises(InvalidInputError, match="exists: send"):
        request(device, "oven")


def test_a_request_gets_no_other_name(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_certificates(keys, ["fridge"])
    _, csr = request(tmp_path / "device", "oven")
    for name, says in (
        ("stove", "not a request of device"),
        ("coordinator", "cannot be"),
        ("fridge", "exists: revoke it"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            sign(keys, csr, name)
    damaged = tmp_path / "damaged.csr"
    damaged.write_bytes(csr.read_bytes()[:200])
    with pytest.raises(InvalidInputError, match="is not a request"):
        sign(keys, damaged, "oven")


def test_a_list_does_not_end_before_its_authority(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven"], days=100)
    crl = x509.load_pem_x509_crl((keys / "crl.pem").read_bytes())
    assert crl.next_update_utc == read_certificate(keys / "ca.pem").not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    assert crl.last_update_utc <= now <= (crl.next_update_utc or now)


@pytest.mark.parametrize("kind", sorted(FLEETS))
def test_enrolled_renewed_and_revoked_over_a_broker(tmp_path: Path, kind: str) -> None:
    """A real broker: each certificate is tried, also those it must refuse."""
    keys, site = tmp_path / "keys", tmp_path / "site"
    make_certificates(keys, ["fridge"])
    secret, csr = request(site, "oven")
    certificate = sign(keys, csr, "oven")
    oven = Identity(ca=keys / "ca.pem", certificate=certificate, key=secret)
    old = site / "fridge-old.pem"
    shutil.copy(keys / "devices" / "fridge.pem", old)
    shutil.copy(keys / "devices" / "fridge.key", site / "fridge-old.key")
    renew(keys, within=400, days=500)
    fridge = Identity(ca=keys / "ca.pem", certificate=old, key=site / "fridge-old.key")
    with new_broker(kind, keys, tmp_path / "broker") as broker:
        for name, identity in (
            ("oven", oven),
            ("fridge", fridge),
            ("fridge", identity_of(keys, "fridge")),
        ):
            connects(broker.port, name, identity)
        revoke(keys, "oven")
        broker.kill()
        broker.start()
        connects(broker.port, "fridge", identity_of(keys, "fridge"))
        shutil.copy(next((keys / "devices").glob("oven.pem.revoked-*")), site / "o.pem")
        gone = Identity(ca=keys / "ca.pem", certificate=site / "o.pem", key=secret)
        refused(broker.port, "oven", gone, says="is revoked")
        # A thief may have the certificate from before its renewal.
        revoke(keys, "fridge")
        broker.kill()
        broker.start()
        refused(broker.port, "fridge", fridge, says="is revoked")
        # A broker's certificate identifies no client.
        refused(broker.port, "broker", identity_of(keys, "broker"), says="")


def test_two_processes_with_one_certificate_see_why_they_lose_connections(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven"])
    with new_broker("amqtt", keys, tmp_path / "broker") as broker:
        address = BrokerAddress(
            host="localhost", port=broker.port, identity=identity_of(keys, "oven")
        )
        with (
            Connection(address, name="oven", topics=()) as one,
            Connection(address, name="oven", topics=()) as other,
        ):
            end = time.monotonic() + WAIT
            while time.monotonic() < end:
                if any("another process" in c.problem for c in (one, other)):
                    return
                time.sleep(0.02)
    raise AssertionError("no reason is given")


def connects(port: int, name: str, identity: Identity) -> None:
    broker = BrokerAddress(host="localhost", port=port, identity=identity)
    with Connection(broker, name=name, topics=()) as connection:
        assert connection.wait_connected(WAIT), connection.problem


def refused(port: int, name: str, identity: Identity, *, says: str) -> None:
    broker = BrokerAddress(host="localhost", port=port, identity=identity)
    with Connection(broker, name=name, topics=()) as connection:
        assert not connection.wait_tried(WAIT)
        # A busy broker may give the reason at a later attempt only.
        end = time.monotonic() + WAIT
        while says not in connection.problem and time.monotonic() < end:
            assert not connection.connected
            time.sleep(0.02)
        assert says in connection.problem


@pytest.mark.skipif(
    MOSQUITTO is None or os.getuid() != 0, reason="needs mosquitto, root"
)
def test_the_recipe_for_mosquitto_works_as_root(tmp_path: Path) -> None:
    """install.sh, then mosquitto started by root, which becomes its own user."""
    keys, held = tmp_path / "keys", HeldPort()
    made = run_make(keys)
    assert made.returncode == 0, made.stderr
    root = Path("/tmp") / f"fedbudget-install-{os.getpid()}"  # mosquitto must get there
    try:
        user = "mosquitto" if has_user("mosquitto") else getpass.getuser()
        environment = os.environ | {"PREFIX": str(root), "MOSQUITTO_USER": user}
        script = SHIPPED / "install.sh"
        command = ["sh", str(script), str(keys)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        etc, data = root / "etc" / "mosquitto", root / "data"
        data.mkdir(mode=0o700)
        shutil.chown(data, user, user)
        text = (etc / "conf.d" / "fedbudget.conf").read_text()
        for shipped, used in (
            ("/etc/mosquitto", str(etc)),
            ("/var/lib/mosquitto/", f"{data}/"),
            ("listener 8883", f"listener {held.number} 127.0.0.1"),
        ):
            text = text.replace(shipped, used)
        config = etc / "mosquitto.conf"
        config.write_text(f"user {user}\n{text}")
        broker = Child(("-c", str(config)), tmp_path / "log", command=(str(MOSQUITTO),))
        broker.start()
        try:
            wait_until(lambda: listens(held.number), "mosquitto", child=broker)
            connects(held.number, "oven", identity_of(keys, "oven"))
        finally:
            broker.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_make(keys: Path) -> "subprocess.CompletedProcess[str]":

    command = [
        sys.executable,
        "-m",
        "fedbudget",
        "certs",
        str(keys),
        "--devices",
        "oven",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def has_user(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, site = str(tmp_path / "keys"), str(tmp_path / "site")
    assert "is offline" in run(capsys, "certs", keys, "--devices", "a").words
    assert run(capsys, "certs", "renew", keys).out == "renewed: nothing\n"
    assert "oven.csr" in run(capsys, "certs", "request", site, "oven").out
    signed = run(capsys, "certs", "sign", keys, f"{site}/oven.csr", "oven")
    assert signed.out.startswith("created: ")
    assert "crl.pem" in run(capsys, "certs", "revoke", keys, "oven").out
    withdrawal = str(tmp_path / "withdrawal")
    assert run(capsys, "certs", "withdraw", keys, withdrawal).code == 0
    assert 0 < Path(withdrawal).stat().st_size < 1024


def test_all_certificates_of_a_name_are_revoked(tmp_path: Path) -> None:
    """Also those from before a renewal, which are valid until their own end."""
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven", "oven2"])
    path = keys / "devices" / "oven.pem"
    numbers = {read_certificate(path).serial_number}
    for days in (500, 600):
        renew(keys, within=days - 100, days=days)
        numbers.add(read_certificate(path).serial_number)
    revoke(keys, "oven")
    crl = x509.load_pem_x509_crl((keys / "crl.pem").read_bytes())
    assert {entry.serial_number for entry in crl} == numbers and len(numbers) == 3
    make_certificates(keys, ["oven"])  # enrolled again
    revoke(keys, "oven")
    crl = x509.load_pem_x509_crl((keys / "crl.pem").read_bytes())
    assert len(list(crl)) == 4


def test_of_two_lists_of_one_second_the_later_one_counts(tmp_path: Path) -> None:
    """A client has loaded both, and compares their times, in whole seconds."""
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven", "lamp", "pump"])
    times = []
    for name in ("oven", "lamp", "pump"):
        crl = x509.load_pem_x509_crl(revoke(keys, name).read_bytes())
        times.append(crl.last_update_utc)
    assert times[0] < times[1] < times[2]


def test_a_connection_reads_renewed_files(tmp_path: Path) -> None:
    """Its own certificate, the authority's, and the list of revoked ones."""
    keys = tmp_path / "keys"
    make_certificates(keys, ["oven"])
    with new_broker("amqtt", keys, tmp_path / "broker") as broker:
        identity = identity_of(keys, "oven")
        address = BrokerAddress(host="localhost", port=broker.port, identity=identity)
        with Connection(address, name="oven", topics=()) as connection:
            assert connection.wait_connected(WAIT), connection.problem
            revoke(keys, "broker")  # the broker still has it
            connection.reconnect()
            end = time.monotonic() + WAIT
            while "is revoked" not in connection.problem and time.monotonic() < end:
                time.sleep(0.1)
            assert "is revoked" in connection.problem
            make_certificates(keys, ["oven"])
            broker.kill()
            broker.start()
            assert connection.wait_connected(WAIT), connection.problem
