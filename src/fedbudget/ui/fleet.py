"""Fleet: the rounds and devices of a running coordinator.

Its status is read as JSON over HTTP on this machine.
"""

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from fedbudget.errors import FedbudgetError, InvalidInputError
from fedbudget.fleet.coordinator.defaults import STATUS_PORT
from fedbudget.privacy import rounded_up
from fedbudget.ui.charts import seconds_chart

_MAX_BYTES = 10_000_000  # 100,000 devices
_TIMEOUT = 2.0  # seconds

_SECONDS = 1.0  # between two updates
_COUNTS = ("answered", "late", "refused", "dropped")

# Without a proxy: the coordinator is on loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fleet_page(url: str) -> None:
    """Draw the page."""
    st.title("A running fleet")
    st.caption(
        "Rounds and devices as the coordinator reports them, from the devices' "
        "declarations and its own orders. No private number is shown."
    )
    address = st.text_input("Status address of the coordinator", value=url).strip()
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
            f"--status-port {STATUS_PORT}`. This page retries every second."
        )
        return
    if "rounds" not in status:
        st.info(f"Run {status.get('name', '')!r}: waiting for devices; no plan yet.")
        return
    _show_rounds(status)
    st.subheader("Devices")
    st.dataframe(
        device_rows(status),
        width="stretch",
        hide_index=True,
        column_config={
            "epsilon": st.column_config.NumberColumn(
                format="%.4g", help="Upper bound of the privacy spent."
            ),
            "cost": st.column_config.NumberColumn(
                format="%.4g",
                help="Upper bound of the cost spent, in the device's unit.",
            ),
            "late": st.column_config.NumberColumn(
                help="Rounds answered after the deadline; they are charged, too."
            ),
            "dropped": st.column_config.NumberColumn(
                help="Messages of the device that were discarded."
            ),
        },
    )


def _show_rounds(status: dict[str, Any]) -> None:
    done, planned = int(status["rounds_closed"]), int(status["rounds"])
    devices, seconds = status["devices"], status.get("last_round_seconds")
    online = sum(bool(device["online"]) for device in devices)
    epsilons = [device["epsilon"] for device in devices]
    most = epsilon_text(None if None in epsilons else max(epsilons, default=0))
    st.progress(
        min(1.0, done / planned),
        text=f"run {status['name']!r}: {done} of {planned} rounds completed"
        f"{phase_text(status)}",
    )
    with st.container(key="cards-fleet"):
        st.metric("Round", f"{status['round']} of {planned}", border=True)
        st.metric("Online", f"{online} of {len(devices)}", border=True)
        st.metric("Epsilon spent, maximum", most, border=True)
        st.metric(
            "Last round", "-" if seconds is None else f"{seconds:.2f} s", border=True
        )
    rows = round_rows(status)
    if rows:
        st.altair_chart(seconds_chart(rows), width="stretch", height=200)


def phase_text(status: dict[str, Any]) -> str:
    """Return what a round of secure sums waits for; empty in other rounds.

    >>> phase_text({"phase": "uploads", "attempt": 2})
    '; secure sum: waiting for uploads, attempt 2'
    """
    if not status.get("phase"):
        return ""
    again = f", attempt {status['attempt']}" if status.get("attempt", 1) > 1 else ""
    return f"; secure sum: waiting for {status['phase']}{again}"


def read_status(url: str) -> dict[str, Any] | None:
    """Return the status of the coordinator; None if it does not answer.

    Raises:
        InvalidInputError: The address is invalid, or another server answers.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise InvalidInputError(
            f"{url!r} is not an address: write http://127.0.0.1:{STATUS_PORT}/status"
        )
    try:
        with _opener.open(url, timeout=_TIMEOUT) as response:
            text = response.read(_MAX_BYTES)
    except (OSError, ValueError):
        return None
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("devices"), list):
        raise InvalidInputError(
            f"{url} is not a coordinator: its answer names no devices"
        )
    return status


def shown_epsilon(value: float | None) -> float | None:
    """Return an epsilon for a table, rounded up to four digits; None has no bound."""
    return None if value is None else float(rounded_up(value))


def epsilon_text(value: float | None) -> str:
    """Show an epsilon, rounded up to four digits; None has no bound."""
    return "no bound" if value is None else rounded_up(value)


def device_rows(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per device, for a table."""
    return [
        {
            "device": device["name"],
            "online": bool(device["online"]),
            "this round": device["this_round"],
            **{name: device[name] for name in _COUNTS},
            "epsilon": shown_epsilon(device["epsilon"]),
            "cost": device["cost"],
        }
        for device in status["devices"]
    ]


def round_rows(status: dict[str, Any]) -> list[dict[str, float]]:
    """Return the seconds of each round that the coordinator reports."""
    pairs = status.get("round_seconds", [])
    return [{"round": number, "seconds": seconds} for number, seconds in pairs]
