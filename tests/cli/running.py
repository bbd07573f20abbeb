"""Run the command line as a user does."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from fedbudget.cli import main


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The output as one line, without its line breaks."""
        return " ".join(self.out.split())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """Run a command in this process."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    shown = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return Result(stop.value.code, shown.out, shown.err)


def run_python(code: str, *arguments: str, **environment: str) -> Result:
    """Run Python in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | environment,
        check=False,
        timeout=120,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def assert_one_line(result: Result, *, code: int, says: tuple[str, ...]) -> None:
    """Check for one line on stderr, nothing on stdout, and the exit code."""
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    for words in says:
        assert words in result.err
