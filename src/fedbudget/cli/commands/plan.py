"""`fedbudget plan`."""

from typing import Any

import fedbudget
from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    TRUST,
    UNIT,
    Budget,
    Prices,
)
from fedbudget.cli.config import names_the_key
from fedbudget.cli.options import (
    L2,
    Accountant,
    AsJson,
    BatchSize,
    Classes,
    Colluders,
    CommunicationPrice,
    ComputationPrice,
    Cost,
    DataOrNone,
    Delta,
    DeviceColumn,
    Dim,
    Dissimilarity,
    Donors,
    Epsilon,
    Features,
    Label,
    LearningRate,
    LeastAnswers,
    LossName,
    Missing,
    NumDevices,
    Order,
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
    TrustName,
    UnitName,
    VehiclePath,
    Weights,
)
from fedbudget.cli.output import print_json, progress
from fedbudget.cli.sources import (
    DataOptions,
    about,
    limits,
    read_source,
    with_features,
)
from fedbudget.data.partitions import SEED
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, SAMPLING, TARGET, WEIGHTING


@names_the_key
def plan(
    data: DataOrNone = None,
    *,
    epsilon: Epsilon,
    cost: Cost,
    delta: Delta = None,
    trust: TrustName = TRUST,
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
    order: Order = None,
    features: Features = None,
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
    """Plan a run within both budgets; only the shape of the data is used."""
    budget = Budget(
        epsilon=epsilon,
        delta=delta,
        cost=cost,
        trust=trust,  # type: ignore[arg-type]  # checked there
        unit=unit,  # type: ignore[arg-type]  # checked there
        least_answers=least_answers,
        colluders=colluders,
    )
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
        order=order,
        samples=samples,
        dim=dim,
        classes=classes,
        loss=loss,
        l2=l2,
        dissimilarity=dissimilarity,
        public_sample=public_sample,
        donors=donors,
        features=features,
        seed=seed,
    )
    method: dict[str, Any] = {
        "planner": planner,
        "accountant": accountant,
        "weights": weights,
        "target": target,
        "batch_size": batch_size,
        "sampling": sampling,
        "learning_rate": learning_rate,
    }
    with progress("planning"):
        options = with_features(options, budget, prices, **method)
        source = read_source(options)
        names, sizes = source.device_names, source.problem.num_samples
        budget, prices = limits(options, names, sizes, budget, prices)
        planned = fedbudget.plan(source.problem, budget, prices, **method)
    if as_json:
        print_json(planned.to_dict() | about(source))
        return
    from fedbudget.cli.views.plan import show_plan  # rich's tables, only where shown

    show_plan(source, budget, planned)
