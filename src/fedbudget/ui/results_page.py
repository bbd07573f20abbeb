"""Results: compare runs over cost, epsilon or rounds."""

from pathlib import Path

import streamlit as st

from fedbudget.ui.charts import curve_chart
from fedbudget.ui.folders import MEASURES, find_folders, shown, summary
from fedbudget.ui.run import NOT_PRIVATE

_AXES = {"cost": "cost spent", "epsilon": "epsilon spent", "round": "round"}


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
    names = st.multiselect("Runs", list(runs), default=list(runs)[:6])
    selected = [runs[name] for name in names]
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
    st.dataframe(
        [summary(run) for run in selected],
        width="stretch",
        hide_index=True,
        column_config={
            "accuracy": st.column_config.NumberColumn(format="%.4f"),
            "test loss": st.column_config.NumberColumn(format="%.4f"),
            "epsilon": st.column_config.NumberColumn(format="%.4g"),
        },
    )
    st.caption(NOT_PRIVATE)
