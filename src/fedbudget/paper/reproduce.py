"""The evaluation in one call: run it, draw the figures, write the report.

index.html   one page with everything
figures/     each as SVG, PDF and PNG
numbers/     all rows behind them, as Parquet and CSV
about.json   how the evaluation was run
parts/       finished runs, so that a stopped evaluation can continue
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
from fedbudget.paper.claims import Claim, Findings, judge
from fedbudget.paper.document import TITLE, About, document
from fedbudget.paper.evaluation import Tables, evaluate
from fedbudget.paper.figures import draw_all, figure_files
from fedbudget.paper.lab import Store, make_folder, read_table, write_table
from fedbudget.paper.results import Regret
from fedbudget.reporting.html import write_page

NUMBERS = ("runs", "searches", "plans", "baselines")


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The results of an evaluation, for a summary."""

    claims: list[Claim]
    regrets: list[Regret]
    seconds: float
    page: Path


def scale_named(name: str, *, cases: Sequence[str], repeats: int | None) -> Scale:
    """Return `full` or `quick`, with these cases and repeats."""
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
    on_work: Callable[[float, str], None] = lambda seconds, task: None,
) -> Outcome:
    """Run the missing parts of the evaluation, and write the report.

    Args:
        out: The folder to write to.
        scale: How much to run.
        version: The version of the program.
        command: The command that repeats the evaluation.
        vehicle: The real ``vehicle.mat``, if there is one.
        on_work: Called with the share of `expected_work` that was done, in seconds, and
            its name.
    """
    started = time.perf_counter()
    for folder in (out, out / "parts", out / "numbers"):
        make_folder(folder)
    store = Store(out / "parts", version=version)
    tables = evaluate(scale, store, vehicle=vehicle, on_work=on_work)
    about = About(
        version=version,
        seconds=time.perf_counter() - started + tables.cached_seconds,
        cores=os.cpu_count() or 1,
        command=command,
        vehicle=vehicle,
    )
    on_work(0, "drawing figures")
    try:
        return _write(out, judge(tables, scale), about)
    except OSError as error:
        raise RecordError(
            f"cannot write to {out}: {error.strerror or error}: make room, or choose "
            "another folder"
        ) from error


def _write(out: Path, findings: Findings, about: About) -> Outcome:
    """Write numbers, figures and page."""
    numbers = out / "numbers"
    for name in NUMBERS:
        for suffix in ("parquet", "csv"):
            write_table(numbers / f"{name}.{suffix}", getattr(findings.tables, name))
    description = asdict(about) | {"scale": asdict(findings.scale)}
    write_page(out / "about.json", json.dumps(description, indent=1) + "\n")
    figures = draw_all(findings, out / "figures", vehicle=about.vehicle)
    page = out / "index.html"
    blocks = document(findings, figures, about)
    write_page(page, to_html(TITLE, blocks, out / "figures"))
    write_table(numbers / "claims.csv", [_flat(claim) for claim in findings.claims])
    return Outcome(
        claims=findings.claims,
        regrets=findings.regrets,
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
        description = json.loads((out / "about.json").read_text(encoding="utf-8"))
        about = About(
            **{name: description[name] for name in About.__dataclass_fields__}
        )
        numbers: dict[str, Any]
        numbers = {n: read_table(out / "numbers" / f"{n}.parquet") for n in NUMBERS}
        scale = _scale(description["scale"])
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(
            f"{out} holds no finished evaluation ({error}): run fedbudget paper --out "
            f"{out} first"
        ) from error
    findings = judge(Tables(**numbers), scale)
    figures = figure_files(findings, vehicle=about.vehicle)
    return document(findings, figures, about), out / "figures"


def _scale(fields: dict[str, Any]) -> Scale:
    """Return a scale from its JSON form, which has lists instead of tuples."""
    cases = tuple(case_named(case["name"]) for case in fields.pop("cases"))
    values: dict[str, Any]
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
    return Scale(cases=cases, **values)
