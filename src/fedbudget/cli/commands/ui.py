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
        typer.Option(parser=parse_whole, help=f"Port to serve on, at {ADDRESS} only."),
    ] = PORT,
    runs: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder that holds the run folders."),
    ] = Path("runs"),
    fleet: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Status address of a coordinator, for the Fleet page."
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
    """Open a page in the browser: explore budgets, run, watch a fleet, compare."""
    command = server_command(port=port, runs=runs, fleet=fleet, browser=browser)
    check_port(port)
    typer.echo(f"fedbudget ui: http://{ADDRESS}:{port} (Ctrl-C stops it)")
    serve(command)
