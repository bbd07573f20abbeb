"""The Markdown tables of the accuracy benchmarks, which docs/accuracy.py reads.

`--tables FOLDER` writes every printed table to FOLDER/NAME.md, too; `python
docs/accuracy.py FOLDER` copies them into docs/accuracy.md, each between the markers
with its name. No number in that page is typed by hand.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.paper.results import Estimate


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that writes the tables to files."""
    parser.add_argument(
        "--tables", type=Path, help="write the tables to this folder, too"
    )


def show(name: str, lines: Iterable[str], folder: Path | None) -> None:
    """Print a table line by line, and write it to the folder, if given."""
    printed = []
    for line in lines:
        print(line, flush=True)
        printed.append(line)
    print()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text("\n".join(printed) + "\n", encoding="utf-8")


def row(cells: Iterable[object]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def header(names: Iterable[str]) -> list[str]:
    """Return the two header lines of a table."""
    columns = list(names)
    return [row(columns), "|---" * len(columns) + "|"]


def standard_error(values: ArrayLike) -> np.ndarray:
    """Return the standard error of the mean over the first axis."""
    x = np.asarray(values, dtype=float)
    return np.asarray(x.std(0, ddof=1) / len(x) ** 0.5)


def difference(estimate: Estimate) -> str:
    """Return a mean difference and its 95% interval (Student's t)."""
    if estimate.low == estimate.high == 0:
        return "the same"  # the same plan, and so the same runs
    return f"{estimate.mean:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
