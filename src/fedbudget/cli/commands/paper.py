"""`fedbudget paper`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedbudget
from fedbudget.checks import whole
from fedbudget.cli.options import OUTPUT, RUN, AsJson, parse_whole
from fedbudget.cli.output import Stopped, print_json, say
from fedbudget.errors import InvalidInputError

if TYPE_CHECKING:
    from fedbudget.paper.reproduce import Outcome


def paper(
    *,
    out: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the page, the figures and the numbers. A stopped "
            "evaluation continues there.",
            rich_help_panel=OUTPUT,
        ),
    ] = "paper",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer budgets, smaller grids and 3 repeats: about 2 minutes on 2 "
            "cores, instead of about half an hour.",
            rich_help_panel=RUN,
        ),
    ] = False,
    cases: Annotated[
        str | None,
        typer.Option(
            help="Any of adult-1, adult-2, vehicle-1, vehicle-2, separated by commas. "
            "Default: all.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Runs of every plan, each with its own split and noise. Default: 10, "
            "or 3 with --quick.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    vehicle: Annotated[
        str | None,
        typer.Option(
            metavar="vehicle.mat",
            help="The real Vehicle data. Default: none; then the SYNTHETIC stand-in.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's evaluation: its figures, and a check of its claims."""
    from fedbudget.paper.evaluation import expected_work
    from fedbudget.paper.reproduce import reproduce, scale_named

    scale = scale_named(
        "quick" if quick else "full",
        cases=cases.split(",") if cases else (),
        repeats=None if repeats is None else whole("--repeats", repeats, least=2),
    )
    if vehicle is not None and not Path(vehicle).is_file():
        raise InvalidInputError(
            f"--vehicle {vehicle} does not exist: check the path, or leave it out for "
            "the synthetic stand-in"
        )
    with _progress(expected_work(scale)) as on_work:
        try:
            outcome = reproduce(
                Path(out),
                scale,
                version=fedbudget.__version__,
                command=_command(out, quick, cases, repeats, vehicle),
                vehicle=vehicle,
                on_work=on_work,
            )
        except KeyboardInterrupt:
            raise Stopped(
                "stopped; finished parts are saved: run the same command to continue"
            ) from None
    if as_json:
        print_json(_plain(outcome))
        return
    _show(outcome)


def _command(
    out: str,
    quick: bool,
    cases: str | None,
    repeats: int | None,
    vehicle: str | None,
) -> str:
    options = [f"--out {out}"]
    options += ["--quick"] if quick else []
    options += [f"--cases {cases}"] if cases else []
    options += [f"--repeats {repeats}"] if repeats is not None else []
    options += [f"--vehicle {vehicle}"] if vehicle else []
    return " ".join(["fedbudget paper", *options])


@contextmanager
def _progress(work: float) -> Iterator[Callable[[float, str], None]]:
    """Show a bar with the remaining time; without a terminal, a line per part."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        transient=True,
    )
    task = bar.add_task("loading data; kernels compile on first use", total=work)
    with bar:
        yield lambda done, part: bar.update(task, advance=done, description=part)


def _lines() -> Callable[[float, str], None]:
    """Return a reporter that prints each part's name once."""
    last = [""]

    def report(_: float, part: str) -> None:
        if part != last[0]:
            last[0] = part
            say("", part, style="")

    return report


def _plain(outcome: "Outcome") -> dict[str, object]:
    return {
        "page": str(outcome.page),
        "seconds": outcome.seconds,
        "claims": [
            asdict(claim) | {"verdict": claim.verdict} for claim in outcome.claims
        ],
        "regret": [asdict(regret) for regret in outcome.regrets],
    }


def _show(outcome: "Outcome") -> None:
    """Show the verdicts and the regrets; the rest is on the page."""
    from rich.text import Text

    from fedbudget.cli.views.layout import (
        new_page,
        new_table,
        show_heading,
        show_item,
        show_table,
    )

    with new_page() as console:
        show_heading(console, "The paper's claims")
        table = new_table("", "claim", "verdict", "holds/reverse/all")
        for claim in outcome.claims:
            counts = f"{claim.holds}/{claim.against}/{claim.total}"
            text = f"{claim.claim}: {claim.reading}"
            table.add_row(claim.number, Text(text), claim.verdict, counts)
        show_table(console, table)
        show_heading(console, "Accuracy lost against a full grid search, in points")
        table = new_table(
            "planner", "mean", "worst", "reads rows", "s per plan", right=True
        )
        for regret in outcome.regrets:
            table.add_row(
                regret.planner,
                f"{regret.mean.mean:.2f}",
                f"{regret.worst:.2f}",
                "yes" if regret.reads else "no",
                f"{regret.seconds:.2f}",
            )
        show_table(console, table)
        console.print()
        show_item(console, f"figures and tables: {outcome.page}")
        show_item(console, f"all runs took {outcome.seconds / 60:.1f} minutes")
    sys.stdout.flush()
