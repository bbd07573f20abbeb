"""`fedbudget ledger`: a device's spending, for its owner."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fedbudget.cli.options import AsJson, PlainCommand, PlainGroup
from fedbudget.cli.output import print_json
from fedbudget.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from fedbudget.fleet.device.statement import Statement

ledger = typer.Typer(
    help="A device's ledger, for its owner.",
    add_completion=False,
    no_args_is_help=True,
    cls=PlainGroup,
)

Path: TypeAlias = Annotated[
    str,
    typer.Argument(help="The ledger's SQLite file. Required.", show_default=False),
]


@ledger.command(cls=PlainCommand)
def show(path: Path, *, as_json: AsJson = False) -> None:
    """Show the spending, the budgets, and the runs of a device."""
    from fedbudget.fleet.device.statement import read_statement

    statement = read_statement(path)
    if as_json:
        print_json(statement.to_dict())
        return
    _show(statement)


@ledger.command(cls=PlainCommand)
def verify(path: Path, *, as_json: AsJson = False) -> None:
    """Verify that no entry was edited, removed, moved or cut off; exit 1 otherwise."""
    from fedbudget.fleet.device.statement import read_statement

    statement = read_statement(path)
    if as_json:
        print_json(
            {"whole": True, "entries": statement.entries, "head": statement.head}
        )
        return
    typer.echo(f"intact: {statement.entries} entries, last hash {statement.head}")


@ledger.command(cls=PlainCommand)
def clear(path: Path, *, as_json: AsJson = False) -> None:
    """Let coordinators order again whose runs would have overdrawn a budget.

    After 3 such runs a device refuses all new orders of a coordinator, since each
    refusal tells something about the remaining budget. Stop the device first.
    """
    from fedbudget.fleet.device.statement import clear_overdrafts

    count = clear_overdrafts(path)
    if as_json:
        print_json({"cleared": count})
        return
    typer.echo(f"cleared: {counted(count, 'run')} that would have overdrawn a budget")


def _show(statement: "Statement") -> None:
    from fedbudget.cli.views.layout import (
        new_page,
        new_table,
        show_heading,
        show_pairs,
        show_table,
    )
    from fedbudget.privacy import rounded_up

    with new_page() as console:
        console.print(
            f"ledger of {statement.lineage}", style="bold", markup=False, soft_wrap=True
        )
        spent = (
            f"{rounded_up(statement.epsilon)} of {statement.epsilon_budget:g} at delta "
            f"{rounded_up(statement.delta)} ({statement.accountant})"
        )
        show_pairs(
            console,
            [
                ("epsilon spent", spent),
                (
                    "as Gaussian DP, zCDP",
                    f"mu {rounded_up(statement.mu)}, rho {rounded_up(statement.rho)}",
                ),
                ("cost spent", f"{statement.cost:g} of {statement.cost_budget:g}"),
                ("rows", "none yet" if statement.rows is None else f"{statement.rows}"),
                (
                    "data over time",
                    ", ".join(statement.data_changes[-8:]) or "none yet",
                ),
                ("would overdraw", _overdrafts(statement)),
                ("entries", f"{statement.entries}, all intact"),
                ("last hash", f"{statement.head[:32]} ..."),
            ],
        )
        _show_periods(console, statement)
        if not statement.runs:
            return
        show_heading(console, "Runs")
        table = new_table(
            "run", "rounds", "charged", "answered", "steps", "mu", "cost", right=True
        )
        for run in statement.runs:
            table.add_row(
                f"{run.name} {run.run[:8]}",
                *(str(n) for n in (run.rounds, run.charged, run.answered, run.steps)),
                rounded_up(run.mu),
                f"{run.cost:g}",
            )
        show_table(console, table)
        _show_sums(console, statement)


def _show_sums(console: "Console", statement: "Statement") -> None:
    """Show what the runs of sums assume, and the rounds whose shares were revealed."""
    from fedbudget.cli.views.layout import new_table, show_heading, show_table
    from fedbudget.privacy import rounded_up

    runs = [(run, run.sums) for run in statement.runs if run.sums is not None]
    if not runs:
        return
    show_heading(console, "Secure sums: mu holds for sums of so many answers")
    table = new_table(
        "run", "answers", "colluders", "unit", "mu alone", "revealed", right=True
    )
    for run, sums in runs:
        table.add_row(
            f"{run.name} {run.run[:8]}",
            str(sums.least_answers),
            str(sums.colluders),
            sums.unit,
            rounded_up(sums.mu_alone),
            counted(len(sums.revealed), "round"),
        )
    show_table(console, table)


def _show_periods(console: "Console", statement: "Statement") -> None:
    """Show what each period has spent, if there is more than one."""
    from fedbudget.cli.views.layout import new_table, show_heading, show_table
    from fedbudget.privacy import rounded_up

    if len(statement.periods) < 2:
        return
    show_heading(console, "Periods: each row counts in one, with a budget of its own")
    table = new_table("period", "first row", "epsilon", "cost", right=True)
    for period in statement.periods:
        numbers = (
            str(period.first_row),
            rounded_up(period.epsilon),
            f"{period.cost:g}",
        )
        table.add_row(str(period.number), *numbers)
    show_table(console, table)


def _overdrafts(statement: "Statement") -> str:
    """Show how many runs of each coordinator would overdraw, and who is blocked."""
    from fedbudget.fleet.device.guard import MOST_OVERDRAFTS

    if not statement.overdrafts:
        return "no run"
    return ", ".join(
        f"{counted(count, 'run')} of {key[:20]}..."
        + (" (blocked: fedbudget ledger clear)" if count >= MOST_OVERDRAFTS else "")
        for key, count in statement.overdrafts.items()
    )
