"""The style of all figures: readable in grey and by the colour-blind.

Lines differ in colour, marker and dash, so that no reader depends on the colour. The
colours are those of Okabe and Ito, plus a darker blue. Saved files hold no date, so
that an unchanged figure gives an unchanged file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbudget.errors import needed
from fedbudget.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY = "#000000", "#767676"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
NAVY = "#004A7F"

FORMATS = ("svg", "pdf", "png")


@dataclass(frozen=True, kw_only=True)
class Line:
    """Colour, marker and dash of one curve."""

    color: str
    marker: str
    dash: str | tuple[int, tuple[float, ...]] = "-"

    def options(self, **extra: Any) -> dict[str, Any]:
        """Return the arguments for matplotlib's plot and errorbar."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dash,
        } | extra


# The first four go from dark to light, so that they differ in grey, too.
LINES: tuple[Line, ...] = (
    Line(color=BLACK, marker="o", dash="-"),
    Line(color=NAVY, marker="s", dash=(0, (6, 2))),
    Line(color=RED, marker="^", dash=(0, (4, 1.5, 1, 1.5))),
    Line(color=SKY, marker="D", dash=(0, (2, 1.2))),
    Line(color=PURPLE, marker="v", dash=(0, (1, 1))),
    Line(color=ORANGE, marker="P", dash=(0, (6, 1.5, 1, 1.5, 1, 1.5))),
    Line(color=GREEN, marker="X", dash=(0, (3, 3))),
)

RC: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
    "errorbar.capsize": 1.5,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "path",  # a page must look the same where a font is missing
}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with this style; figures outside of the context keep theirs."""
    with needed("drawing figures", "matplotlib"):
        import matplotlib
    with matplotlib.rc_context(RC):
        yield


def panels(
    rows: int, columns: int, *, size: tuple[float, float], **options: Any
) -> tuple["Figure", list[list["Axes"]]]:
    """Return a figure and its axes as a table; needs no display and no global state.

    Args:
        rows: Panels from top to bottom.
        columns: Panels from left to right.
        size: Width and height of the whole figure, in inches.
        options: For `Figure.subplots`, such as ``sharey="row"``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in np.asarray(axes)]


def legend_below(figure: "Figure", axes: Sequence["Axes"], *, columns: int) -> None:
    """Put one legend for all panels below them."""
    entries: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=columns,
        handlelength=3.2,
    )


def save(
    figure: "Figure", stem: Path, *, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write the figure in each format, atomically.

    Args:
        figure: The figure to write.
        stem: The files' path without the suffix.
        formats: The suffixes, without the dot.
    """
    import matplotlib

    # Lay out once, not for every format: layout takes longer than drawing.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    written = []
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):  # the same ids every time
        for kind in formats:
            path = stem.with_name(f"{stem.name}.{kind}")
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
            with whole_file(path, "wb") as file:
                figure.savefig(file, format=kind, metadata=undated.get(kind))
            written.append(path)
    return written
