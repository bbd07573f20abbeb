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
            help="Where to make them; what is there already is kept. Required.",
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
        str, typer.Option(help="Names and addresses of the broker's machine.")
    ] = "localhost,127.0.0.1",
    days: Annotated[
        int,
        typer.Option(parser=parse_whole, help="How long certificates are valid."),
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Make an authority, certificates and signing keys for a test fleet."""
    from fedbudget.fleet.transport.certificates import make_certificates

    made = make_certificates(
        folder, device_names(devices), hosts=tuple(_listed(hosts)), days=days
    )
    with open(f"{folder}/coordinator.pub", encoding="utf-8") as file:
        public_key = file.read().strip()
    if as_json:
        paths = [str(path) for path in made]
        print_json({"folder": folder, "made": paths, "public_key": public_key})
        return
    from fedbudget.cli.views.layout import new_page, show_item, show_pairs

    with new_page() as console:
        console.print(f"{len(made)} files made in {folder}", style="bold", markup=False)
        show_pairs(
            console, [(str(p.relative_to(folder)), _USES[p.suffix]) for p in made]
        )
        console.print()
        show_item(console, f"the coordinator's public key, for policies: {public_key}")
        show_item(console, "keep ca.key and coordinator.sign off devices and brokers")


_USES = {
    ".pem": "certificate",
    ".key": "its private key",
    ".sign": "signs orders; only the coordinator has it",
    ".pub": "checks orders; every device's policy lists it",
}


def device_names(text: str) -> list[str]:
    """Read names of devices, or how many there are.

    >>> device_names("2"), device_names("oven, fridge")
    (['device-0', 'device-1'], ['oven', 'fridge'])
    """
    if text.strip().isdecimal():
        count = whole("--devices", int(text), least=0, most=100_000)
        return [f"device-{number}" for number in range(count)]
    return _listed(text)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
