"""`fedbudget audit`."""

from typing import Annotated

import typer

from fedbudget.cli.options import AsJson, parse_number
from fedbudget.cli.output import print_json, progress, telling_of_compilation


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A plan (a file that fedbudget plan --json wrote), a device's policy "
            "(.toml), or a run folder.",
            show_default=False,
        ),
    ],
    *,
    seconds: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Time for the trials; more of it makes the lower bounds closer.",
        ),
    ] = 60,
    confidence: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Of all lower bounds together: a correct release is called violating "
            "in one of a thousand audits at 0.999.",
        ),
    ] = 0.999,
    path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The code under test: device (that of real devices) or release (that "
            "of releases in this process). Default: device for a policy and for the "
            "run of a fleet, else release.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for evidence against a privacy claim, on synthetic rows; exit 1 if found."""
    from fedbudget.auditing import audit as audit_target

    with (
        progress("auditing", total=100, counter="{task.percentage:.0f} %") as bar,
        telling_of_compilation(bar, "auditing"),
    ):
        done = 0.0

        def on_part(name: str, share: float) -> None:
            nonlocal done
            bar.show(f"auditing: {name}", done=int(100 * done))
            done += share

        result = audit_target(
            target,
            seconds=seconds,
            confidence=confidence,
            path=path,
            on_part=on_part,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        from fedbudget.cli.views.audit import show_audit

        show_audit(result)
    if result.violated:
        raise typer.Exit(1)
