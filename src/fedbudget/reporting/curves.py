"""Curves of a recorded run over the cost that devices paid."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbudget.checks import Array
from fedbudget.privacy import rounded_up
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

# Inches and points: readable on a phone, and with two figures side by side.
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
_LABEL_GAP = 0.075  # minimum distance between labels, as a share of the axis


def metric_curve(run: RecordedRun, comparison: Comparison | None) -> str:
    """Draw the run's metric over cost, its alternatives as horizontal lines; SVG."""
    assert run.metric is not None
    metric = run.metric.replace("_", " ")
    with _drawing():
        figure, ((axes,),) = panels(1, 1, size=_SIZE)
        cost, values = run.spent("cost", measured=True), run.series(run.metric)
        axes.plot(cost, values, color=BLACK, marker="o", label="this run")
        ends = [(float(values[-1]), "this run", BLACK)]
        if comparison is not None and comparison.metric == run.metric:
            for name, (color, dash) in _LEVELS.items():
                if name in comparison.means:
                    level = comparison.means[name]
                    axes.axhline(level, color=color, linestyle=dash, linewidth=1.1)
                    ends.append((level, name, color))
        _name_ends(axes, ends)
        axes.set_ylabel(f"{metric} (not private)")
        _cost_axis(axes, run)
        return _svg(figure, "metric")


def loss_curve(run: RecordedRun) -> str:
    """Draw the train, validation and test losses over cost; SVG."""
    with _drawing():
        figure, ((axes,),) = panels(1, 1, size=_SIZE)
        cost = run.spent("cost", measured=True)
        ends = []
        lines = (("train", BLACK, "o"), ("validation", BLUE, "s"), ("test", RED, "^"))
        for part, color, marker in lines:
            if f"{part}_loss" in run.last_measured:
                values = run.series(f"{part}_loss")
                axes.plot(cost, values, color=color, marker=marker)
                ends.append((float(values[-1]), part, color))
        _name_ends(axes, ends)
        axes.set_ylabel("loss (not private)")
        _cost_axis(axes, run)
        return _svg(figure, "loss")


def epsilon_curve(run: RecordedRun) -> str:
    """Draw the epsilon spent over cost; SVG."""
    with _drawing():
        figure, ((axes,),) = panels(1, 1, size=_SIZE)
        cost, epsilon = run.spent("cost"), run.spent("epsilon")
        axes.plot(cost, epsilon, color=BLUE, marker="o")
        planned = float(run.plan.epsilon.max())
        axes.axhline(planned, color=GREY, linestyle=(0, (4, 2)), linewidth=1.1)
        axes.annotate(
            f"planned: {rounded_up(planned)}",
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
    """Draw in the style of all figures, with a larger font."""
    with drawing():
        import matplotlib

        with matplotlib.rc_context(_FONTS):
            yield


def _cost_axis(axes: "Axes", run: RecordedRun) -> None:
    largest = float(run.spent("cost")[-1])
    axes.set_xlim(0, (largest or 1.0) * 1.03)
    axes.set_xlabel("cost (maximum over devices)")


def _name_ends(axes: "Axes", ends: list[tuple[float, str, str]]) -> None:
    """Write each line's name at its end; labels that would overlap are moved apart."""
    low, high = axes.get_ylim()
    for value, _, _ in ends:
        low, high = min(low, value), max(high, value)
    axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    ends = sorted(ends)
    heights = _apart(
        np.array([end[0] for end in ends]), _LABEL_GAP * (high - low) * 1.08
    )
    for (value, name, color), height in zip(ends, heights, strict=True):
        axes.annotate(
            f"{name}, {value:.3f}" if value >= 0.1 else f"{name}, {value:.2g}",
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=color,
            va="center",
            annotation_clip=False,
        )


def _apart(positions: Array, gap: float) -> Array:
    """Move sorted positions apart until each is at least `gap` from the next.

    Neighbours that are too close become a block around their mean; blocks that are
    then too close are joined in turn. All other positions stay.
    """
    blocks: list[list[float]] = []
    for position in positions.tolist():
        block = [position]
        while blocks and _start(block, gap) - _end(blocks[-1], gap) < gap:
            block = blocks.pop() + block
        blocks.append(block)
    moved = [
        _start(block, gap) + gap * index
        for block in blocks
        for index in range(len(block))
    ]
    return np.array(moved)


def _start(block: list[float], gap: float) -> float:
    return float(np.mean(block)) - gap * (len(block) - 1) / 2


def _end(block: list[float], gap: float) -> float:
    return float(np.mean(block)) + gap * (len(block) - 1) / 2


def _svg(figure: "Figure", name: str) -> str:
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # the same ids every time
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
