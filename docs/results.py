"""Write docs/results.md and its figures from a finished `fedbudget paper` folder.

python docs/results.py [FOLDER]
"""

import shutil
import sys
from pathlib import Path

from fedbudget.paper.blocks import Heading, Paragraph, to_markdown
from fedbudget.paper.document import APPENDIX, TITLE
from fedbudget.paper.figures import FigureFile
from fedbudget.paper.reproduce import read_report

DOCS = Path(__file__).parent
FURTHER = (
    Heading("Beyond the paper"),
    Paragraph(
        "[What the budgets buy in accuracy](accuracy.md) has the distance to "
        "centralised training, tables from outside, personal "
        "models, and a comparison with other methods."
    ),
)


def write_results(folder: Path, docs: Path) -> Path:
    """Write the page and copy the figures that it shows."""
    blocks, figures = read_report(folder)
    appendix = blocks.index(APPENDIX)
    (docs / "figures").mkdir(exist_ok=True)
    for block in blocks:
        if isinstance(block, FigureFile):
            shutil.copy(figures / f"{block.name}.svg", docs / "figures")
    page = docs / "results.md"
    text = to_markdown(
        TITLE, [*blocks[:appendix], *FURTHER, *blocks[appendix:]], "figures"
    )
    page.write_text(text, encoding="utf-8")
    return page


if __name__ == "__main__":
    page = write_results(Path(sys.argv[1] if len(sys.argv) > 1 else "paper"), DOCS)
    print(f"wrote {page}")
