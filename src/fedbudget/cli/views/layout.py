"""Layout of the text output: headings, pairs, lists and tables at 80 columns."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedbudget.cli.output import one_line
from fedbudget.cli.sources import Source


@contextmanager
def new_page() -> Iterator[Console]:
    """Print the console's output, without the trailing blanks that rich adds."""
    console = Console()
    with console.capture() as page:
        yield console
    for line in page.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def new_table(first: str, *names: str, right: bool = False) -> Table:
    """Return a table without borders; `right` aligns all columns but the first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first)
    for name in names:
        table.add_column(name, justify="right" if right else "left")
    return table


def show_title(console: Console, source: Source) -> None:
    """Show the data set's line, in red if it is synthetic."""
    style = "bold red" if "SYNTHETIC" in source.line else "bold"
    console.print(Text(one_line(source.line), style=style))


def show_line(console: Console, text: str) -> None:
    """Show a line of text, wrapped between words: a path is not broken."""
    lines = wrap(
        one_line(text), console.width, break_long_words=False, break_on_hyphens=False
    )
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def show_heading(console: Console, text: str) -> None:
    """Show the heading of a section."""
    console.print()
    console.print(Text(text, style="bold"))


def show_pairs(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Show names and their values."""
    table = new_table("", "")
    table.show_header = False
    table.columns[0].no_wrap = True
    table.columns[1].overflow = "fold"  # a long path continues on the next line
    for name, text in pairs:
        table.add_row(Text(name, style="dim"), Text(text))
    show_table(console, table)


def show_item(console: Console, text: str) -> None:
    """Show one item of a list."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_row("-", Text(text))
    show_table(console, table)


def show_table(console: Console, table: Table) -> None:
    """Show a table, indented by two columns."""
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
