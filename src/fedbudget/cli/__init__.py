"""The command line: parse, call the library, print, exit code; no arithmetic.

app.py        all commands, and what becomes of errors
commands/     a module for each command: its options and what it calls
options.py    the options that commands share
config.py     fedbudget.toml
sources.py    from the data options to rows and a problem
views/        the tables that people read
output.py     JSON, warnings, errors and progress
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 refused or failed, 2 bad usage, 130 stopped."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) == 2 and given[0] == "device" and not given[1].startswith("-"):
        sys.exit(_guard(given[1]))
    try:
        from fedbudget.cli.app import main as any_command
    except KeyboardInterrupt:  # Ctrl-C while all of it is loaded
        print("stopped before it began", file=sys.stderr)
        sys.exit(130)
    any_command(given)


def _guard(policy: str) -> int:
    """Run `fedbudget device POLICY` without the other commands' memory."""
    from fedbudget.errors import FedbudgetError, InvalidInputError
    from fedbudget.fleet.device.process import run

    try:
        run(policy)
    except FedbudgetError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError) else 1
    return 0


__all__ = ["main"]
