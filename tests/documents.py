"""Documents as stories: every block of a page is run, in order, in one folder.

    ```csv title="x.csv"   any block with a title is a file: it is written
    ```console             each line after `$ ` is run; what is below must be its output
    ```sh                  each line is run, and must succeed; its output is not shown
    ```python              run in one namespace for the page; a ```text right below it
                           must be what it prints

Words must agree exactly; blanks do not count; numbers may differ by 5 %, for a search
may end at a neighbour on another processor. A line `...` stands for any lines. Seconds
and versions differ between machines: show them nowhere.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.test_readme import NUMBER, assert_alike

FENCE = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
RUN = ("console", "sh", "python")
INERT = ("text",)
_ANY_LINES = "..."


@dataclass(eq=False)
class Story:
    """A page, and the folder and the names that its blocks share."""

    page: Path
    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    printed: str | None = None  # by the block above, if that was Python

    def fresh(self, match: re.Match[str]) -> str:
        """Run one block; return it with the outputs of now."""
        language, title, text = match[1], match[2], match[3]
        above, self.printed = self.printed, None
        if title is not None:
            (self.folder / title).write_text(text, encoding="utf-8")
        elif language == "python":
            self.printed = self._run_python(text)
        elif language == "sh":
            for command in _commands(text):
                self._run_shell(command)
        elif language == "console":
            return f"```console\n{self._console(text)}```"
        elif language == "text" and above is not None:
            return f"```text\n{_shortened(above, text)}```"
        elif language not in INERT:
            raise AssertionError(
                f"{self.page.name}: a block of {language!r} is not run"
            )
        return match[0]

    def _console(self, text: str) -> str:
        shown = ""
        for command, output in _exchanges(text):
            printed = self._run_shell(command)
            if output:
                printed = _shortened(printed, output)
            shown += f"$ {command}\n{printed if output else ''}"
        return shown

    def _run_shell(self, command: str) -> str:
        """Run a command at 80 columns without colour; return all that it says."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-o", "errexit", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            cwd=self.folder,
            env=os.environ | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1"},
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def _run_python(self, code: str) -> str:
        shown = io.StringIO()
        previous = Path.cwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(shown), warnings.catch_warnings():
                exec(compile(code, str(self.page), "exec"), self.names)
        finally:
            os.chdir(previous)
        return shown.getvalue()


def _commands(text: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _exchanges(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block, and what is shown below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def _shortened(output: str, shown: str) -> str:
    """Return the output, cut where the page cuts it."""
    lines, complete = shown.splitlines(), output.splitlines()
    if _ANY_LINES not in lines:
        return output
    first = lines.index(_ANY_LINES)
    last = len(lines) - 1 - lines[::-1].index(_ANY_LINES)
    assert first == last, "one ... in a block, please"
    below = len(lines) - first - 1
    ending = complete[len(complete) - below :] if below else []
    return "\n".join([*complete[:first], _ANY_LINES, *ending]) + "\n"


def run_page(page: Path, folder: Path) -> tuple[str, str]:
    """Return the page as it is, and as it would be with the outputs of now."""
    text = page.read_text(encoding="utf-8")
    story = Story(page, folder)
    return text, FENCE.sub(story.fresh, text)


def assert_true(page: Path, folder: Path) -> None:
    """Raise unless every block runs and shows what the page shows."""
    old, new = run_page(page, folder)
    for shown, fresh in zip(FENCE.finditer(old), FENCE.finditer(new), strict=True):
        if NUMBER.search(shown[3]) or shown[3] != fresh[3]:
            assert_alike(fresh[3], shown[3])
