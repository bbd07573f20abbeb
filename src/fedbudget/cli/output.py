"""Output other than tables: JSON, errors, warnings and progress.

rich is imported where it is used: --help must be fast.
"""

import json
import math
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from fedbudget.errors import DataWarning, NotPrivateWarning

if TYPE_CHECKING:
    from rich.progress import Progress

PROGRESS_DELAY = 1.0  # seconds before progress is shown


def one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def say(kind: str, message: str, *, style: str) -> None:
    """Print one line on stderr, such as ``error: ...``; the kind may be empty."""
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((f"{kind}: " if kind else "", style), one_line(message))
    Console(stderr=True).print(line, soft_wrap=True)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; a number that is not finite becomes null."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False)
    sys.stdout.write(text + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def loud_warnings() -> Iterator[None]:
    """Show this package's warnings, each on one line; do not change others."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", NotPrivateWarning)
        warnings.simplefilter("always", DataWarning)
        previous = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, NotPrivateWarning):
                text = str(message).removeprefix("NOT PRIVATE: ")
                say("warning", f"NOT PRIVATE: {text}", style="bold yellow")
            elif issubclass(category, DataWarning):
                say("warning", str(message), style="bold yellow")
            else:
                previous(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class Stopped(Exception):  # noqa: N818  # requested by the user, not an error
    """Ctrl-C, with a message for the user."""


class Bar:
    """A progress bar on stderr, with a text."""

    def __init__(self, progress: "Progress", text: str, total: int | None) -> None:
        self._progress, self._task = progress, progress.add_task(text, total=total)

    def __call__(self) -> None:
        """Advance by one."""
        self._progress.advance(self._task)

    def show(self, text: str, *, done: int | None = None) -> None:
        """Change the text, and how much is done."""
        self._progress.update(self._task, description=text, completed=done)


@contextmanager
def progress(
    text: str, *, total: int | None = None, counter: str = "{task.completed} done"
) -> Iterator[Bar]:
    """Show a bar on stderr if the block takes more than a second."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn(counter),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    shown = Bar(bar, text, total)
    timer = threading.Timer(PROGRESS_DELAY, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def telling_of_compilation(bar: Bar, text: str) -> Iterator[None]:
    """Show on the bar when kernels are compiled, then the text again."""
    try:
        from numba.core import event
    except ImportError:  # the library raises an error with the remedy
        yield
        return

    class Listener(event.Listener):
        depth = 0  # compilations nest

        def on_start(self, event: object) -> None:
            self.depth += 1
            bar.show("compiling kernels: about 15 s, on first use only")

        def on_end(self, event: object) -> None:
            self.depth -= 1
            if self.depth == 0:
                bar.show(text)

    with event.install_listener("numba:compile", Listener()):
        yield
