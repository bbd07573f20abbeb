"""`fedbudget train`."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
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
from fedbudget.checks import one_of
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
from fedbudget.cli.output import (
    Bar,
    Stopped,
    print_json,
    progress,
    telling_of_compilation,
)
from fedbudget.cli.sources import (
    NAMES,
    DataOptions,
    Source,
    about,
    limits,
    read_data,
    rows_record,
    scaled_source,
    source_of,
    with_features,
)
from fedbudget.data import Dataset, hold_out
from fedbudget.data.partitions import SEED
from fedbudget.data.row_weights import balanced_threshold, read_shares, weight_rows
from fedbudget.errors import InvalidInputError, NotPrivateWarning
from fedbudget.interop.export import PERSONAL_FOLDER, keep_personal
from fedbudget.planning import Plan
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, SAMPLING, TARGET, WEIGHTING
from fedbudget.privacy import Kind, rounded_up
from fedbudget.record import Round, largest, to_row
from fedbudget.simulation.dissimilarity import plan_with_query
from fedbudget.simulation.scaling import scale_privately
from fedbudget.simulation.thresholds import plan_with_threshold
from fedbudget.trackers import Tracker, tracker
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
    _check_keep(keep=keep, personal=personal, out=out)
    measure = dissimilarity == "measure"
    if measure and threshold == "measure":
        raise InvalidInputError(
            "--dissimilarity measure and --threshold measure: measure one, and state "
            "the other"
        )
    measures = measure or threshold == "measure"
    if scale is not None:
        weighted = class_weight is not None
        others = measures or bool(new_devices) or no_privacy or weighted
        _check_scale(scale, data, others=others)
    shares = None if class_shares is None else read_shares(class_shares)
    if release:
        _check_folder(out, measure=measures or scale is not None)
        _check_release(
            personal=personal,
            no_privacy=no_privacy,
            participation=participation,
            new_devices=new_devices,
        )
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
        dissimilarity=None if measure else dissimilarity,
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
        dataset, held_out = read_data(options), None
        if new_devices:
            dataset, held_out = hold_out(dataset, count=new_devices, seed=seed)
        if class_weight is not None:
            dataset = weight_rows(
                dataset, class_weight=class_weight, class_shares=shares, seed=seed
            )
        source = source_of(dataset, options)
        budget, prices = limits(options, source, budget, prices)
        scaled = None
        if scale is not None:
            queried: ReleaseDevices | SimulatedDevices
            if release:
                queried = fedbudget.ReleaseDevices(
                    dataset, budget=budget, prices=prices
                )
            else:
                queried = fedbudget.SimulatedDevices(
                    dataset, seed=seed, budget=budget, prices=prices
                )
            scaled = scale_privately(queried, budget, prices)
            dataset = scaled.data
            source = scaled_source(source, scaled, options)
        devices: ReleaseDevices | SimulatedDevices
        if release:
            devices = fedbudget.ReleaseDevices(dataset, budget=budget, prices=prices)
        else:
            devices = fedbudget.SimulatedDevices(
                dataset,
                seed=seed,
                budget=None if no_privacy else budget,
                prices=prices,
                participation=participation,
                new_devices=held_out,
            )
        if measure or threshold == "measure":
            ask = plan_with_query if measure else plan_with_threshold
            problem, plan = ask(devices, source.problem, budget, prices, **method)
            source = replace(source, problem=problem)
        elif scaled is not None:
            plan = scaled.plan(source.problem, budget, prices, **method)
        else:
            plan = fedbudget.plan(source.problem, budget, prices, **method)
        if threshold not in (None, "measure"):
            cut = _threshold(str(threshold), shares, dataset.classes)
            plan = replace(plan, threshold=cut)
    if no_privacy:
        _warn_of_no_privacy()
        plan = plan.without_privacy()
    record = None
    if out is not None:
        settings = _settings(options, source, dataset, budget)
        settings |= {"new_devices": new_devices} if new_devices else {}
        if scaled is not None and dataset.schema is not None:
            settings["schema"] = dataset.schema.to_dict()
        settings |= {"class_weight": class_weight} if class_weight else {}
        settings |= {"class_shares": shares} if shares else {}
        record = fedbudget.Record(out, about=settings)
    started = time.perf_counter()
    with _progress(
        dataset, plan, kind=devices.kind, out=out, track=track or ()
    ) as on_round:
        run = fedbudget.train(
            plan,
            devices,
            record=record,
            personal=personal,
            measure_every=measure_every,
            on_round=on_round,
        )
    if keep and out is not None and run.personal is not None:
        keep_personal(out, run.personal, dataset.device_names)
    if as_json:
        seconds = time.perf_counter() - started
        print_json(plan.to_dict() | _result(run, out, seconds) | about(source))
        return
    from fedbudget.cli.views.run import show_run  # rich's tables, only where shown

    show_run(source, budget, run, record=out)
    if keep:
        typer.echo(
            f"personal models: {out}/{PERSONAL_FOLDER}/NAME.json, one per device; NOT "
            "private, each belongs on its device alone"
        )


def _check_keep(*, keep: bool, personal: bool, out: str | None) -> None:
    """Refuse to keep models that are not made, or have no folder."""
    if keep and not (personal and out):
        raise InvalidInputError(
            "--keep writes personal models into the run's folder: give --personal and "
            "--out FOLDER, too",
            argument="keep",
        )


def _check_scale(scale: str, data: str | None, *, others: bool) -> None:
    """Refuse what private bounds do not go with."""
    one_of("scale", scale, ("private",))
    if data in NAMES:
        raise InvalidInputError(
            f"--scale private does not go with {data}, whose bounds are built in: "
            "leave it out"
        )
    if others:
        raise InvalidInputError(
            "--scale private does not go with another measurement, --new-devices, "
            "--class-weight or --no-privacy: leave one of them out"
        )


def _threshold(
    text: str, shares: dict[str, float] | None, classes: tuple[str, ...] | None
) -> float:
    """Return the threshold that the option states, or that public shares give."""
    if text != "shares":
        return parse_number(text)
    if shares is None or classes is None:
        raise InvalidInputError(
            "--threshold shares needs --class-shares: give publicly known shares, such "
            "as no=0.97,yes=0.03"
        )
    return balanced_threshold(shares, classes)


def _check_folder(out: str | None, *, measure: bool) -> None:
    """Refuse a release whose model or whose measurement would be lost."""
    if out is None:
        raise InvalidInputError(
            "--release without --out would spend the budgets and lose the model: name "
            "a folder"
        )
    if measure and Path(out).exists():
        raise InvalidInputError(
            f"'measure' would spend privacy again, and {out!r} exists: a release that "
            "measured cannot be resumed; name a new folder, or state what it measures"
        )


def _check_release(
    *, personal: bool, no_privacy: bool, participation: float, new_devices: int
) -> None:
    """Refuse options that only a simulation has."""
    for option, given in (
        ("--personal", personal),
        ("--no-privacy", no_privacy),
        (f"--participation {participation:g}", participation != 1),
        (f"--new-devices {new_devices}", new_devices != 0),
    ):
        if given:
            raise InvalidInputError(
                f"{option} does not go with --release, which simulates and measures "
                "nothing: leave one of them out"
            )


def _warn_of_no_privacy() -> None:
    warnings.warn(
        "--no-privacy adds no noise: the model may reveal the rows it was trained "
        "on, and no device enforces a budget; use it as a baseline only",
        NotPrivateWarning,
        stacklevel=3,
    )


def _settings(
    options: DataOptions, source: Source, dataset: Dataset, budget: Budget
) -> dict[str, Any]:
    """Return the settings for the record: data and budgets."""
    return {
        "data": source.line,
        "seed": options.seed,
        **rows_record(options),
        "budget": {
            name: to_row(np.atleast_1d(getattr(budget, name)))
            for name in ("epsilon", "cost")
        },
        "feature_names": dataset.feature_names,
        "classes": dataset.classes,
    }


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


@contextmanager
def _progress(
    dataset: Dataset, plan: Plan, *, kind: Kind, out: str | None, track: Sequence[str]
) -> Iterator[Callable[[Round], None]]:
    """Show the rounds on a bar and log them; on Ctrl-C, say how to continue."""
    label = "training on SYNTHETIC data" if dataset.synthetic else "training"
    with (
        progress(label, total=plan.rounds, counter="") as bar,
        telling_of_compilation(bar, label),
        resumable(out),
        ExitStack() as stack,
    ):
        names = dataset.device_names
        facts: Any = {"kind": kind, "caveats": dataset.caveats, "device_names": names}
        trackers = [
            stack.enter_context(tracker(target, plan, **facts)) for target in track
        ]
        yield lambda latest: _report(latest, bar, plan.rounds, trackers)


def _report(latest: Round, bar: Bar, rounds: int, trackers: Sequence[Tracker]) -> None:
    """Show a round, and log it to all trackers."""
    show_round(bar, latest, rounds=rounds)
    for log in trackers:
        log(latest)


def show_round(bar: Bar, latest: Round, *, rounds: int) -> None:
    """Show a round: accuracy or loss, and spending so far."""
    names = [n for n in ("test_accuracy", "train_loss") if n in latest.measured][:1]
    metrics = [
        f"{name.split('_')[1]} {latest.measured[name]:.3f} (not private)"
        for name in names
    ]
    epsilon, cost = largest(latest.epsilon), largest(latest.cost)
    spent = f"epsilon {'none' if epsilon is None else rounded_up(epsilon)}"
    parts = [f"round {latest.number}/{rounds}", *metrics, spent, f"cost {cost:.4g}"]
    bar.show("  ".join(parts), done=latest.number)


@contextmanager
def resumable(out: str | None) -> Iterator[None]:
    """On Ctrl-C, say where the run stopped and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        if out is None:
            raise Stopped(
                "stopped; nothing was recorded: a run with --out can be continued"
            ) from None
        done = rounds_done(Path(out))
        position = f"after round {done}" if done else "before the end of round 1"
        raise Stopped(f"stopped {position}; run the same command to continue") from None


def rounds_done(folder: Path) -> int:
    """Return how many rounds of a stopped run are safely recorded."""
    if not (folder / "state.npz").exists():
        return 0
    with np.load(folder / "state.npz") as state:
        return int(state["rounds_done"])
