"""`fedbudget report`."""

from typing import Annotated

import typer

from fedbudget.cli.options import OUTPUT, AsJson
from fedbudget.cli.output import print_json, progress


def report(
    run: Annotated[
        str,
        typer.Argument(
            help="The run folder that fedbudget train --out wrote.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The page to write. Default: report.html in the run folder.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    no_compare: Annotated[
        bool,
        typer.Option(
            "--no-compare",
            help="Do not compare with baselines on the same rows; this is slow the "
            "first time.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page about a run: plan, privacy, curves, devices, advice."""
    from fedbudget.record import read_run
    from fedbudget.reporting.advice import advice
    from fedbudget.reporting.comparison import stored_comparison
    from fedbudget.reporting.run_report import report as write_report

    with progress("reading the run") as bar:
        page = write_report(
            run,
            out=out,
            comparing=not no_compare,
            on_part=lambda name: bar.show(f"measuring: {name}"),
        )
    recorded = read_run(run)
    comparison = None if no_compare else stored_comparison(recorded)
    items = advice(recorded, comparison)
    if as_json:
        print_json(
            {
                "page": str(page),
                "finished": recorded.finished,
                "advice": [vars(item) for item in items],
                "metric": None if comparison is None else comparison.metric,
                "means": None if comparison is None else comparison.means,
            }
        )
        return
    from fedbudget.cli.views.layout import new_page, show_item, show_line

    with new_page() as console:
        size = page.stat().st_size // 1024
        show_line(console, f"{page}: {size} kB; open it in a browser")
        for item in items:
            show_item(console, item.text)
