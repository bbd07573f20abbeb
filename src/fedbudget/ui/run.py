"""Run: a simulated run in the background, watched, stopped and resumed."""

from pathlib import Path

import streamlit as st

from fedbudget.errors import FedbudgetError
from fedbudget.privacy import rounded_up
from fedbudget.record import largest
from fedbudget.ui.charts import curve_chart, spending_chart
from fedbudget.ui.folders import RunFolder, find_folders, read_folder, shown
from fedbudget.ui.running import DATA, OWN, Runner, options_for

NOT_PRIVATE = (
    "Accuracies and losses are NOT private: they are read off the devices' own rows "
    "for you, the reader of a simulation."
)


@st.cache_resource
def runner_of(root: Path) -> Runner:
    """Return the one keeper of processes of this server."""
    return Runner(root)


def run_page(root: Path) -> None:
    """Draw the page."""
    st.title("Run it on simulated devices")
    st.caption(
        f"Each device charges its own ledger and refuses what its budgets do not "
        f"allow. Runs are kept in `{shown(root)}`."
    )
    left, right = st.columns([3, 7], gap="large")
    runner = runner_of(root)
    with left:
        _show_form(runner)
    with right:
        runs = [run.name for run in find_folders(root) if "/" not in run.name]
        new = st.session_state.get("started")
        # What was started here and has no folder: it is being planned, or has failed.
        runs = [n for n in reversed(runner.processes) if n not in runs] + runs
        if not runs:
            st.info("No runs yet. Start one, and watch it here.")
            return
        index = runs.index(new) if new in runs else 0
        name = st.selectbox("Run", runs, index=index)
        running = runner.is_running(name)
        watch = st.fragment(_watch, run_every=0.7 if running else None)
        watch(runner, name, was_running=running)


def _show_form(runner: Runner) -> None:
    with st.form("start", border=False):
        data = st.selectbox("Data", list(DATA))
        table = _table_fields()
        numbers, name = _number_fields()
        if not st.form_submit_button("Start", type="primary", width="stretch"):
            return
    try:
        options = options_for(data, table, numbers)
        st.session_state.started = runner.start(name.strip() or None, options).name
    except FedbudgetError as error:
        st.error(str(error))


def _table_fields() -> dict[str, str]:
    with st.expander(OWN):
        path = st.text_input("Table or fedbudget.toml", placeholder="sensors.csv")
        st.caption(
            "A file that is named here is what is run on, whatever is chosen above. "
            "A fedbudget.toml also says epsilon, cost and the prices itself: those "
            "below do not count then, but for the seed."
        )
        return {
            "table": path,
            "--label": st.text_input("Column to predict", placeholder="alarm"),
            "--device": st.text_input("Column of devices", placeholder="sensor_id"),
            "--schema": st.text_input("Schema", placeholder="schema.json"),
        }


def _number_fields() -> tuple[dict[str, float], str]:
    most = 1e9
    # A pair of columns for each row: on a telephone they stand in this order.
    first, second = st.columns(2)
    epsilon = first.number_input("Epsilon", 0.01, 1000.0, 4.0)
    cost = second.number_input("Cost", 0.01, most, 1000.0)
    first, second = st.columns(2)
    communication = first.number_input("Price of a round", 0.0, most, 100.0)
    computation = second.number_input("Price of a step", 0.0, most, 1.0)
    first, second = st.columns(2)
    seed = first.number_input("Seed", 0, 2**31, 0)
    name = second.text_input("Name", placeholder="run-1")
    numbers = {
        "--epsilon": epsilon,
        "--cost": cost,
        "--communication-price": communication,
        "--computation-price": computation,
        "--seed": seed,
    }
    return numbers, name


def _watch(runner: Runner, name: str, *, was_running: bool) -> None:
    """Show a run as its folder tells it, again and again while it goes on."""
    running = runner.is_running(name)
    if was_running and not running:
        st.rerun()  # it has just ended: show that, and stop asking
    run = read_folder(runner.root / name)
    state = _state(runner, name, run, running=running)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{name}**: {state}")
        if running and st.button("Stop", key="stop"):
            runner.stop(name)
            st.rerun()
        if runner.can_resume(name) and st.button("Resume", key="resume"):
            runner.resume(name)
            st.rerun()
    failed = runner.failure(name)
    if failed is not None:
        st.error(failed)
    if run is None:
        return
    done, planned = len(run.rounds), int(run.plan["rounds"])
    st.progress(min(1.0, done / planned), text=f"round {done} of {planned}")
    if run.rounds:
        _show_round(run)


def _state(runner: Runner, name: str, run: RunFolder | None, *, running: bool) -> str:
    if running:
        compiling = "planning; a first run compiles its kernels, about 15 s, once"
        return "running" if run is not None and run.rounds else compiling
    if run is not None and run.finished:
        return "finished"
    if runner.failure(name) is not None:
        return "failed"
    return "stopped"


def _show_round(run: RunFolder) -> None:
    last, measures = run.rounds[-1], run.measures
    measure = measures[0]
    epsilon, cost = largest(last["epsilon"]), largest(last["cost"])
    most = largest(run.plan["epsilon"]), largest(run.plan["cost"])
    with st.container(key="cards-run"):
        st.metric(
            measure.replace("_", " ").capitalize(),
            f"{last['not_private'][measure]:.4f}",
            border=True,
        )
        st.metric(
            "Epsilon spent",
            "no bound" if epsilon is None else rounded_up(epsilon),
            border=True,
            help=f"By the device that lost most. Planned: {rounded_up(most[0])}."
            if most[0]
            else "This run adds no noise: nothing bounds it.",
        )
        st.metric(
            "Cost spent",
            f"{cost:.4g}",
            border=True,
            help=f"By the device that spent most. Planned: {most[1]:.4g}.",
        )
        st.metric(
            "Answers",
            f"{last['answered']} of {len(run.plan['weights'])}",
            border=True,
            help="devices that answered in the last round",
        )
    title = measure.replace("_", " ")
    st.altair_chart(
        curve_chart(run.curve(), x="cost", y=measure, titles=("cost spent", title)),
        width="stretch",
        height=330,
    )
    st.altair_chart(spending_chart(run.spending()), width="stretch", height=270)
    st.caption(f"{run.plan['privacy']}. {NOT_PRIVATE}")
