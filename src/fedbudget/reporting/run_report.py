"""The HTML report of one run: advice, plan, privacy, curves, alternatives, devices."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path

import numpy as np

from fedbudget.checks import Array, floats
from fedbudget.errors import RecordError
from fedbudget.metrics import class_rows, detail_rows, number_text
from fedbudget.planning import Plan
from fedbudget.privacy import rounded_up
from fedbudget.record import RecordedRun, from_row, read_run
from fedbudget.reporting import html as pages
from fedbudget.reporting.advice import advice
from fedbudget.reporting.comparison import (
    CENTRAL,
    CONSTANT,
    LOCAL,
    PERSONAL,
    RUN,
    Comparison,
    compare,
)
from fedbudget.reporting.curves import epsilon_curve, loss_curve, metric_curve
from fedbudget.reporting.html import Text
from fedbudget.text import counted, span

_MAX_DEVICE_ROWS = 200  # of more devices, the table shows minimum, median and maximum
_EXPLAINED = {
    RUN: "the model of this run",
    PERSONAL: "that model, adapted by each device to its own rows; the "
    "adapted models stay on the devices",
    LOCAL: "each device trains on its own rows only; nothing is sent",
    CONSTANT: "the best constant guess, which uses no feature",
    CENTRAL: "one model trained on all rows in one place, without privacy",
}


def report(
    path: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    comparing: bool = True,
    on_part: Callable[[str], None] | None = None,
) -> Path:
    """Write one self-contained HTML page about a run folder, and return its path.

    Args:
        path: The run folder, finished or not.
        out: The file to write; by default report.html in the folder.
        comparing: Also measure the alternatives on the same rows, if these can be
            loaded again; stored in the folder as comparison.json.
        on_part: Called with the name of each alternative before it is measured.

    Raises:
        RecordError: The folder cannot be read, or the page cannot be written.
    """
    run = read_run(path)
    comparison, reason = None, "the comparison was not requested"
    if comparing:
        try:
            comparison = compare(run, on_part=on_part)
        except RecordError as error:
            reason = str(error)
    target = run.path / "report.html" if out is None else Path(out)
    pages.write_page(target, run_page(run, comparison, not_compared=reason))
    return target


def run_page(
    run: RecordedRun, comparison: Comparison | None, *, not_compared: str = ""
) -> str:
    """Return the page as HTML; `not_compared` is why there is no comparison."""
    parts = [
        *_opening(run, comparison),
        pages.heading("Advice"),
        *_advice(run, comparison),
        pages.heading("Plan"),
        *_plan(run.plan),
        pages.heading("Privacy guarantee"),
        *_guarantee(run, comparison),
        *_metrics(run),
        *_curves(run, comparison),
        pages.heading("Alternatives"),
        *_alternatives(comparison, not_compared),
        pages.heading("Devices"),
        *_devices(run, comparison),
        pages.heading("Provenance"),
        *_provenance(run),
    ]
    has_data_name = bool({"data", "fleet"} & set(run.about))
    on = f" on {run.data_line.split(':')[0]}" if has_data_name else ""
    return pages.page(f"Run {run.path.name}{on}", parts)


def _opening(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    kind = "bad" if "SYNTHETIC" in run.data_line else "soft"
    yield pages.paragraph(run.data_line, kind=kind)
    plan, done = run.plan, len(run.rounds)
    tiles = []
    if run.metric is not None:
        value = run.series(run.metric)[-1]
        constant = run.last_measured.get("constant_test_accuracy")
        beside = "" if constant is None else f", a constant's {constant:.4f}"
        tiles.append((f"{value:.4f}", f"{_words(run.metric)}, not private{beside}"))
    if done:
        epsilon, cost = run.spent("epsilon")[-1], run.spent("cost")[-1]
        largest = plan.epsilon.max()
        planned = "infinite" if np.isinf(largest) else rounded_up(largest)
        tiles.append(
            (
                "infinite" if np.isinf(epsilon) else rounded_up(epsilon),
                f"{_epsilon_label(run)}, maximum over devices (planned "
                f"{planned}{_budget(run, 'epsilon')})",
            )
        )
        tiles.append(
            (
                f"{cost:.4g}",
                "cost spent, maximum over devices (planned "
                f"{plan.cost.max():.4g}{_budget(run, 'cost')})",
            )
        )
    tiles.append(
        (f"{done} of {plan.rounds}", f"rounds of {counted(plan.tau, 'local step')}")
    )
    tiles.append(
        (str(plan.num_devices), "devices" if plan.num_devices > 1 else "device")
    )
    yield pages.tiles(tiles)


def _budget(run: RecordedRun, name: str) -> str:
    """Return the devices' budget in words, if the folder has it."""
    budget = run.about.get("budget")
    if not isinstance(budget, Mapping) or not budget.get(name):
        return ""
    return f", budget {span(from_row(budget[name]))}"


def _advice(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    labels = {"bad": "Problem: ", "fair": "Note: ", "good": "Good: "}
    items = [
        pages.joined(pages.mark(labels[item.kind], item.kind), item.text)
        for item in advice(run, comparison)
    ]
    yield pages.bullets(items) if items else pages.paragraph("No advice.")


def _falling(plan: Plan) -> str:
    """Describe noise that falls from round to round."""
    if plan.noise_decay == 1:
        return ""
    first, last = plan.noise_factors[[0, -1]]
    return (
        f", times {first:.2f} in the first round and falling to {last:.2f} in the last "
        "one, which costs the same privacy"
    )


def _plan(plan: Plan) -> Iterator[Text]:
    batch = {
        "full": "all training rows of the device",
        "fixed": f"{span(plan.batch_size)} rows, drawn at random for this step",
        "poisson": f"{span(plan.batch_size)} rows on average, each drawn independently",
        "cyclic": f"the next of {span(plan.blocks)} disjoint batches of "
        f"{span(plan.batch_size)} rows",
    }[plan.sampling]
    noise, upload = "adds no noise", ""
    if plan.noise_std.any() and plan.trust == "uploads":
        noise = (
            f"adds Gaussian noise with standard deviation {span(plan.noise_std)} to "
            f"every coordinate of the gradient{_falling(plan)}"
        )
    elif plan.noise_std.any():
        upload = (
            " Each device adds its share of the noise to its weighted upload, with "
            f"standard deviation {span(plan.noise_std)}, and the server sees only sums "
            f"of at least {counted(plan.least_answers, 'upload')}."
        )
    server = "" if plan.server_rate == 1 else f", server rate {plan.server_rate:.3g}"
    yield pages.paragraph(
        f"In every round, each of {counted(plan.num_devices, 'device')} takes "
        f"{counted(plan.tau, 'local step')} at learning rate {plan.learning_rate:.3g}. "
        f"A step uses {batch} and {noise}.{upload} The server averages the models with "
        f"weights {span(plan.weights)}{server} and momentum {plan.momentum:.2g}. After "
        f"{counted(plan.rounds, 'round')} ({plan.steps} steps in total), the model is "
        "final."
    )
    yield pages.paragraph(
        f"Planner: {plan.planner}. Loss: {plan.loss}. Planned cost per device: "
        f"{span(plan.cost)} units. Reasons for this plan:"
    )
    yield pages.bullets(reason for reason in plan.reasons if reason != plan.advice)


def _guarantee(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    privacy = run.privacy
    yield pages.paragraph(str(privacy), kind="bad" if np.isinf(privacy.epsilon) else "")
    yield pages.table(
        (),
        [
            ("unit", privacy.protected),
            ("adjacency", privacy.adjacency),
            ("adversary", privacy.adversary),
            ("accountant", f"{privacy.accountant}: its epsilon is an upper bound"),
        ],
    )
    if run.kind == "simulation":
        yield pages.paragraph(
            "This run is a simulation: its epsilon is what devices would spend. "
            "Nothing is promised for this model: its noise follows from a seed, and "
            "its sums are in single precision. The accuracies and losses on this page "
            "were computed directly on the devices' own rows, as only a simulation "
            "can. If the rows are private, do not publish this page or the model: a "
            "fleet, or ",
            pages.code("fedbudget train --release"),
            ", makes one that can be published.",
            kind="note",
        )
    elif comparison is not None:
        yield pages.paragraph(
            "The guarantee of this release is for the model, not for this page: its "
            "accuracies, those of the alternatives and the advice were computed "
            "directly on the devices' own rows, without noise. If the rows are "
            "private, publish the model only; ",
            pages.code("--no-compare"),
            " makes a page without them.",
            kind="note",
        )


def _metrics(run: RecordedRun) -> Iterator[Text]:
    """Show the metrics that an accuracy or a loss hides."""
    measured = run.last_measured
    unit = "" if run.plan.schema is None else run.plan.schema.unit
    details = list(detail_rows(measured, unit))
    if not details:
        return
    yield pages.heading("Metrics")
    has_accuracy = "constant_test_accuracy" in measured
    if has_accuracy:
        names = ("test_accuracy", "constant_test_accuracy")
        pair = [number_text(measured[name]) for name in names]
        details.insert(0, ("accuracy, mean of devices", pair[0], pair[1]))
    yield pages.table(
        ("", "this run", "a constant answer"),
        details,
        numbers=(1, 2),
        caption="Over the test rows of all devices together"
        f"{'; the accuracy is a mean over the devices' if has_accuracy else ''}. "
        "Not private.",
    )
    classes = list(class_rows(measured))
    if classes:
        yield pages.table(
            ("class", "recall", "precision", "F1"),
            classes,
            numbers=(1, 2, 3),
            caption="Recall: the share of a class that is recognised. Precision: the "
            "share of answers of a class that are right. Not private.",
        )


def _curves(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    if len(run.rounds) < 2:
        return
    yield pages.heading("Progress over cost")
    figures = []
    if run.metric is not None:
        figures.append(
            pages.figure(
                metric_curve(run, comparison),
                f"{_words(run.metric).capitalize()} after each round, over the cost so "
                "far. Dashed lines: the alternatives below.",
                name="metric",
                narrow=True,
            )
        )
        figures.append(
            pages.figure(
                loss_curve(run),
                "Loss after each round: means over each device's own rows, then over "
                "the devices.",
                name="loss",
                narrow=True,
            )
        )
    if np.isfinite([*run.spent("epsilon"), *run.plan.epsilon]).all():
        figures.append(
            pages.figure(
                epsilon_curve(run),
                "Epsilon spent after each round, maximum over devices.",
                name="epsilon",
                narrow=True,
            )
        )
    yield pages.side_by_side(*figures)


def _alternatives(comparison: Comparison | None, not_compared: str) -> Iterator[Text]:
    if comparison is None:
        yield pages.paragraph(f"Not compared: {not_compared}.", kind="note")
        return
    means = comparison.means
    best_first = sorted(
        means, key=means.__getitem__, reverse=comparison.higher_is_better
    )
    rows = []
    for name in best_first:
        counts = " / ".join(map(str, comparison.better_off(name, LOCAL)))
        label = pages.mark(name, "good" if name == RUN else "")
        rows.append((label, f"{means[name]:.4f}", "" if name == LOCAL else counts))
    yield pages.table(
        ("", _words(comparison.metric), "devices better / same / worse"),
        rows,
        numbers=(1, 2),
        caption="Means over each device's own test rows, the best first, and the "
        "numbers of devices that do better, the same and worse than with local-only "
        "training.",
    )
    yield pages.bullets(
        pages.joined(pages.mark(name, "good" if name == RUN else ""), ": ", meaning)
        for name, meaning in _EXPLAINED.items()
        if name in means
    )
    if new := comparison.new_devices:
        yield pages.table(
            ("", _words(comparison.metric).removeprefix("test ")),
            [(name, f"{value:.4f}") for name, value in new.items()],
            numbers=(1,),
            caption="On all rows of new devices, which never trained: means over each "
            "device's own rows, then over these devices. A device that has no labels "
            "cannot train on its own.",
        )


def _devices(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    plan = run.plan
    columns: dict[str, Array] = {
        "rows": floats(plan.num_samples),
        "batch": floats(plan.batch_size),
        "noise std": plan.noise_std,
        "weight": plan.weights,
        "rounds": floats(plan.device_rounds),
    }
    for name in ("epsilon", "cost"):
        columns[f"{name} spent"] = getattr(run.rounds[-1] if run.rounds else plan, name)
    measured: dict[str, Array] = (
        {} if comparison is None else dict(comparison.per_device)
    )
    header = ("device", *columns, *measured)
    names = run.device_names if comparison is None else comparison.device_names

    is_accuracy = comparison is None or comparison.higher_is_better
    shape = "{:.3f}" if is_accuracy else "{:.3g}"

    def cells(pick: Callable[[Array], float]) -> Iterator[str]:
        for name, values in columns.items():
            value = float(pick(values))
            exact = name != "epsilon spent" or not np.isfinite(value)
            yield _cell(value) if exact else rounded_up(value)
        yield from (_cell(float(pick(values)), shape) for values in measured.values())

    if plan.num_devices > _MAX_DEVICE_ROWS:
        summaries: dict[str, Callable[[Array], float]] = {
            "minimum": np.nanmin,
            "median": np.nanmedian,
            "maximum": np.nanmax,
        }
        rows = [(word, *cells(summary)) for word, summary in summaries.items()]
    else:
        order = sorted(range(len(names)), key=lambda m: natural(names[m]))
        rows = [(names[m], *cells(itemgetter(m))) for m in order]
    note = ""
    if comparison is not None:
        note = f' Columns from "{RUN}" on: {_words(comparison.metric)}, not private.'
    yield pages.table(
        header,
        rows,
        numbers=range(1, len(header)),
        caption=f"Share in the training, spending and result of each device.{note}",
    )


def _provenance(run: RecordedRun) -> Iterator[Text]:
    about = run.about
    rows = [
        (name, str(about[name]))
        for name in ("source", "split", "label", "device", "partition", "seed")
        if about.get(name) is not None
    ]
    versions = about.get("versions", {})
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
    rows.append(("files", "plan.json, rounds.jsonl and model.npz in the run folder"))
    yield pages.table((), rows)


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that compares the numbers in names as numbers.

    >>> sorted(["s10", "s2", "a"], key=natural)
    ['a', 's2', 's10']
    """
    parts = re.split(r"(\d+)", name)
    return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]


def _epsilon_label(run: RecordedRun) -> str:
    would = run.kind == "simulation"
    return "epsilon that devices would spend" if would else "epsilon spent"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: float, shape: str = "{:.4g}") -> str:
    if np.isnan(value):
        return "no rows"
    if np.isinf(value):
        return "infinite"
    return shape.format(value)
