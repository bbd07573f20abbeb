"""Pages are self-contained and escape plain text."""

import re
from pathlib import Path

import pytest

from fedbudget.reporting import html as pages
from fedbudget.reporting.style import LINES, drawing, legend_below, panels, save


def drawn(folder: Path) -> str:
    with drawing():
        figure, axes = panels(1, 2, size=(4, 2))
        for line, each in zip(LINES, axes[0], strict=False):
            each.plot([1, 2], [3, 4], label="a < b", **line.options())
        legend_below(figure, axes[0], columns=2)
        written = save(figure, folder / "two")
    assert [path.name for path in written] == ["two.svg", "two.pdf", "two.png"]
    return (folder / "two.svg").read_text()


def test_a_figure_is_saved_the_same_twice(tmp_path: Path) -> None:
    first = drawn(tmp_path)
    pdf = (tmp_path / "two.pdf").read_bytes()
    assert drawn(tmp_path) == first
    assert (tmp_path / "two.pdf").read_bytes() == pdf
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "two.pdf",
        "two.png",
        "two.svg",
    ]


def test_two_figures_on_a_page_share_no_id(tmp_path: Path) -> None:
    svg = drawn(tmp_path)
    text = pages.page(
        "t",
        [
            pages.figure(svg, "one", name="one"),
            pages.figure(svg, "two <3", name="two"),
        ],
    )
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 10
    for target in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text):
        assert "".join(target) in ids
    assert 'aria-label="two &lt;3"' in text


def test_a_page_fetches_nothing_and_runs_nothing(tmp_path: Path) -> None:
    text = pages.page("t", [pages.figure(drawn(tmp_path), "one", name="one")])
    without_names = text.replace("http://www.w3.org/", "")
    assert "://" not in without_names
    assert "<script" not in text


def test_text_is_escaped_and_html_is_not() -> None:
    text = pages.page(
        "<t>",
        [
            pages.paragraph("a < b ", pages.mark("c & d", "bad")),
            pages.table(["x", "y<"], [["1", pages.Html("<b>2</b>")]], numbers=[1]),
            pages.bullets(["<i>"]),
            "<plain>",
        ],
    )
    assert "<title>&lt;t&gt;</title>" in text
    assert 'a &lt; b <span class="bad">c &amp; d</span>' in text
    assert '<th class="number">y&lt;</th>' in text
    assert '<td class="number"><b>2</b></td>' in text
    assert "<li>&lt;i&gt;</li>" in text
    assert "&lt;plain&gt;" in text


def test_text_without_an_svg_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' holds no <svg>"):
        pages.inline_svg("<p>", prefix="a")


def test_a_page_is_written_atomically(tmp_path: Path) -> None:
    pages.write_page(tmp_path / "index.html", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
