"""`fedbudget device`: the guard of one device."""

import json
import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fedbudget.cli.options import OUTPUT, AsJson, DefaultGroup, PlainCommand
from fedbudget.cli.output import print_json
from fedbudget.files import refusing, whole_file

device = typer.Typer(
    help="The guard of one device: run it, pause it, predict with its model.",
    add_completion=False,
    no_args_is_help=True,
    cls=DefaultGroup,
)

PolicyFile: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="POLICY",
        help="The owner's policy, a TOML file (docs/fleet-device.md). Required.",
        show_default=False,
    ),
]


@device.command(cls=PlainCommand)
def run(
    policy: PolicyFile,
    *,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Read the policy, the certificate, the data and the ledger, show "
            "them, and exit; no connection is made.",
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
    """Answer orders within the owner's policy and budgets.

    The word run may be left out: fedbudget device POLICY. Runs until it is stopped. A
    refused order costs nothing. An answered one is charged, on disk, before data are
    read.
    """
    if check:
        _show(policy, as_json=as_json)
        return
    from fedbudget.fleet.device.process import run_device

    run_device(policy)


@device.command(cls=PlainCommand)
def pause(policy: PolicyFile) -> None:
    """Pause the device: no order is answered until fedbudget device resume.

    Works while the guard runs; it is offline for its coordinator.
    """
    from fedbudget.fleet.device.policy import read_policy

    path = read_policy(policy).availability.pause_file
    assert path is not None  # a policy always has one
    with refusing(path, "run this as a user who may write there"):
        path.touch(mode=0o600)
    typer.echo(f"paused: {path}")


@device.command(cls=PlainCommand)
def resume(policy: PolicyFile) -> None:
    """End the owner's pause."""
    from fedbudget.fleet.device.policy import read_policy

    path = read_policy(policy).availability.pause_file
    assert path is not None
    with refusing(path, "run this as a user who may write there"):
        path.unlink(missing_ok=True)
    typer.echo(f"not paused: {path} is gone")


@device.command(cls=PlainCommand)
def renew(policy: PolicyFile, *, as_json: AsJson = False) -> None:
    """Start a new period: rows that are added from now on have a budget of their own.

    Stop the guard first. Rows of the file so far stay in their period, whose budget
    does not change. The guard uses the new period when it has as many rows as it
    declares.
    """
    from fedbudget.fleet.device.policy import read_policy
    from fedbudget.fleet.device.renewal import start_period

    period = start_period(read_policy(policy))
    if as_json:
        print_json({"period": period.number, "first_row": period.first_row})
        return
    typer.echo(f"period {period.number} starts at row {period.first_row}")


@device.command(cls=PlainCommand)
def personal(
    policy: PolicyFile,
    model: Annotated[
        str,
        typer.Argument(
            help="The released model: an exported .json file, or a run folder. "
            "Required.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The file to write. Default: personal.json beside the ledger.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt a released model to this device's own rows; it never leaves the device.

    That costs no privacy and no message. fedbudget device predict uses it.
    """
    from dataclasses import replace

    from fedbudget.errors import InvalidInputError
    from fedbudget.fleet.device.data_file import loss_of, read_rows
    from fedbudget.fleet.device.personal_model import adapted
    from fedbudget.fleet.device.policy import read_policy
    from fedbudget.interop.export import LinearModel

    owner, released = read_policy(policy), LinearModel.load(model)
    rows = read_rows(owner.data)
    if (released.loss, released.dim) != (owner.data.loss, rows.dim):
        raise InvalidInputError(
            f"the model has loss {released.loss} and {released.dim} columns, the rows "
            f"of this device {owner.data.loss} and {rows.dim}: use the model of its "
            "own fleet"
        )
    digest = None if released.schema is None else released.schema.digest
    if None not in (digest, rows.schema) and digest != rows.schema:
        raise InvalidInputError(
            f"the model's schema {str(digest)[:16]} is not this device's, "
            f"{str(rows.schema)[:16]}: use the model of its own fleet"
        )
    loss = loss_of(owner.data.loss, rows.num_classes)
    theta = adapted(loss, released.theta, rows.rows)
    own = replace(released, theta=theta, privacy="none: for this device alone")
    path = _personal_path(policy, out)
    with whole_file(path, permissions=0o600) as file:
        json.dump(own.to_dict(), file)
    if as_json:
        print_json({"file": str(path), "rows": len(rows)})
        return
    typer.echo(f"personal model of {len(rows)} rows: {path}; do not send it anywhere")


@device.command(cls=PlainCommand)
def predict(
    policy: PolicyFile,
    table: Annotated[
        str,
        typer.Argument(
            help="A table of raw columns: .csv, .csv.gz or .parquet. Required.",
            show_default=False,
        ),
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Another model than the personal one. Default: personal.json beside "
            "the ledger.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The file to write, .csv or .parquet. Default: none, the first rows "
            "are shown.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a table with this device's personal model."""
    from fedbudget.cli.commands.predict import predict as predict_with

    path, mask = str(_personal_path(policy, model)), os.umask(0o077)
    try:  # predictions tell about rows: only their owner reads the file
        predict_with(path, table, out=out, as_json=as_json)
    finally:
        os.umask(mask)


def _personal_path(policy: str, given: str | None) -> Path:
    from fedbudget.fleet.device.policy import read_policy

    if given is not None:
        return Path(given)
    return read_policy(policy).ledger.with_name("personal.json")


def _show(path: str, *, as_json: bool) -> None:
    """Print the device's public declaration and its ledger."""
    from fedbudget.fleet.device.guard import Guard
    from fedbudget.fleet.device.policy import read_policy
    from fedbudget.fleet.device.process import check_certificate
    from fedbudget.fleet.device.statement import read_statement

    policy = read_policy(path)
    check_certificate(policy)
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
                # The ledger's identity is a random number, of no use to people.
                if name not in ("device", "ledger")
                and getattr(declaration, name) is not None
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
