"""All commands in one application, and their errors and exit codes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType
from typing import Annotated, Any

import typer

import fedbudget
from fedbudget.cli.commands.audit import audit
from fedbudget.cli.commands.certs import certs
from fedbudget.cli.commands.device import device
from fedbudget.cli.commands.doctor import doctor
from fedbudget.cli.commands.export import export
from fedbudget.cli.commands.fleet import fleet
from fedbudget.cli.commands.frontier import frontier
from fedbudget.cli.commands.init import init
from fedbudget.cli.commands.ledger import ledger
from fedbudget.cli.commands.measure import measure
from fedbudget.cli.commands.paper import paper
from fedbudget.cli.commands.plan import plan
from fedbudget.cli.commands.predict import predict
from fedbudget.cli.commands.report import report
from fedbudget.cli.commands.server import server
from fedbudget.cli.commands.sweep import sweep
from fedbudget.cli.commands.train import train
from fedbudget.cli.commands.ui import ui
from fedbudget.cli.options import PlainCommand, PlainGroup
from fedbudget.cli.output import Stopped, loud_warnings, say
from fedbudget.errors import FedbudgetError, InvalidInputError

try:
    from typer import TyperException as UsageError
except ImportError:  # before 0.27, Typer lets click's own errors pass
    from click import ClickException as UsageError  # type: ignore[assignment]

REFUSED, BAD_USAGE, STOPPED = 1, 2, 130

app = typer.Typer(
    name="fedbudget",
    help="Federated learning within two budgets: privacy and resources. Models are "
    "linear in their features, which may be non-linear in the columns.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    cls=PlainGroup,
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


for command in (init, measure, plan, frontier, train, sweep, report, paper, ui):
    app.command(cls=PlainCommand)(command)
for command in (audit, export, predict, doctor):
    app.command(cls=PlainCommand)(command)
app.add_typer(certs, name="certs")
app.add_typer(server, name="server")
app.add_typer(device, name="device")
app.add_typer(ledger, name="ledger")
app.add_typer(fleet, name="fleet")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 refused or failed, 2 bad usage, 130 stopped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal may lack a character
            stream.reconfigure(errors="replace")
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """Return the exit code; every error becomes one line on stderr."""
    try:
        with loud_warnings(), ctrl_c_outside_llvm():
            code = app(args=arguments, prog_name="fedbudget", standalone_mode=False)
        sys.stdout.flush()
        return _stop("stopped") if code == STOPPED else code or 0
    except UsageError as error:
        return _fail(_usage(error), BAD_USAGE)
    except InvalidInputError as error:
        return _fail(str(error), BAD_USAGE)
    except FedbudgetError as error:
        return _fail(str(error), REFUSED)
    except MemoryError:
        return _fail("not enough memory: plan for fewer devices or rows", REFUSED)
    except (Stopped, KeyboardInterrupt, typer.Abort) as stop:
        return _stop(str(stop) if isinstance(stop, Stopped) else "stopped")
    except OSError as error:
        # Buffered output cannot be written: discard it, or the exit fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(
            error, BrokenPipeError
        ):  # the reader closed the pipe, as head does
            return REFUSED
        return _fail(f"cannot read or write: {error}", REFUSED)


@contextmanager
def ctrl_c_outside_llvm() -> Iterator[None]:
    """Delay Ctrl-C while Numba is inside LLVM.

    LLVM calls back into Python. An exception raised there is printed and lost: the run
    would continue, or fail because a kernel was not compiled.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for caller, _ in walk_stack(frame):
            if caller.f_globals.get("__name__", "").startswith("llvmlite."):
                retry = threading.Timer(0.05, _signal_main_thread, [number])
                retry.daemon = True
                retry.start()
                return
        signal.default_int_handler(number, frame)

    previous = signal.getsignal(signal.SIGINT)
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or previous is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _signal_main_thread(number: int) -> None:
    """Send a signal that also interrupts a wait of the main thread."""
    main_thread = threading.main_thread().ident
    if main_thread is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main_thread, number)
    else:  # Windows
        signal.raise_signal(number)


def _stop(message: str) -> int:
    say("", message, style="bold")
    return STOPPED


def _fail(message: str, code: int) -> int:
    say("error", message, style="bold red")
    return code


def _usage(error: Any) -> str:
    """Return the error in the command line, and the help to read."""
    command = error.ctx.command_path if error.ctx is not None else "fedbudget"
    message = error.format_message().rstrip(".") or "the command is missing"
    return f"{message}: see {command} --help"
