"""Explore: what two budgets buy, before any row is touched."""

import numpy as np
import streamlit as st

from fedbudget.budget import DELTA
from fedbudget.errors import FedbudgetError
from fedbudget.planning import Plan
from fedbudget.problem import USUAL_DISSIMILARITY
from fedbudget.ui.charts import map_chart
from fedbudget.ui.loss_map import (
    COSTS,
    EPSILONS,
    Fleet,
    LossMap,
    best_plan,
    loss_map,
    what_more_buys,
)

_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 500)
_SAMPLES = (20, 50, 100, 200, 500, 1000, 1628, 3000, 5000, 10_000, 50_000)
_SPREADS = (1, 2, 5, 10, 20, 50, 100)
_ROUND = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_STEP = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_EPSILON = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16)
_COST = (50, 70, 100, 150, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 5000)
assert (_EPSILON[0], _EPSILON[-1]) == EPSILONS and (_COST[0], _COST[-1]) == COSTS


# A fleet that was looked at before is shown at once.
@st.cache_data(max_entries=500, show_spinner=False)
def _plan(fleet: Fleet, *, epsilon: float, cost: float) -> Plan:
    return best_plan(fleet, epsilon=epsilon, cost=cost)


@st.cache_data(max_entries=100, show_spinner=False)
def _map(fleet: Fleet) -> LossMap:
    return loss_map(fleet)


def explore_page() -> None:
    """Draw the page."""
    st.title("What would these budgets buy?")
    st.caption(
        "Every device may lose so much privacy and spend so much; the planner does the "
        "rest. No data are touched: a plan needs their shape alone."
    )
    headline = st.container()
    left, right = st.columns([3, 7], gap="large")
    with left:
        epsilon, cost = _budgets()
        fleet = _fleet()
    with right:  # in this order, also while one of them is empty
        binding, around, details = st.container(), st.container(), st.container()
    try:
        chosen = _plan(fleet, epsilon=epsilon, cost=cost)
    except FedbudgetError as error:
        headline.error(str(error))
        chosen = None
    if chosen is not None:
        with headline:
            _show_headline(chosen)
        with binding:
            _show_binding(chosen)
    with around:
        _show_map(fleet, epsilon=epsilon, cost=cost)
    if chosen is not None:
        with details:
            _show_details(chosen, fleet)


def _budgets() -> tuple[float, float]:
    st.subheader("Budgets of a device")
    epsilon = st.select_slider(
        "Epsilon",
        _EPSILON,
        value=4,
        key="epsilon",
        help=f"Privacy that each device may lose in the whole run; delta is {DELTA:g}.",
    )
    cost = st.select_slider(
        "Cost",
        _COST,
        value=1000,
        key="cost",
        help="What each device may spend in the whole run, in the unit of the prices: "
        "seconds, joules, cents.",
    )
    return float(epsilon), float(cost)


def _fleet() -> Fleet:
    st.subheader("Prices it pays")
    communication = st.select_slider(
        "For a round", _ROUND, value=100, key="communication", help="Both ways."
    )
    computation = st.select_slider(
        "For a local step", _STEP, value=1, key="computation"
    )
    st.subheader("Devices")
    devices = st.select_slider("How many", _COUNTS, value=16, key="devices")
    samples = st.select_slider(
        "Samples of the one in the middle", _SAMPLES, value=1628, key="samples"
    )
    spread = st.select_slider(
        "Largest over smallest",
        _SPREADS,
        value=1,
        key="spread",
        help="1: all devices have the same number of samples.",
    )
    dissimilarity = st.segmented_control(
        "How unlike they are",
        ("iid", "mild", "strong"),
        default=USUAL_DISSIMILARITY,
        required=True,
        key="dissimilarity",
        help="iid: their rows could be anybody's. strong: each would learn another "
        "model from its own.",
    )
    dim = st.number_input("Columns of a row", 1, 100_000, value=102, key="dim")
    return Fleet(
        num_devices=int(devices),
        samples=int(samples),
        spread=float(spread),
        dim=int(dim),
        dissimilarity=dissimilarity or USUAL_DISSIMILARITY,
        communication=float(communication),
        computation=float(computation),
    )


def _show_headline(chosen: Plan) -> None:
    noise = float(np.median(chosen.noise_std))
    cards = {
        "Rounds": (f"{chosen.rounds}", "uploads by every device"),
        "Steps a round": (f"{chosen.tau}", "tau: local steps between two uploads"),
        "Learning rate": (f"{chosen.learning_rate:.3g}", "size of a local step"),
        "Momentum": (f"{chosen.momentum:.2g}", "on the server: costs no privacy"),
        "Noise": (
            f"{noise:.3g}",
            "standard deviation, on every coordinate of a mean gradient; median over "
            "the devices",
        ),
        "Predicted loss": (
            f"{chosen.predicted_loss:.3g}",
            "above the best model's; good for comparing plans, not a bound and not a "
            "measurement",
        ),
    }
    with st.container(key="cards-plan"):
        for name, (value, told) in cards.items():
            st.metric(name, value, help=told, border=True)


def _show_binding(chosen: Plan) -> None:
    st.subheader("What holds the loss up")
    names = {"privacy": "**privacy**", "cost": "**cost**"}
    binding = [names[name] for name in chosen.binding]
    st.markdown(
        f"Binding: {' and '.join(binding)}."
        if binding
        else "Neither budget binds: a tenth more of either would hardly be noticed."
    )
    bought = what_more_buys(chosen)
    units = {"privacy": (1.0, "epsilon"), "cost": (100.0, "cost")}
    columns = st.columns(2)
    for column, (name, found) in zip(columns, bought.items(), strict=True):
        unit, word = units[name]
        column.metric(
            f"{unit:g} more {word} saves",
            f"{unit * found['saved']:.2g} loss",
            delta=f"{unit * found['share']:.1%} of the predicted loss",
            delta_color="normal" if found["binds"] else "off",
            delta_arrow="down",
            border=True,
            help="The dual price: predicted loss saved per unit, averaged over a tenth "
            "more of the budget (of cost, at least one more round).",
        )


def _show_map(fleet: Fleet, *, epsilon: float, cost: float) -> None:
    st.subheader("What other budgets would buy")
    try:
        found: LossMap = _map(fleet)
    except FedbudgetError as error:
        st.info(str(error))
        return
    st.altair_chart(
        map_chart(found, epsilon=epsilon, cost=cost), width="stretch", height=430
    )
    st.caption(
        "Lines of equal predicted loss; the ring is where you stand. The map tries "
        "fewer plans than the planner does, and may lie a few per cent above it."
    )


def _show_details(chosen: Plan, fleet: Fleet) -> None:
    with st.expander("Why this plan"):
        st.markdown("\n".join(f"- {reason}" for reason in chosen.reasons))
    with st.expander("What it promises and what it costs"):
        st.markdown(f"- {chosen.privacy}, for the whole run")
        st.markdown(
            f"- {chosen.cost.max():.4g} units at most for a device: "
            f"{chosen.rounds} rounds at {fleet.communication:g} and {chosen.steps} "
            f"steps at {fleet.computation:g}"
        )
    with st.expander("Every device"):
        st.dataframe(
            {
                "samples": fleet.sizes,
                "weight": chosen.weights,
                "noise": chosen.noise_std,
                "epsilon": chosen.epsilon,
                "cost": chosen.cost,
            },
            width="stretch",
            height=260,
        )
    with st.expander("The same on the command line"):
        sizes, counts = np.unique(fleet.sizes, return_counts=True)
        listed = ",".join(
            f"{size}x{count}" for size, count in zip(sizes, counts, strict=True)
        )
        st.code(
            f"fedbudget plan --samples {listed} --dim {fleet.dim} "
            f"--dissimilarity {fleet.dissimilarity} --epsilon "
            f"{st.session_state.epsilon:g} --cost {st.session_state.cost:g} "
            f"--communication-price {fleet.communication:g} "
            f"--computation-price {fleet.computation:g}",
            language="sh",
            wrap_lines=True,
        )
