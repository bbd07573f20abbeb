"""docs/accuracy.md takes its tables from the files that benchmarks write."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_takes_its_tables_from_files(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "accuracy.py"))
    page = script["PAGE"].read_text(encoding="utf-8")
    names = [match[2] for match in script["TABLE"].finditer(page)]
    assert len(names) == len(set(names)) == page.count("<!-- table: ") >= 9
    (tmp_path / "regret.md").write_text("| a |\n|---|\n", encoding="utf-8")
    filled, written = script["filled"](page, tmp_path)
    assert written == ["regret"]
    assert "<!-- table: regret -->\n\n| a |\n|---|\n\n<!-- end of table -->" in filled
    for line in set(page.splitlines()) - set(filled.splitlines()):
        assert line.startswith(("| data set", "|---", "| digits", "| breast")), line
    (tmp_path / "other.md").write_text("x", encoding="utf-8")
    with pytest.raises(ValueError, match="holds other, the page has markers for"):
        script["filled"](page, tmp_path)
