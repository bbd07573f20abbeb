"""The report opens with a short answer; its long tables are in the appendix."""

from pathlib import Path

from fedbudget.paper.blocks import Bullets, Heading, Table
from fedbudget.paper.document import APPENDIX
from fedbudget.paper.reproduce import read_report

ROOT = Path(__file__).parents[2]
SECTIONS = [
    "In short",
    "What was run",
    "The figures",
    "The claims",
    "Planners against a full grid search",
    "Appendix",
]


def test_the_report_opens_with_an_answer_of_about_ten_lines(finished: Path) -> None:
    heading, answer, *_ = read_report(finished)[0]
    assert heading == Heading("In short")
    assert isinstance(answer, Bullets)
    # Claim 5 compares cases, and the tiny evaluation has only one.
    claims = [line for line in answer.items if line.startswith("Claim ")]
    assert [line[:7] for line in claims] == ["Claim 1", "Claim 2", "Claim 3", "Claim 4"]
    assert len(answer.items) == 9
    assert "loses" in answer.items[0]


def test_sections_are_in_order_and_long_tables_in_the_appendix(finished: Path) -> None:
    blocks, _ = read_report(finished)
    top = [b.text for b in blocks if isinstance(b, Heading) and b.level == 2]
    assert top == SECTIONS
    appendix = blocks.index(APPENDIX)
    short = [block for block in blocks[:appendix] if isinstance(block, Table)]
    long = [block for block in blocks[appendix:] if isinstance(block, Table)]
    assert [table.header[1] for table in short] == ["claim", "mean"]
    assert len(long) == 7
    every = next(table for table in long if "reading" in table.header)
    stated = [row[0] for row in every.rows if "a" in str(row[0])]
    assert [row[0] for row in short[0].rows] == stated


def test_the_committed_page_has_these_sections_in_order() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    top = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    top.remove("Beyond the paper")  # docs/results.py adds it
    assert top == SECTIONS
    answer = text.split("## ")[1]
    assert answer.count("\n- ") == 10
