"""The evaluation in one call: run it, draw it, and write what it says.

index.html   one page with everything
figures/     each as SVG, PDF and PNG
numbers/     all rows behind them, as Parquet and CSV
about.json   what was run
parts/       runs that are kept, so that a stopped evaluation goes on
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedbudget.errors import RecordError
from fedbudget.paper.blocks import Block, to_html
from fedbudget.paper.cases import FULL, QUICK, Scale, case_named
from fedbudget.paper.claims import Claim, Findings, findings
from fedbudget.paper.document import TITLE, About, document
from fedbudget.paper.evaluation import Tables, evaluate
from fedbudget.paper.figures import described, draw_all
from fedbudget.paper.lab import Store, make_folder, read_table, write_table
from fedbudget.paper.results import Regret
from fedbudget.reporting.html import write_page

NUMBERS = ("runs", "searches", "plans", "baselines")


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What an evaluation found, for a summary."""

    claims: list[Claim]
    regrets: list[Regret]
    seconds: float
    page: Path


def scale_named(name: str, *, cases: Sequence[str], repeats: int | None) -> Scale:
    """Return `full` or `quick`, for some of the cases, with a number of repeats."""
    scale = {"full": FULL, "quick": QUICK}[name]
    if cases:
        scale = replace(scale, cases=tuple(map(case_named, cases)))
    if repeats is not None:
        scale = replace(
            scale, repeats=repeats, curve_repeats=min(repeats, scale.curve_repeats)
        )
    return scale


def reproduce(
    out: Path,
    scale: Scale,
    *,
    version: str,
    command: str,
    vehicle: str | None = None,
    on_work: Callable[[float, str], None] = lambda seconds, what: None,
) -> Outcome:
    """Run the evaluation, or what is missing of it, and write the report.

    Args:
        out: The folder to write to.
        scale: How much to run.
        version: Of the program.
        command: What the reader has to type for the same.
        vehicle: The real ``vehicle.mat``, if there is one.
        on_work: Told how much of `expected_work` is done, and what it was.
    """
    started = time.perf_counter()
    for folder in (out, out / "parts", out / "numbers"):
        make_folder(folder)
    store = Store(out / "parts", version=version)
    tables = evaluate(scale, store, vehicle=vehicle, on_work=on_work)
    about = About(
        version=version,
        seconds=time.perf_counter() - started + tables.found_seconds,
        cores=os.cpu_count() or 1,
        command=command,
        vehicle=vehicle,
    )
    on_work(0, "drawing figures")
    try:
        return _write(out, findings(tables, scale), about)
    except OSError as error:
        raise RecordError(
            f"cannot write to {out}: {error.strerror or error}: make room, or choose "
            "another folder"
        ) from error


def _write(out: Path, found: Findings, about: About) -> Outcome:
    """Write numbers, figures and page."""
    numbers = out / "numbers"
    for name in NUMBERS:
        for ending in ("parquet", "csv"):
            write_table(numbers / f"{name}.{ending}", getattr(found.tables, name))
    told = asdict(about) | {"scale": asdict(found.scale)}
    write_page(out / "about.json", json.dumps(told, indent=1) + "\n")
    drawn = draw_all(found, out / "figures", vehicle=about.vehicle)
    page = out / "index.html"
    write_page(page, to_html(TITLE, document(found, drawn, about), out / "figures"))
    write_table(numbers / "claims.csv", [_flat(claim) for claim in found.claims])
    return Outcome(
        claims=found.claims,
        regrets=found.regrets,
        seconds=about.seconds,
        page=page,
    )


def _flat(claim: Claim) -> dict[str, Any]:
    row = asdict(claim) | {"verdict": claim.verdict}
    effect = row.pop("effect")
    return row | {f"effect_{name}": value for name, value in effect.items()}


def read_report(out: Path) -> tuple[list[Block], Path]:
    """Return a finished evaluation's report and figures, from its folder alone.

    Raises:
        RecordError: The folder holds no finished evaluation.
    """
    try:
        told = json.loads((out / "about.json").read_text(encoding="utf-8"))
        about = About(**{name: told[name] for name in About.__dataclass_fields__})
        numbers: dict[str, Any]
        numbers = {n: read_table(out / "numbers" / f"{n}.parquet") for n in NUMBERS}
        scale = _scale(told["scale"])
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(
            f"{out} holds no finished evaluation ({error}): run fedbudget paper --out "
            f"{out} first"
        ) from error
    found = findings(Tables(**numbers), scale)
    drawn = described(found, vehicle=about.vehicle)
    return document(found, drawn, about), out / "figures"


def _scale(told: dict[str, Any]) -> Scale:
    """Return a scale as it was written: JSON has lists for tuples."""
    cases = tuple(case_named(case["name"]) for case in told.pop("cases"))
    values: dict[str, Any]
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in told.items()}
    return Scale(cases=cases, **values)
