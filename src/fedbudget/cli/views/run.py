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
from fedbudget.cli.views.plan import show_promise
from fedbudget.metrics import cautions, class_rows, detail_rows, number_text
from fedbudget.planning import Plan
from fedbudget.privacy.runs import weak_guarantees
from fedbudget.simulation.sweeping import Sweep
from fedbudget.text import counted, span
from fedbudget.training import Run

NOT_PRIVATE = "NOT private: measured on the devices' own rows, as only a simulation can"
RELEASED = (
    "no accuracy: no guarantee would cover a figure measured on the devices' own rows"
)
_DONE = {"simulation": "Simulated", "release": "Released"}
MEANS = "mean over each device's own rows, then over the devices that have any"


# The model and, with --personal, its baselines; each with its prefix.
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
        results = _results(measured, _unit(run.plan))
        if run.kind == "release":
            show_item(console, RELEASED)
        else:
            show_heading(console, f"Result: {', '.join(results) or 'no test rows'}")
            _show_measured(console, measured, _unit(run.plan))
        for caution in run.cautions:
            show_item(console, caution)
        if run.advice:
            show_item(console, run.advice)
        if run.plan.accountant != "none":
            epsilon, delta, _ = budget.per_device(run.plan.num_devices)
            for caution in weak_guarantees(epsilon, delta, run.plan.num_samples):
                show_item(console, caution)


def _results(measured: Mapping[str, float], unit: str) -> list[str]:
    """Return the results of a run: the constant's stands beside the accuracy."""
    results = []
    if "test_accuracy" in measured:
        text = f"test accuracy {number_text(measured['test_accuracy'])}"
        if (constant := measured.get("constant_test_accuracy")) is not None:
            text += f" (a constant answer: {number_text(constant)})"
        results.append(text)
    elif "test_rmse" in measured:
        error = f"{number_text(measured['test_rmse'])} {unit}".strip()
        results.append(f"test error {error}")
    if "test_loss" in measured:
        results.append(f"test loss {number_text(measured['test_loss'])}")
    return results


def _unit(plan: Plan) -> str:
    return "" if plan.schema is None else plan.schema.unit


def show_sweep(
    source: Source, points: Sequence[Point], sweep: Sweep, *, table: str | None
) -> None:
    """Print the result of every plan, as means over the seeds."""
    plans, seeds = counted(len(sweep.plans), "plan"), counted(len(sweep.seeds), "seed")
    with new_page() as console:
        show_title(console, source)
        show_heading(console, f"Sweep: {plans} x {seeds}")
        _show_points(console, points, sweep)
        show_promise(console, sweep.plans)
        if any(point.plan is None for point in points):
            show_item(console, "no plan: this cost budget does not pay for one round")
        _explain(console, sweep.measured, "accuracy and loss: ")
        for line in _about_sweep(sweep):
            show_item(console, line)
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
    server = "" if plan.server_rate == 1 else f", server rate {plan.server_rate:.3g}"
    return (
        f"{counted(plan.rounds, 'round')} of {counted(plan.tau, 'local step')}, "
        f"learning rate {plan.learning_rate:.4g}, momentum {plan.momentum:.2g}{server}"
    )


def _outcome(budget: Budget, run: Run, record: str | None) -> Iterator[tuple[str, str]]:
    plan, last = run.plan, run.rounds[-1]
    yield "privacy", str(run.privacy)
    spent = span(last.cost)
    yield "cost", f"{spent} of {span(budget.cost)} units per device"
    answers = span([done.answered for done in run.rounds])
    yield "answers", f"from {answers} of {plan.num_devices} devices per round"
    if plan.threshold != 0.5:
        text = f"{plan.threshold:.3g}: probability above which the second class is "
        yield "threshold", f"{text}predicted"
    if record is None:
        yield "record", "none; use --out FOLDER to save the run"
    else:
        yield "record", f"{one_line(record)}: plan, rounds and model"


def _show_measured(console: Console, measured: Mapping[str, float], unit: str) -> None:
    """Show one line per model and part of the rows; numbers have no accuracy."""
    several = "personal_test_loss" in measured
    classes = any(name.endswith("accuracy") for name in measured)
    metrics = ("loss", "accuracy") if classes else ("loss",)
    models = ("model",) if several else ()
    table = new_table(*models, "rows", *metrics, right=True)
    for model, prefix in _MODELS.items():
        for part, words in _PARTS.items():
            if f"{prefix}{part}_loss" in measured:
                figures = (measured.get(f"{prefix}{part}_{name}") for name in metrics)
                cells = ("" if n is None else number_text(n) for n in figures)
                table.add_row(*((model,) if several else ()), words, *cells)
    show_table(console, table)
    _show_details(console, measured, unit)
    _explain(console, measured, "")


def _show_details(console: Console, measured: Mapping[str, float], unit: str) -> None:
    """Show the metrics that an accuracy or a loss hides, and those of each class."""
    rows = list(detail_rows(measured, unit))
    if not rows:
        return
    table = new_table("all test rows", "model", "constant", right=True)
    for row in rows:
        table.add_row(*row)
    show_table(console, table)
    classes = list(class_rows(measured))
    if classes:
        table = new_table("class", "recall", "precision", "F1", right=True)
        for name, *values in classes:
            table.add_row(one_line(name), *values)
        show_table(console, table)


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
    detail = _detail(sweep)
    heads = ("test\naccuracy", "train\nloss", *(detail[:1] if detail else ()))
    table = new_table("planner", *names, *heads, right=True)
    for point in points:
        budgets = point.planner, f"{point.epsilon:g}", f"{point.cost:g}"
        if point.plan is None:
            table.add_row(*budgets, "no plan", *[""] * (1 + len(heads)))
            continue
        accuracy = sweep.measured.get("test_accuracy")
        loss, _ = spread(sweep.measured["train_loss"][point.number])
        table.add_row(
            *budgets,
            f"{point.plan.tau}x{point.plan.rounds}",
            f"{point.plan.learning_rate:.4g}",
            "" if accuracy is None else _spread(*spread(accuracy[point.number])),
            number_text(loss),
            *(_mean(sweep.measured[detail[1]][point.number]) if detail else ()),
        )
    show_table(console, table)


def _mean(values: Array) -> tuple[str, ...]:
    return (number_text(spread(values)[0]),)


def _detail(sweep: Sweep) -> tuple[str, str] | None:
    """Return the head and the name of a metric beside accuracy and loss."""
    for head, name in (("test\nAUC", "test_auc"), ("test\nR2", "test_r2")):
        if name in sweep.measured:
            return head, name
    return None


def _about_sweep(sweep: Sweep) -> Iterator[str]:
    """Yield the constant's accuracy, and how many models are no better."""
    measured = sweep.measured
    constant = measured.get("constant_test_accuracy")
    if constant is not None and "test_accuracy" in measured:
        value = float(constant.flat[0])
        yield f"a constant answer has test accuracy {number_text(value)}"
    runs = [
        {name: float(values[p, s]) for name, values in measured.items()}
        for p in range(len(sweep.plans))
        for s in range(len(sweep.seeds))
    ]
    warned = [run for run in runs if cautions(run)]
    if warned:
        yield (
            f"{len(warned)} of {counted(len(runs), 'model')} should not be used as "
            f"they are; the first: {cautions(warned[0])[0]}"
        )


def _spread(mean: float, std: float | None) -> str:
    return (
        number_text(mean)
        if std is None
        else f"{number_text(mean)} +- {number_text(std)}"
    )


def spread(values: Array) -> tuple[float, float | None]:
    """Return mean and standard deviation; a single value has no deviation."""
    return float(np.mean(values)), (
        float(np.std(values, ddof=1)) if len(values) > 1 else None
    )
