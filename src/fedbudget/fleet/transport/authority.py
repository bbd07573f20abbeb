"""The fleet's authority after the first day: renewal, enrolment, revocation.

**Renewal** replaces certificates that end soon. The old ones stay valid until their own
end, so that machines can change one after the other. The authority's certificate is
renewed with its old key: certificates under it stay valid.

**Enrolment.** A device makes its key itself and sends a request (CSR). The authority
takes from it the public key and nothing else; the name is what the operator says.

**Revocation.** A list of revoked certificates (CRL) goes beside ca.pem, on brokers and
on devices. It does not end before the authority does: brokers and devices without a
newer list must go on.

Every function needs the authority's key, which is offline otherwise.
"""

import datetime
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedbudget.checks import whole
from fedbudget.errors import InvalidInputError
from fedbudget.files import refusing
from fedbudget.fleet.transport.certificates import (
    AUTHORITY,
    COORDINATOR,
    MEASURE,
    Authority,
    authority_folder,
    check_name,
    new_certificate,
    new_key,
    private_folder,
    private_pem,
    read_authority,
    write_file,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

DAYS, WITHIN = 365, 30  # validity of a new certificate; renewed if it ends within
_OLD = ".old-"  # before the serial number of a certificate that was renewed


def _open(folder: str | os.PathLike[str], keys: str | None) -> "tuple[Path, Authority]":
    root = Path(folder)
    authority = read_authority(root, authority_folder(root, keys))
    if authority is None:
        raise InvalidInputError(
            f"{root} has no ca.pem: create an authority with fedbudget certs {root}"
        )
    return root, authority


def write_crl(
    root: Path, authority: "Authority", revoked: "Iterable[x509.RevokedCertificate]"
) -> Path:
    """Write the list of revoked certificates, and return its path."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    key, certificate = authority
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(certificate.subject)
        .last_update(_list_time(root))
        .next_update(certificate.not_valid_after_utc)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False
        )
    )
    for entry in revoked:
        builder = builder.add_revoked_certificate(entry)
    crl = builder.sign(key, hashes.SHA256())
    write_file(root / "crl.pem", crl.public_bytes(Encoding.PEM), private=False)
    return root / "crl.pem"


def _list_time(root: Path) -> datetime.datetime:
    """Return the time of a new list: later than that of the present one.

    The later one of two lists counts, in whole seconds. A machine with a slow clock
    must take it, too.
    """
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    present = _crl(root)
    if present is None:
        return time
    return max(time, present.last_update_utc + datetime.timedelta(seconds=1))


def _revoked(root: Path) -> "list[x509.RevokedCertificate]":
    present = _crl(root)
    return [] if present is None else list(present)


def _crl(root: Path) -> "x509.CertificateRevocationList | None":
    """Return the present list; none in folders of earlier releases."""
    from cryptography import x509

    path = root / "crl.pem"
    if not path.exists():
        return None
    try:
        return x509.load_pem_x509_crl(path.read_bytes())
    except ValueError as error:
        raise InvalidInputError(f"{path} is not a CRL ({error}): restore it") from None


def read_certificate(path: Path) -> "x509.Certificate":
    """Read a PEM certificate.

    Raises:
        InvalidInputError: It is none.
    """
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} is not a certificate: {error}") from None


def _certificates(root: Path) -> list[Path]:
    names = ("broker", COORDINATOR, MEASURE)
    fixed = [root / f"{name}.pem" for name in names]
    paths = [*fixed, *sorted((root / "devices").glob("*.pem"))]
    return [path for path in paths if path.exists()]


def renew(
    folder: str | os.PathLike[str],
    *,
    within: int = WITHIN,
    days: int = DAYS,
    authority: str | None = None,
) -> list[Path]:
    """Renew all certificates that end within some days; return what was written.

    A certificate whose key is here gets a new key. One whose key is on its device keeps
    its key. Old certificates stay valid until their end, and are kept beside the new
    ones (NAME.pem.old-SERIAL) so that `revoke` can revoke them, too.
    """
    whole("within", within, least=0, most=36_500)
    whole("days", days, least=within + 1, most=36_500)
    root, (key, ca) = _open(folder, authority)
    limit = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=within)
    written: list[Path] = []
    if ca.not_valid_after_utc <= limit:
        ca = new_certificate(
            AUTHORITY, key.public_key(), issuer=None, hosts=(), days=days, own_key=key
        )
        written.append(_write_certificate(root / "ca.pem", ca))
    if written or not (root / "crl.pem").exists():
        written.append(write_crl(root, (key, ca), _revoked(root)))
    for path in _certificates(root):
        old = read_certificate(path)
        if old.not_valid_after_utc <= limit:
            written += _renewed(path, old, (ca, key), days)
    return written


def _renewed(
    path: Path,
    old: "x509.Certificate",
    issuer: "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]",
    days: int,
) -> list[Path]:
    secret, written = path.with_suffix(".key"), []
    public = cast("ec.EllipticCurvePublicKey", old.public_key())  # as all are created
    if secret.exists():
        own = new_key()
        public = own.public_key()
        write_file(secret, private_pem(own), private=True)
        written.append(secret)
    _write_certificate(path.with_name(f"{path.name}{_OLD}{old.serial_number:x}"), old)
    certificate = new_certificate(
        _common_name(old), public, issuer=issuer, hosts=_hosts(old), days=days
    )
    return [*written, _write_certificate(path, certificate)]


def _write_certificate(path: Path, certificate: "x509.Certificate") -> Path:
    from cryptography.hazmat.primitives.serialization import Encoding

    write_file(path, certificate.public_bytes(Encoding.PEM), private=False)
    return path


def _common_name(certificate: "x509.Certificate") -> str:
    from cryptography.x509.oid import NameOID

    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def _hosts(certificate: "x509.Certificate") -> Sequence[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return ()
    return [str(name.value) for name in names]


def request(folder: str | os.PathLike[str], name: str) -> list[Path]:
    """Create a device's key and its request for a certificate, on the device itself.

    Raises:
        InvalidInputError: The key exists: the request made with it is still good.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    root, name = Path(folder), check_name(name)
    secret, csr = root / f"{name}.key", root / f"{name}.csr"
    if secret.exists():
        raise InvalidInputError(f"{secret} exists: send {csr}, or remove both first")
    with refusing(root, "choose another folder"):
        private_folder(root)
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    write_file(secret, private_pem(key), private=True)
    signed = builder.sign(key, hashes.SHA256())
    write_file(csr, signed.public_bytes(Encoding.PEM), private=False)
    return [secret, csr]


def sign(
    folder: str | os.PathLike[str],
    csr: str | os.PathLike[str],
    name: str,
    *,
    days: int = DAYS,
    authority: str | None = None,
) -> Path:
    """Create the certificate for a device's request, and return its path.

    Args:
        folder: Of the fleet's keys.
        csr: The request.
        name: The device's, as its operator says; the request must agree.
        days: Validity.
        authority: Folder of the authority's key.

    Raises:
        InvalidInputError: The request is damaged, of another name, of a weak key, or
            the device has a certificate.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    root, (key, ca) = _open(folder, authority)
    whole("days", days, most=36_500)
    target = root / "devices" / f"{check_name(name)}.pem"
    if target.exists():
        raise InvalidInputError(
            f"{target} exists: revoke it with fedbudget certs revoke, and remove it"
        )
    try:
        wanted = x509.load_pem_x509_csr(Path(csr).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{csr} is not a request: {error}") from None
    names = wanted.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    public = wanted.public_key()
    if not wanted.is_signature_valid or [n.value for n in names] != [name]:
        raise InvalidInputError(
            f"{csr} is not a request of device {name!r}: its name or signature is wrong"
        )
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.key_size < 256:
        raise InvalidInputError(f"{csr} has no elliptic-curve key of 256 bits or more")
    certificate = new_certificate(name, public, issuer=(ca, key), hosts=(), days=days)
    with refusing(target, "choose another folder"):
        private_folder(target.parent)
    return _write_certificate(target, certificate)


def revoke(
    folder: str | os.PathLike[str], name: str, *, authority: str | None = None
) -> Path:
    """Add all certificates of this name to the list of revoked ones; return its path.

    Also those that were renewed since. Certificates and key are renamed, so that new
    ones can be created.

    Raises:
        InvalidInputError: There is no certificate of this name.
    """
    from cryptography import x509

    root, keys = _open(folder, authority)
    fixed = name in ("broker", COORDINATOR, MEASURE)
    path = (root if fixed else root / "devices") / f"{name}.pem"
    paths = [path, *sorted(path.parent.glob(f"{path.name}{_OLD}*"))]
    numbers = [read_certificate(file).serial_number for file in paths]
    now = datetime.datetime.now(datetime.UTC)
    entries = [
        x509.RevokedCertificateBuilder()
        .serial_number(number)
        .revocation_date(now)
        .build()
        for number in numbers
    ]
    crl = write_crl(root, keys, [*_revoked(root), *entries])
    for file, number in zip(paths, numbers, strict=True):
        file.rename(path.with_name(f"{path.name}.revoked-{number:x}"))
    secret = path.with_suffix(".key")
    if secret.exists():
        secret.rename(secret.with_name(f"{secret.name}.revoked-{numbers[0]:x}"))
    return crl
