"""Fleet: what a running coordinator says of its rounds and devices."""

from typing import Any

import streamlit as st

from fedbudget.errors import FedbudgetError
from fedbudget.privacy import rounded_up
from fedbudget.ui.charts import seconds_chart
from fedbudget.ui.fleet_status import device_rows, read_status, round_rows

_SECONDS = 1.0  # between two looks


def fleet_page(url: str) -> None:
    """Draw the page."""
    st.title("A running fleet")
    st.caption(
        "Rounds and devices as the coordinator tells them: what devices declared and "
        "what orders said. No private number is here."
    )
    address = st.text_input("Status of the coordinator", value=url).strip()
    st.fragment(_watch, run_every=_SECONDS)(address)


def _watch(url: str) -> None:
    try:
        status = read_status(url)
    except FedbudgetError as error:
        st.error(str(error))
        return
    if status is None:
        st.info(
            f"No coordinator answers at {url}. Start one with `fedbudget server ... "
            "--status-port 8765`; this page looks again every second."
        )
        return
    if "rounds" not in status:
        st.info(f"Run {status.get('name', '')!r}: waiting for devices, no plan yet.")
        return
    _show_rounds(status)
    st.subheader("Devices")
    st.dataframe(
        device_rows(status),
        width="stretch",
        hide_index=True,
        column_config={
            "epsilon": st.column_config.NumberColumn(
                format="%.4g", help="Privacy that it has spent at most."
            ),
            "cost": st.column_config.NumberColumn(
                format="%.4g", help="What it has spent at most, in its own unit."
            ),
            "late": st.column_config.NumberColumn(
                help="Rounds that it answered too late; it has paid for them."
            ),
            "dropped": st.column_config.NumberColumn(
                help="Messages of it that were thrown away."
            ),
        },
    )


def _show_rounds(status: dict[str, Any]) -> None:
    done, planned = int(status["rounds_closed"]), int(status["rounds"])
    devices, seconds = status["devices"], status.get("last_round_seconds")
    online = sum(bool(device["online"]) for device in devices)
    epsilons = [device["epsilon"] for device in devices]
    most = "no bound" if None in epsilons else rounded_up(max(epsilons, default=0))
    st.progress(
        min(1.0, done / planned),
        text=f"run {status['name']!r}: {done} of {planned} rounds are over",
    )
    with st.container(key="cards-fleet"):
        st.metric("Round", f"{status['round']} of {planned}", border=True)
        st.metric("Online", f"{online} of {len(devices)}", border=True)
        st.metric("Epsilon spent, at most", most, border=True)
        st.metric(
            "Last round", "-" if seconds is None else f"{seconds:.2f} s", border=True
        )
    rows = round_rows(status)
    if rows:
        st.altair_chart(seconds_chart(rows), width="stretch", height=200)
