"""`fedbudget server`: the coordinator of a fleet."""

import hashlib
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedbudget.checks import text
from fedbudget.cli.options import (
    FLEET,
    OUTPUT,
    RUN,
    AsJson,
    BrokerHost,
    BrokerPort,
    Certs,
    Colluders,
    DefaultGroup,
    LeastAnswers,
    PlainCommand,
    TrustName,
    UnitName,
    parse_number,
    parse_whole,
)
from fedbudget.cli.output import Bar, print_json, progress
from fedbudget.cli.run_progress import resumable
from fedbudget.cli.sources import named_or_number
from fedbudget.data.schema import read_schema_file
from fedbudget.fleet.coordinator.defaults import (
    DEADLINE,
    MINIMUM,
    NAME,
    PARTICIPATION,
    PRECISION,
    QUORUM,
    WAIT,
)
from fedbudget.fleet.transport.address import HOST, TLS_PORT
from fedbudget.planning.settings import PLANNER
from fedbudget.problem import USUAL_DISSIMILARITY
from fedbudget.record import Round, largest, read_run, to_row
from fedbudget.text import counted

if TYPE_CHECKING:
    from fedbudget.fleet.transport.mqtt import Connection

server = typer.Typer(
    help="The coordinator of a fleet: run it, list its runs, cancel one.",
    add_completion=False,
    no_args_is_help=True,
    cls=DefaultGroup,
)


@server.command(cls=PlainCommand)
def run(
    out: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Folder for the run; an interrupted run resumes from it. Required.",
            show_default=False,
        ),
    ],
    *,
    certs: Certs,
    host: BrokerHost = HOST,
    port: BrokerPort = TLS_PORT,
    devices: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Number of devices to wait for. Default: all that declare themselves "
            "within --wait.",
            show_default=False,
            rich_help_panel=FLEET,
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Seconds to wait for devices.",
            rich_help_panel=FLEET,
        ),
    ] = WAIT,
    name: Annotated[
        str,
        typer.Option(
            help="Name of the run; a device joins only runs that its policy lists.",
            rich_help_panel=RUN,
        ),
    ] = NAME,
    deadline: Annotated[
        float,
        typer.Option(
            parser=parse_number, help="Seconds for a round.", rich_help_panel=RUN
        ),
    ] = DEADLINE,
    minimum: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            help="Answers that a round needs before it ends at its deadline.",
            rich_help_panel=RUN,
        ),
    ] = MINIMUM,
    quorum: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Share of the asked devices whose answers end a round, once the "
            "others have had as long again. 1: wait for all, until the deadline.",
            rich_help_panel=RUN,
        ),
    ] = QUORUM,
    participation: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Share of the devices that a round asks, by turns. Planned: there are "
            "more rounds, and a device pays only for those that ask it.",
            rich_help_panel=RUN,
        ),
    ] = PARTICIPATION,
    precision: Annotated[
        str,
        typer.Option(
            metavar="float32|float64",
            help="Precision of the models that are sent; fixed for a run.",
            rich_help_panel=RUN,
        ),
    ] = PRECISION,
    dissimilarity: Annotated[
        str,
        typer.Option(
            help="Dissimilarity of devices: iid, mild, strong, or a share of the loss.",
            rich_help_panel=RUN,
        ),
    ] = USUAL_DISSIMILARITY,
    planner: Annotated[
        str,
        typer.Option(
            metavar="joint|bound|paper", help="Which planner.", rich_help_panel=RUN
        ),
    ] = PLANNER,
    trust: TrustName = "uploads",
    unit: UnitName = "sample",
    least_answers: LeastAnswers = None,
    colluders: Colluders = 0,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Public schema of the devices' tables, .json or .toml, to go with the "
            "released model. Default: none, the model takes encoded rows only.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    evaluation: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Epsilon that the plan leaves for fedbudget server evaluate, on "
            "devices that allow it; 0 leaves none.",
            rich_help_panel=RUN,
        ),
    ] = 0.0,
    status_port: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Serve /status and /metrics on this loopback port; 0 selects a free "
            "one. Default: none.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan from declarations, run the rounds, release the model.

    The word run may be left out: fedbudget server FOLDER. It can be stopped or killed
    at any moment. Started again with the same folder, it resumes the same round, and no
    device is charged twice.
    """
    from fedbudget.fleet.coordinator.process import Settings, run_server
    from fedbudget.fleet.logs import start_logging
    from fedbudget.fleet.transport.address import BrokerAddress
    from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of

    start_logging()
    settings = Settings(
        out=Path(out),
        broker=BrokerAddress(
            host=host, port=port, identity=identity_of(certs, COORDINATOR)
        ),
        signing_key=Path(certs) / "coordinator.sign",
        name=name,
        devices=devices,
        wait=wait,
        deadline=deadline,
        minimum=minimum,
        quorum=quorum,
        participation=participation,
        precision=precision,
        dissimilarity=named_or_number(dissimilarity),
        planner=planner,
        schema=None if schema is None else read_schema_file(schema),
        status_port=status_port,
        trust=trust,  # type: ignore[arg-type]  # the settings check it
        unit=unit,  # type: ignore[arg-type]
        least_answers=least_answers,
        colluders=colluders,
        evaluation=evaluation,
    )
    # A service is stopped by SIGTERM: then, too, the order is withdrawn.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress("waiting for devices", counter="") as bar, resumable(f"{out}/run"):
        trained = run_server(
            settings,
            on_begin=_log_begin,
            on_round=lambda latest: _show_round(bar, latest),
        )
    if as_json:
        last = trained.rounds[-1]
        spent = {"epsilon": to_row(last.epsilon), "cost": to_row(last.cost)}
        print_json(trained.plan.to_dict() | spent | {"record": f"{out}/run"})
        return
    from fedbudget.cli.views.fleet import show_server_run

    names = read_run(f"{out}/run").about["devices"]
    show_server_run(trained, names, out=f"{out}/run")


Folder: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER", help="The folder of a run. Required.", show_default=False
    ),
]


@server.command("list", cls=PlainCommand)
def list_runs(
    root: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Where to look, in all its folders."),
    ] = ".",
    *,
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder: waiting, running, finished, failed or cancelled.

    Reads files only, also of a running coordinator.
    """
    from fedbudget.fleet.coordinator.lifecycle import runs_below

    runs = list(runs_below(Path(root)))
    if as_json:
        print_json({"runs": [run.to_dict() for run in runs]})
        return
    from fedbudget.cli.views.fleet import show_runs

    show_runs(runs, root)


@server.command(cls=PlainCommand)
def show(folder: Folder, *, as_json: AsJson = False) -> None:
    """Show a run: its state, its rounds and its devices, also after its end."""
    from fedbudget.fleet.coordinator.lifecycle import read_summary

    summary = read_summary(Path(folder))
    if as_json:
        print_json(summary.to_dict())
        return
    from fedbudget.cli.views.fleet import show_run

    show_run(summary)


@server.command(cls=PlainCommand)
def cancel(
    folder: Folder,
    *,
    certs: Certs,
    host: BrokerHost = HOST,
    port: BrokerPort = TLS_PORT,
    reason: Annotated[
        str, typer.Option(help="Why, for the record and for the devices' logs.")
    ] = "cancelled by its coordinator",
    seconds: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=parse_number,
            help="Seconds to wait for a running coordinator to end.",
        ),
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """End a run for ever: withdraw its order, and tell its devices.

    Devices record it, and refuse the run's orders from then on, also replayed ones. A
    running coordinator ends by itself. For a killed one, this does the same.
    """
    from fedbudget.fleet.coordinator import lifecycle
    from fedbudget.fleet.wire.signing import Signer

    lifecycle.cancel(
        Path(folder),
        text("--reason", reason),
        signer=Signer.read(Path(certs) / "coordinator.sign"),
        connect=lambda: _connection(certs, host, port),
        seconds=seconds,
    )
    if as_json:
        print_json({"folder": folder, "state": "cancelled"})
        return
    typer.echo(f"cancelled: {folder}; no order is left at the broker")


@server.command(cls=PlainCommand)
def evaluate(
    folder: Folder,
    *,
    certs: Certs,
    epsilon: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="What an answer costs each device; charged to its ledger. Required.",
            show_default=False,
        ),
    ],
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="correct|per-class|squared-error",
            help="What to measure. Default: correct; squared-error for numbers.",
            show_default=False,
        ),
    ] = None,
    host: BrokerHost = HOST,
    port: BrokerPort = TLS_PORT,
    seconds: Annotated[
        float, typer.Option("--wait", parser=parse_number, help="Seconds for answers.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Measure a released model on rows of the devices that no run trains on.

    Each device whose owner allows it answers with noisy counts, charged to its ledger
    from the share of epsilon that the policy states. The result has an interval. In a
    run of sums only their sum is seen, and devices share the noise; --wait is for each
    step of it.
    """
    from fedbudget.errors import RecordError
    from fedbudget.fleet.coordinator import evaluation
    from fedbudget.fleet.coordinator.checkpoints import Checkpoints
    from fedbudget.fleet.coordinator.lifecycle import CHECKPOINTS, read_summary
    from fedbudget.fleet.wire.signing import Signer

    read_summary(Path(folder))  # refuses what is no run
    checkpoints = Checkpoints(Path(folder) / CHECKPOINTS)
    stored = checkpoints.run()
    checkpoints.close()
    trained = read_run(Path(folder) / "run")
    if stored is None or trained.theta is None:
        raise RecordError(f"the run in {folder} has no model yet: let it finish first")
    usual = "squared-error" if trained.plan.loss == "huber" else "correct"
    with _connection(certs, host, port, replies=True) as connection:
        result = evaluation.evaluate(
            connection,
            stored,
            trained.theta,
            signer=Signer.read(Path(certs) / "coordinator.sign"),
            epsilon=epsilon,
            measure=measure or usual,
            seconds=seconds,
            authority=Path(certs) / "ca.pem",
        )
    path = evaluation.keep(Path(folder), result)
    if as_json:
        print_json(result.to_dict() | {"file": str(path)})
        return
    from fedbudget.cli.views.fleet import show_evaluation

    show_evaluation(result, str(path))


@server.command(cls=PlainCommand)
def withdraw(
    file: Annotated[
        str,
        typer.Argument(
            help="The output of fedbudget certs withdraw. Required.", show_default=False
        ),
    ],
    *,
    certs: Certs,
    host: BrokerHost = HOST,
    port: BrokerPort = TLS_PORT,
    as_json: AsJson = False,
) -> None:
    """Tell all devices that a coordinator's signing key is withdrawn for ever.

    The broker keeps the message for devices that are away.
    """
    from fedbudget.errors import InvalidInputError, MessageError, TrainingError
    from fedbudget.fleet.wire import topics
    from fedbudget.fleet.wire.codec import decode
    from fedbudget.fleet.wire.withdrawals import Revocation

    try:
        payload = Path(file).read_bytes()
        body, _ = decode(payload)
        key = Revocation.from_bytes(body).key
    except (OSError, MessageError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"{file} is not the output of fedbudget certs withdraw: {error}"
        ) from None
    topic = topics.order(hashlib.sha256(key.encode()).digest()[:16])
    with _connection(certs, host, port) as connection:
        connection.publish(topic, payload, retain=True)
        sent = connection.flush(30.0)
    if not sent:
        raise TrainingError(f"{connection.trouble or 'no answer'}: run this again")
    if as_json:
        print_json({"withdrawn": key})
        return
    typer.echo(f"withdrawn: {key}; devices refuse its orders from now on")


def _connection(
    certs: str, host: str, port: int, *, replies: bool = False
) -> "Connection":
    """Return a connection to the broker in the coordinator's name."""
    from fedbudget.fleet.transport.address import BrokerAddress
    from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of
    from fedbudget.fleet.transport.mqtt import Connection
    from fedbudget.fleet.wire import topics

    identity = identity_of(certs, COORDINATOR)
    broker = BrokerAddress(host=host, port=port, identity=identity)
    # A session of its own would end with this command; the coordinator's is kept.
    names = topics.coordinator_reads() if replies else ()
    return Connection(broker, name=COORDINATOR, topics=names)


def _log_begin(plan: Any, names: tuple[str, ...], port: int | None) -> None:
    log = logging.getLogger(__name__)
    log.info(
        "%s, %s of %s",
        counted(len(names), "device"),
        counted(plan.rounds, "round"),
        counted(plan.tau, "local step"),
    )
    if port is not None:
        log.info("status on http://127.0.0.1:%d/status", port)


def _show_round(bar: Bar, latest: Round) -> None:
    from fedbudget.privacy import rounded_up

    epsilon, cost = largest(latest.epsilon), largest(latest.cost)
    logging.getLogger(__name__).info(
        "round %d: %s, %s, epsilon at most %s, cost at most %.4g",
        latest.number,
        counted(latest.answered, "answer"),
        counted(len(latest.refused), "refusal"),
        "none" if epsilon is None else rounded_up(epsilon),
        cost or 0.0,
        extra={
            "facts": {
                "round": latest.number,
                "answers": latest.answered,
                "refusals": latest.refused,
                "epsilon": epsilon,
                "cost": cost,
            }
        },
    )
    bar.show(f"round {latest.number}", done=latest.number)
