"""`fedbudget ui`."""

from pathlib import Path
from typing import Annotated

import typer

from fedbudget.cli.options import OUTPUT, parse_whole
from fedbudget.ui.app import (
    ADDRESS,
    PORT,
    STATUS_URL,
    check_port,
    serve,
    server_command,
)


def ui(
    *,
    port: Annotated[
        int,
        typer.Option(parser=parse_whole, help=f"Port to serve on, at {ADDRESS} alone."),
    ] = PORT,
    runs: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Where run folders are kept and looked for."
        ),
    ] = Path("runs"),
    fleet: Annotated[
        str,
        typer.Option(
            metavar="URL", help="A running coordinator's status, for the page Fleet."
        ),
    ] = STATUS_URL,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser/--no-browser",
            help="Open the page in the browser.",
            rich_help_panel=OUTPUT,
        ),
    ] = True,
) -> None:
    """Serve a page on this machine: explore budgets, run, watch a fleet, compare."""
    command = server_command(port=port, runs=runs, fleet=fleet, browser=browser)
    check_port(port)
    typer.echo(f"fedbudget ui: http://{ADDRESS}:{port} (Ctrl-C stops it)")
    serve(command)
