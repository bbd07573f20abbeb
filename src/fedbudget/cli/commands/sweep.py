"""`fedbudget sweep`."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import fedbudget
from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    TRUST,
    UNIT,
    Prices,
)
from fedbudget.checks import whole
from fedbudget.cli.config import names_the_key
from fedbudget.cli.options import (
    BUDGETS,
    L2,
    OUTPUT,
    PLANNING,
    RUN,
    Accountant,
    AsJson,
    BatchSize,
    Colluders,
    CommunicationPrice,
    ComputationPrice,
    Data,
    Delta,
    DeviceColumn,
    Dissimilarity,
    Donors,
    Label,
    LearningRate,
    LeastAnswers,
    LossName,
    Missing,
    NumDevices,
    PartitionText,
    Planners,
    PublicSample,
    SamplePrice,
    Sampling,
    SchemaFile,
    SecureRoundPrice,
    Split,
    Target,
    TrustName,
    UnitName,
    VehiclePath,
    Weights,
    parse_numbers,
    parse_whole,
)
from fedbudget.cli.output import Bar, print_json, progress, telling_of_compilation
from fedbudget.cli.sources import DataOptions, Source, about, read_data, source_of
from fedbudget.cli.views.run import Point, spread
from fedbudget.data.partitions import SEED
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.files import whole_file
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, SAMPLING, TARGET, WEIGHTING
from fedbudget.simulation.sweeping import Sweep


@names_the_key
def sweep(
    data: Data = None,
    *,
    epsilons: Annotated[
        str,
        typer.Option(
            help="Privacy budgets to try, such as 1,4,10.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ],
    costs: Annotated[
        str,
        typer.Option(
            help="Cost budgets to try, in the unit of the prices, such as 500,1000.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ],
    delta: Delta = None,
    trust: TrustName = TRUST,
    unit: UnitName = UNIT,
    least_answers: LeastAnswers = None,
    colluders: Colluders = 0,
    seeds: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            help="Runs of each plan, each with its own noise and batches.",
            rich_help_panel=RUN,
        ),
    ] = 5,
    backend: Annotated[
        str,
        typer.Option(
            metavar="here|ray|dask",
            help="Where to run: all cores of this machine, or a Ray or Dask cluster.",
            rich_help_panel=RUN,
        ),
    ] = "here",
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of the cluster. Default: a local cluster.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    split: Split = None,
    num_devices: NumDevices = None,
    path: VehiclePath = None,
    label: Label = None,
    device: DeviceColumn = None,
    schema: SchemaFile = None,
    partition: PartitionText = None,
    missing: Missing = None,
    communication_price: CommunicationPrice = COMMUNICATION_PRICE,
    computation_price: ComputationPrice = COMPUTATION_PRICE,
    computation_price_per_sample: SamplePrice = 0,
    secure_round_price: SecureRoundPrice = None,
    planner: Planners = PLANNER,
    accountant: Accountant = ACCOUNTANT,
    weights: Weights = WEIGHTING,
    target: Target = TARGET,
    batch_size: BatchSize = None,
    sampling: Sampling = SAMPLING,
    learning_rate: LearningRate = None,
    loss: LossName = None,
    l2: L2 = 0,
    dissimilarity: Dissimilarity = None,
    public_sample: PublicSample = None,
    donors: Donors = None,
    seed: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            help="Seed of the partition and of the 80/10/10 split on every device.",
            rich_help_panel=PLANNING,
        ),
    ] = SEED,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv",
            help="Table to write, one row per run. Default: none.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run plans for many budgets, several times each, and compare the results."""
    if address is not None and backend == "here":
        raise InvalidInputError(
            f"--address {address} does not go with --backend here: use ray or dask"
        )
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise InvalidInputError(
            f"--out {out}: its folder does not exist: create it first"
        )
    repeats = range(whole("--seeds", seeds))
    grid = parse_numbers("--epsilons", epsilons), parse_numbers("--costs", costs)
    prices = Prices(
        communication=communication_price,
        computation=computation_price,
        computation_per_sample=computation_price_per_sample,
        secure_round=secure_round_price,
    )
    options = DataOptions(
        data=data,
        split=split,
        num_devices=num_devices,
        path=path,
        label=label,
        device=device,
        schema=schema,
        partition=partition,
        missing=missing,
        loss=loss,
        l2=l2,
        dissimilarity=dissimilarity,
        public_sample=public_sample,
        donors=donors,
        seed=seed,
    )
    method = {
        "delta": delta,
        "trust": trust,
        "unit": unit,
        "least_answers": least_answers,
        "colluders": colluders,
        "accountant": accountant,
        "weights": weights,
        "target": target,
        "batch_size": batch_size,
        "sampling": sampling,
        "learning_rate": learning_rate,
    }
    with progress("planning for every pair of budgets") as bar:
        dataset = read_data(options)
        source = source_of(dataset, options)
        planners = [name.strip() for name in planner.split(",")]
        points = list(_plan_all(source, prices, planners, *grid, bar, method))
    plans = [point.plan for point in points if point.plan is not None]
    if not plans:
        raise InfeasibleBudgetError(
            f"none of the costs {costs} pays for one round with one step: raise "
            "--costs or lower the prices"
        )
    kind = "SYNTHETIC " if dataset.synthetic else ""
    label = f"{len(plans)} x {seeds} runs on {kind}{dataset.name}"
    with progress(label, counter="") as bar, telling_of_compilation(bar, label):
        result = fedbudget.sweep(
            dataset,
            plans,
            seeds=repeats,
            backend=backend,
            address=address,
            details=True,
        )
    runs = list(_runs(points, result, source))
    if out is not None:
        _write(Path(out), runs)
    if as_json:
        values = {"points": [_plain(point, result) for point in points], "runs": runs}
        print_json(values | {"table": out} | about(source))
        return
    from fedbudget.cli.views.run import show_sweep  # rich's tables, only where shown

    show_sweep(source, points, result, table=out)


def _plan_all(
    source: Source,
    prices: Prices,
    planners: list[str],
    epsilons: list[float],
    costs: list[float],
    bar: Bar,
    method: dict[str, Any],
) -> Iterator[Point]:
    """Plan with every planner for every pair of budgets."""
    number = -1
    for planner in planners:
        grid = fedbudget.frontier(
            source.problem,
            prices,
            epsilons=epsilons,
            costs=costs,
            on_point=bar,
            planner=planner,
            **method,
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
    points: list[Point], result: Sweep, source: Source
) -> Iterator[dict[str, Any]]:
    """Yield every run as a row, with its planner, its budgets and its data."""
    by_number = {point.number: point for point in points if point.plan is not None}
    for row in result.rows():
        point = by_number[row["plan"]]
        budgets = {"budget_epsilon": point.epsilon, "budget_cost": point.cost}
        yield {"planner": point.planner, **budgets, **row, "data": source.line}


def _plain(point: Point, result: Sweep) -> dict[str, Any]:
    """Return a point with its means over the seeds as plain values."""
    budgets = {"planner": point.planner, "epsilon": point.epsilon, "cost": point.cost}
    if point.plan is None:
        return budgets | {"feasible": False}
    names = ("tau", "rounds", "learning_rate", "momentum", "server_rate")
    accuracy = result.measured.get("test_accuracy")
    mean, std = (None, None) if accuracy is None else spread(accuracy[point.number])
    return (
        budgets
        | {"feasible": True, "delta": float(point.plan.delta.max())}
        | {name: getattr(point.plan, name) for name in names}
        | {"accuracy": mean, "accuracy_std": std}
        | {"loss": spread(result.measured["train_loss"][point.number])[0]}
        | {
            "measured": {
                name: spread(values[point.number])[0]
                for name, values in result.measured.items()
            }
        }
    )


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a CSV table atomically."""
    with whole_file(path) as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
