"""Run: start, watch, stop and resume simulated runs, each in its own process.

A reload of the page loses nothing. Next to the folder of a run are
`.NAME.command.json`, the options it was started with, and `.NAME.log`, its output.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamlit as st

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    FIRST_COST,
    FIRST_EPSILON,
    TRUST,
    UNIT,
)
from fedbudget.data.partitions import SEED
from fedbudget.errors import FedbudgetError, InvalidInputError, RecordError
from fedbudget.metrics import cautions, class_rows, detail_rows
from fedbudget.privacy import rounded_up
from fedbudget.privacy.runs import TRUSTS, UNITS
from fedbudget.record import RecordedRun, largest
from fedbudget.ui.charts import curve_chart, spending_chart
from fedbudget.ui.fleet import epsilon_text
from fedbudget.ui.folders import RunFolder, find_folders, read_folder, shown

OWN = "My own table or fedbudget.toml"
DATA = {
    "Adult, i.i.d.": ("adult", "--split", "iid"),
    "Adult, by education": ("adult", "--split", "by-education"),
    "WISDM watches, by person": ("wisdm", "--split", "by-person"),
    "Vehicle (SYNTHETIC), by sensor": ("vehicle", "--split", "by-sensor"),
    "Vehicle (SYNTHETIC), i.i.d.": ("vehicle", "--split", "iid"),
    OWN: (),
}
_NAME = re.compile(r"\w[\w.-]{0,63}")
NOT_PRIVATE = (
    "Accuracies and losses are NOT private: they are measured on the devices' own "
    "rows, as only a simulation can."
)


def options_for(
    data: str,
    table: Mapping[str, str],
    values: Mapping[str, float | str],
    *,
    replace_budgets: bool = False,
) -> list[str]:
    """Return the options of `fedbudget train` for a filled-in form.

    If the form names a file, it is used instead of the selected data. The budgets and
    prices of a `fedbudget.toml` are used, unless the form's replace them.

    >>> options_for(OWN, {"table": "my.toml"}, {"--epsilon": 4.0, "--seed": 1})
    ['my.toml', '--seed', '1']
    """
    path = table["table"].strip()
    columns = {n: v.strip() for n, v in table.items() if n != "table" and v.strip()}
    if not path and (data == OWN or columns):
        raise InvalidInputError(f"{OWN!r} is selected without a file: name the file")
    if path.endswith(".toml"):
        options = [path]
        values = values if replace_budgets else {"--seed": values["--seed"]}
    elif path:
        options = [path, *_flat(columns)]
    else:
        options = list(DATA[data])
    texts = {
        name: value if isinstance(value, str) else f"{value:.12g}"
        for name, value in values.items()
    }
    return options + _flat(texts)


def _flat(options: Mapping[str, str]) -> list[str]:
    return [part for pair in options.items() for part in pair]


@dataclass(eq=False)
class Runner:
    """The processes that this page started, by folder."""

    root: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def start(self, name: str | None, options: list[str]) -> Path:
        """Start `fedbudget train` with these options, recorded in a new folder.

        Args:
            name: Name of the folder; None takes the next free one.
            options: Options of `fedbudget train`.
        """
        with self._starting:  # two windows may start a run at once
            name = self.free_name() if name is None else name
            if not _NAME.fullmatch(name):
                raise InvalidInputError(
                    f"name {name!r} is not valid: use letters, digits, _, - and ."
                )
            if (self.root / name).exists() or self.is_running(name):
                raise RecordError(
                    f"{self.root / name} already exists: choose another name"
                )
            self.root.mkdir(parents=True, exist_ok=True)
            self._command(name).write_text(json.dumps(options), encoding="utf-8")
            self._launch(name, options)
        return self.root / name

    def free_name(self) -> str:
        """Return a name that no run has, recorded or still being planned."""
        return next(
            n for i in itertools.count(1) if not self._is_taken(n := f"run-{i}")
        )

    def _is_taken(self, name: str) -> bool:
        # A run that is being planned has no folder yet, but it has a command.
        recorded = (self.root / name).exists() or self._command(name).exists()
        return recorded or self.is_running(name)

    def resume(self, name: str) -> None:
        """Continue a stopped run where it stopped."""
        if self.is_running(name):
            return
        try:
            options = json.loads(self._command(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RecordError(
                f"{self.root / name} was not started from this page: run its command "
                "again to continue"
            ) from None
        self._launch(name, [str(option) for option in options])

    def stop(self, name: str) -> None:
        """Stop a run, as Ctrl-C does, and wait for its end."""
        process = self.processes.get(name)
        if process is None or process.poll() is not None:
            return
        self.stopped.add(name)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()  # its folder can still be resumed
            process.wait()

    def is_running(self, name: str) -> bool:
        """Whether a process of this page is running it."""
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def can_resume(self, name: str) -> bool:
        """Whether the run was started from this page, and was stopped."""
        done = (self.root / name / "model.npz").exists()
        if done or self.is_running(name) or self.failure(name) is not None:
            return False
        return self._command(name).exists()

    def failure(self, name: str) -> str | None:
        """Return the last line of output of a failed run, or None."""
        process = self.processes.get(name)
        if process is not None and process.poll() in (None, 0):
            return None
        log = self.root / f".{name}.log"
        if name in self.stopped or not log.exists():
            return None
        text = log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.split("\n") if line.strip()]
        if process is None:  # of a page that has ended: only its log can say
            return lines[-1] if lines and lines[-1].startswith("error:") else None
        return lines[-1] if lines else f"it ended with exit code {process.returncode}"

    def report(self, name: str) -> Path:
        """Write the report of a run, and return its file."""
        command = [sys.executable, "-m", "fedbudget", "report", str(self.root / name)]
        environment = os.environ | {"NO_COLOR": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            lines = done.stderr.strip().split("\n")
            raise RecordError(lines[-1].removeprefix("error: "))
        return self.root / name / "report.html"

    def _command(self, name: str) -> Path:
        return self.root / f".{name}.command.json"

    def _launch(self, name: str, options: list[str]) -> None:
        self.stopped.discard(name)
        command = [sys.executable, "-m", "fedbudget", "train", *options]
        with open(self.root / f".{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "--out", str(self.root / name)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
            )


@st.cache_resource
def runner_of(root: Path) -> Runner:
    """Return the runner of this server, shared by all windows."""
    return Runner(root)


def run_page(root: Path) -> None:
    """Draw the page."""
    st.title("Train on simulated devices")
    st.caption(
        f"Each device keeps a ledger and refuses to exceed its budgets. Runs are saved "
        f"in `{shown(root)}`."
    )
    left, right = st.columns([3, 7], gap="large")
    runner = runner_of(root)
    with left:
        _show_form(runner)
    with right:
        runs = [r.name for r in find_folders(root) if "/" not in r.name]
        new = st.session_state.get("started")
        # Runs without a folder are being planned, or have failed.
        runs = [n for n in reversed(runner.processes) if n not in runs] + runs
        if not runs:
            st.info("No runs yet. Start one to watch it here.")
            return
        index = runs.index(new) if new in runs else 0
        name = st.selectbox("Run", runs, index=index)
        running = runner.is_running(name)
        watch = st.fragment(_watch, run_every=0.7 if running else None)
        watch(runner, name, was_running=running)


def _show_form(runner: Runner) -> None:
    with st.form("start", border=False, enter_to_submit=False):
        handed = st.session_state.get("handed", {})
        own = list(DATA).index(OWN) if handed.get("table") else 0
        data = st.selectbox("Data", list(DATA), index=own)
        table, replace_budgets = _table_fields(handed)
        values, name = _value_fields(handed)
        if not st.form_submit_button("Start", type="primary", width="stretch"):
            return
    try:
        options = options_for(data, table, values, replace_budgets=replace_budgets)
        st.session_state.started = runner.start(name.strip() or None, options).name
    except FedbudgetError as error:
        st.error(str(error))


def _table_fields(handed: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """Return the file and its columns, and whether the form's budgets replace its."""
    table = handed.get("table", "")
    with st.expander(OWN, expanded=bool(table)):
        path = st.text_input(
            "Table or fedbudget.toml", value=table, placeholder="sensors.csv"
        )
        st.caption(
            "A file named here is used instead of the data selected above. A "
            "fedbudget.toml also sets budgets and prices."
        )
        replace_budgets = st.checkbox(
            "Replace its epsilon, cost, trust, unit and prices",
            value=bool(table),
            help="By the fields below, of which only the seed is used otherwise. All "
            "else in the file stays, also what it states for single devices.",
        )
        columns = {
            "--label": st.text_input(
                "Column to predict", value=handed.get("label", ""), placeholder="alarm"
            ),
            "--device": st.text_input(
                "Column that names the device",
                value=handed.get("device", ""),
                placeholder="sensor_id",
            ),
            "--schema": st.text_input("Schema", placeholder="schema.json"),
        }
        return {"table": path, **columns}, replace_budgets


def _value_fields(handed: Mapping[str, Any]) -> tuple[dict[str, float | str], str]:
    limit = 1e9
    # A pair of columns for each row keeps this order on a narrow screen.
    first, second = st.columns(2)
    epsilon = first.number_input(
        "Epsilon", 0.01, 1000.0, handed.get("epsilon", FIRST_EPSILON)
    )
    cost = second.number_input("Cost", 0.01, limit, handed.get("cost", FIRST_COST))
    first, second = st.columns(2)
    trust = first.selectbox(
        "The server sees",
        TRUSTS,
        index=TRUSTS.index(handed.get("trust", TRUST)),
        help="uploads of each device, or only the sum of all: then they share noise.",
    )
    unit = second.selectbox(
        "Epsilon protects one",
        UNITS,
        index=UNITS.index(handed.get("unit", UNIT)),
        help="A row, or all rows of a device.",
    )
    first, second = st.columns(2)
    round_price = handed.get("communication", float(COMMUNICATION_PRICE))
    step_price = handed.get("computation", float(COMPUTATION_PRICE))
    communication = first.number_input("Price per round", 0.0, limit, round_price)
    computation = second.number_input("Price per step", 0.0, limit, step_price)
    first, second = st.columns(2)
    seed = first.number_input("Seed", 0, 2**31, SEED)
    name = second.text_input("Name", placeholder="run-1")
    values: dict[str, float | str] = {
        "--epsilon": epsilon,
        "--cost": cost,
        "--trust": trust,
        "--unit": unit,
        "--communication-price": communication,
        "--computation-price": computation,
        "--seed": seed,
    }
    return values, name


def _watch(runner: Runner, name: str, *, was_running: bool) -> None:
    """Show a run from its folder; refreshed while it is running."""
    running = runner.is_running(name)
    if was_running and not running:
        st.rerun()  # it has just ended: show the end, and stop refreshing
    folder = read_folder(runner.root / name)
    run = None if folder is None else folder.run
    state = _state(runner, name, run, running=running)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{name}**: {state}")
        if running and st.button("Stop", key="stop"):
            runner.stop(name)
            st.rerun()
        if runner.can_resume(name) and st.button("Resume", key="resume"):
            runner.resume(name)
            st.rerun()
        if run is not None and run.finished:
            _show_report(runner, name)
    failure = runner.failure(name)
    if failure is not None:
        st.error(failure)
    if folder is None:
        return
    done, planned = len(folder.run.rounds), folder.run.plan.rounds
    st.progress(min(1.0, done / planned), text=f"round {done} of {planned}")
    if done:
        _show_round(folder)


def _show_report(runner: Runner, name: str) -> None:
    """Offer the report of a finished run: write it, then open or save it."""
    path = runner.root / name / "report.html"
    if not path.exists():
        if not st.button("Write report", key="report"):
            return
        with st.spinner("comparing with local-only and centralised training"):
            try:
                runner.report(name)
            except FedbudgetError as error:
                st.error(str(error))
                return
        st.rerun()
    st.download_button(
        "Report",
        path.read_bytes(),
        file_name=f"{name}-report.html",
        mime="text/html",
        help=f"One page without links: {shown(path)}",
    )


def _state(runner: Runner, name: str, run: RecordedRun | None, *, running: bool) -> str:
    if running:
        compiling = "planning; the first run compiles the kernels (about 15 s, once)"
        return "running" if run is not None and run.rounds else compiling
    if run is not None and run.finished:
        return "finished"
    if runner.failure(name) is not None:
        return "failed"
    return "stopped"


def _show_round(folder: RunFolder) -> None:
    if not folder.measures:  # the first rounds of a run that measures some
        st.caption(f"Not measured yet. {folder.run.plan.privacy}.")
        return
    measure = folder.measures[0]
    for caution in cautions(folder.run.last_measured):
        st.warning(f"{caution[:1].upper()}{caution[1:]}.")
    with st.container(key="cards-run"):
        _show_cards(folder.run, measure)
    title = measure.replace("_", " ")
    st.altair_chart(
        curve_chart(folder.curve(), x="cost", y=measure, titles=("cost spent", title)),
        width="stretch",
        height=330,
    )
    st.altair_chart(spending_chart(folder.spending()), width="stretch", height=270)
    _show_metrics(folder.run)
    st.caption(f"{folder.run.privacy}. {NOT_PRIVATE}")


def _show_cards(run: RecordedRun, measure: str) -> None:
    plan, last = run.plan, run.rounds[-1]
    epsilon, cost = largest(last.epsilon), largest(last.cost)
    planned = largest(plan.epsilon), largest(plan.cost)
    constant = run.last_measured.get(f"constant_{measure}")
    st.metric(
        measure.replace("_", " ").capitalize(),
        f"{run.last_measured[measure]:.4f}",
        delta=None if constant is None else f"a constant's: {constant:.4f}",
        delta_color="off",
        delta_arrow="off",
        border=True,
    )
    st.metric(
        "Epsilon spent" if run.kind == "release" else "Epsilon, if released",
        epsilon_text(epsilon),
        border=True,
        help=f"Maximum over the devices. Planned: {rounded_up(planned[0])}."
        if planned[0]
        else "This run adds no noise: there is no bound.",
    )
    st.metric(
        "Cost spent",
        f"{cost:.4g}",
        border=True,
        help=f"Maximum over the devices. Planned: {planned[1]:.4g}.",
    )
    st.metric(
        "Answers",
        f"{last.answered} of {plan.num_devices}",
        border=True,
        help="Devices that answered in the last round.",
    )


def _show_metrics(run: RecordedRun) -> None:
    """Show what an accuracy or a loss hides, once the run has ended."""
    unit = "" if run.plan.schema is None else run.plan.schema.unit
    details, classes = (
        detail_rows(run.last_measured, unit),
        class_rows(run.last_measured),
    )
    for names, rows in (
        (("metric", "this run", "a constant answer"), list(details)),
        (("class", "recall", "precision", "F1"), list(classes)),
    ):
        if rows:
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
            st.dataframe(columns, width="stretch", hide_index=True)
