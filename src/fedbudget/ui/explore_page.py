"""Explore: the plan and the predicted loss for two budgets, without any data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from streamlit.navigation.page import StreamlitPage

from fedbudget.budget import TRUST, UNIT
from fedbudget.errors import FedbudgetError
from fedbudget.planning import Plan
from fedbudget.privacy import Trust, Unit
from fedbudget.privacy.runs import TRUSTS, UNITS
from fedbudget.problem import USUAL_DISSIMILARITY
from fedbudget.text import counted
from fedbudget.ui.charts import map_chart
from fedbudget.ui.fleet import shown_epsilon
from fedbudget.ui.loss_map import (
    COSTS,
    EPSILONS,
    Fleet,
    LossMap,
    Shape,
    WhatTrustBuys,
    best_plan,
    loss_map,
    savings_per_unit,
    shape_of,
    what_trust_buys,
)

_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)
_SAMPLES = (20, 50, 100, 200, 500, 1000, 1628, 3000, 5000, 10_000, 50_000)
_SPREADS = (1, 2, 5, 10, 20, 50, 100)
_ROUND = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_STEP = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_EPSILON = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16)
_COST = (50, 70, 100, 150, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 5000)
# The fields of the page; those that are not shown have no value.
_FIELDS = (
    *("epsilon", "cost", "trust", "unit", "communication", "computation"),
    *("shape", "shape_label", "shape_device"),
    *("devices", "samples", "spread", "dissimilarity", "dim"),
)
_DESCRIPTIONS = (".toml", ".json")  # of data; other files are tables
assert (_EPSILON[0], _EPSILON[-1]) == EPSILONS and (_COST[0], _COST[-1]) == COSTS


# Results are cached by fleet: the sliders respond at once.
@st.cache_data(max_entries=500, show_spinner=False)
def _plan(fleet: Fleet, *, epsilon: float, cost: float) -> Plan:
    return best_plan(fleet, epsilon=epsilon, cost=cost)


@st.cache_data(max_entries=500, show_spinner=False)
def _trust(fleet: Fleet, *, epsilon: float, cost: float) -> WhatTrustBuys:
    return what_trust_buys(fleet, epsilon=epsilon, cost=cost)


@st.cache_data(max_entries=100, show_spinner=False)
def _map(fleet: Fleet) -> LossMap:
    return loss_map(fleet)


@st.cache_data(max_entries=20, show_spinner="reading the file")
def _shape(path: str, changed: float, *, label: str, device: str) -> Shape:
    return shape_of(path, label=label, device=device)


def keep_fields() -> None:
    """Keep the values of the fields while another page is shown."""
    for name in _FIELDS:
        if name in st.session_state:
            st.session_state[name] = st.session_state[name]


def explore_page(run: StreamlitPage | None = None) -> None:
    """Draw the page; `run` is the page that trains with the budgets."""
    st.title("Explore budgets")
    st.caption(
        "Set the privacy and cost budgets of a device; the planner chooses the rest. "
        "No data are read: a plan needs only their shape."
    )
    headline = st.container()
    left, right = st.columns([3, 7], gap="large")
    with left:
        epsilon, cost = _budgets()
        trust, unit = _promise()
        fleet = replace(_fleet(), trust=trust, unit=unit)
        if run is not None and st.button("Train with these budgets", width="stretch"):
            _hand_over(fleet, epsilon=epsilon, cost=cost)
            st.switch_page(run)
    with right:  # keeps the order while one of them is empty
        binding, map_area = st.container(), st.container()
        trust_area, details = st.container(), st.container()
    try:
        plan = _plan(fleet, epsilon=epsilon, cost=cost)
    except FedbudgetError as error:
        headline.error(str(error))
        plan = None
    if plan is not None:
        with headline:
            _show_headline(plan)
        with binding:
            _show_binding(plan)
    with map_area:
        _show_map(fleet, epsilon=epsilon, cost=cost)
    if plan is not None:
        with details:
            _show_details(plan, fleet)
        with trust_area:
            _show_trust(fleet, epsilon=epsilon, cost=cost)


def _hand_over(fleet: Fleet, *, epsilon: float, cost: float) -> None:
    """Keep the budgets and the table for the form of the Run page."""
    path = st.session_state.get("shape", "").strip()
    is_table = bool(path) and not path.endswith(_DESCRIPTIONS)
    st.session_state.handed = {
        "epsilon": epsilon,
        "cost": cost,
        "communication": fleet.communication,
        "computation": fleet.computation,
        "trust": fleet.trust,
        "unit": fleet.unit,
        "table": "" if path.endswith(".json") else path,
        "label": st.session_state.shape_label.strip() if is_table else "",
        "device": st.session_state.shape_device.strip() if is_table else "",
    }


def _from_file() -> Shape | None:
    """Return the shape of the file that the field names."""
    path = st.text_input(
        "Shape from a file",
        key="shape",
        placeholder="sensors.csv, fedbudget.toml or plan.json",
        help="A table or a fedbudget.toml, whose table is read for its numbers of rows "
        "and columns; or a JSON file with num_samples and dim.",
    ).strip()
    label = device = ""
    if path and not path.endswith(_DESCRIPTIONS):
        label, device = _table_columns()
        if not (label and device):
            st.caption("Name both columns to read the shape of the table.")
            return None
    if not path:
        return None
    try:
        file = Path(path)
        changed = file.stat().st_mtime if file.exists() else 0.0
        return _shape(path, changed, label=label, device=device)
    except FedbudgetError as error:
        st.error(str(error))
        return None


def _table_columns() -> tuple[str, str]:
    """Return the columns of a table that the fields name."""
    left, right = st.columns(2)
    label = left.text_input("Column to predict", key="shape_label", placeholder="alarm")
    device = right.text_input(
        "Column of the device", key="shape_device", placeholder="sensor_id"
    )
    return label.strip(), device.strip()


def _budgets() -> tuple[float, float]:
    st.subheader("Budgets of each device")
    epsilon = st.select_slider(
        "Epsilon",
        _EPSILON,
        value=4,
        key="epsilon",
        help="Privacy budget for the whole run; delta is planned from the rows.",
    )
    cost = st.select_slider(
        "Cost",
        _COST,
        value=1000,
        key="cost",
        help="Cost budget for the whole run, in the unit of the prices: seconds, "
        "joules, cents.",
    )
    return float(epsilon), float(cost)


def _promise() -> tuple[Trust, Unit]:
    trust = st.segmented_control(
        "The server sees",
        TRUSTS,
        default=TRUST,
        required=True,
        key="trust",
        help="uploads: those of each device, so each adds all the noise that its "
        "epsilon needs. sum: only the sum of all devices' uploads (secure "
        "aggregation), so they share the noise.",
    )
    unit = st.segmented_control(
        "Epsilon protects one",
        UNITS,
        default=UNIT,
        required=True,
        key="unit",
        help="sample: a single row. device: all rows of a device, such as a person's.",
    )
    return trust, unit


def _prices() -> dict[str, float]:
    st.subheader("Prices")
    communication = st.select_slider(
        "Per round",
        _ROUND,
        value=100,
        key="communication",
        help="One download and one upload.",
    )
    computation = st.select_slider("Per local step", _STEP, value=1, key="computation")
    return {"communication": float(communication), "computation": float(computation)}


def _fleet() -> Fleet:
    prices: dict[str, Any] = _prices()
    st.subheader("Devices")
    if (shape := _from_file()) is not None:
        least, most = min(shape.counts), max(shape.counts)
        st.caption(
            f"{counted(len(shape.counts), 'device')} of {least} to {most} training "
            f"rows, {counted(shape.dim, 'column')}, loss {shape.loss}, dissimilarity "
            f"{shape.dissimilarity}."
        )
        return Fleet(
            counts=shape.counts,
            num_devices=len(shape.counts),
            dim=shape.dim,
            dissimilarity=shape.dissimilarity,
            loss=shape.loss,
            num_classes=shape.num_classes,
            **prices,
        )
    return _described_fleet(prices)


def _described_fleet(prices: dict[str, Any]) -> Fleet:
    """Return the fleet that the fields describe."""
    devices = st.select_slider("Number of devices", _COUNTS, value=16, key="devices")
    samples = st.select_slider(
        "Samples of the median device", _SAMPLES, value=1628, key="samples"
    )
    spread = st.select_slider(
        "Largest / smallest device",
        _SPREADS,
        value=1,
        key="spread",
        help="Ratio of their sample counts; 1: all devices have the same number.",
    )
    dissimilarity = st.segmented_control(
        "Dissimilarity",
        ("iid", "mild", "strong"),
        default=USUAL_DISSIMILARITY,
        required=True,
        key="dissimilarity",
        help="How heterogeneous the devices are. iid: all rows come from one "
        "distribution. strong: each device alone would learn a different model.",
    )
    dim = st.number_input("Feature columns", 1, 100_000, value=102, key="dim")
    return Fleet(
        num_devices=int(devices),
        samples=int(samples),
        spread=float(spread),
        dim=int(dim),
        dissimilarity=dissimilarity or USUAL_DISSIMILARITY,
        **prices,
    )


def _falling(plan: Plan) -> str:
    """Describe noise that falls from round to round."""
    if plan.noise_decay == 1:
        return ""
    first, last = plan.noise_factors[[0, -1]]
    return f", falling from {first:.2f} to {last:.2f} times that, at no cost"


def _show_headline(plan: Plan) -> None:
    noise = float(np.median(plan.noise_std))
    server = "on the server"
    if plan.server_rate != 1:
        server += f", with rate {plan.server_rate:.3g}"
    cards = {
        "Rounds": (f"{plan.rounds}", "uploads of every device"),
        "Steps per round": (f"{plan.tau}", "tau, the local steps between two uploads"),
        "Learning rate": (f"{plan.learning_rate:.3g}", "of the local steps"),
        "Momentum": (f"{plan.momentum:.2g}", f"{server}: costs no privacy"),
        "Noise": (
            f"{noise:.3g}",
            "standard deviation per coordinate of the mean gradient; median over the "
            f"devices{_falling(plan)}"
            if plan.trust == "uploads"
            else "standard deviation of each device's share, per coordinate of an "
            "upload",
        ),
        "Predicted excess loss": (
            f"{plan.predicted_loss:.3g}",
            f"over the best linear model, {plan.likely} in 8 of 10 cases; for "
            "comparing plans, neither a bound nor a measurement",
        ),
    }
    with st.container(key="cards-plan"):
        for name, (value, text) in cards.items():
            st.metric(name, value, help=text, border=True)


def _show_binding(plan: Plan) -> None:
    st.subheader("What limits the loss")
    names = {"privacy": "**privacy**", "cost": "**cost**"}
    binding = [names[name] for name in plan.binding]
    st.markdown(
        f"Binding: {' and '.join(binding)}."
        if binding
        else "Neither budget binds: 10% more of either would hardly lower the loss."
    )
    savings = savings_per_unit(plan)
    units = {"privacy": (1.0, "epsilon"), "cost": (100.0, "cost")}
    columns = st.columns(2)
    for column, (name, saving) in zip(columns, savings.items(), strict=True):
        unit, budget = units[name]
        column.metric(
            f"{unit:g} more {budget} saves",
            f"{unit * saving['saved']:.2g} loss",
            delta=f"{unit * saving['share']:.1%} of the predicted loss",
            delta_color="normal" if saving["binds"] else "off",
            delta_arrow="down",
            border=True,
            help="The dual price: predicted loss saved per unit, averaged over 10% "
            "more of the budget (for cost, at least one more round).",
        )


def _show_map(fleet: Fleet, *, epsilon: float, cost: float) -> None:
    st.subheader("Predicted loss for other budgets")
    try:
        losses: LossMap = _map(fleet)
    except FedbudgetError as error:
        st.info(str(error))
        return
    st.altair_chart(
        map_chart(losses, epsilon=epsilon, cost=cost), width="stretch", height=430
    )
    st.caption(
        "Lines have equal predicted loss; the ring marks your budgets. The map tries "
        "fewer plans than the planner, and may be a few percent above it."
    )


def _show_trust(fleet: Fleet, *, epsilon: float, cost: float) -> None:
    st.subheader("What trust buys")
    try:
        both = _trust(fleet, epsilon=epsilon, cost=cost)
    except FedbudgetError as error:
        st.info(str(error))
        return
    equal = np.isfinite(both.equal_epsilon)
    cards = {
        "Loss of uploads": (
            f"{both.uploads:.3g}",
            "predicted, if the server sees the uploads of each device",
        ),
        "Loss of sums": (
            f"{both.sums:.3g}",
            "predicted, if the server sees only the sum of all uploads",
        ),
        "Equal epsilon": (
            f"{both.equal_epsilon:.2g}" if equal else "none",
            "of sums, with the predicted loss of uploads at your epsilon",
        ),
    }
    with st.container(key="cards-trust"):
        for name, (value, text) in cards.items():
            st.metric(name, value, help=text, border=True)
    if equal:
        text = (
            f"With epsilon {both.equal_epsilon:.2g}, a sum is predicted to have the "
            f"loss that uploads have with {epsilon:g}."
        )
    else:
        text = (
            "No epsilon gives a sum the loss that uploads have: noise limits less than "
            "the drift of local steps, which sums cannot correct."
        )
    st.caption(text)


def _show_details(plan: Plan, fleet: Fleet) -> None:
    with st.expander("Why this plan"):
        st.markdown("\n".join(f"- {reason}" for reason in plan.reasons))
    with st.expander("Privacy and cost"):
        st.markdown(f"- {plan.privacy}, for the whole run")
        st.markdown(
            f"- {plan.cost.max():.4g} units at most per device: "
            f"{plan.rounds} rounds at {fleet.communication:g} and {plan.steps} "
            f"steps at {fleet.computation:g}"
        )
    with st.expander("Devices"):
        st.dataframe(
            {
                "samples": fleet.sizes,
                "weight": plan.weights,
                "noise": plan.noise_std,
                "epsilon": [shown_epsilon(value) for value in plan.epsilon.tolist()],
                "cost": plan.cost,
            },
            width="stretch",
            height=260,
        )
    with st.expander("As a command"):
        sizes, counts = np.unique(fleet.sizes, return_counts=True)
        listed = ",".join(
            f"{size}x{count}" for size, count in zip(sizes, counts, strict=True)
        )
        st.code(
            f"fedbudget plan --samples {listed} --dim {fleet.dim} "
            f"--dissimilarity {fleet.dissimilarity} --epsilon "
            f"{st.session_state.epsilon:g} --cost {st.session_state.cost:g} "
            f"--communication-price {fleet.communication:g} "
            f"--computation-price {fleet.computation:g}"
            f"{_as_options(fleet)}",
            language="sh",
            wrap_lines=True,
        )


def _as_options(fleet: Fleet) -> str:
    """Return loss, trust and unit as options, where they are not the default."""
    options = "" if fleet.loss == "logistic" else f" --loss {fleet.loss}"
    options += "" if fleet.num_classes is None else f" --classes {fleet.num_classes}"
    options += "" if fleet.trust == TRUST else f" --trust {fleet.trust}"
    return options + ("" if fleet.unit == UNIT else f" --unit {fleet.unit}")
