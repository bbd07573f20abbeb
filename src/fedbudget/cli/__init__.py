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

# Words after `fedbudget device` that are not a policy.
DEVICE_COMMANDS = ("run", "pause", "resume", "renew", "personal", "predict")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 refused or failed, 2 bad usage, 130 stopped."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["device"] and (policy := _policy_of(words[1:])) is not None:
        sys.exit(_guard(policy))
    try:
        from fedbudget.cli.app import main as run_command
    except KeyboardInterrupt:  # Ctrl-C during the imports
        print("stopped before it began", file=sys.stderr)
        sys.exit(130)
    run_command(words)


def _policy_of(words: Sequence[str]) -> str | None:
    """Return the policy if a device is run without options; none for other commands."""
    if len(words) == 2 and words[0] == "run":
        words = words[1:]
    is_policy = len(words) == 1 and not words[0].startswith("-")
    return words[0] if is_policy and words[0] not in DEVICE_COMMANDS else None


def _guard(policy: str) -> int:
    """Run `fedbudget device POLICY` without importing the other commands (memory)."""
    from fedbudget.errors import FedbudgetError, InvalidInputError
    from fedbudget.fleet.device.process import run_device

    try:
        run_device(policy)
    except FedbudgetError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError) else 1
    return 0


__all__ = ["main"]
