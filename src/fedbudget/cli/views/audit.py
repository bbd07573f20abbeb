"""The result of an audit, as text."""

from rich.console import Console

from fedbudget.auditing import Audit, ClaimAudit
from fedbudget.auditing.audits import rounded_down
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.cli.views.layout import (
    new_page,
    new_table,
    show_heading,
    show_item,
    show_pairs,
    show_table,
)
from fedbudget.privacy import rounded_up
from fedbudget.text import counted

_CODE = {"device": "a real device's code", "release": "the code of releases here"}


def show_audit(audit: Audit) -> None:
    """Print claims, bounds, parts, controls and the verdict."""
    with new_page() as console:
        console.print(f"Audit of {audit.subject}", style="bold", markup=False)
        show_heading(
            console,
            f"Epsilon, from below with {100 * audit.confidence:.6g} % confidence",
        )
        names = ("claimed", "at least, if normal", "at least, any law", "best fit")
        table = new_table("", *names, right=True)
        for item in audit.claims:
            table.add_row(*_row(item))
        show_table(console, table)
        for item in audit.claims:
            _show_parts(console, item)
        show_heading(console, "Verdict")
        show_item(console, audit.verdict)
        if audit.model is not None:
            show_item(console, f"the recorded model: {audit.model}")
        for note in audit.notes:
            show_item(console, note)


def _row(item: ClaimAudit) -> tuple[str, ...]:
    bounds = item.steps
    return (
        item.claim.name,
        rounded_up(item.claim.epsilon),
        rounded_down(bounds.gaussian),
        rounded_down(bounds.free),
        f"{bounds.best_fit:.4g}",
    )


def _show_parts(console: Console, item: ClaimAudit) -> None:
    claim, runs = item.claim, item.runs
    noun = "upload" if isinstance(claim, UploadClaim) else "step"
    show_heading(
        console,
        f"{claim.name}: {counted(claim.steps, noun)}, noise multiplier "
        f"{claim.noise_multiplier:.4g}, delta {rounded_up(claim.delta)}",
    )
    pairs = [
        ("sensitivity", str(item.sensitivity)),
        ("noise", str(item.noise)),
        ("grid", str(item.grid)),
        (
            "trials",
            f"{item.steps.trials} runs, {noun} by {noun}, with {_CODE[item.path]}",
        ),
        (
            "whole runs",
            f"{runs.trials}: epsilon at least {rounded_down(runs.largest)}, best fit "
            f"{runs.best_fit:.4g}",
        ),
    ]
    if item.guard is not None:
        pairs.append(("guard", str(item.guard)))
    for control in item.controls:
        pairs.append(("control", f"{control.name}: {control}"))
    show_pairs(console, pairs)
