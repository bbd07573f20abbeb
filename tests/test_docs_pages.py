"""Every page of the site: its blocks run, its site builds, and nothing is fetched.

`python -m tests.test_docs_pages` rewrites the outputs that the pages show.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest

import fedbudget
from tests.documents import FENCE, INERT, RUN, Story, assert_true, run_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

# Pages whose numbers have tests, or commands, of their own.
ELSEWHERE = {"paper.md", "benchmarks.md", "results.md", "fleet.md", "fleet-device.md"}
PAGES = sorted(
    page for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in ELSEWHERE
)
STORIES = [page for page in PAGES if FENCE.search(page.read_text(encoding="utf-8"))]
GENERATED = runpy.run_path(str(DOCS / "generating.py"))["GENERATED"]


@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    assert_true(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_kind_that_is_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^\s*```(\w.*)$", text, re.MULTILINE)
    matches = list(FENCE.finditer(text))
    assert len(fences) == len(matches), (
        "a block is indented, or its fence is not closed"
    )
    for match in matches:
        assert match[2] or match[1] in (*RUN, *INERT), match[1]


def test_a_page_with_false_output_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo 2 rounds\n3 rounds\n```\n")
    with pytest.raises(AssertionError):
        assert_true(page, tmp_path)
    page.write_text("```python\nprint('a')\n```\n\n```text\nb\n```\n")
    with pytest.raises(AssertionError):
        assert_true(page, tmp_path)
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError):
        assert_true(page, tmp_path)
    page.write_text("```console\n$ seq 9\n1\n...\n9\n```\n")
    assert_true(page, tmp_path)
    assert Story(page, tmp_path).printed is None


def test_the_reference_has_every_command_and_message() -> None:
    from fedbudget.cli.app import app

    commands = GENERATED["commands"]()
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"`fedbudget {command.name or command.callback.__name__}`" in commands
    assert "`--epsilon`" in commands and "`--no-browser`" in commands
    assert "| `theta` | `bytes` |" in GENERATED["wire"]()
    assert "| `privacy-budget` |" in GENERATED["wire"]()
    keys = GENERATED["config"]()
    assert "| `public_bounds` | true or false | Set it" in keys
    assert '| `planner` | `"joint"`, `"bound"`, `"paper"` |' in keys
    assert '### `[devices."NAME"]`' in keys and keys.count("| `epsilon` |") == 2
    for name in set(fedbudget.__all__) - {"__version__"}:
        assert f".{name}\n" in GENERATED["library"](), name
    used = [page.read_text(encoding="utf-8") for page in PAGES]
    for name in GENERATED:
        assert sum(f"<!-- generated: {name} -->" in text for text in used) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of mkdocs' own packages
def test_the_site_builds_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: fedbudget[docs]")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(
        str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True
    )
    build(config)
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    named = re.findall(
        r'md-nav__link">\s*(?:<[^>]*>\s*)*([^<]*?)\s*<',
        (tmp_path / "site" / "index.html").read_text(encoding="utf-8"),
    )
    evaluations = [name for name in named if "evaluation" in name]
    assert len(evaluations) == 1, evaluations
    library = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    assert "Local steps between two uploads." in library  # a comment on a field
    assert "<blockquote>" not in library  # what examples would be, if not code
    loaded = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)')
    for page in pages:
        assert loaded.findall(page.read_text(encoding="utf-8")) == [], page.name


if __name__ == "__main__":
    import tempfile

    selected = [
        page for page in STORIES if page.stem in sys.argv[1:] or not sys.argv[1:]
    ]
    for page in selected:
        with tempfile.TemporaryDirectory() as temporary:
            page.write_text(run_page(page, Path(temporary))[1], encoding="utf-8")
