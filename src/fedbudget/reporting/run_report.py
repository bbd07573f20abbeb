"""One page about one run: plan, promise, curves, devices, alternatives, advice."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path

import numpy as np

from fedbudget.checks import Array, floats
from fedbudget.errors import RecordError
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

_FEW = 200  # as many devices as get a row each
_EXPLAINED = {
    RUN: "the released model",
    PERSONAL: "the released model, adapted by each device to its rows; nothing sent",
    LOCAL: "every device with its own rows alone; nothing sent",
    CONSTANT: "the best guess that looks at nothing",
    CENTRAL: "all rows in one place, without privacy",
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
        comparing: Also measure what else the same rows could do, if they can be found
            again; kept in the folder as comparison.json.
        on_part: Called with the name of each thing that is measured.

    Raises:
        RecordError: The folder cannot be read, or the page cannot be written.
    """
    run = read_run(path)
    found, why_not = None, "it was not asked for"
    if comparing:
        try:
            found = compare(run, on_part=on_part)
        except RecordError as error:
            why_not = str(error)
    place = run.path / "report.html" if out is None else Path(out)
    pages.write_page(place, run_page(run, found, why_not=why_not))
    return place


def run_page(
    run: RecordedRun, comparison: Comparison | None, *, why_not: str = ""
) -> str:
    """Return the page as HTML."""
    parts = [
        *_opening(run, comparison),
        pages.heading("What to do"),
        *_advice(run, comparison),
        pages.heading("The plan"),
        *_plan(run.plan),
        pages.heading("What is promised"),
        *_promise(run.plan, measured=run.metric is not None),
        *_curves(run, comparison),
        pages.heading("Alternatives"),
        *_alternatives(comparison, why_not),
        pages.heading("Devices"),
        *_devices(run, comparison),
        pages.heading("Origin"),
        *_origin(run),
    ]
    told = {"data", "fleet"} & set(run.about)
    on = f" on {run.data_line.split(':')[0]}" if told else ""
    return pages.page(f"Run {run.path.name}{on}", parts)


def _opening(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    kind = "bad" if "SYNTHETIC" in run.data_line else "soft"
    yield pages.paragraph(run.data_line, kind=kind)
    plan, done = run.plan, len(run.rounds)
    tiles = []
    if run.metric is not None:
        value = run.series(run.metric)[-1]
        tiles.append((f"{value:.4f}", f"{_words(run.metric)}, not private"))
    if done:
        epsilon, cost = run.spent("epsilon")[-1], run.spent("cost")[-1]
        spent = "none" if np.isinf(epsilon) else rounded_up(epsilon)
        most = plan.epsilon.max()
        of = "no bound" if np.isinf(most) else f"of {rounded_up(most)} planned"
        told = f"{of}{_budget(run, 'epsilon')}"
        tiles.append((spent, f"epsilon of the device that spent most, {told}"))
        told = f"of {plan.cost.max():.4g} planned{_budget(run, 'cost')}"
        tiles.append((f"{cost:.4g}", f"cost, {told}"))
    tiles.append(
        (f"{done} of {plan.rounds}", f"rounds of {counted(plan.tau, 'local step')}")
    )
    tiles.append(
        (str(plan.num_devices), "devices" if plan.num_devices > 1 else "device")
    )
    yield pages.tiles(tiles)


def _budget(run: RecordedRun, name: str) -> str:
    """Say what devices may spend, where the folder tells."""
    told = run.about.get("budget")
    if not isinstance(told, Mapping) or not told.get(name):
        return ""
    return f"; budget {span(from_row(told[name]))}"


def _advice(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    words = {"bad": "Stop: ", "fair": "Mind: ", "good": "Good: "}
    items = [
        pages.joined(pages.mark(words[item.kind], item.kind), item.text)
        for item in advice(run, comparison)
    ]
    yield pages.bullets(items) if items else pages.paragraph("Nothing stands out.")


def _plan(plan: Plan) -> Iterator[Text]:
    batch = {
        "full": "all of its training rows",
        "fixed": f"{span(plan.batch_size)} rows drawn anew",
        "poisson": f"{span(plan.batch_size)} rows on average, each drawn alone",
        "cyclic": f"the next of {span(plan.blocks)} disjoint batches of "
        f"{span(plan.batch_size)} rows",
    }[plan.sampling]
    noise = (
        f"adds Gaussian noise of standard deviation {span(plan.noise_std)} to every "
        "coordinate of the gradient"
        if plan.noise_std.any()
        else "adds no noise"
    )
    yield pages.paragraph(
        f"In every round, each of {counted(plan.num_devices, 'device')} takes "
        f"{counted(plan.tau, 'local step')} at learning rate {plan.learning_rate:.3g}. "
        f"A step uses {batch} and {noise}. The server averages the models with weights "
        f"{span(plan.weights)} and momentum {plan.momentum:.2g}. After "
        f"{counted(plan.rounds, 'round')}, {plan.steps} steps in all, the model is "
        "released."
    )
    yield pages.paragraph(
        f"Planned by {plan.planner} for loss {plan.loss}, to spend "
        f"{span(plan.cost)} units of cost. Why this plan:"
    )
    yield pages.bullets(r for r in plan.reasons if r != plan.advice)


def _promise(plan: Plan, *, measured: bool) -> Iterator[Text]:
    stated = plan.privacy
    yield pages.paragraph(str(stated), kind="bad" if np.isinf(stated.epsilon) else "")
    yield pages.table(
        (),
        [
            ("unit", stated.unit),
            ("adjacency", stated.adjacency),
            ("adversary", stated.adversary),
            ("accountant", f"{plan.accountant}: exact or too high, never too low"),
        ],
    )
    if measured:
        yield pages.paragraph(
            "Every accuracy and loss on this page was read off the devices' own rows "
            "for the reader of a simulation. No guarantee covers them: do not publish "
            "this page with private rows behind it. The noise was drawn from the seed "
            "below: nothing is promised against anyone who knows it.",
            kind="note",
        )


def _curves(run: RecordedRun, comparison: Comparison | None) -> Iterator[Text]:
    if len(run.rounds) < 2:
        return
    yield pages.heading("What the cost bought")
    drawn = []
    if run.metric is not None:
        drawn.append(
            pages.figure(
                metric_curve(run, comparison),
                f"{_words(run.metric).capitalize()} after every round, over what the "
                "device that paid most had paid by then. Dashed: the alternatives.",
                name="metric",
                narrow=True,
            )
        )
        drawn.append(
            pages.figure(
                loss_curve(run),
                "Loss after every round, as means over each device's own rows.",
                name="loss",
                narrow=True,
            )
        )
    if np.isfinite([*run.spent("epsilon"), *run.plan.epsilon]).all():
        drawn.append(
            pages.figure(
                epsilon_curve(run),
                "Privacy spent after every round, by the device that spent most.",
                name="epsilon",
                narrow=True,
            )
        )
    yield pages.side_by_side(*drawn)


def _alternatives(found: Comparison | None, why_not: str) -> Iterator[Text]:
    if found is None:
        yield pages.paragraph(f"Not compared: {why_not}.", kind="note")
        return
    best_first = sorted(
        found.means, key=found.means.__getitem__, reverse=found.higher_is_better
    )
    rows = []
    for name in best_first:
        counts = " / ".join(map(str, found.better_off(name, LOCAL)))
        named = pages.mark(name, "good" if name == RUN else "")
        against = "" if name == LOCAL else counts
        rows.append((named, f"{found.means[name]:.4f}", against))
    yield pages.table(
        ("", _words(found.metric), "better than alone / same / worse"),
        rows,
        numbers=(1, 2),
        caption="Means over each device's own test rows, the best first; and how many "
        "devices do better, the same and worse than with their own rows alone.",
    )
    yield pages.bullets(
        pages.joined(pages.mark(name, "good" if name == RUN else ""), ": ", words)
        for name, words in _EXPLAINED.items()
        if name in found.means
    )


def _devices(run: RecordedRun, found: Comparison | None) -> Iterator[Text]:
    plan = run.plan
    columns: dict[str, Array] = {
        "rows": floats(plan.num_samples),
        "batch": floats(plan.batch_size),
        "noise": plan.noise_std,
        "weight": plan.weights,
        "rounds": floats(plan.device_rounds),
    }
    for name in ("epsilon", "cost"):
        columns[f"{name} spent"] = getattr(run.rounds[-1] if run.rounds else plan, name)
    measured: dict[str, Array] = {} if found is None else dict(found.per_device)
    header = ("device", *columns, *measured)
    names = run.device_names if found is None else found.device_names

    shape = "{:.3f}" if found is None or found.higher_is_better else "{:.3g}"

    def cells(of: Callable[[Array], float]) -> Iterator[str]:
        for name, values in columns.items():
            value = float(of(values))
            exact = name != "epsilon spent" or not np.isfinite(value)
            yield _cell(value) if exact else rounded_up(value)
        yield from (_cell(float(of(values)), shape) for values in measured.values())

    if plan.num_devices > _FEW:
        ends: dict[str, Callable[[Array], float]] = {
            "least": np.nanmin,
            "median": np.nanmedian,
            "most": np.nanmax,
        }
        rows = [(word, *cells(of)) for word, of in ends.items()]
    else:
        order = sorted(range(len(names)), key=lambda m: natural(names[m]))
        rows = [(names[m], *cells(itemgetter(m))) for m in order]
    told = f" From {RUN} on: {_words(found.metric)}, not private." if found else ""
    yield pages.table(
        header,
        rows,
        numbers=range(1, len(header)),
        caption=f"What each device gave and got.{told}",
    )


def _origin(run: RecordedRun) -> Iterator[Text]:
    about = run.about
    rows = [
        (name, str(about[name]))
        for name in ("source", "split", "label", "device", "partition", "seed")
        if about.get(name) is not None
    ]
    versions = about.get("versions", {})
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
    rows.append(("files", "plan.json, rounds.jsonl, model.npz beside this page"))
    yield pages.table((), rows)


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return what to sort names by, so that numbers in them count as numbers.

    >>> sorted(["s10", "s2", "a"], key=natural)
    ['a', 's2', 's10']
    """
    parts = re.split(r"(\d+)", name)
    return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: float, shape: str = "{:.4g}") -> str:
    if np.isnan(value):
        return "no rows"
    if np.isinf(value):
        return "none"
    return shape.format(value)
