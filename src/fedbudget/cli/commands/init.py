"""`fedbudget init`: write a first `fedbudget.toml` for a table."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    FIRST_COST,
    FIRST_EPSILON,
    TRUST,
    UNIT,
    planned_delta,
)
from fedbudget.cli.options import AsJson
from fedbudget.cli.output import one_line, print_json, progress
from fedbudget.data import Categorical, Numeric, Time
from fedbudget.data.drafts import Draft, draft
from fedbudget.data.features import Feature
from fedbudget.data.partitions import SEED, parse_partition
from fedbudget.data.windows import LEAST_LENGTH
from fedbudget.errors import InvalidInputError, NotPrivateWarning, RecordError, needed
from fedbudget.files import whole_file
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, WEIGHTING
from fedbudget.text import counted

_MARK = "read from the rows: replace by what is publicly known"
_CIRCLES = 'each as sine and cosine; also "month"'


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
            help="The column that names each row's device. Default: none; then use "
            "--partition.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="How to partition the rows, instead of --device: iid:16, size:60,40, "
            "dirichlet:16:0.3. Default: by --device.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        str,
        typer.Option(
            help="Columns to leave out, separated by commas. Default: none.",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="The file to write.")
    ] = "fedbudget.toml",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented fedbudget.toml for a table: columns, budgets and prices."""
    if (device is None) == (partition is None):
        raise InvalidInputError(
            "give either --device, the column that names each row's device, or "
            "--partition, such as iid:16"
        )
    if partition is not None:
        parse_partition(partition)
    if Path(out).exists() and not force:
        raise RecordError(
            f"{out} already exists: choose another file with --out, or overwrite it "
            "with --force"
        )
    dropped = [name.strip() for name in drop.split(",") if name.strip()]
    with progress("reading the table"):
        drafted = draft(table, label=label, device=device, drop=dropped)
    path = os.path.relpath(table, Path(out).resolve().parent)
    text = "\n".join(_lines(drafted, Path(out).name, path, device, partition)) + "\n"
    with whole_file(out) as file:
        file.write(text)
    columns = len(drafted.schema.features) + 1
    read = columns - len(_times(drafted))
    warnings.warn(
        f"the bounds and categories of {read} columns in {out} were read from the "
        "rows, and no privacy guarantee covers them; replace them by what is publicly "
        "known",
        NotPrivateWarning,
        stacklevel=2,
    )
    if as_json:
        counts = {"rows": drafted.num_rows, "rows_with_gaps": drafted.rows_with_gaps}
        left_out = {"left_out": dict(drafted.left_out)}
        print_json({"file": out, **counts, **left_out, **drafted.schema.to_dict()})
        return
    from fedbudget.cli.views.layout import new_page, show_line

    split = "partitioned" if device is None else counted(drafted.num_devices, "device")
    rows = counted(drafted.num_rows, "row")
    with new_page() as console:
        show_line(console, f"{out}: {rows}, {columns} columns, {split}")
        for name in _times(drafted):
            cycles = "hour and weekday, each as sine and cosine"
            show_line(
                console,
                f"time stamps: {one_line(name)} (its {cycles}; leave it out with "
                f"--drop {one_line(name)}, or order rows by it)",
            )
        for name, reason in drafted.left_out.items():
            show_line(console, f"left out: {one_line(name)} ({one_line(reason)})")
        if drafted.rows_with_gaps:
            show_line(
                console,
                f"{_gaps(drafted.rows_with_gaps)} left out "
                '(missing = "drop"): fill them, or set missing = ... for a column',
            )
        show_line(
            console, f"edit it, then run: fedbudget plan {out}, fedbudget train {out}"
        )


def _gaps(rows: int) -> str:
    return (
        "1 row has an empty cell and is"
        if rows == 1
        else f"{rows} rows have empty cells and are"
    )


def _lines(
    drafted: Draft, name: str, table: str, device: str | None, partition: str | None
) -> Iterator[str]:
    """Yield the file of this name, line by line."""
    yield "# Data, budgets and prices of a federated run. Edit this file, then run:"
    yield f"#   fedbudget plan {name}"
    yield f"#   fedbudget train {name}"
    yield "# An option on the command line, such as --epsilon 2, overrides this file."
    yield ""
    yield "[data]"
    yield f"table = {_text(table)}  # .csv, .csv.gz or .parquet; relative to this file"
    if device is not None:
        yield f"device = {_text(device)}  # the column that names each row's device"
    else:
        yield f"partition = {_text(partition or '')}  # how to partition the rows"
    if drafted.rows_with_gaps:
        yield f'missing = "drop"  # {drafted.rows_with_gaps} rows have empty cells'
    else:
        yield 'missing = "error"  # or "drop": leave out rows with empty cells'
    for column in _times(drafted):
        yield f"# order = {_text(column)}  # test on each device's last tenth of time"
    yield "intercept = true  # add a constant column"
    yield "# Bounds and categories must not depend on the private rows. Replace them"
    yield "# below, then set this to true. Until then, every command warns."
    yield "public_bounds = false"
    yield ""
    yield "[label]"
    yield f"name = {_text(drafted.schema.label)}"
    for key, value in _described(drafted.schema.target):
        yield f"{key} = {value}  # {_MARK}"
    yield ""
    yield "# A number is clipped to [low, high]; a category must be one of the values."
    yield '# Also possible: missing = ... for empty cells, other = "ignore" for values'
    yield "# that are not listed. A column without a line is not used."
    for name, reason in drafted.left_out.items():
        yield f"# {one_line(name)} is left out: {one_line(reason)}"
    yield "[features]"
    for name, kind in drafted.schema.features.items():
        inside = ", ".join(f"{key} = {value}" for key, value in _described(kind))
        mark = _CIRCLES if isinstance(kind, Time) else _MARK
        yield f"{_key(name)} = {{ {inside} }}  # {mark}"
    yield ""
    yield from _windows(drafted)
    yield from _budgets(drafted)


def _budgets(drafted: Draft) -> Iterator[str]:
    yield "[budget]  # of every device, for the whole run"
    usual = "1 to 10 is usual, smaller is more private"
    yield f"epsilon = {FIRST_EPSILON}  # privacy budget; {usual}"
    most_rows = f"{drafted.most_rows} rows of the largest device"
    delta = planned_delta(drafted.most_rows)
    yield f"delta = {delta:g}  # at most 1 / 10 of one over the {most_rows}"
    yield f"cost = {FIRST_COST}  # cost budget, in the unit of the prices"
    yield f'trust = "{TRUST}"  # the server sees each; "sum": only sums, less noise'
    yield f'unit = "{UNIT}"  # what epsilon protects; or "device", all of its rows'
    yield ""
    yield "[prices]  # in any one unit: seconds, joules, cents"
    of_round, of_step = float(COMMUNICATION_PRICE), float(COMPUTATION_PRICE)
    yield f"communication = {of_round}  # per round: one download and one upload"
    yield f"computation = {of_step}  # per local step; fedbudget measure measures both"
    yield "computation_per_sample = 0.0  # in addition, per sample in a step"
    yield ""
    yield "# Budgets and prices of a single device override those above:"
    yield '# [devices."device name"]'
    yield "# epsilon = 1.0"
    yield "# cost = 500.0"
    yield ""
    yield "[plan]"
    yield f'planner = "{PLANNER}"  # or "bound", "paper"'
    yield f'accountant = "{ACCOUNTANT}"  # exact; or "zcdp", "pld"'
    yield f'weights = "{WEIGHTING}"  # or "uniform", "size"'
    yield '# dissimilarity = "mild"  # how heterogeneous: iid, mild, strong'
    yield '# loss = "logistic"  # default: the one that fits the label'
    yield "# learning_rate = 4.0  # default: planned"
    yield ""
    yield "[train]"
    yield f"seed = {SEED}  # of the partition, the split and the noise"
    yield "# personal = true  # adapt the model on each device to its own rows"
    yield "# keep = true  # and keep these models; NOT private"
    yield '# scale = "private"  # narrow wide bounds by a noisy query'
    if (classes := drafted.schema.classes) is not None and len(classes) == 2:
        rare = f"{one_line(classes[0])}=0.97,{one_line(classes[1])}=0.03"
        yield f"# class_shares = {_text(rare)}  # publicly known"
        yield '# threshold = "shares"  # for a rare class; or "measure", or a number'
    yield '# out = "runs/first"  # save the run in this folder'


def _described(kind: Feature) -> Iterator[tuple[str, str]]:
    if isinstance(kind, Numeric):
        yield "low", repr(float(kind.low))
        yield "high", repr(float(kind.high))
    elif isinstance(kind, Categorical):
        yield "values", f"[{', '.join(map(_text, kind.values))}]"
    else:
        yield "cycles", f"[{', '.join(map(_text, kind.cycles))}]"


def _times(drafted: Draft) -> list[str]:
    """Return the columns of time stamps."""
    features = drafted.schema.features
    return [name for name, kind in features.items() if isinstance(kind, Time)]


def _windows(drafted: Draft) -> Iterator[str]:
    """Yield a proposal for readings of sensors, if there may be windows of them."""
    features = drafted.schema.features
    channels = [name for name, kind in features.items() if isinstance(kind, Numeric)]
    if not channels or drafted.most_rows < 2 * LEAST_LENGTH:
        return
    yield "# If rows are readings of sensors, and a sample is a window of them:"
    yield "# [windows]"
    yield f"# length = {LEAST_LENGTH}  # readings"
    yield f"# columns = [{', '.join(map(_text, channels))}]"
    if times := _times(drafted):
        yield f"# order = {_text(times[0])}"
    yield ""


def _text(value: str) -> str:
    with needed("init", "tomlkit"):
        import tomlkit
    return tomlkit.item(value).as_string()


def _key(name: str) -> str:
    with needed("init", "tomlkit"):
        import tomlkit
    return tomlkit.key(name).as_string()
