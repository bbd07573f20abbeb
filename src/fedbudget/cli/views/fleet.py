"""Tables of a fleet: live and at the end."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedbudget.checks import Array
from fedbudget.cli.views.layout import (
    new_page,
    new_table,
    show_heading,
    show_item,
    show_pairs,
    show_table,
)
from fedbudget.fleet.coordinator.evaluation import Evaluation
from fedbudget.fleet.coordinator.lifecycle import RunSummary, State
from fedbudget.planning import Plan
from fedbudget.privacy import rounded_up
from fedbudget.record import FEW
from fedbudget.text import counted, span
from fedbudget.training import Run

_STYLES = {"answered": "green", "refused": "yellow", "late": "red", "waiting": "dim"}


def show_server_run(run: Run, names: Sequence[str], *, out: str) -> None:
    """Print the result and the spending of a fleet's run, whose devices have names."""
    plan, last = run.plan, run.rounds[-1]
    answers = [latest.answered for latest in run.rounds]
    with new_page() as console:
        title = (
            f"Trained over a fleet: {counted(plan.num_devices, 'device')}, "
            f"{counted(plan.rounds, 'round')} of {counted(plan.tau, 'local step')}"
        )
        console.print(Text(title, style="bold"))
        show_pairs(
            console,
            [
                ("privacy", str(run.privacy)),
                (
                    "spent",
                    f"epsilon {spent(last.epsilon, rounded_up)}, at most, by each "
                    "device",
                ),
                ("cost", f"{spent(last.cost)} units, at most, by each device"),
                ("answers", f"from {_devices(answers)} in a round"),
                ("record", f"{out}: plan, rounds and model"),
            ],
        )
        if last.refused:
            show_heading(console, "Refused the last round")
        for index, reason in list(last.refused.items())[:FEW]:
            show_item(console, f"device {names[index]}: {reason}")


def show_runs(runs: Sequence[RunSummary], root: str) -> None:
    """Print the runs below a folder."""
    with new_page() as console:
        if not runs:
            console.print(f"no run below {root}", markup=False)
            return
        table = new_table("folder", "name", "state", "rounds", "devices")
        for run in runs:
            table.add_row(
                str(run.folder),
                str(run.status.get("name", "")),
                str(run.state),
                _rounds(run.status),
                str(len(run.status.get("devices") or run.status.get("declared", []))),
            )
        show_table(console, table)


def show_run(run: RunSummary) -> None:
    """Print the state of one run, and of its devices."""
    status = run.status
    with new_page() as console:
        name = status.get("name", run.folder.name)
        console.print(Text(f"run {name}: {run.state}", style="bold"))
        pairs = [
            ("identity", status.get("run", "none yet")),
            ("rounds", _rounds(status)),
        ]
        if status.get("at") is not None:
            written = datetime.datetime.fromtimestamp(status["at"]).astimezone()
            pairs.append(("as of", written.isoformat(timespec="seconds")))
        if status.get("reason"):
            pairs.append(("reason", status["reason"]))
        declared = [device["name"] for device in status.get("declared", [])]
        if declared:
            pairs.append(("declared", ", ".join(declared)))
        show_pairs(console, pairs)
        if status.get("devices"):
            show_table(console, device_table(status, None, ()))
            show_item(console, "epsilon and cost: upper bounds, by the coordinator")
        if run.state in (State.FAILED, State.STOPPED):
            show_item(
                console,
                "the same fedbudget server command resumes it; fedbudget server cancel "
                "ends it for ever",
            )


def show_evaluation(result: Evaluation, path: str) -> None:
    """Print the result of an evaluation."""
    with new_page() as console:
        name = "squared error" if result.measure == "squared-error" else "accuracy"
        total = result.total
        interval = f"{total.low:.4f} to {total.high:.4f}"
        title = f"{name} {total.value:.4f}, 95 % interval {interval}"
        console.print(Text(title, style="bold"))
        show_pairs(
            console,
            [
                ("held-out rows", f"{total.rows:.0f}, which no run trains on"),
                ("answers", f"of {counted(len(result.answered), 'device')}"),
                ("privacy", f"epsilon {rounded_up(result.epsilon)} of each, charged"),
                ("noise", _noise(result)),
                ("record", path),
            ],
        )
        if result.classes:
            table = new_table("class", "recall", "from", "to", "rows", right=True)
            for number, one in enumerate(result.classes):
                values = (one.value, one.low, one.high)
                cells = (f"{value:.4f}" for value in values)
                table.add_row(str(number), *cells, f"{one.rows:.0f}")
            show_table(console, table)
        if result.statement:
            show_item(console, result.statement)
        for name, reason in result.refused.items():
            show_item(console, f"{name} refuses: {reason}")
        if result.silent:
            show_item(
                console, f"no answer, perhaps charged: {', '.join(result.silent)}"
            )


def _noise(result: Evaluation) -> str:
    number = f"{result.noise_std:.4g} on each number"
    if result.statement:
        return f"{number}, as the share of each device in one sum"
    return f"{number} of a device"


def _rounds(status: Mapping[str, Any]) -> str:
    if "rounds" not in status:
        return "none yet"
    return f"{status['rounds_closed']} of {status['rounds']}"


def spent(values: Array, to_text: Callable[[float], str] = "{:.4g}".format) -> str:
    """Return the range of the devices' spending."""
    if not np.isfinite(values).all():
        return "without bound"
    low, high = to_text(float(values.min())), to_text(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _devices(counts: Sequence[int]) -> str:
    return "1 device" if set(counts) == {1} else f"{span(counts)} devices"


def live_table(
    status: Mapping[str, Any], plan: Plan | None, sizes: Sequence[int]
) -> Group:
    """Return the state of a run as a table, for a live display."""
    rounds = status.get("rounds")
    closed = status.get("rounds_closed", 0)
    seconds = status.get("last_round_seconds")
    head = Text(
        "waiting for the plan" if rounds is None else f"round {closed} of {rounds}"
    )
    if seconds is not None:
        head.append(f", the last one in {seconds:.2f} s", style="dim")
    if status.get("phase"):
        head.append(f"; secure sum: waiting for {status['phase']}", style="dim")
    return Group(head, Text(), device_table(status, plan, sizes))


def device_table(
    status: Mapping[str, Any], plan: Plan | None, sizes: Sequence[int]
) -> Table:
    """Return a table with one row per device: its size, answers and spending."""
    shares = () if plan is None else ("rows", "weight")
    names = ("device", *shares, "answers", "in this round", "epsilon", "cost")
    table = new_table(*names, right=True)
    table.columns[names.index("in this round")].justify = "left"
    for m, device in enumerate(status.get("devices", [])):
        state = device["this_round"]
        epsilon = device["epsilon"]
        table.add_row(
            device["name"],
            *(() if plan is None else (str(sizes[m]), f"{plan.weights[m]:.3f}")),
            str(device["answered"]),
            Text(state, style=_STYLES.get(state, "")),
            "none" if epsilon is None else rounded_up(epsilon),
            f"{device['cost']:.0f}",
        )
    return table


def show_demo(result: Mapping[str, Any], status: Mapping[str, Any], plan: Plan) -> None:
    """Print the result of the demo, and that of simulations of the same plan."""
    with new_page() as console:
        console.print(
            Text(
                f"Done: {counted(plan.num_devices, 'device')}, "
                f"{counted(plan.rounds, 'round')} of "
                f"{counted(plan.tau, 'local step')}, "
                f"median round {result['median_round_seconds']:.2f} s",
                style="bold",
            )
        )
        show_table(console, device_table(status, plan, plan.num_samples.tolist()))
        show_pairs(console, [("privacy", str(plan.privacy))])
        show_heading(console, "Test accuracy, mean over the devices")
        table = new_table("", "accuracy", "loss", right=True)
        fleet = result["fleet"]
        table.add_row("this fleet", f"{fleet['accuracy']:.4f}", f"{fleet['loss']:.4f}")
        simulated = result["simulated"]
        spread = f"{simulated['accuracy']:.4f} +- {simulated['spread']:.4f}"
        table.add_row("simulated, same plan", spread, f"{simulated['loss']:.4f}")
        show_table(console, table)
        show_item(console, "epsilon and cost are from each device's own ledger")
        show_item(
            console,
            f"+-: standard deviation over {simulated['seeds']} seeds of the noise",
        )
        show_item(
            console,
            "NOT private: accuracy and loss are computed from the devices' own rows, "
            "for this demo only",
        )
        show_item(console, f"logs, ledgers and the run are in {result['folder']}")
