"""Keys and certificates of a test fleet: one authority, one certificate per client.

    FOLDER/ca.pem, ca.key                   the fleet's certificate authority
    FOLDER/broker.pem, broker.key           for the broker's host names
    FOLDER/coordinator.pem, coordinator.key identifies it to brokers
    FOLDER/coordinator.sign                 Ed25519 key that signs orders (private)
    FOLDER/coordinator.pub                  its public key, for the devices' policies
    FOLDER/measure.pem, measure.key         for `fedbudget measure`
    FOLDER/devices/ID.pem, ID.key           one certificate for each device

A certificate's common name is the name under which its holder may publish. For an
existing folder, only missing files are created: this adds devices to a fleet.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedbudget.checks import whole
from fedbudget.errors import InvalidInputError, RecordError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

COORDINATOR = "coordinator"  # no device may have this name
# Reserved too: a client that connects under a device's name ends its connection.
MEASURE = "measure"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_RESERVED = ("broker", "ca", COORDINATOR, MEASURE)
_MOST_DAYS = 36_500  # a hundred years


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The three files with which one side of a connection authenticates."""

    ca: Path
    certificate: Path
    key: Path

    def check(self) -> Self:
        """Return self if its files exist.

        Raises:
            InvalidInputError: One does not; the message names it.
        """
        for name, path in vars(self).items():
            if not Path(path).is_file():
                raise InvalidInputError(
                    f"{name} {str(path)!r} does not exist: create it with fedbudget "
                    "certs"
                )
        return self

    @property
    def name(self) -> str:
        """The common name in the certificate, which identifies its holder to brokers.

        Raises:
            InvalidInputError: It cannot be read.
        """
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        try:
            pem = Path(self.certificate).read_bytes()
            subject = x509.load_pem_x509_certificate(pem).subject
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"certificate {str(self.certificate)!r} cannot be read ({error}): "
                "create it with fedbudget certs"
            ) from None
        names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if names else ""


def identity_of(folder: str | os.PathLike[str], name: str) -> Identity:
    """Return the files of the broker, the coordinator or a device."""
    root = Path(folder)
    home = root if name in _RESERVED else root / "devices"
    return Identity(
        ca=root / "ca.pem",
        certificate=home / f"{name}.pem",
        key=home / f"{name}.key",
    ).check()


def check_name(name: str) -> str:
    """Return a device's name if it is valid in topics, file names and certificates."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InvalidInputError(
            f"device name {name!r} cannot be used: use 1 to 64 letters, digits, "
            f"'-', '_' or '.', and none of {', '.join(_RESERVED)}"
        )
    return name


def make_certificates(
    folder: str | os.PathLike[str],
    devices: Iterable[str],
    *,
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    days: int = 365,
) -> list[Path]:
    """Create the missing files in a folder, and return their paths."""
    names = [check_name(name) for name in devices]
    whole("days", days, most=_MOST_DAYS)
    if not hosts:
        raise InvalidInputError(
            "hosts is empty: give the broker's host name as devices will use it"
        )
    root = Path(folder)
    try:
        (root / "devices").mkdir(parents=True, exist_ok=True)
        return _make(root, names, hosts, days)
    except OSError as error:
        raise RecordError(
            f"cannot write to {root}: {error.strerror or error}: choose another folder"
        ) from error


def _make(
    root: Path, devices: Sequence[str], hosts: Sequence[str], days: int
) -> list[Path]:
    from fedbudget.fleet.wire.signing import Signer

    created: list[Path] = []
    ca_key, ca = _authority(root, days, created)
    holders = [(root / "broker", "broker", hosts)]
    holders += [(root / name, name, ()) for name in (COORDINATOR, MEASURE)]
    holders += [(root / "devices" / name, name, ()) for name in devices]
    for path, name, names in holders:
        if path.with_name(f"{path.name}.pem").exists():
            continue
        key = _new_key()
        certificate = _certificate(
            name, key, issuer=(ca, ca_key), hosts=names, days=days
        )
        created += _write_pair(path, key, certificate)
    if not (root / "coordinator.sign").exists():
        signer = Signer.generate()
        # The public key first: the private one marks the pair as complete.
        public = f"{signer.public_key}\n".encode()
        _write(root / "coordinator.pub", public, private=False)
        _write(root / "coordinator.sign", signer.to_pem(), private=True)
        created += [root / "coordinator.sign", root / "coordinator.pub"]
    return created


def _authority(
    root: Path, days: int, created: list[Path]
) -> "tuple[ec.EllipticCurvePrivateKey, x509.Certificate]":
    """Return the fleet's authority, created on first use."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if (root / "ca.pem").exists():
        try:
            key = serialization.load_pem_private_key(
                (root / "ca.key").read_bytes(), password=None
            )
            certificate = x509.load_pem_x509_certificate((root / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"the authority in {root} cannot be read ({error}): choose another "
                "folder, or restore ca.pem and ca.key"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInputError(
                f"{root / 'ca.key'} is not an elliptic-curve key: choose another folder"
            )
        return key, certificate
    key = _new_key()
    certificate = _certificate("fedbudget fleet", key, issuer=None, hosts=(), days=days)
    created += _write_pair(root / "ca", key, certificate)
    return key, certificate


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: "ec.EllipticCurvePrivateKey",
    *,
    issuer: "tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None",
    hosts: Sequence[str],
    days: int,
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    # A device with a slow clock must not refuse a certificate created today.
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    public = key.public_key()
    authority = x509.SubjectKeyIdentifier.from_public_key(
        public if issuer is None else issuer[1].public_key()
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=days + 1))
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority),
            critical=False,
        )
    )
    if issuer is None:
        builder = builder.add_extension(_authority_usage(), critical=True)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256())


def _authority_usage() -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(
    path: Path, key: "ec.EllipticCurvePrivateKey", certificate: "x509.Certificate"
) -> list[Path]:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem, secret = (path.with_name(f"{path.name}.{end}") for end in ("pem", "key"))
    _write(secret, _private_pem(key), private=True)
    # The certificate last: it marks the pair as complete.
    _write(pem, certificate.public_bytes(Encoding.PEM), private=False)
    return [pem, secret]


def _private_pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, *, private: bool) -> None:
    """Write a file; if it is private, only its owner may read it."""
    from fedbudget.files import whole_file

    with whole_file(path, "wb", permissions=0o600 if private else 0o644) as file:
        file.write(content)
