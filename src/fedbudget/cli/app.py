"""The commands, and what becomes of errors."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import fedbudget
from fedbudget.budget import Budget
from fedbudget.cli.options import BUDGETS, Question, asks, numbers
from fedbudget.cli.output import loud_warnings, print_json, progress, say
from fedbudget.cli.sources import Source, read_source
from fedbudget.errors import (
    FedbudgetError,
    InfeasibleBudgetError,
    InvalidInputError,
)

REFUSED, BAD_USAGE, STOPPED = 1, 2, 130

# Typer brings its own click, or older ones import it: either way, this is its error.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="fedbudget",
    help="Federated learning within two budgets: privacy and resources.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning within two budgets: privacy and resources."""
    if version:
        typer.echo(f"fedbudget {fedbudget.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(BAD_USAGE)


@app.command()
@asks
def plan(
    question: Question,
    *,
    epsilon: Annotated[
        float,
        typer.Option(
            help="Privacy each device may lose in the whole run, no unit; 1 to 10 are "
            "usual.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ],
    cost: Annotated[
        float,
        typer.Option(
            help="What each device may spend in the whole run, in the prices' unit.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ],
) -> None:
    """Plan a run within both budgets, before any private row is touched."""
    budget = Budget(epsilon=epsilon, delta=question.delta, cost=cost)
    with progress("planning"):
        source = read_source(question)
        chosen = fedbudget.plan(source.problem, budget, question.prices, **question.how)
    if question.json:
        print_json(chosen.to_dict() | _about(source))
        return
    from fedbudget.cli.tables import show_plan  # rich's tables, only where shown

    show_plan(source, budget, chosen)


@app.command()
@asks
def frontier(
    question: Question,
    *,
    epsilons: Annotated[
        str,
        typer.Option(help="Privacy budgets to try, no unit.", rich_help_panel=BUDGETS),
    ] = "0.5,1,2,4,7,10",
    costs: Annotated[
        str | None,
        typer.Option(
            help="Cost budgets to try, in the prices' unit. Default: 2 to 10 times the "
            "price of a round with one step.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ] = None,
) -> None:
    """Show what more of each budget would buy: the predicted loss over both."""
    epsilon_axis = numbers("--epsilons", epsilons)
    cost_axis = None if costs is None else numbers("--costs", costs)
    with progress("planning for every pair of budgets") as advance:
        source = read_source(question)
        found = fedbudget.frontier(
            source.problem,
            question.prices,
            epsilons=epsilon_axis,
            costs=cost_axis,
            delta=question.delta,
            on_point=advance,
            **question.how,
        )
    if not any(any(row) for row in found.plans):
        raise InfeasibleBudgetError(
            f"none of the costs up to {found.costs.max():g} pays for one round with "
            "one step: raise --costs or lower the prices"
        )
    if question.json:
        print_json(found.to_dict() | _about(source))
        return
    from fedbudget.cli.tables import show_frontier

    show_frontier(source, found)


def _about(source: Source) -> dict[str, object]:
    """Return what every JSON object says of its data."""
    constants = {
        name: {"value": item.value, "source": item.source, "note": item.note}
        for name, item in source.problem.constants.items()
    }
    return {"data": source.line, "constants": constants}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 refused or failed, 2 bad usage, 130 stopped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal may not know every sign
            stream.reconfigure(errors="replace")
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """Return the exit code; every error becomes one line on stderr."""
    try:
        with loud_warnings():
            code = app(args=arguments, prog_name="fedbudget", standalone_mode=False)
        sys.stdout.flush()
        return code or 0
    except UsageError as error:
        return _fail(_usage(error), BAD_USAGE)
    except InvalidInputError as error:
        return _fail(str(error), BAD_USAGE)
    except FedbudgetError as error:
        return _fail(str(error), REFUSED)
    except MemoryError:
        return _fail("not enough memory: plan for fewer devices or rows", REFUSED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", STOPPED)
    except OSError as error:
        # What is left to print has nowhere to go, and must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            return REFUSED
        return _fail(f"cannot read or write: {error}", REFUSED)


def _fail(message: str, code: int) -> int:
    say("error", message, style="bold red")
    return code


def _usage(error: Any) -> str:
    """Say what is wrong with the command line, and which help to read."""
    command = error.ctx.command_path if error.ctx is not None else "fedbudget"
    return f"{error.format_message().rstrip('.')}: see {command} --help"
