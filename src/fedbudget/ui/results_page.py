"""Results: compare runs over cost, epsilon or rounds."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from fedbudget.ui.charts import curve_chart
from fedbudget.ui.folders import MEASURES, RunFolder, find_folders, shown, summary
from fedbudget.ui.run import NOT_PRIVATE

_AXES = {"cost": "cost spent", "epsilon": "epsilon spent", "round": "round"}


def different_data(runs: Sequence[RunFolder]) -> str:
    """Return why runs cannot be compared: they are on different data; else nothing."""
    lines = list(dict.fromkeys(run.run.data_line for run in runs))
    if len(lines) < 2:
        return ""
    first, second = (
        next(run.name for run in runs if run.run.data_line == line)
        for line in lines[:2]
    )
    return (
        f"{first} and {second} are on different data ({lines[0]}; {lines[1]}): their "
        "numbers cannot be compared. Select runs on the same data."
    )


def results_page(root: Path) -> None:
    """Draw the page."""
    st.title("Compare runs")
    st.caption(f"The run folders in `{shown(root)}`.")
    runs = {run.name: run for run in find_folders(root)}
    if not runs:
        st.info(
            "There are no runs yet. Start one on the Run page, or with "
            "`fedbudget train ... --out runs/name`."
        )
        return
    newest = next(iter(runs.values())).run.data_line
    alike = [name for name, run in runs.items() if run.run.data_line == newest]
    names = st.multiselect("Runs", list(runs), default=alike[:6])
    selected = [runs[name] for name in names]
    if others := different_data(selected):
        st.error(others)
        return
    measures = [
        name for name in MEASURES if any(name in run.measures for run in selected)
    ]
    if not measures:
        st.info("Select a run with at least one completed round.")
        return
    left, right = st.columns(2)
    measure = left.selectbox(
        "Show", measures, format_func=lambda name: name.replace("_", " ")
    )
    axis = right.segmented_control(
        "Over", list(_AXES), default="cost", required=True, key="axis"
    )
    rows = [row for run in selected for row in run.curve() if measure in row]
    st.altair_chart(
        curve_chart(
            rows,
            x=axis or "cost",
            y=measure,
            titles=(_AXES[axis or "cost"], measure.replace("_", " ")),
        ),
        width="stretch",
        height=400,
    )
    rows = [summary(run) for run in selected]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    st.dataframe(
        [{name: row[name] for name in columns} for row in rows],
        width="stretch",
        hide_index=True,
        column_config={
            **dict.fromkeys(
                ("accuracy", "a constant's", "AUC", "R2", "test loss"),
                st.column_config.NumberColumn(format="%.4f"),
            ),
            "epsilon": st.column_config.NumberColumn(format="%.4g"),
        },
    )
    st.caption(NOT_PRIVATE)
