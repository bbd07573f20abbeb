"""`fedbudget frontier`."""

from typing import Annotated

import typer

import fedbudget
from fedbudget.budget import COMMUNICATION_PRICE, COMPUTATION_PRICE, Prices
from fedbudget.cli.config import names_the_key
from fedbudget.cli.options import (
    BUDGETS,
    L2,
    Accountant,
    AsJson,
    BatchSize,
    Classes,
    CommunicationPrice,
    ComputationPrice,
    DataOrNone,
    Delta,
    DeviceColumn,
    Dim,
    Dissimilarity,
    Donors,
    Label,
    LearningRate,
    LossName,
    Missing,
    NumDevices,
    PartitionText,
    Planner,
    PublicSample,
    SamplePrice,
    Samples,
    Sampling,
    SchemaFile,
    Split,
    SplitSeed,
    Target,
    VehiclePath,
    Weights,
    parse_numbers,
)
from fedbudget.cli.output import print_json, progress
from fedbudget.cli.sources import DataOptions, about, read_source
from fedbudget.data.partitions import SEED
from fedbudget.errors import InfeasibleBudgetError
from fedbudget.planning.frontier import EPSILONS
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, SAMPLING, TARGET, WEIGHTING


@names_the_key
def frontier(
    data: DataOrNone = None,
    *,
    epsilons: Annotated[
        str,
        typer.Option(help="Privacy budgets to try.", rich_help_panel=BUDGETS),
    ] = ",".join(f"{epsilon:g}" for epsilon in EPSILONS),
    costs: Annotated[
        str | None,
        typer.Option(
            help="Cost budgets to try, in the unit of the prices. Default: 2 to 10 "
            "times the price of a round with one step.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ] = None,
    delta: Delta = None,
    split: Split = None,
    num_devices: NumDevices = None,
    path: VehiclePath = None,
    label: Label = None,
    device: DeviceColumn = None,
    schema: SchemaFile = None,
    partition: PartitionText = None,
    missing: Missing = None,
    samples: Samples = None,
    dim: Dim = None,
    classes: Classes = None,
    communication_price: CommunicationPrice = COMMUNICATION_PRICE,
    computation_price: ComputationPrice = COMPUTATION_PRICE,
    computation_price_per_sample: SamplePrice = 0,
    planner: Planner = PLANNER,
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
    seed: SplitSeed = SEED,
    as_json: AsJson = False,
) -> None:
    """Show the predicted loss over both budgets, and what more of each saves."""
    epsilon_axis = parse_numbers("--epsilons", epsilons)
    cost_axis = None if costs is None else parse_numbers("--costs", costs)
    prices = Prices(
        communication=communication_price,
        computation=computation_price,
        computation_per_sample=computation_price_per_sample,
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
        samples=samples,
        dim=dim,
        classes=classes,
        loss=loss,
        l2=l2,
        dissimilarity=dissimilarity,
        public_sample=public_sample,
        donors=donors,
        seed=seed,
    )
    with progress("planning for every pair of budgets") as advance:
        source = read_source(options)
        grid = fedbudget.frontier(
            source.problem,
            prices,
            epsilons=epsilon_axis,
            costs=cost_axis,
            delta=delta,
            on_point=advance,
            planner=planner,
            accountant=accountant,
            weights=weights,
            target=target,
            batch_size=batch_size,
            sampling=sampling,
            learning_rate=learning_rate,
        )
    if not any(any(row) for row in grid.plans):
        raise InfeasibleBudgetError(
            f"none of the costs up to {grid.costs.max():g} pays for one round with "
            "one step: raise --costs or lower the prices"
        )
    if as_json:
        print_json(grid.to_dict() | about(source))
        return
    from fedbudget.cli.views.plan import show_frontier

    show_frontier(source, grid)
