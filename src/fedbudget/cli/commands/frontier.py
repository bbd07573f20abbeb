"""`fedbudget frontier`."""

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
from fedbudget.cli.config import names_the_key
from fedbudget.cli.options import (
    BUDGETS,
    L2,
    Accountant,
    AsJson,
    BatchSize,
    Classes,
    Colluders,
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
    LeastAnswers,
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
    SecureRoundPrice,
    Split,
    SplitSeed,
    Target,
    TrustOrBoth,
    UnitName,
    VehiclePath,
    Weights,
    parse_numbers,
)
from fedbudget.cli.output import print_json, progress
from fedbudget.cli.sources import DataOptions, about, read_source
from fedbudget.data.partitions import SEED
from fedbudget.errors import InfeasibleBudgetError
from fedbudget.planning.frontier import EPSILONS, Frontier, TrustComparison
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
    trust: TrustOrBoth = TRUST,
    unit: UnitName = UNIT,
    least_answers: LeastAnswers = None,
    colluders: Colluders = 0,
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
    secure_round_price: SecureRoundPrice = None,
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
        grid: dict[str, Any] = {
            "epsilons": epsilon_axis,
            "costs": cost_axis,
            "delta": delta,
            "unit": unit,
            "least_answers": least_answers,
            "colluders": colluders,
            "on_point": advance,
            "planner": planner,
            "accountant": accountant,
            "weights": weights,
            "target": target,
            "batch_size": batch_size,
            "sampling": sampling,
            "learning_rate": learning_rate,
        }
        result: Frontier | TrustComparison
        if trust == "both":
            result = fedbudget.compare_trust(source.problem, prices, **grid)
        else:
            trusted: dict[str, Any] = grid | {"trust": trust}  # checked by Budget
            result = fedbudget.frontier(source.problem, prices, **trusted)
    _check_affordable(result)
    if as_json:
        print_json(result.to_dict() | about(source))
        return
    from fedbudget.cli.views.plan import show_frontier, show_trust

    if isinstance(result, TrustComparison):
        show_trust(source, result)
    else:
        show_frontier(source, result)


def _check_affordable(result: Frontier | TrustComparison) -> None:
    """Raise if no cost pays for a single round, of either kind of trust."""
    grids = [result] if isinstance(result, Frontier) else [result.uploads, result.sums]
    for grid in grids:
        if not any(any(row) for row in grid.plans):
            raise InfeasibleBudgetError(
                f"none of the costs up to {grid.costs.max():g} pays for one round with "
                "one step: raise --costs or lower the prices"
            )
