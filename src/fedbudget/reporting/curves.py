"""Curves of a recorded run, with what devices paid on the axis."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.record import RecordedRun
from fedbudget.reporting.comparison import (
    CENTRAL,
    CONSTANT,
    LOCAL,
    PERSONAL,
    Comparison,
)
from fedbudget.reporting.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    drawing,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches and points: text stays readable on a telephone, and two figures beside another.
_SIZE = (4.6, 3.1)
_FONTS: dict[Any, Any] = {
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
}
_LEVELS = {
    PERSONAL: (PURPLE, (0, (1, 1))),
    LOCAL: (RED, (0, (4, 1.5, 1, 1.5))),
    CONSTANT: (GREY, (0, (2, 2))),
    CENTRAL: (GREEN, (0, (6, 2))),
}
_NEAR = 0.075  # labels nearer than this share of the axis are moved apart


def metric_curve(run: RecordedRun, comparison: Comparison | None) -> str:
    """Draw the run's metric over cost, with its alternatives as levels; SVG."""
    assert run.metric is not None
    what = run.metric.replace("_", " ")
    with _drawing():
        figure, ((axes,),) = panels(1, 1, size=_SIZE)
        cost, values = run.spent("cost"), run.series(run.metric)
        axes.plot(cost, values, color=BLACK, marker="o", label="this run")
        ends = [(float(values[-1]), "this run", BLACK)]
        if comparison is not None and comparison.metric == run.metric:
            for name, (color, dash) in _LEVELS.items():
                if name in comparison.means:
                    level = comparison.means[name]
                    axes.axhline(level, color=color, linestyle=dash, linewidth=1.1)
                    ends.append((level, name, color))
        _name_ends(axes, ends)
        axes.set_ylabel(f"{what} (not private)")
        _cost_axis(axes, run)
        return _svg(figure, "metric")


def loss_curve(run: RecordedRun) -> str:
    """Draw the losses on the devices' parts over cost; SVG."""
    with _drawing():
        figure, ((axes,),) = panels(1, 1, size=_SIZE)
        cost = run.spent("cost")
        ends = []
        lines = (("train", BLACK, "o"), ("validation", BLUE, "s"), ("test", RED, "^"))
        for part, color, marker in lines:
            if f"{part}_loss" in run.rounds[-1].measured:
                values = run.series(f"{part}_loss")
                axes.plot(cost, values, color=color, marker=marker)
                ends.append((float(values[-1]), part, color))
        _name_ends(axes, ends)
        axes.set_ylabel("loss (not private)")
        _cost_axis(axes, run)
        return _svg(figure, "loss")


def epsilon_curve(run: RecordedRun) -> str:
    """Draw the privacy that was spent over cost; SVG."""
    with _drawing():
        figure, ((axes,),) = panels(1, 1, size=_SIZE)
        cost, epsilon = run.spent("cost"), run.spent("epsilon")
        axes.plot(cost, epsilon, color=BLUE, marker="o")
        planned = float(run.plan.epsilon.max())
        axes.axhline(planned, color=GREY, linestyle=(0, (4, 2)), linewidth=1.1)
        axes.annotate(
            f"planned, {planned:.3g}",
            (0, planned),
            xytext=(4, 4),
            textcoords="offset points",
            color=GREY,
        )
        axes.set_ylim(0, 1.12 * planned)
        axes.set_ylabel("epsilon spent")
        _cost_axis(axes, run)
        return _svg(figure, "epsilon")


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw in the style of all figures, with larger letters."""
    with drawing():
        import matplotlib

        with matplotlib.rc_context(_FONTS):
            yield


def _cost_axis(axes: "Axes", run: RecordedRun) -> None:
    most = float(run.spent("cost")[-1])
    axes.set_xlim(0, (most or 1.0) * 1.03)
    axes.set_xlabel("cost of the device that paid most")


def _name_ends(axes: "Axes", ends: list[tuple[float, str, str]]) -> None:
    """Write each line's name beside its end, moved apart where they meet."""
    low, high = axes.get_ylim()
    for value, _, _ in ends:
        low, high = min(low, value), max(high, value)
    axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    ends = sorted(ends)
    places = _apart(np.array([end[0] for end in ends]), _NEAR * (high - low) * 1.08)
    for (value, name, color), place in zip(ends, places, strict=True):
        axes.annotate(
            f"{name}, {value:.3f}" if value >= 0.1 else f"{name}, {value:.2g}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=color,
            va="center",
            annotation_clip=False,
        )


def _apart(places: Array, least: float) -> Array:
    """Move sorted places apart until each is `least` from the next.

    Neighbours that meet become a block around the mean of their places; blocks that
    then meet are joined in turn. What stands alone stays.
    """
    blocks: list[list[float]] = []
    for place in places.tolist():
        block = [place]
        while blocks and _start(block, least) - _end(blocks[-1], least) < least:
            block = blocks.pop() + block
        blocks.append(block)
    moved = [
        _start(block, least) + least * index
        for block in blocks
        for index in range(len(block))
    ]
    return np.array(moved)


def _start(block: list[float], least: float) -> float:
    return float(np.mean(block)) - least * (len(block) - 1) / 2


def _end(block: list[float], least: float) -> float:
    return float(np.mean(block)) + least * (len(block) - 1) / 2


def _svg(figure: "Figure", name: str) -> str:
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # the same ids every time
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
