"""Self-contained HTML pages: style, tables and figures inline, nothing to fetch.

A page is a list of parts, each made by a function of this module. They escape plain
text; only `Html` is inserted unchanged.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias

from fedbudget.files import whole_file


class Html(str):
    """HTML that is already escaped."""

    __slots__ = ()


Text: TypeAlias = str | Html

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #595959; --paper: #fff;
  --line: #d9d9d9; --band: #f4f5f7; --link: #0b57d0; --bad: #b00020; --good: #0b6b3a;
  --fair: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a8a8a8;
  --paper: #16181b; --line: #3a3d42; --band: #1f2226; --link: #8ab4f8;
  --bad: #ff8a80; --good: #7bd8a4; --fair: #ffc766; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .75rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
p, ul, ol { max-width: 48rem; }
a { color: var(--link); }
.soft { color: var(--soft); }
.bad { color: var(--bad); font-weight: 600; }
.good { color: var(--good); font-weight: 600; }
.fair { color: var(--fair); font-weight: 600; }
.note { border-left: 4px solid var(--fair); background: var(--band);
  padding: .6rem .9rem; margin: 1rem 0; max-width: 48rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
table:has(caption) { min-width: min(28rem, 100%); }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .32rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--line); background: var(--band); }
.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
figure { margin: 1.25rem 0 2rem; }
figure .plate { background: #fff; border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem; overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; min-width: 40rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .5rem;
  max-width: 60rem; }
figure .narrow svg { min-width: 0; max-width: 46rem; margin: 0 auto; }
.pair { display: grid; gap: 0 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0; padding: 0; }
.tiles div { flex: 1 1 9rem; background: var(--band); border: 1px solid var(--line);
  border-radius: 6px; padding: .7rem .9rem; }
.tiles dt { font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles dd { margin: 0; color: var(--soft); font-size: .88rem; }
li { margin: .25rem 0; }
nav ul { columns: 2; padding-left: 1.1rem; }
code { font-size: .92em; white-space: nowrap; }
/* Charts are drawn on white: turned dark, hues stay. 0.91 makes white the page's. */
@media (prefers-color-scheme: dark) { figure .plate { background: transparent; }
  figure svg { filter: invert(0.91) hue-rotate(180deg); } }
@media print { figure, table { break-inside: avoid; } }
"""


def page(title: str, parts: Iterable[Text]) -> str:
    """Return the complete document, with its parts one below the other."""
    body = "\n".join(_safe(part) for part in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n'
        '<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def heading(text: Text, *, level: int = 2, anchor: str | None = None) -> Html:
    """Return a heading; an anchor makes it a link target."""
    name = f' id="{escape(anchor)}"' if anchor else ""
    return Html(f"<h{level}{name}>{_safe(text)}</h{level}>")


def contents(entries: Iterable[tuple[str, str]]) -> Html:
    """Return a list of links from pairs of anchor and text."""
    items = "".join(
        f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>'
        for anchor, text in entries
    )
    return Html(f"<nav><ul>{items}</ul></nav>")


def paragraph(*pieces: Text, kind: str = "") -> Html:
    """Return a paragraph; a kind is `soft`, `bad`, `good`, `fair` or `note`."""
    return Html(f"<p{_class(kind)}>{''.join(map(_safe, pieces))}</p>")


def bullets(items: Iterable[Text]) -> Html:
    """Return a bulleted list."""
    return Html("<ul>" + "".join(f"<li>{_safe(item)}</li>" for item in items) + "</ul>")


def joined(*pieces: Text) -> Html:
    """Return the concatenated pieces."""
    return Html("".join(map(_safe, pieces)))


def tiles(facts: Iterable[tuple[Text, Text]]) -> Html:
    """Return large numbers side by side, each with its description."""
    items = "".join(
        f"<div><dt>{_safe(value)}</dt><dd>{_safe(description)}</dd></div>"
        for value, description in facts
    )
    return Html(f'<dl class="tiles">{items}</dl>')


def side_by_side(*parts: Text) -> Html:
    """Return parts side by side, or one below the other on a narrow screen."""
    return Html(f'<div class="pair">{"".join(map(_safe, parts))}</div>')


def mark(text: Text, kind: str) -> Html:
    """Return coloured text; a kind is `bad`, `good`, `fair` or `soft`."""
    return Html(f"<span{_class(kind)}>{_safe(text)}</span>")


def code(text: str) -> Html:
    """Return a command, on one line."""
    return Html(f"<code>{escape(text)}</code>")


def link(text: Text, target: str) -> Html:
    """Return a link; its target must be in the page or a file in the same folder."""
    return Html(f'<a href="{escape(target)}">{_safe(text)}</a>')


def table(
    header: Sequence[Text],
    rows: Iterable[Sequence[Text]],
    *,
    numbers: Sequence[int] = (),
    caption: Text = "",
) -> Html:
    """Return a table; columns in `numbers` are right-aligned; a header may be empty."""

    def cells(tag: str, row: Sequence[Text]) -> str:
        return "".join(
            f"<{tag}{_class('number' if i in numbers else '')}>{_safe(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    top = f"<caption>{_safe(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>" if header else ""
    return Html(
        f'<div class="wide"><table>{top}{head}<tbody>\n{body}</tbody></table></div>'
    )


def figure(
    svg: str,
    caption: Text,
    *,
    name: str,
    narrow: bool = False,
) -> Html:
    """Return a figure with its caption.

    Args:
        svg: The text of an SVG file, such as matplotlib writes.
        caption: Description of the figure; also read by screen readers.
        name: Of the figure; unique on the page.
        narrow: Whether the figure is readable at the width of a phone.
    """
    label = escape(re.sub("<[^>]+>", "", caption))
    drawing = inline_svg(svg, prefix=name).replace(
        "<svg ", f'<svg role="img" aria-label="{label}" ', 1
    )
    return Html(
        f'<figure><div class="plate{" narrow" * narrow}">{drawing}</div>'
        f"<figcaption>{_safe(caption)}</figcaption></figure>"
    )


def inline_svg(svg: str, *, prefix: str) -> str:
    """Return the <svg> element, with a prefix that makes its ids unique."""
    match = re.search(r"<svg .*</svg>", svg, re.DOTALL)
    if match is None:
        raise ValueError(f"figure {prefix!r} holds no <svg> element")
    drawing = re.sub(r"<metadata>.*?</metadata>", "", match.group(), flags=re.DOTALL)
    drawing = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', drawing)
    drawing = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', drawing)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", drawing)


def write_page(path: Path, text: str) -> None:
    """Write a page atomically."""
    with whole_file(path) as file:
        file.write(text)


def _safe(text: Text) -> str:
    return text if isinstance(text, Html) else escape(text)


def _class(kind: str) -> str:
    return f' class="{escape(kind)}"' if kind else ""
