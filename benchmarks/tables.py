"""Tables as the benchmarks of accuracy print them, and as docs/accuracy.py reads them.

`--tables FOLDER` keeps every table that a command prints as FOLDER/NAME.md;
`python docs/accuracy.py FOLDER` puts them into docs/accuracy.md, each between the
markers with its name. No number in that page is typed.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.paper.results import Estimate


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let a command keep its tables."""
    parser.add_argument("--tables", type=Path, help="keep the tables in this folder")


def show(name: str, lines: Iterable[str], folder: Path | None) -> None:
    """Print a table line by line, as they come, and keep it."""
    kept = []
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    print()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text("\n".join(kept) + "\n", encoding="utf-8")


def row(cells: Iterable[object]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def header(names: Iterable[str]) -> list[str]:
    """Return the two lines on top of a table."""
    columns = list(names)
    return [row(columns), "|---" * len(columns) + "|"]


def standard_error(values: ArrayLike) -> np.ndarray:
    """Return that of the mean over the first axis."""
    x = np.asarray(values, dtype=float)
    return np.asarray(x.std(0, ddof=1) / len(x) ** 0.5)


def difference(found: Estimate) -> str:
    """Return a mean difference and its 95% interval (Student's t)."""
    if found.low == found.high == 0:
        return "the same"  # the same plan, and so the same runs
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
