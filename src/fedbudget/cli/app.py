"""All commands in one application, and what becomes of errors."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import fedbudget
from fedbudget.cli.output import Stopped, loud_warnings, say
from fedbudget.cli.planning import frontier, plan
from fedbudget.cli.sweeping import sweep
from fedbudget.cli.training import train
from fedbudget.errors import FedbudgetError, InvalidInputError

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


for command in (plan, frontier, train, sweep):
    app.command()(command)


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
    except (Stopped, KeyboardInterrupt, typer.Abort) as stop:
        say("", str(stop) if isinstance(stop, Stopped) else "stopped", style="bold")
        return STOPPED
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
