"""`fedbudget init`: a first `fedbudget.toml` for a table, to be edited."""

import os
import warnings
from collections.abc import Iterator
from math import floor, log10
from pathlib import Path
from typing import Annotated

import typer

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    DELTA,
    FIRST_COST,
    FIRST_EPSILON,
)
from fedbudget.cli.options import AsJson
from fedbudget.cli.output import print_json, progress
from fedbudget.data import Categorical, Numeric
from fedbudget.data.features import Feature
from fedbudget.data.partitions import SEED, parse_partition
from fedbudget.data.tables import Draft, draft
from fedbudget.errors import InvalidInputError, NotPrivateWarning, RecordError, needed
from fedbudget.files import whole_file
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, WEIGHTING
from fedbudget.text import counted

_MARK = "read from the rows: replace by what is publicly known"


def init(
    table: Annotated[
        str,
        typer.Argument(
            help="The table: .csv, .csv.gz or .parquet.", show_default=False
        ),
    ],
    *,
    label: Annotated[
        str, typer.Option(help="The column to predict.", show_default=False)
    ],
    device: Annotated[
        str | None,
        typer.Option(
            help="The column that names each row's device. Default: none; then give "
            "--partition.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="Instead of --device, deal the rows out: iid:16, size:60,40, "
            "dirichlet:16:0.3. Default: by --device.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        str,
        typer.Option(
            help="Columns to leave out, such as names: a,b. Default: none.",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="The file to write.")
    ] = "fedbudget.toml",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented fedbudget.toml for a table: columns, budgets and prices."""
    if (device is None) == (partition is None):
        raise InvalidInputError(
            "give either --device, the column that says whose a row is, or --partition "
            "iid:16, to deal the rows out"
        )
    if partition is not None:
        parse_partition(partition)
    if Path(out).exists() and not force:
        raise RecordError(
            f"{out} is already there: choose another file with --out, or overwrite it "
            "with --force"
        )
    dropped = [name.strip() for name in drop.split(",") if name.strip()]
    with progress("reading the table"):
        found = draft(table, label=label, device=device, drop=dropped)
    place = os.path.relpath(table, Path(out).resolve().parent)
    text = "\n".join(_lines(found, place, device, partition)) + "\n"
    with whole_file(out) as file:
        file.write(text)
    columns = len(found.schema.features) + 1
    warnings.warn(
        f"the bounds and categories of {columns} columns in {out} were read from the "
        "rows, and no privacy guarantee covers them; replace them by what is publicly "
        "known",
        NotPrivateWarning,
        stacklevel=2,
    )
    if as_json:
        told = {"rows": found.num_rows, "rows_with_gaps": found.rows_with_gaps}
        print_json({"file": out, **told, **found.schema.to_dict()})
        return
    from fedbudget.cli.views.layout import new_page, show_line

    owned = "dealt out" if device is None else counted(found.num_devices, "device")
    rows = counted(found.num_rows, "row")
    with new_page() as console:
        show_line(console, f"{out}: {rows}, {columns} columns, {owned}")
        if found.rows_with_gaps:
            show_line(
                console,
                f"{_gaps(found.rows_with_gaps)} left out "
                '(missing = "drop"): fill them, or say missing = ... for a column',
            )
        show_line(
            console, f"edit it, then: fedbudget plan {out}, fedbudget train {out}"
        )


def _gaps(rows: int) -> str:
    return (
        "1 row has an empty cell and is"
        if rows == 1
        else f"{rows} rows have empty cells and are"
    )


def _lines(
    found: Draft, table: str, device: str | None, partition: str | None
) -> Iterator[str]:
    """Yield the file, line by line."""
    yield "# What to train on, and within which budgets. Edit it, then:"
    yield "#   fedbudget plan fedbudget.toml"
    yield "#   fedbudget train fedbudget.toml"
    yield "# An option on the command line, such as --epsilon 2, overrules this file."
    yield ""
    yield "[data]"
    yield f"table = {_text(table)}  # .csv, .csv.gz or .parquet; relative to here"
    if device is not None:
        yield f"device = {_text(device)}  # the column that says whose a row is"
    else:
        yield f"partition = {_text(partition or '')}  # how rows are dealt out"
    if found.rows_with_gaps:
        yield f'missing = "drop"  # {found.rows_with_gaps} rows have empty cells'
    else:
        yield 'missing = "error"  # or "drop": leave out rows with empty cells'
    yield "intercept = true  # add a constant column"
    yield "# Bounds and categories must not depend on the private rows. Replace those"
    yield "# below, then set this to true; until then every command warns."
    yield "public_bounds = false"
    yield ""
    yield "[label]"
    yield f"name = {_text(found.schema.label)}"
    for key, value in _described(found.schema.target):
        yield f"{key} = {value}  # {_MARK}"
    yield ""
    yield "# A number is clipped to [low, high]; a category must be one of the values."
    yield '# Also possible: missing = ... for empty cells, other = "ignore" for values'
    yield "# that are not listed. A column without a line is not used."
    yield "[features]"
    for name, kind in found.schema.features.items():
        inside = ", ".join(f"{key} = {value}" for key, value in _described(kind))
        yield f"{_key(name)} = {{ {inside} }}  # {_MARK}"
    yield ""
    yield from _budgets(found)


def _budgets(found: Draft) -> Iterator[str]:
    delta = DELTA
    if delta * found.most_rows >= 1:
        delta = 10.0 ** (floor(-log10(found.most_rows)) - 1)
    yield "[budget]  # of every device, for the whole run"
    epsilon, less = FIRST_EPSILON, "1 to 10 are usual, less is safer"
    yield f"epsilon = {epsilon}  # privacy it may lose; {less}"
    yield f"delta = {delta:g}  # less than one over a device's {found.most_rows} rows"
    yield f"cost = {FIRST_COST}  # what it may spend, in the unit of the prices"
    yield ""
    yield "[prices]  # in any one unit: seconds, joules, cents"
    of_round, of_step = float(COMMUNICATION_PRICE), float(COMPUTATION_PRICE)
    yield f"communication = {of_round}  # a round: one download and one upload"
    yield f"computation = {of_step}  # a local step; fedbudget measure times both"
    yield "computation_per_sample = 0.0  # of each sample in a step, on top"
    yield ""
    yield "# A device may set its own; then that stands, whatever is said above:"
    yield '# [devices."its name"]'
    yield "# epsilon = 1.0"
    yield "# cost = 500.0"
    yield ""
    yield "[plan]"
    yield f'planner = "{PLANNER}"  # or "bound", "paper"'
    yield f'accountant = "{ACCOUNTANT}"  # exact; or "zcdp", "pld"'
    yield f'weights = "{WEIGHTING}"  # or "uniform", "size"'
    yield '# dissimilarity = "mild"  # how unlike the devices are: iid, mild, strong'
    yield '# loss = "logistic"  # by default what fits the label'
    yield "# learning_rate = 4.0  # planned, unless given"
    yield ""
    yield "[train]"
    yield f"seed = {SEED}  # of how rows are dealt out and split, and of the noise"
    yield "# personal = true  # let devices adapt the model to their own rows"
    yield '# out = "runs/first"  # keep the run in this folder'


def _described(kind: Feature) -> Iterator[tuple[str, str]]:
    if isinstance(kind, Numeric):
        yield "low", repr(float(kind.low))
        yield "high", repr(float(kind.high))
    elif isinstance(kind, Categorical):
        yield "values", f"[{', '.join(map(_text, kind.values))}]"


def _text(value: str) -> str:
    with needed("init", "tomlkit"):
        import tomlkit
    return tomlkit.item(value).as_string()


def _key(name: str) -> str:
    with needed("init", "tomlkit"):
        import tomlkit
    return tomlkit.key(name).as_string()
