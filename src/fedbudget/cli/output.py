"""What is neither table nor plan: JSON, errors, warnings and progress.

rich is imported where it is used: help must come up fast.
"""

import json
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from fedbudget.errors import NotPrivateWarning

PATIENCE = 1.0  # seconds before progress is shown


def one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def say(kind: str, message: str, *, style: str) -> None:
    """Print one line on stderr, such as ``error: ...``."""
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((f"{kind}: ", style), one_line(message))
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
    """Show every warning about privacy, as one line; leave the others as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", NotPrivateWarning)
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
                say("warning", f"NOT PRIVATE: {message}", style="bold yellow")
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


@contextmanager
def progress(what: str, *, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr once this takes over a second; yields what advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed} done"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(what, total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
