"""Runs and sweeps as text: readable at 80 columns, and without colour."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from fedbudget.budget import Budget
from fedbudget.checks import Array
from fedbudget.cli.output import one_line
from fedbudget.cli.sources import Source
from fedbudget.cli.views.layout import (
    new_page,
    new_table,
    show_heading,
    show_item,
    show_pairs,
    show_table,
    show_title,
)
from fedbudget.planning import Plan
from fedbudget.privacy.runs import rounded_up, weak_guarantees
from fedbudget.simulation.sweeping import Sweep
from fedbudget.text import counted, span
from fedbudget.training import Run

NOT_PRIVATE = "NOT private: measured on the devices' own rows, as only a simulation can"
RELEASED = (
    "no accuracy: no guarantee would cover a figure measured on the devices' own rows"
)
_DONE = {"simulation": "Simulated", "release": "Released"}
MEANS = "mean over each device's own rows, then over the devices that have any"


# The released model and, with --personal, its baselines; each with its prefix.
_MODELS = {
    "global": "",
    "personal": "personal_",
    "local only": "alone_",
    "constant": "constant_",
}
_PARTS = {
    "train": "train",
    "validation": "validation",
    "test": "test",
    "new": "new devices",
}
_EXPLAINED = (
    "personal: the global model, adapted on each device to its own rows",
    "local only: each device trains on its own rows and sends nothing",
    "constant: the best constant guess, the same on all devices",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A planner, a pair of budgets, and its plan, if there is one."""

    planner: str
    epsilon: float  # the budget, not the spending of the plan
    cost: float
    plan: Plan | None
    number: int  # of the plan in the sweep, if there is one


def show_run(source: Source, budget: Budget, run: Run, *, record: str | None) -> None:
    """Print the privacy, the cost and the result of a run."""
    measured = run.measured
    with new_page() as console:
        show_title(console, source)
        show_heading(console, f"{_DONE[run.kind]}: {_in_a_line(run.plan)}")
        show_pairs(console, _outcome(budget, run, record))
        results = [
            f"{name.replace('_', ' ')} {_number(measured[name])}"
            for name in ("test_accuracy", "test_loss")
            if name in measured
        ]
        if run.kind == "release":
            show_item(console, RELEASED)
        else:
            show_heading(console, f"Result: {', '.join(results) or 'no test rows'}")
            _show_measured(console, measured)
        if run.advice:
            show_item(console, run.advice)
        if run.plan.accountant != "none":
            epsilon, delta, _ = budget.per_device(run.plan.num_devices)
            for caution in weak_guarantees(epsilon, delta, run.plan.num_samples):
                show_item(console, caution)


def show_sweep(
    source: Source, points: Sequence[Point], sweep: Sweep, *, table: str | None
) -> None:
    """Print the result of every plan, as means over the seeds."""
    plans, seeds = counted(len(sweep.plans), "plan"), counted(len(sweep.seeds), "seed")
    with new_page() as console:
        show_title(console, source)
        show_heading(console, f"Sweep: {plans} x {seeds}")
        _show_points(console, points, sweep)
        delta = max(plan.delta.max() for plan in sweep.plans)
        show_item(console, f"every plan has delta {rounded_up(delta)}")
        if any(point.plan is None for point in points):
            show_item(console, "no plan: this cost budget does not pay for one round")
        _explain(console, sweep.measured, "accuracy and loss: ")
        if len(sweep.seeds) > 1:
            show_item(console, f"+-: standard deviation over {seeds}")
        show_item(
            console,
            "every run is a simulation: nothing is promised for its model, and a fleet "
            "can only run one of them, for each would spend the budgets",
        )
        if table is not None:
            show_item(console, f"all runs: {one_line(table)}")


def _in_a_line(plan: Plan) -> str:
    return (
        f"{counted(plan.rounds, 'round')} of {counted(plan.tau, 'local step')}, "
        f"learning rate {plan.learning_rate:.4g}, momentum {plan.momentum:.2g}"
    )


def _outcome(budget: Budget, run: Run, record: str | None) -> Iterator[tuple[str, str]]:
    plan, last = run.plan, run.rounds[-1]
    yield "privacy", str(run.privacy)
    spent = span(last.cost)
    yield "cost", f"{spent} of {span(budget.cost)} units per device"
    answers = span([done.answered for done in run.rounds])
    yield "answers", f"from {answers} of {plan.num_devices} devices per round"
    if record is None:
        yield "record", "none; use --out FOLDER to save the run"
    else:
        yield "record", f"{one_line(record)}: plan, rounds and model"


def _show_measured(console: Console, measured: Mapping[str, float]) -> None:
    """Show one line per model and part of the rows."""
    table = new_table("model", "rows", "loss", "accuracy", right=True)
    if "personal_test_loss" not in measured:
        table = new_table("rows", "loss", "accuracy", right=True)
    for model, prefix in _MODELS.items():
        for part, words in _PARTS.items():
            if f"{prefix}{part}_loss" in measured:
                accuracy = measured.get(f"{prefix}{part}_accuracy")
                cell = "" if accuracy is None else _number(accuracy)
                names = (model, words) if "personal_test_loss" in measured else (words,)
                loss = _number(measured[f"{prefix}{part}_loss"])
                table.add_row(*names, loss, cell)
    show_table(console, table)
    _explain(console, measured, "")


def _explain(console: Console, measured: Mapping[str, Any], prefix: str) -> None:
    """Explain the figures, and which are missing."""
    if "personal_test_loss" in measured:
        for line in _EXPLAINED:
            show_item(console, line)
    if "new_loss" in measured:
        show_item(console, "new devices: all rows of devices that never trained")
    show_item(console, f"{prefix}{MEANS}")
    show_item(console, NOT_PRIVATE)
    if "test_loss" not in measured:
        show_item(console, "no device has test rows: no test accuracy, no test loss")
    elif "test_accuracy" not in measured:
        show_item(console, "the labels are numbers: there is a loss, but no accuracy")


def _show_points(console: Console, points: Sequence[Point], sweep: Sweep) -> None:
    names = ("epsilon", "cost", "tau x\nrounds", "learning\nrate")
    table = new_table("planner", *names, "test\naccuracy", "train\nloss", right=True)
    for point in points:
        budgets = point.planner, f"{point.epsilon:g}", f"{point.cost:g}"
        if point.plan is None:
            table.add_row(*budgets, "no plan", "", "", "")
            continue
        accuracy = sweep.measured.get("test_accuracy")
        loss, _ = spread(sweep.measured["train_loss"][point.number])
        table.add_row(
            *budgets,
            f"{point.plan.tau}x{point.plan.rounds}",
            f"{point.plan.learning_rate:.4g}",
            "" if accuracy is None else _spread(*spread(accuracy[point.number])),
            _number(loss),
        )
    show_table(console, table)


def _spread(mean: float, std: float | None) -> str:
    return _number(mean) if std is None else f"{_number(mean)} +- {_number(std)}"


def _number(value: float) -> str:
    """Return four decimals; three digits for a large number."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def spread(values: Array) -> tuple[float, float | None]:
    """Return mean and standard deviation; a single value has no deviation."""
    return float(np.mean(values)), (
        float(np.std(values, ddof=1)) if len(values) > 1 else None
    )
