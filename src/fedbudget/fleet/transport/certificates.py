"""Keys and certificates of a test fleet: one authority, one certificate for each.

    FOLDER/ca.pem, ca.key                   the fleet's own authority
    FOLDER/broker.pem, broker.key           for the broker's host names
    FOLDER/coordinator.pem, coordinator.key its certificate, by which brokers know it
    FOLDER/coordinator.sign                 Ed25519 key that signs orders (private)
    FOLDER/coordinator.pub                  its public half, for the devices' policies
    FOLDER/measure.pem, measure.key         under which `fedbudget measure` connects
    FOLDER/devices/ID.pem, ID.key           one certificate for each device

A certificate's common name is the name under which its holder may publish. Asked again
for the same folder, only what is missing is made: a device is added to a fleet so.
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
# Nor this one: whoever connects under a device's name ends that device's connection.
MEASURE = "measure"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_RESERVED = ("broker", "ca", COORDINATOR, MEASURE)
_MOST_DAYS = 36_500  # a hundred years


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The three files with which one side of a connection proves who it is."""

    ca: Path
    certificate: Path
    key: Path

    def check(self) -> Self:
        """Return it if its files are there.

        Raises:
            InvalidInputError: One is not; it is named.
        """
        for name, path in vars(self).items():
            if not Path(path).is_file():
                raise InvalidInputError(
                    f"{name} {str(path)!r} is not there: make it with fedbudget certs"
                )
        return self

    @property
    def name(self) -> str:
        """The common name in the certificate, by which brokers know its holder.

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
                f"certificate {str(self.certificate)!r} cannot be read ({error}): make "
                "it with fedbudget certs"
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
    """Return a device's name if topics, file names and certificates can carry it."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InvalidInputError(
            f"device name {name!r} cannot be used: take 1 to 64 letters, digits, "
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
    """Make what is missing in the folder, and return the files that were made."""
    names = [check_name(name) for name in devices]
    whole("days", days, most=_MOST_DAYS)
    if not hosts:
        raise InvalidInputError(
            "hosts is empty: name the broker's machine as devices will call it"
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

    made: list[Path] = []
    ca_key, ca = _authority(root, days, made)
    todo = [(root / "broker", "broker", hosts)]
    todo += [(root / name, name, ()) for name in (COORDINATOR, MEASURE)]
    todo += [(root / "devices" / name, name, ()) for name in devices]
    for path, name, names in todo:
        if path.with_name(f"{path.name}.pem").exists():
            continue
        key = _new_key()
        certificate = _certificate(
            name, key, issuer=(ca, ca_key), hosts=names, days=days
        )
        made += _write_pair(path, key, certificate)
    if not (root / "coordinator.sign").exists():
        signer = Signer.generate()
        # The public half first: the private one says that the pair is complete.
        public = f"{signer.public_key}\n".encode()
        _write(root / "coordinator.pub", public, private=False)
        _write(root / "coordinator.sign", signer.to_pem(), private=True)
        made += [root / "coordinator.sign", root / "coordinator.pub"]
    return made


def _authority(
    root: Path, days: int, made: list[Path]
) -> "tuple[ec.EllipticCurvePrivateKey, x509.Certificate]":
    """Return the fleet's authority, made on first use."""
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
                "folder, or bring ca.pem and ca.key back"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidInputError(
                f"{root / 'ca.key'} is not an elliptic-curve key: choose another folder"
            )
        return key, certificate
    key = _new_key()
    certificate = _certificate("fedbudget fleet", key, issuer=None, hosts=(), days=days)
    made += _write_pair(root / "ca", key, certificate)
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
    # A device whose clock is a bit behind must not refuse a certificate made today.
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
        builder = builder.add_extension(_may_sign(), critical=True)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256())


def _may_sign() -> "x509.KeyUsage":
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
    # The certificate last: its presence says that the pair is complete.
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
    """Write a file that only its owner may read, if it is private."""
    from fedbudget.files import whole_file

    with whole_file(path, "wb", permissions=0o600 if private else 0o644) as file:
        file.write(content)
