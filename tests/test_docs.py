"""The documents say what the code does."""

import importlib
import inspect
import json
import re
import runpy
from pathlib import Path

import pytest

from fedbudget import plan_schema

ROOT = Path(__file__).parent.parent
PAPER = (ROOT / "docs" / "paper.md").read_text()
ERRATA = runpy.run_path(str(ROOT / "docs" / "errata.py"))["SHOWN"]


def equations() -> dict[str, str]:
    """Read the table of labels and functions."""
    section = PAPER.split("## Equations")[1].split("## Errata")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", section, re.MULTILINE))


def resolve(path: str) -> object:
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"{path} does not exist")


def cited() -> set[str]:
    """Collect the labels that docstrings and comments cite."""
    source = "".join(p.read_text() for p in (ROOT / "src").rglob("*.py"))
    return set(re.findall(r"\(paper: ([\w:-]+)\)", source))


@pytest.mark.parametrize("label, path", equations().items())
def test_an_equation_is_where_the_table_says(label: str, path: str) -> None:
    value = resolve(path)
    documented = value.fget if isinstance(value, property) else value
    assert f"(paper: {label})" in (inspect.getdoc(documented) or ""), path


def test_every_cited_equation_is_in_the_table() -> None:
    assert cited() == set(equations())


def test_every_erratum_has_a_command() -> None:
    listed = [int(n) for n in re.findall(r"`python docs/errata.py (\d+)`", PAPER)]
    assert sorted(set(listed)) == sorted(ERRATA) == list(range(1, 13))


@pytest.mark.parametrize("number", range(1, 13))
def test_an_erratum_shows_the_numbers_that_the_page_states(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ERRATA[number]()
    shown = set(re.findall(r"\d+(?:\.\d+)?", capsys.readouterr().out))
    text = re.split(rf"^{number}\. ", PAPER, flags=re.MULTILINE)[1]
    text = text.split("`python docs/errata.py")[0]
    # Numbers that the demonstration measures have three digits or more.
    stated = {n for n in re.findall(r"\d+(?:\.\d+)?", text) if len(n) > 3}
    assert stated <= shown | {"2003.12705"}, stated - shown


def test_the_schema_of_a_plan_is_the_published_one() -> None:
    schema = plan_schema()
    published = json.loads((ROOT / "docs" / "plan.schema.json").read_text())
    assert schema == published, "publish it again: python docs/plan_schema.py"
    for name, item in schema["properties"].items():
        described = item["description"] != "no description"
        assert described, f"{name}: describe it in interop/plan_schema.py"


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
