"""The charts, as Altair specifications."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any, TypeAlias

import altair as alt
import pandas as pd

from fedbudget.checks import Array
from fedbudget.ui.loss_map import LossMap

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Layers: TypeAlias = alt.LayerChart | alt.FacetChart

# Safe for colour-blind readers, on white and on black (Okabe and Ito).
_COLOURS = ("#0077bb", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
_MIN_SPAN = 0.05  # of an axis of accuracies or losses
_COST_TICKS = (50, 100, 200, 500, 1000, 2000, 5000)
_EPSILON_TICKS = (0.25, 0.5, 1, 2, 4, 8, 16)


def map_chart(losses: LossMap, *, epsilon: float, cost: float) -> Layers:
    """Draw the predicted loss over both budgets, with a ring at the selected pair."""
    fine = losses.finer()
    layers = [_heat(fine), *_lines(fine), *_mark(fine, epsilon=epsilon, cost=cost)]
    return alt.layer(*layers)


def _heat(losses: LossMap) -> alt.Chart:
    x, y = _budget_axes(losses, "cost_from", "epsilon_from")
    scale = alt.Scale(type="log", scheme="viridis", reverse=True)
    legend = alt.Legend(
        title="predicted excess loss over the best linear model",
        titleLimit=400,
        orient="top",
        format=".2g",
        gradientLength=260,
        values=losses.levels(4),
    )
    heat: alt.Chart = (
        alt.Chart(_data(losses.cells()))
        .mark_rect(clip=True, strokeWidth=1)  # the stroke hides seams
        .encode(
            x=x,
            x2="cost_to:Q",
            y=y,
            y2="epsilon_to:Q",
            color=alt.Color("loss:Q", scale=scale, legend=legend),
            stroke=alt.Stroke("loss:Q", scale=scale, legend=None),
            tooltip=[
                alt.Tooltip("epsilon:Q", format=".3g"),
                alt.Tooltip("cost:Q", format=".4g"),
                alt.Tooltip("loss:Q", format=".3g", title="predicted excess loss"),
            ],
        )
    )
    return heat


def _lines(losses: LossMap) -> list[alt.Chart]:
    """Draw lines of equal loss, with their level; dark where the map is light."""
    x, y = _budget_axes(losses, "cost", "epsilon")
    points = losses.lines()
    light = losses.levels(2)[-1]
    colour = alt.condition(
        f"datum.loss < {light}", alt.value("#222222"), alt.value("white")
    )
    lines = (
        alt.Chart(_data(points))
        .mark_line(strokeWidth=1.2, clip=True)
        .encode(x=x, y=y, detail="loss:Q", order="cost:Q", color=colour)
    )
    labels = (
        alt.Chart(_data(_middles(points)))
        .mark_text(fontSize=11, dy=-8, fontWeight="bold")
        .encode(x=x, y=y, text=alt.Text("loss:Q", format=".2g"), color=colour)
    )
    return [lines, labels]


def _mark(losses: LossMap, *, epsilon: float, cost: float) -> list[alt.Chart]:
    """Draw a ring at the selected budgets."""
    x, y = _budget_axes(losses, "cost", "epsilon")
    point = alt.Chart(_data([{"cost": cost, "epsilon": epsilon}])).encode(x=x, y=y)
    return [
        point.mark_point(size=240, filled=False, stroke=colour, strokeWidth=width)
        for colour, width in (("white", 6.0), ("#d6336c", 3.0))
    ]


def _budget_axes(losses: LossMap, x: str, y: str) -> tuple[alt.X, alt.Y]:
    """Return logarithmic axes for both budgets, with the ends of the map."""
    cost_ends = _ends(losses.costs)
    epsilon_ends = _ends(losses.epsilons)
    return (
        alt.X(
            f"{x}:Q",
            title="cost budget of a device",
            scale=alt.Scale(type="log", domain=cost_ends, nice=False, clamp=True),
            axis=_axis(_COST_TICKS, cost_ends),
        ),
        alt.Y(
            f"{y}:Q",
            title="privacy budget epsilon",
            scale=alt.Scale(type="log", domain=epsilon_ends, nice=False, clamp=True),
            axis=_axis(_EPSILON_TICKS, epsilon_ends),
        ),
    )


def curve_chart(rows: Rows, *, x: str, y: str, titles: tuple[str, str]) -> Layers:
    """Draw one line per run."""
    legend = alt.Legend(title=None, orient="top", columns=2, labelLimit=280)
    several = len({row["run"] for row in rows}) > 1
    ends = _wide_enough([row[y] for row in rows if row.get(y) is not None])
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(f"{x}:Q", title=titles[0]),
        y=alt.Y(f"{y}:Q", title=titles[1], scale=alt.Scale(zero=False, domain=ends)),
        color=alt.Color(
            "run:N",
            scale=alt.Scale(range=list(_COLOURS)),
            legend=legend if several else None,
        ),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("round:Q"),
            alt.Tooltip(f"{y}:Q", format=".4g", title=titles[1]),
            # A text, rounded up: numbers would be rounded to nearest.
            alt.Tooltip("spent:N", title="epsilon"),
            alt.Tooltip("cost:Q", format=".4g"),
        ],
    )
    points = base.mark_point(filled=True, size=40 if len(rows) < 300 else 8)
    return alt.layer(base.mark_line(strokeWidth=2), points)


def _wide_enough(values: Sequence[float]) -> list[float]:
    """Return the ends of an axis that does not exaggerate small differences.

    Losses and accuracies are not negative, and neither is the axis.

    >>> _wide_enough([0.8175, 0.82]), _wide_enough([0.5, 0.9])
    ([0.79, 0.85], [0.48, 0.92])
    >>> _wide_enough([0.01, 0.02])
    [0.0, 0.04]
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = max(0.05 * (high - low), (_MIN_SPAN - (high - low)) / 2)
    least = max(0.0, floor(100 * (low - margin)) / 100)
    return [least, ceil(100 * (high + margin)) / 100]


def spending_chart(rows: Rows) -> alt.Chart:
    """Draw the share of the planned spending after each round."""
    share = alt.Axis(format="%", tickCount=4)
    chart: alt.Chart = (
        alt.Chart(_data(rows))
        .mark_line(strokeWidth=2, point=len(rows) < 200)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y(
                "share:Q",
                title="share of the plan",
                axis=share,
                scale=alt.Scale(domain=[0, 1]),
            ),
            color=alt.Color(
                "budget:N",
                scale=alt.Scale(range=list(_COLOURS)),
                legend=alt.Legend(title=None, orient="top"),
            ),
            tooltip=["round:Q", "budget:N", alt.Tooltip("share:Q", format=".1%")],
        )
    )
    return chart


def seconds_chart(rows: Rows) -> alt.Chart:
    """Draw the duration of each round."""
    last = max((row["round"] for row in rows), default=1)
    bars = [{**r, "from": r["round"] - 0.4, "to": r["round"] + 0.4} for r in rows]
    chart: alt.Chart = (
        alt.Chart(_data(bars))
        .mark_bar(color=_COLOURS[0])
        .encode(
            x=alt.X(
                "from:Q",
                title="round",
                scale=alt.Scale(domain=[0.5, max(10, last) + 0.5], nice=False),
                axis=alt.Axis(tickMinStep=1, format="d", grid=False),
            ),
            x2="to:Q",
            y=alt.Y("seconds:Q", title="seconds per round", scale=alt.Scale(zero=True)),
            y2=alt.datum(0),
            tooltip=["round:Q", alt.Tooltip("seconds:Q", format=".2f")],
        )
    )
    return chart


def _data(rows: Rows) -> pd.DataFrame:
    """Return rows as a frame: Altair validates a list row by row, which is slow."""
    return pd.DataFrame([dict(row) for row in rows])


def _ends(values: Array) -> tuple[float, float]:
    return float(values[0]), float(values[-1])


def _axis(ticks: Sequence[float], ends: tuple[float, float]) -> alt.Axis:
    shown = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    return alt.Axis(values=shown, format="~g", grid=False, labelOverlap=False)


def _middles(points: Rows) -> list[dict[str, Any]]:
    """Return the middle point of every line, for its label."""
    lines: dict[float, list[dict[str, Any]]] = {}
    for point in points:
        lines.setdefault(point["loss"], []).append(dict(point))
    return [line[len(line) // 2] for line in lines.values()]
