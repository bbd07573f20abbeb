"""What is neither table nor plan: JSON, errors, warnings and progress.

rich is imported where it is used: help must come up fast.
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

PATIENCE = 1.0  # seconds before progress is shown


def one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def say(kind: str, message: str, *, style: str) -> None:
    """Print one line on stderr, such as ``error: ...``; without a kind, as it is."""
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((f"{kind}: " if kind else "", style), one_line(message))
    Console(stderr=True).print(line, soft_wrap=True)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; what is not a finite number becomes null."""
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
    """Show our own warnings, each as one line; leave the others as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", NotPrivateWarning)
        warnings.simplefilter("always", DataWarning)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, NotPrivateWarning):
                told = str(message).removeprefix("NOT PRIVATE: ")
                say("warning", f"NOT PRIVATE: {told}", style="bold yellow")
            elif issubclass(category, DataWarning):
                say("warning", str(message), style="bold yellow")
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class Stopped(Exception):  # noqa: N818  # the user's wish, not an error
    """Ctrl-C, where there is more to say than that."""


class Bar:
    """A bar on stderr, with what is going on beside it."""

    def __init__(self, progress: "Progress", what: str, total: int | None) -> None:
        self._progress, self._task = progress, progress.add_task(what, total=total)

    def __call__(self) -> None:
        """Advance by one."""
        self._progress.advance(self._task)

    def show(self, text: str, *, done: int | None = None) -> None:
        """Say what is going on, and how much of it is done."""
        self._progress.update(self._task, description=text, completed=done)


@contextmanager
def progress(
    what: str, *, total: int | None = None, counter: str = "{task.completed} done"
) -> Iterator[Bar]:
    """Show a bar on stderr once this takes over a second."""
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
    shown = Bar(bar, what, total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def telling_of_compilation(bar: Bar, what: str) -> Iterator[None]:
    """Say on the bar when kernels are compiled: it takes a while, but only once."""
    try:
        from numba.core import event
    except ImportError:  # the library says what is missing, and how to get it
        yield
        return

    class Listener(event.Listener):
        depth = 0  # one function is compiled while another one is

        def on_start(self, event: object) -> None:
            self.depth += 1
            bar.show("compiling the kernels: about 15 s, on first use only")

        def on_end(self, event: object) -> None:
            self.depth -= 1
            if self.depth == 0:
                bar.show(what)

    with event.install_listener("numba:compile", Listener()):
        yield
