"""`fedbudget server`: the coordinator of a fleet."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbudget.cli.commands.train import resumable
from fedbudget.cli.options import (
    FLEET,
    OUTPUT,
    RUN,
    SUMS,
    AsJson,
    BrokerHost,
    BrokerPort,
    Certs,
    DefaultGroup,
    PlainCommand,
    parse_number,
    parse_whole,
)
from fedbudget.cli.output import Bar, print_json, progress
from fedbudget.cli.sources import named_or_number
from fedbudget.data.schema import read_schema_file
from fedbudget.fleet.coordinator.defaults import (
    DEADLINE,
    MINIMUM,
    NAME,
    PRECISION,
    WAIT,
)
from fedbudget.fleet.transport.address import HOST, TLS_PORT
from fedbudget.planning.settings import PLANNER
from fedbudget.problem import USUAL_DISSIMILARITY
from fedbudget.record import Round, largest, to_row
from fedbudget.text import counted

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
    trust: Annotated[
        str,
        typer.Option(
            metavar="uploads|sum",
            help="What the coordinator sees: each upload, or only sums of uploads, in "
            "which devices share the noise (secure aggregation).",
            rich_help_panel=SUMS,
        ),
    ] = "uploads",
    unit: Annotated[
        str,
        typer.Option(
            metavar="sample|device",
            help="What epsilon protects; device needs --trust sum.",
            rich_help_panel=SUMS,
        ),
    ] = "sample",
    least_answers: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Least number of uploads in a sum. Default: those of all devices, "
            "which tolerates no lost one.",
            show_default=False,
            rich_help_panel=SUMS,
        ),
    ] = None,
    colluders: Annotated[
        int,
        typer.Option(
            parser=parse_whole,
            help="Devices that may collude with the coordinator.",
            rich_help_panel=SUMS,
        ),
    ] = 0,
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
    from fedbudget.fleet.transport.address import BrokerAddress
    from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s"
    )
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
        precision=precision,
        dissimilarity=named_or_number(dissimilarity),
        planner=planner,
        schema=None if schema is None else read_schema_file(schema),
        status_port=status_port,
        trust=trust,  # type: ignore[arg-type]  # the settings check it
        unit=unit,  # type: ignore[arg-type]
        least_answers=least_answers,
        colluders=colluders,
    )
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

    show_server_run(trained, out=f"{out}/run")


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
    )
    bar.show(f"round {latest.number}", done=latest.number)
