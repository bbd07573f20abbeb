"""Keys and certificates of a test fleet: one authority, one certificate per client.

    FOLDER/ca.pem, crl.pem                  the fleet's authority, and what it revoked
    FOLDER/broker.pem, broker.key           for the broker's host names
    FOLDER/coordinator.pem, coordinator.key identifies it to brokers
    FOLDER/coordinator.sign                 Ed25519 key that signs orders (private)
    FOLDER/coordinator.pub                  its public key, for the devices' policies
    FOLDER/measure.pem, measure.key         for `fedbudget measure`
    FOLDER/devices/ID.pem, ID.key           one certificate for each device
    FOLDER/recovery.pub                     for policies: may withdraw signing keys
    FOLDER-authority/ca.key, recovery.sign  keep both offline: only new and revoked
                                            certificates and withdrawals need them

Folders of earlier releases have ca.key in FOLDER, where it is still found. A file
crl.pem beside ca.pem is used by both sides of every connection; see `authority`.
A certificate's common name is the name under which its holder may publish. For an
existing folder, only missing files are created: this adds devices to a fleet.
"""

import binascii
import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from fedbudget.checks import whole
from fedbudget.errors import InvalidInputError, RecordError

if TYPE_CHECKING:
    import ssl

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

COORDINATOR = "coordinator"  # no device may have this name
# Reserved too: a client that connects under a device's name ends its connection.
MEASURE = "measure"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_RESERVED = ("broker", "ca", COORDINATOR, MEASURE)
AUTHORITY = "fedbudget fleet"  # the authority's common name
_MOST_DAYS = 36_500  # a hundred years
# PKCS #8 (RFC 5958) of a key on the curve P-256, up to its secret of 32 bytes.
_P256_PKCS8 = bytes.fromhex(
    "308187020100301306072a8648ce3d020106082a8648ce3d030107046d306b0201010420"
)
_COMMON_NAME = bytes.fromhex("0603550403")  # its object identifier, 2.5.4.3, in DER


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
    def crl(self) -> Path:
        """Where a list of revoked certificates would be, beside the authority's."""
        return Path(self.ca).with_name("crl.pem")

    def der(self) -> bytes:
        """Return the certificate in DER.

        Raises:
            OSError, ValueError: It cannot be read, or is no certificate.
        """
        import ssl

        pem = Path(self.certificate).read_text(encoding="ascii")
        return ssl.PEM_cert_to_DER_cert(pem.strip())

    @property
    def name(self) -> str:
        """The common name in the certificate, which identifies its holder to brokers.

        Raises:
            InvalidInputError: It cannot be read.
        """
        try:
            der = self.der()
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"certificate {str(self.certificate)!r} cannot be read ({error}): "
                "create it with fedbudget certs"
            ) from None
        # The holder's name is the last one. A parser would cost a device 2 MB.
        _, identifier, value = der.rpartition(_COMMON_NAME)
        length = int.from_bytes(value[1:2])
        return value[2 : 2 + length].decode(errors="replace") if identifier else ""


def refuse_revoked(context: "ssl.SSLContext", crl: Path) -> None:
    """Refuse certificates on a list of revoked ones; without a list, refuse none."""
    import ssl

    if crl.is_file():
        context.load_verify_locations(cafile=crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


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


def private_key(pem: bytes) -> Any:
    """Return the key in a PEM file.

    The reader of all formats imports SSH, RSA and more: a megabyte. So the format that
    `fedbudget certs` writes is read here.

    Raises:
        ValueError, TypeError: It is not an unencrypted private key.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    first, *lines = pem.strip().splitlines()
    if first == b"-----BEGIN PRIVATE KEY-----":
        der = binascii.a2b_base64(b"".join(lines[:-1]))
        if der.startswith(_P256_PKCS8):
            secret = der[len(_P256_PKCS8) :][:32]
            return ec.derive_private_key(int.from_bytes(secret), ec.SECP256R1())
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(pem, None)


def certified_key(
    certificate: bytes, name: str, authority: Path, *, whose: str
) -> "ec.EllipticCurvePublicKey":
    """Return the key of a certificate that is valid, of this name and authority.

    Args:
        certificate: In DER.
        name: That it must have.
        authority: Its certificate; a list of revoked ones may be beside it.
        whose: The certificate in words, for errors: "the certificate of peer 'a'".

    Raises:
        InvalidInputError: It is not of the authority, of another name, expired or
            revoked.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    try:
        issuer = x509.load_pem_x509_certificate(authority.read_bytes())
        read = x509.load_der_x509_certificate(certificate)
        read.verify_directly_issued_by(issuer)
        crl, revoked = authority.with_name("crl.pem"), None
        if crl.is_file():
            listed = x509.load_pem_x509_crl(crl.read_bytes())
            revoked = listed.get_revoked_certificate_by_serial_number(
                read.serial_number
            )
    except (OSError, InvalidSignature, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        # A device tells its server: file names, and no path of the owner's.
        raise InvalidInputError(
            f"{whose} is not of the authority in {authority.name!r} "
            f"({why or 'wrong signature'}): issue it with fedbudget certs"
        ) from None
    names = read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    now = datetime.datetime.now(datetime.UTC)
    key = read.public_key()
    if [item.value for item in names] != [name]:
        raise InvalidInputError(f"{whose} has another name than {name!r}")
    if now > read.not_valid_after_utc:
        raise InvalidInputError(
            f"{whose} has expired ({read.not_valid_after_utc:%Y-%m-%d}): fedbudget "
            "certs renew"
        )
    if now < read.not_valid_before_utc:
        raise InvalidInputError(
            f"{whose} is not valid before {read.not_valid_before_utc:%Y-%m-%d}: check "
            "the clock of this machine"
        )
    if revoked is not None:
        raise InvalidInputError(f"{whose} is revoked: enrol the device again")
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidInputError(f"{whose} has no elliptic-curve key")
    return key


def make_certificates(
    folder: str | os.PathLike[str],
    devices: Iterable[str],
    *,
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    days: int = 365,
    authority: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Create the missing files in a folder, and return their paths.

    Args:
        folder: For all files but the authority's keys.
        devices: Names of devices.
        hosts: Of the broker.
        days: Validity of certificates.
        authority: Folder of the authority's keys; by default, beside the folder.
    """
    names = [check_name(name) for name in devices]
    whole("days", days, most=_MOST_DAYS)
    if not hosts:
        raise InvalidInputError(
            "hosts is empty: give the broker's host name as devices will use it"
        )
    root = Path(folder)
    try:
        private_folder(root)
        private_folder(root / "devices")
        return _make(root, authority_folder(root, authority), names, hosts, days)
    except OSError as error:
        raise RecordError(
            f"cannot write to {root}: {error.strerror or error}: choose another folder"
        ) from error


def private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter; an existing one stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def authority_folder(root: Path, given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the authority's keys: given, of old, or beside the others.

    >>> str(authority_folder(Path("keys")))
    'keys-authority'
    """
    if given is not None:
        return Path(given)
    if (root / "ca.key").exists():
        return root
    return root.with_name(f"{root.resolve().name}-authority")


def _make(
    root: Path, keys: Path, devices: Sequence[str], hosts: Sequence[str], days: int
) -> list[Path]:
    created: list[Path] = []
    ca_key, ca = read_authority(root, keys) or _new_authority(root, keys, days, created)
    holders = [(root / "broker", "broker", hosts)]
    holders += [(root / name, name, ()) for name in (COORDINATOR, MEASURE)]
    holders += [(root / "devices" / name, name, ()) for name in devices]
    for path, name, names in holders:
        if path.with_name(f"{path.name}.pem").exists():
            continue
        key = new_key()
        certificate = new_certificate(
            name, key.public_key(), issuer=(ca, ca_key), hosts=names, days=days
        )
        created += write_pair(path, key, certificate)
    created += _signing_keys(root / "coordinator.sign", root / "coordinator.pub")
    if keys != root:  # folders of earlier releases have no recovery key
        created += _signing_keys(keys / "recovery.sign", root / "recovery.pub")
    return created


def _signing_keys(private: Path, public: Path) -> list[Path]:
    """Create a pair of signing keys, unless it exists."""
    from fedbudget.fleet.wire.signing import Signer

    if private.exists() or public.exists():
        return []
    signer = Signer.generate()
    # The public key last: it marks the pair as complete.
    write_file(private, signer.to_pem(), private=True)
    write_file(public, f"{signer.public_key}\n".encode(), private=False)
    return [private, public]


Authority: TypeAlias = "tuple[ec.EllipticCurvePrivateKey, x509.Certificate]"


def read_authority(root: Path, keys: Path) -> "Authority | None":
    """Return the fleet's authority; none if there is none yet.

    Raises:
        InvalidInputError: Its key or its certificate is missing or damaged.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not (root / "ca.pem").exists():
        return None
    try:
        key = serialization.load_pem_private_key(
            (keys / "ca.key").read_bytes(), password=None
        )
        certificate = x509.load_pem_x509_certificate((root / "ca.pem").read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"the authority of {root} cannot be read ({error}): bring "
            f"{keys / 'ca.key'} back, or name its folder with --authority"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInputError(
            f"{keys / 'ca.key'} is not an elliptic-curve key: choose another folder"
        )
    return key, certificate


def _new_authority(
    root: Path, keys: Path, days: int, created: list[Path]
) -> "Authority":
    from cryptography.hazmat.primitives.serialization import Encoding

    from fedbudget.fleet.transport.authority import write_crl

    private_folder(keys)
    key = new_key()
    certificate = new_certificate(
        AUTHORITY, key.public_key(), issuer=None, hosts=(), days=days, own_key=key
    )
    write_file(keys / "ca.key", private_pem(key), private=True)
    write_file(root / "ca.pem", certificate.public_bytes(Encoding.PEM), private=False)
    write_crl(root, (key, certificate), ())
    created += [keys / "ca.key", root / "ca.pem", root / "crl.pem"]
    return key, certificate


def new_key() -> "ec.EllipticCurvePrivateKey":
    """Return a new private key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def new_certificate(
    name: str,
    public: "ec.EllipticCurvePublicKey",
    *,
    issuer: "tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None",
    hosts: Sequence[str],
    days: int,
    own_key: "ec.EllipticCurvePrivateKey | None" = None,
) -> "x509.Certificate":
    """Return a certificate for a client, for a broker (with hosts), or an authority.

    Args:
        name: Its common name.
        public: Its key.
        issuer: None: the authority's own, which `own_key` signs.
        hosts: Of a broker.
        days: Validity, from yesterday on.
        own_key: Of an authority.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    signing_key = own_key if issuer is None else issuer[1]
    assert signing_key is not None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    # A device with a slow clock must not refuse a certificate created today.
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority = x509.SubjectKeyIdentifier.from_public_key(signing_key.public_key())
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
        .add_extension(_key_usage(is_authority=issuer is None), critical=True)
    )
    if issuer is not None:
        # A client's certificate is no broker's, and a broker's no client's.
        usage = (
            ExtendedKeyUsageOID.SERVER_AUTH
            if hosts
            else ExtendedKeyUsageOID.CLIENT_AUTH
        )
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    return builder.sign(signing_key, hashes.SHA256())


def _key_usage(*, is_authority: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_pair(
    path: Path, key: "ec.EllipticCurvePrivateKey", certificate: "x509.Certificate"
) -> list[Path]:
    """Write PATH.pem and PATH.key, and return their paths."""
    from cryptography.hazmat.primitives.serialization import Encoding

    pem, secret = (path.with_name(f"{path.name}.{end}") for end in ("pem", "key"))
    write_file(secret, private_pem(key), private=True)
    # The certificate last: it marks the pair as complete.
    write_file(pem, certificate.public_bytes(Encoding.PEM), private=False)
    return [pem, secret]


def private_pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    """Return a private key as PEM."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_file(path: Path, content: bytes, *, private: bool) -> None:
    """Write a file; if it is private, only its owner may read it."""
    from fedbudget.files import whole_file

    with whole_file(path, "wb", permissions=0o600 if private else 0o644) as file:
        file.write(content)
