"""`fedbudget certs`."""

from typing import Annotated

import typer

from fedbudget.checks import whole
from fedbudget.cli.options import AsJson, parse_whole
from fedbudget.cli.output import print_json


def certs(
    folder: Annotated[
        str,
        typer.Argument(
            help="Output folder; existing files are kept. Required.",
            show_default=False,
        ),
    ],
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
    days: Annotated[
        int,
        typer.Option(parser=parse_whole, help="Validity of the certificates in days."),
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Create an authority, certificates and signing keys for a test fleet."""
    from fedbudget.fleet.transport.certificates import make_certificates

    created = make_certificates(
        folder, device_names(devices), hosts=tuple(_split(hosts)), days=days
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
            console, [(str(p.relative_to(folder)), _USES[p.suffix]) for p in created]
        )
        console.print()
        show_item(console, f"the coordinator's public key, for policies: {public_key}")
        show_item(
            console, "do not copy ca.key and coordinator.sign to devices or brokers"
        )


_USES = {
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
