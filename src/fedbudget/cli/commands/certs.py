"""`fedbudget certs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fedbudget.checks import whole
from fedbudget.cli.options import AsJson, DefaultGroup, PlainCommand, parse_whole
from fedbudget.cli.output import print_json
from fedbudget.errors import InvalidInputError

certs = typer.Typer(
    help="Keys and certificates of a fleet: create, renew, enrol, revoke.",
    add_completion=False,
    no_args_is_help=True,
    cls=DefaultGroup,
)

Folder: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        help="The fleet's keys and certificates; existing files are kept. Required.",
        show_default=False,
    ),
]
AuthorityFolder: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--authority",
        metavar="FOLDER",
        help="Folder of ca.key and recovery.sign, which belong offline. Default: "
        "FOLDER-authority, beside the others.",
        show_default=False,
    ),
]
Days: TypeAlias = Annotated[
    int, typer.Option(parser=parse_whole, help="Validity of new certificates in days.")
]


@certs.command(cls=PlainCommand)
def run(
    folder: Folder,
    *,
    devices: Annotated[
        str,
        typer.Option(
            help="Names of devices, such as oven,fridge, or 16 for device-0 to "
            "device-15. Default: none.",
            show_default=False,
        ),
    ] = "",
    hosts: Annotated[
        str, typer.Option(help="Host names and addresses of the broker.")
    ] = "localhost,127.0.0.1",
    days: Days = 365,
    authority: AuthorityFolder = None,
    as_json: AsJson = False,
) -> None:
    """Create an authority, certificates and signing keys for a fleet.

    The word run may be left out: fedbudget certs FOLDER.
    """
    from fedbudget.fleet.transport.certificates import make_certificates

    created = make_certificates(
        folder,
        device_names(devices),
        hosts=tuple(_split(hosts)),
        days=days,
        authority=authority,
    )
    with open(f"{folder}/coordinator.pub", encoding="utf-8") as file:
        public_key = file.read().strip()
    if as_json:
        paths = [str(path) for path in created]
        print_json({"folder": folder, "made": paths, "public_key": public_key})
        return
    from fedbudget.cli.views.layout import new_page, show_item, show_pairs

    with new_page() as console:
        title = f"{len(created)} files created in {folder}"
        console.print(title, style="bold", markup=False)
        show_pairs(
            console,
            [(_shown(p, folder), _use(p)) for p in created],
        )
        console.print()
        show_item(console, f"the coordinator's public key, for policies: {public_key}")
        show_item(
            console,
            "do not copy coordinator.sign to devices or brokers; move the "
            "folder with ca.key and recovery.sign to a medium that is offline",
        )


def _use(path: Path) -> str:
    return _USES[path.name if path.name in _USES else path.suffix]


def _shown(path: Path, folder: str) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _tell(verb: str, paths: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        print_json({verb: [str(path) for path in paths]})
        return
    typer.echo(f"{verb}: {', '.join(map(str, paths)) or 'nothing'}")


@certs.command(cls=PlainCommand)
def renew(
    folder: Folder,
    *,
    within: Annotated[
        int, typer.Option(parser=parse_whole, help="Renew what ends within these days.")
    ] = 30,
    days: Days = 365,
    authority: AuthorityFolder = None,
    as_json: AsJson = False,
) -> None:
    """Renew certificates that end soon; the old ones stay valid until their own end.

    Copy the new files to their machines. A running device or coordinator reads them at
    its next connection; restart the broker.
    """
    from fedbudget.fleet.transport import authority as authorities

    paths = authorities.renew(folder, within=within, days=days, authority=authority)
    _tell("renewed", paths, as_json=as_json)


@certs.command(cls=PlainCommand)
def request(
    folder: Annotated[
        str,
        typer.Argument(
            help="A folder on the device, for its key. Required.", show_default=False
        ),
    ],
    name: Annotated[
        str, typer.Argument(help="The device's name. Required.", show_default=False)
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """On a device: create its key, and a request for a certificate (CSR).

    Send only the .csr file to the operator; the key never leaves the device.
    """
    from fedbudget.fleet.transport import authority as authorities

    _tell("created", authorities.request(folder, name), as_json=as_json)


@certs.command(cls=PlainCommand)
def sign(
    folder: Folder,
    csr: Annotated[
        str,
        typer.Argument(help="The request of a device. Required.", show_default=False),
    ],
    name: Annotated[
        str, typer.Argument(help="The device's name. Required.", show_default=False)
    ],
    *,
    days: Days = 365,
    authority: AuthorityFolder = None,
    as_json: AsJson = False,
) -> None:
    """Create the certificate for a request; a device needs ca.pem and crl.pem, too."""
    from fedbudget.fleet.transport import authority as authorities

    path = authorities.sign(folder, csr, name, days=days, authority=authority)
    _tell("created", [path], as_json=as_json)


@certs.command(cls=PlainCommand)
def revoke(
    folder: Folder,
    name: Annotated[
        str,
        typer.Argument(
            help="Of a device, or coordinator, broker or measure. Required.",
            show_default=False,
        ),
    ],
    *,
    authority: AuthorityFolder = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a certificate: copy crl.pem beside ca.pem, on the broker and on devices.

    Restart the broker then. A coordinator's signing key is another one: withdraw it.
    """
    from fedbudget.fleet.transport import authority as authorities

    path = authorities.revoke(folder, name, authority=authority)
    _tell("revoked", [path], as_json=as_json)


@certs.command(cls=PlainCommand)
def withdraw(
    folder: Folder,
    out: Annotated[
        str, typer.Argument(help="The file to write. Required.", show_default=False)
    ],
    *,
    authority: AuthorityFolder = None,
    as_json: AsJson = False,
) -> None:
    """Write the message that withdraws the coordinator's signing key for ever.

    fedbudget server withdraw sends it. It is signed with recovery.sign, or with the key
    itself if there is none.
    """
    from fedbudget.files import whole_file
    from fedbudget.fleet.transport.certificates import authority_folder
    from fedbudget.fleet.wire.signing import Signer
    from fedbudget.fleet.wire.withdrawals import Revocation

    root = Path(folder)
    recovery = authority_folder(root, authority) / "recovery.sign"
    own = root / "coordinator.sign"
    signer = Signer.read(recovery if recovery.exists() else own)
    try:
        key = (root / "coordinator.pub").read_text(encoding="ascii").strip()
    except OSError as error:
        raise InvalidInputError(f"{error.filename} cannot be read: {error}") from None
    with whole_file(out, "wb") as file:
        file.write(signer.sign(Revocation(key=key)))
    _tell("created", [Path(out)], as_json=as_json)


_USES = {
    "crl.pem": "revoked certificates; beside ca.pem on brokers and devices",
    "recovery.pub": "for policies: orders.recovery",
    "recovery.sign": "withdraws a stolen coordinator.sign; keep it offline",
    "ca.key": "signs certificates; keep it offline",
    ".pem": "certificate",
    ".key": "its private key",
    ".sign": "signs orders; only for the coordinator",
    ".pub": "verifies orders; for every device's policy",
}


def device_names(text: str) -> list[str]:
    """Parse a list of device names, or their number.

    >>> device_names("2"), device_names("oven, fridge")
    (['device-0', 'device-1'], ['oven', 'fridge'])
    """
    if text.strip().isdecimal():
        count = whole("--devices", int(text), least=0, most=100_000)
        return [f"device-{number}" for number in range(count)]
    return _split(text)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
