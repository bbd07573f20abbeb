"""Put the benchmarks' tables into docs/accuracy.md: `python docs/accuracy.py FOLDER`.

The page holds `<!-- table: NAME -->` ... `<!-- end of table -->`. What is between them
is replaced by FOLDER/NAME.md, which the benchmarks' `--tables FOLDER` writes; tables
without such a file stay as they are.
"""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "accuracy.md"
TABLE = re.compile(
    r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL
)


def filled(text: str, folder: Path) -> tuple[str, list[str]]:
    """Return the page with the tables of a folder, and the names of those.

    Raises:
        ValueError: The folder holds a table for which the page has no marker.
    """
    tables = {file.stem: file for file in folder.glob("*.md")}
    markers = {match[2] for match in TABLE.finditer(text)}
    if not tables or not tables.keys() <= markers:
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
    page, names = filled(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1]))
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {', '.join(names)} into {PAGE}")
