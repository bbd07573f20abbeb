"""`fedbudget sweep`."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import fedbudget
from fedbudget.checks import whole
from fedbudget.cli.options import BUDGETS, OUTPUT, RUN, SweepQuestion, asks, numbers
from fedbudget.cli.output import Bar, print_json, progress, telling_of_compilation
from fedbudget.cli.sources import Source, about, read_data, source_of
from fedbudget.cli.views.run import Point, spread
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.files import whole_file
from fedbudget.simulation.sweeping import Sweep


@asks
def sweep(
    question: SweepQuestion,
    *,
    epsilons: Annotated[
        str,
        typer.Option(
            help="Privacy budgets to try, no unit, such as 1,4,10.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ],
    costs: Annotated[
        str,
        typer.Option(
            help="Cost budgets to try, in the prices' unit, such as 500,1000.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ],
    seeds: Annotated[
        int,
        typer.Option(
            help="Runs of each plan, with noise and batches of their own.",
            rich_help_panel=RUN,
        ),
    ] = 5,
    backend: Annotated[
        str,
        typer.Option(
            metavar="here|ray|dask",
            help="Where to run: on all cores of this machine, or on a cluster.",
            rich_help_panel=RUN,
        ),
    ] = "here",
    address: Annotated[
        str | None,
        typer.Option(
            help="The cluster's address. Default: a cluster on this machine.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv",
            help="Table to write, a row for each run. Default: none.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Run plans for many budgets, several times each, and compare what they reach."""
    if address is not None and backend == "here":
        raise InvalidInputError(
            f"--address {address} does not go with --backend here: name ray or dask"
        )
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise InvalidInputError(f"--out {out}: that folder is not there: make it first")
    repeats = range(whole("--seeds", seeds))
    grid = numbers("--epsilons", epsilons), numbers("--costs", costs)
    with progress("planning for every pair of budgets") as bar:
        dataset = read_data(question)
        source = source_of(dataset, question)
        points = list(_plan_all(question, source, *grid, bar))
    plans = [point.plan for point in points if point.plan is not None]
    if not plans:
        raise InfeasibleBudgetError(
            f"none of the costs {costs} pays for one round with one step: raise "
            "--costs or lower the prices"
        )
    kind = "SYNTHETIC " if dataset.synthetic else ""
    what = f"{len(plans)} x {seeds} runs on {kind}{dataset.name}"
    with progress(what, counter="") as bar, telling_of_compilation(bar, what):
        found = fedbudget.sweep(
            dataset, plans, seeds=repeats, backend=backend, address=address
        )
    runs = list(_runs(points, found, source))
    if out is not None:
        _write(Path(out), runs)
    if question.json:
        told = {"points": [_plain(point, found) for point in points], "runs": runs}
        print_json(told | {"table": out} | about(source))
        return
    from fedbudget.cli.views.run import show_sweep  # rich's tables, only where shown

    show_sweep(source, points, found, table=out)


def _plan_all(
    question: SweepQuestion,
    source: Source,
    epsilons: list[float],
    costs: list[float],
    bar: Bar,
) -> Iterator[Point]:
    """Plan with every planner for every pair of budgets."""
    number = -1
    for planner in map(str.strip, question.planner.split(",")):
        grid = fedbudget.frontier(
            source.problem,
            question.prices,
            epsilons=epsilons,
            costs=costs,
            delta=question.delta,
            on_point=bar,
            **question.how | {"planner": planner},
        )
        for epsilon, row in zip(grid.epsilons, grid.plans, strict=True):
            for cost, plan in zip(grid.costs, row, strict=True):
                number += plan is not None
                yield Point(
                    planner=planner,
                    epsilon=float(epsilon),
                    cost=float(cost),
                    plan=plan,
                    number=number,
                )


def _runs(
    points: list[Point], found: Sweep, source: Source
) -> Iterator[dict[str, Any]]:
    """Yield every run as a plain row that says what it was asked, and on which data."""
    asked = {point.number: point for point in points if point.plan is not None}
    for row in found.rows():
        point = asked[row["plan"]]
        budgets = {"budget_epsilon": point.epsilon, "budget_cost": point.cost}
        yield {"planner": point.planner, **budgets, **row, "data": source.line}


def _plain(point: Point, found: Sweep) -> dict[str, Any]:
    """Return a point with its means over the seeds as plain values."""
    asked = {"planner": point.planner, "epsilon": point.epsilon, "cost": point.cost}
    if point.plan is None:
        return asked | {"feasible": False}
    names = ("tau", "rounds", "learning_rate", "momentum")
    accuracy = found.measured.get("test_accuracy")
    mean, std = (None, None) if accuracy is None else spread(accuracy[point.number])
    return (
        asked
        | {"feasible": True}
        | {name: getattr(point.plan, name) for name in names}
        | {"accuracy": mean, "accuracy_std": std}
        | {"loss": spread(found.measured["train_loss"][point.number])[0]}
    )


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a CSV table, whole or not at all."""
    with whole_file(path) as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
