"""`fedbudget fleet`: a fleet on one machine."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    FIRST_COST,
    FIRST_EPSILON,
)
from fedbudget.cli.options import (
    BUDGETS,
    OUTPUT,
    AsJson,
    Colluders,
    PlainCommand,
    PlainGroup,
    TrustName,
    parse_number,
    parse_whole,
)
from fedbudget.cli.output import print_json, progress, say
from fedbudget.data.partitions import SEED
from fedbudget.fleet.transport.address import HOST, TLS_PORT

if TYPE_CHECKING:
    from fedbudget.fleet.demo import TrialFleet

_DEMO_ANSWERS = 12  # in a sum, of 16 devices

fleet = typer.Typer(
    help="A fleet on this machine: a broker, and a demo.",
    add_completion=False,
    no_args_is_help=True,
    cls=PlainGroup,
)


@fleet.command(cls=PlainCommand)
def broker(
    *,
    certs: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Output folder of fedbudget certs. Required.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST,
    port: Annotated[
        int,
        typer.Option(
            parser=parse_whole, help="Port to listen on; 0 selects a free one."
        ),
    ] = TLS_PORT,
) -> None:
    """Run the embedded MQTT broker, for trials: mutual TLS and access rules.

    It stores nothing on disk. For a permanent fleet, see deploy/.
    """
    from fedbudget.fleet.transport.amqtt_broker import run_broker
    from fedbudget.fleet.transport.certificates import identity_of

    run_broker(
        identity_of(certs, "broker"),
        host=host,
        port=port,
        on_ready=lambda number: typer.echo(f"listening on {host}:{number}"),
    )


@fleet.command(cls=PlainCommand)
def demo(
    *,
    epsilon: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Privacy budget of each device, no unit.",
            rich_help_panel=BUDGETS,
        ),
    ] = FIRST_EPSILON,
    delta: Annotated[
        float | None,
        typer.Option(
            parser=parse_number,
            help="The delta of (epsilon, delta), a probability. Default: planned from "
            "the rows of the largest device.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ] = None,
    cost: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help=f"Cost budget of each device; a round costs {COMMUNICATION_PRICE}, "
            f"a step {COMPUTATION_PRICE}.",
            rich_help_panel=BUDGETS,
        ),
    ] = FIRST_COST,
    trust: TrustName = "uploads",
    least_answers: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            metavar="COUNT",
            help="Answers that a sum must have to be seen, for --trust sum. Default: "
            f"{_DEMO_ANSWERS} of the 16.",
            show_default=False,
            rich_help_panel=BUDGETS,
        ),
    ] = None,
    colluders: Colluders = 0,
    seed: Annotated[
        int, typer.Option(parser=parse_whole, help="Seed of the split of the rows.")
    ] = SEED,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for keys, ledgers, logs and the run; it must not exist. "
            "Default: a new temporary folder.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a whole fleet on this machine: broker, coordinator and 16 devices.

    The broker is mosquitto if it is installed, or else the embedded one. Each device is
    a process with its own rows and ledger: one level of education of the Adult data.
    All connections use mutual TLS.
    """
    from fedbudget.data import load
    from fedbudget.errors import RecordError
    from fedbudget.fleet.demo import Terms, compare, usual_fleet

    if out is not None and Path(out).exists():
        raise RecordError(f"{out} exists already: choose another folder")
    if trust == "sum" and least_answers is None:
        least_answers = _DEMO_ANSWERS
    terms = Terms(
        epsilon=epsilon,
        delta=delta,
        cost=cost,
        trust=trust,  # type: ignore[arg-type]  # the budget checks it
        least_answers=least_answers,
        colluders=colluders,
    )
    folder = Path(out or tempfile.mkdtemp(prefix="fedbudget-fleet-"))
    with ExitStack() as stack:
        with progress("starting a broker, a coordinator and 16 devices", counter=""):
            data = load("adult", split="by-education", seed=seed)
            trial = usual_fleet()(folder, data, terms)
            trial.start(stack)
        if not as_json:
            say("watch it", f"fedbudget ui --fleet {trial.status_url}", style="bold")
        _watch(trial, live=not as_json)
    with progress("simulating the same plan", counter=""):
        result, last = compare(trial), trial.final_status()
    if as_json:
        print_json(result | {"plan": trial.plan().to_dict(), "status": last})
        return
    from fedbudget.cli.views.fleet import show_demo

    show_demo(result, last, trial.plan())


def _watch(trial: "TrialFleet", *, live: bool) -> None:
    """Show the state of the run until it ends."""
    from rich.console import Console
    from rich.live import Live

    from fedbudget.cli.views.fleet import live_table

    sizes = trial.data.num_samples.tolist()
    console = Console(stderr=True)
    with Live(console=console, transient=True, auto_refresh=False) as table:

        def show(status: dict[str, Any]) -> None:
            if live and console.is_terminal:
                planned = (trial.folder / "out" / "run" / "plan.json").exists()
                plan = trial.plan() if planned else None
                table.update(live_table(status, plan, sizes), refresh=True)

        trial.wait(show)
