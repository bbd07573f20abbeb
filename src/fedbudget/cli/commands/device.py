"""`fedbudget device`: the guard of one device."""

from typing import Annotated

import typer

from fedbudget.cli.options import OUTPUT
from fedbudget.cli.output import print_json


def device(
    policy: Annotated[
        str,
        typer.Argument(
            help="The owner's policy, a TOML file (docs/fleet-device.md). Required.",
            show_default=False,
        ),
    ],
    *,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Read the policy, the data and the ledger, show them, and exit; no "
            "connection is made.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="With --check: print one JSON object.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Guard a device: answer orders within its owner's policy and budgets.

    Runs until it is stopped. A refused order costs nothing. An answered one is charged,
    on disk, before data are read.
    """
    if check:
        _show(policy, as_json=as_json)
        return
    from fedbudget.fleet.device.process import run

    run(policy)


def _show(path: str, *, as_json: bool) -> None:
    """Print the device's public declaration and its ledger."""
    from fedbudget.fleet.device.guard import Guard
    from fedbudget.fleet.device.policy import read_policy
    from fedbudget.fleet.device.statement import read_statement

    policy = read_policy(path)
    guard = Guard(policy)
    declaration = guard.declaration
    guard.close()
    statement = read_statement(policy.ledger)
    if as_json:
        public = {name: getattr(declaration, name) for name in declaration.checks}
        print_json({"declaration": public, "ledger": statement.to_dict()})
        return
    from fedbudget.cli.views.layout import new_page, show_heading, show_pairs
    from fedbudget.privacy import rounded_up

    spent = rounded_up(statement.epsilon)

    with new_page() as console:
        console.print(f"device {declaration.device}", style="bold", markup=False)
        show_heading(console, "Public declaration")
        show_pairs(
            console,
            [
                (name.replace("_", " "), str(getattr(declaration, name)))
                for name in declaration.checks
                if name != "device"
            ],
        )
        show_heading(console, "Private ledger")
        show_pairs(
            console,
            [
                ("epsilon", f"{spent} of {statement.epsilon_budget:g}"),
                ("cost", f"{statement.cost:g} of {statement.cost_budget:g}"),
                ("runs joined", str(len(statement.runs))),
            ],
        )
