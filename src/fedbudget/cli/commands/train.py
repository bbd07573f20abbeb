"""`fedbudget train`."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

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
    OUTPUT,
    PLANNING,
    RUN,
    Accountant,
    AsJson,
    BatchSize,
    Colluders,
    CommunicationPrice,
    ComputationPrice,
    Cost,
    Data,
    Delta,
    DeviceColumn,
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
    Sampling,
    SchemaFile,
    SecureRoundPrice,
    Split,
    Target,
    TrustName,
    UnitName,
    VehiclePath,
    Weights,
    parse_number,
    parse_whole,
)
from fedbudget.cli.output import print_json, progress
from fedbudget.cli.run_options import RunOptions
from fedbudget.cli.run_progress import run_progress
from fedbudget.cli.sources import (
    DataOptions,
    Source,
    about,
    before_features,
    data_line,
    limits,
    problem_of,
    read_data,
    rows_record,
    with_features,
)
from fedbudget.data import Dataset, hold_out
from fedbudget.data.fourier import FeatureStep
from fedbudget.data.partitions import SEED
from fedbudget.data.row_weights import read_shares, weight_rows
from fedbudget.errors import NotPrivateWarning
from fedbudget.interop.export import PERSONAL_FOLDER, keep_personal
from fedbudget.planning import Plan
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, SAMPLING, TARGET, WEIGHTING
from fedbudget.record import Record, to_row
from fedbudget.simulation.queries import prepare
from fedbudget.training import Run

if TYPE_CHECKING:
    from fedbudget.release.devices import ReleaseDevices
    from fedbudget.simulation.devices import SimulatedDevices


@names_the_key
def train(
    data: Data = None,
    *,
    epsilon: Epsilon,
    cost: Cost,
    delta: Delta = None,
    trust: TrustName = TRUST,
    unit: UnitName = UNIT,
    least_answers: LeastAnswers = None,
    colluders: Colluders = 0,
    release: Annotated[
        bool,
        typer.Option(
            "--release",
            help="Release the model: exact sums, and exact noise of the operating "
            "system, which no seed repeats. Nothing is measured. Without this option, "
            "the run is a simulation, and nothing is promised for its model.",
            rich_help_panel=RUN,
        ),
    ] = False,
    participation: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Probability that a device's update arrives in a round. A lost update "
            "is charged, too.",
            rich_help_panel=RUN,
        ),
    ] = 1.0,
    personal: Annotated[
        bool,
        typer.Option(
            "--personal",
            help="After training, adapt the model on every device to its own rows, and "
            "compare with local-only training. Nothing is sent or charged.",
            rich_help_panel=RUN,
        ),
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="With --personal and --out: write every device's own model to "
            "personal/NAME.json in the run's folder. These are NOT private: each "
            "belongs on its device alone.",
            rich_help_panel=RUN,
        ),
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="private",
            help="private: before the run, devices say by a noisy query where their "
            "numbers lie, charged to privacy (a fifth of mu squared) and cost; "
            "narrower bounds replace those of the schema. For tables. Default: public "
            "bounds.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    new_devices: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            metavar="COUNT",
            help="Keep so many devices, drawn by the seed, out of training, and "
            "measure the model on all of their rows: what devices that join later get.",
            rich_help_panel=RUN,
        ),
    ] = 0,
    measure_every: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            metavar="ROUNDS",
            help="Measure accuracy and loss after every so many rounds, and after the "
            "last: long runs are faster.",
            rich_help_panel=RUN,
        ),
    ] = 1,
    no_privacy: Annotated[
        bool,
        typer.Option(
            "--no-privacy",
            help="Run the same plan without noise, as a baseline. NOT PRIVATE, and no "
            "device enforces a budget.",
            rich_help_panel=RUN,
        ),
    ] = False,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|shares|measure",
            help="With two classes: predict the second above this probability. shares: "
            "above its share in --class-shares; measure: above its share as devices "
            "measure it, charged to privacy and cost. Default: 0.5.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    class_weight: Annotated[
        str | None,
        typer.Option(
            metavar="balanced",
            help="Let all classes count the same: rows of frequent classes are left "
            "out at random, by --class-shares. Default: every row counts the same.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    class_shares: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS=SHARE,...",
            help="Publicly known shares of the classes, such as no=0.97,yes=0.03; "
            "never counted on private rows. Default: none.",
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
    order: Order = None,
    features: Features = None,
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
    seed: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            help="Seed of the partition, the 80/10/10 split on every device and, in a "
            "simulation, of the noise and the batches.",
            rich_help_panel=PLANNING,
        ),
    ] = SEED,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHERE",
            help="Also log rounds, epsilon and cost to tensorboard:FOLDER, "
            "mlflow[:URI] or wandb[:PROJECT]; can be repeated. Default: none.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to record the run in. A stopped run continues from there. "
            "Default: none, nothing is recorded.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on simulated devices, or release a model; devices enforce their budgets."""
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
        loss=loss,
        l2=l2,
        dissimilarity=None if dissimilarity == "measure" else dissimilarity,
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
    run_options = RunOptions(
        release=release,
        participation=participation,
        personal=personal,
        keep=keep,
        scale=scale,
        measure_dissimilarity=dissimilarity == "measure",
        new_devices=new_devices,
        measure_every=measure_every,
        no_privacy=no_privacy,
        threshold=threshold,
        class_weight=class_weight,
        class_shares=None if class_shares is None else read_shares(class_shares),
        track=tuple(track or ()),
        out=out,
    )
    run_options.check(data)
    _train(run_options, options, budget, prices, method, as_json=as_json)


def _train(
    run_options: RunOptions,
    options: DataOptions,
    budget: Budget,
    prices: Prices,
    method: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Prepare the run, run it, and print its results."""
    with progress("planning"):
        options = with_features(options, budget, prices, **method)
        dataset, step = _rows(options, run_options)
        held_out = None
        if count := run_options.new_devices:
            dataset, held_out = hold_out(dataset, count=count, seed=options.seed)
        names, sizes = dataset.device_names, dataset.num_samples
        budget, prices = limits(options, names, sizes, budget, prices)
        prepared = prepare(
            dataset,
            _devices_of(run_options, options.seed, budget, prices),
            partial(problem_of, options=options),
            budget,
            prices,
            query=run_options.query,
            features=step,
            weighted=partial(
                weight_rows,
                class_weight=run_options.class_weight,
                class_shares=run_options.class_shares,
                seed=options.seed,
            ),
            new_devices=held_out,
            threshold=run_options.stated_threshold(dataset.classes),
            **method,
        )
    line = data_line(prepared.devices.data, options)
    if run_options.query == "bounds":
        line += ", bounds measured privately (part of epsilon)"
    source = Source(line=line, problem=prepared.problem, device_names=names)
    devices, plan, out = prepared.devices, prepared.plan, run_options.out
    if run_options.no_privacy:
        _warn_of_no_privacy()
        plan = plan.without_privacy()
    record = None
    if out is not None:
        settings = _settings(run_options, options, line, devices.data, budget)
        if run_options.query == "bounds" and dataset.schema is not None:
            settings["public_schema"] = dataset.schema.to_dict()  # of the true labels
        record = Record(out, about=settings)
    started = time.perf_counter()
    run = _run(plan, devices, record, run_options)
    seconds = time.perf_counter() - started
    if as_json:
        print_json(plan.to_dict() | _result(run, out, seconds) | about(source))
    else:
        _show(source, budget, run, run_options)


def _run(
    plan: Plan,
    devices: "ReleaseDevices | SimulatedDevices",
    record: Record | None,
    run_options: RunOptions,
) -> Run:
    """Run the plan with its progress shown, and keep personal models if wanted."""
    out, data = run_options.out, devices.data
    with run_progress(
        data, plan, kind=devices.kind, out=out, track=run_options.track
    ) as on_round:
        run = fedbudget.train(
            plan,
            devices,
            record=record,
            personal=run_options.personal,
            measure_every=run_options.measure_every,
            on_round=on_round,
        )
    if run_options.keep and out is not None and run.personal is not None:
        keep_personal(out, run.personal, data.device_names)
    return run


def _rows(options: DataOptions, run_options: RunOptions) -> tuple[Dataset, FeatureStep]:
    """Return all rows, and the feature step that follows measured bounds."""
    if run_options.query == "bounds":
        return before_features(options)
    return read_data(options), None


def _devices_of(
    run_options: RunOptions,
    seed: int,
    budget: Budget,
    prices: Prices,
) -> "Callable[..., ReleaseDevices | SimulatedDevices]":
    """Return how devices are built from rows: for a release, or simulated."""
    if run_options.release:
        return partial(fedbudget.ReleaseDevices, budget=budget, prices=prices)
    return partial(
        fedbudget.SimulatedDevices,
        seed=seed,
        budget=None if run_options.no_privacy else budget,
        prices=prices,
        participation=run_options.participation,
    )


def _warn_of_no_privacy() -> None:
    warnings.warn(
        "--no-privacy adds no noise: the model may reveal the rows it was trained "
        "on, and no device enforces a budget; use it as a baseline only",
        NotPrivateWarning,
        stacklevel=3,
    )


def _settings(
    run_options: RunOptions,
    options: DataOptions,
    line: str,
    dataset: Dataset,
    budget: Budget,
) -> dict[str, Any]:
    """Return the settings for the record: data and budgets."""
    settings: dict[str, Any] = {
        "data": line,
        "seed": options.seed,
        **rows_record(options),
        "budget": {
            name: to_row(np.atleast_1d(getattr(budget, name)))
            for name in ("epsilon", "cost")
        },
        "feature_names": dataset.feature_names,
        "classes": dataset.classes,
    }
    if run_options.query == "bounds" and dataset.schema is not None:
        settings["schema"] = dataset.schema.to_dict()  # with the measured bounds
    for name in ("new_devices", "class_weight", "class_shares"):
        value = getattr(run_options, name)
        settings |= {name: value} if value else {}
    return settings


def _result(run: Run, out: str | None, seconds: float) -> dict[str, Any]:
    """Return the results of a run as plain values."""
    return {
        "kind": run.kind,
        "privacy": str(run.privacy),  # of this run, instead of the plan's
        "accuracy": run.measured.get("test_accuracy"),
        "loss": run.measured.get("train_loss"),  # the plan's is now loss_name
        "loss_name": run.plan.loss,
        "seconds": seconds,
        "measured": run.measured,
        "advice": run.advice,
        "cautions": list(run.cautions),
        "rounds_run": len(run.rounds),
        "record": out,
    }


def _show(source: Source, budget: Budget, run: Run, run_options: RunOptions) -> None:
    """Print the results of a run for people."""
    from fedbudget.cli.views.run import show_run  # rich's tables, only where shown

    show_run(source, budget, run, record=run_options.out)
    if run_options.keep:
        typer.echo(
            f"personal models: {run_options.out}/{PERSONAL_FOLDER}/NAME.json, one per "
            "device; NOT private, each belongs on its device alone"
        )
