"""A document as blocks, written once and rendered as HTML and as Markdown."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedbudget.paper.figures import FigureFile
from fedbudget.paper.results import Estimate
from fedbudget.reporting import html as pages


@dataclass(frozen=True)
class Heading:
    """The heading of a section."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Text, with `code` between backticks."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Marked:
    """A highlighted cell: `good`, `fair` or `bad`."""

    text: str
    kind: str


Cell: TypeAlias = str | Marked


@dataclass(frozen=True)
class Table:
    """Rows under a header; the columns in `numbers` are right-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Sequence[int] = ()


Block: TypeAlias = Heading | Paragraph | Bullets | Table | FigureFile


def to_html(title: str, blocks: Iterable[Block], figures: Path) -> str:
    """Return one self-contained page.

    Args:
        title: The title of the page.
        blocks: The content, in order.
        figures: The folder of the SVG files.
    """
    content = list(blocks)
    entries = [
        (_anchor(block.text), block.text)
        for block in content
        if isinstance(block, Heading) and block.level == 2
    ]
    parts = [pages.contents(entries), *(_html(block, figures) for block in content)]
    return pages.page(title, parts)


def _html(block: Block, figures: Path) -> pages.Html:
    match block:
        case Heading(text, level):
            return pages.heading(_inline(text), level=level, anchor=_anchor(text))
        case Paragraph(text, kind):
            return pages.paragraph(_inline(text), kind=kind)
        case Bullets(items):
            return pages.bullets(map(_inline, items))
        case Table(header, rows, numbers):
            cells = [[_html_cell(cell) for cell in row] for row in rows]
            return pages.table(header, cells, numbers=numbers)
    svg = (figures / f"{block.name}.svg").read_text(encoding="utf-8")
    return pages.figure(svg, _inline(block.caption), name=block.name)


def _inline(text: str) -> pages.Html:
    return pages.Html(re.sub("`([^`]+)`", r"<code>\1</code>", escape(text)))


def _html_cell(cell: Cell) -> pages.Html:
    if isinstance(cell, Marked):
        return pages.mark(_inline(cell.text), cell.kind)
    return _inline(cell)


def _anchor(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def to_markdown(title: str, blocks: Iterable[Block], figures: str) -> str:
    """Return the same as Markdown, with links to the figures in a folder."""
    return "\n\n".join([f"# {title}", *(_markdown(b, figures) for b in blocks)]) + "\n"


def _markdown(block: Block, figures: str) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Paragraph(text, _):
            return text
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Table(header, rows, numbers):
            rule = ["--:" if i in numbers else "---" for i in range(len(header))]
            lines = [header, rule, *([_plain(cell) for cell in row] for row in rows)]
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"![{block.title}]({figures}/{block.name}.svg)\n\n{block.caption}"


def _plain(cell: Cell) -> str:
    return f"**{cell.text}**" if isinstance(cell, Marked) else cell


def interval(estimate: Estimate) -> str:
    """Return a mean and its interval."""
    if np.isnan(estimate.low):
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def listed(values: Iterable[float]) -> str:
    """Return numbers, separated by commas."""
    return ", ".join(f"{value:g}" for value in values)
