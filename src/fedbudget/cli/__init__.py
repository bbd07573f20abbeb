"""The command line: parse, call the library, print, exit code; no arithmetic.

app.py        all commands, and their errors and exit codes
commands/     a module for each command: its options and its calls
options.py    the options that commands share
config.py     fedbudget.toml
sources.py    the data options, read into rows and a problem
views/        the text output: headings and tables
output.py     JSON, warnings, errors and progress
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 refused or failed, 2 bad usage, 130 stopped."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if len(words) == 2 and words[0] == "device" and not words[1].startswith("-"):
        sys.exit(_guard(words[1]))
    try:
        from fedbudget.cli.app import main as run_command
    except KeyboardInterrupt:  # Ctrl-C during the imports
        print("stopped before it began", file=sys.stderr)
        sys.exit(130)
    run_command(words)


def _guard(policy: str) -> int:
    """Run `fedbudget device POLICY` without importing the other commands (memory)."""
    from fedbudget.errors import FedbudgetError, InvalidInputError
    from fedbudget.fleet.device.process import run

    try:
        run(policy)
    except FedbudgetError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError) else 1
    return 0


__all__ = ["main"]
