"""Put the benchmarks' tables into two pages: `python docs/accuracy.py FOLDER`.

The pages are docs/accuracy.md and docs/explanation/planning.md. A page holds
`<!-- table: NAME -->` ... `<!-- end of table -->`. What is between them is replaced by
FOLDER/NAME.md, which the benchmarks' `--tables FOLDER` writes; tables without such a
file stay as they are.
"""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "accuracy.md"
PAGES = (PAGE, Path(__file__).parent / "explanation" / "planning.md")
TABLE = re.compile(
    r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL
)


def filled(
    text: str, folder: Path, elsewhere: frozenset[str] = frozenset()
) -> tuple[str, list[str]]:
    """Return the page with the tables of a folder, and the names of those.

    Args:
        text: The page.
        folder: Holds a file NAME.md per table.
        elsewhere: Names of tables that another page holds.

    Raises:
        ValueError: The folder holds a table for which no page has a marker.
    """
    tables = {
        file.stem: file for file in folder.glob("*.md") if file.stem not in elsewhere
    }
    markers = {match[2] for match in TABLE.finditer(text)}
    if not (tables or elsewhere) or not tables.keys() <= markers:
        lost = ", ".join(sorted(tables.keys() - markers)) or "no table"
        raise ValueError(
            f"{folder} holds {lost}, the page has markers for "
            f"{', '.join(sorted(markers))}: add markers, or name another folder"
        )

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            return match[0]
        new = tables[match[2]].read_text(encoding="utf-8").strip()
        return f"{match[1]}\n{new}\n\n{match[4]}"

    return TABLE.sub(table, text), sorted(tables)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/accuracy.py FOLDER")
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    markers = {
        page: frozenset(match[2] for match in TABLE.finditer(text))
        for page, text in texts.items()
    }
    for page, text in texts.items():
        others = frozenset().union(*(markers[p] for p in PAGES if p != page))
        new, names = filled(text, Path(sys.argv[1]), others)
        page.write_text(new, encoding="utf-8")
        print(f"wrote {', '.join(names) or 'nothing'} into {page}")
