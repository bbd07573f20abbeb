"""Keys and certificates: names, file permissions, and files that stay."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.transport.certificates import identity_of, make_certificates
from fedbudget.fleet.wire.signing import Signer


def name_in(path: Path) -> str:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.subject.rfc4514_string()


def test_a_fleet_gets_one_certificate_each(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ["oven", "fridge"])
    assert {path.suffix for path in made} == {".pem", ".key", ".sign", ".pub"}
    assert name_in(tmp_path / "devices" / "oven.pem") == "CN=oven"
    assert name_in(tmp_path / "coordinator.pem") == "CN=coordinator"
    for path in made:
        private = path.suffix in (".key", ".sign")
        assert path.stat().st_mode & 0o777 == (0o600 if private else 0o644), path


def test_the_public_key_goes_with_the_private_one(tmp_path: Path) -> None:
    make_certificates(tmp_path, [])
    signer = Signer.read(tmp_path / "coordinator.sign")
    assert (tmp_path / "coordinator.pub").read_text().strip() == signer.public_key


def test_asked_again_only_what_is_missing_is_made(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["oven"])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    made = make_certificates(tmp_path, ["oven", "fridge"])
    assert {path.name for path in made} == {"fridge.pem", "fridge.key"}
    assert all(path.read_bytes() == content for path, content in before.items())
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    fridge = identity_of(tmp_path, "fridge")
    context.load_cert_chain(fridge.certificate, fridge.key)  # they belong together


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "coordinator", "-a", "a" * 65])
def test_a_name_that_topics_cannot_carry_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be used"):
        make_certificates(tmp_path, [name])


def test_missing_files_are_named(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["oven"])
    with pytest.raises(InvalidInputError, match="fridge"):
        identity_of(tmp_path, "fridge")
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(InvalidInputError, match=r"authority .* cannot be read"):
        make_certificates(tmp_path, ["fridge"])
