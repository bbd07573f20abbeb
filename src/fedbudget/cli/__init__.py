"""The command line: parse, call the library, print, exit code; no arithmetic.

app.py        all commands, each in a module of its own, and what becomes of errors
options.py    the options that commands share
config.py     fedbudget.toml
asking.py     from options to the arguments of a command
sources.py    from the data options to rows and a problem
layout.py     how pages for people look; tables.py, results.py, measured.py and
              fleet_tables.py fill them
output.py     JSON, warnings, errors and progress; helping.py: how help shows flags
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
