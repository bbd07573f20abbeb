"""The options that commands share: a type for each, used in the commands' signatures.

A command's options are the arguments of its function. Their order is that of --help.
"""

from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from fedbudget.cli.config import options_from
from fedbudget.errors import InvalidInputError

BUDGETS, RUN, OUTPUT = "Budgets of a device", "Run", "Output"
_DATA, _TABLE, _SHAPE = "Data by name", "Your own table", "No data at all"
PLANNING, _PRICES = "Planner", "Prices a device pays"


def parse_number(text: str) -> float:
    """Read an option's number; the error shows what was given instead."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def parse_whole(text: str) -> int:
    """Read an option's whole number; the error shows what was given instead."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def parse_numbers(name: str, text: str) -> list[float]:
    """Read a list of numbers, such as ``1,2,4,10``.

    >>> parse_numbers("--epsilons", "1, 2.5")
    [1.0, 2.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"{name} {text!r} is not a list of numbers: write them as 1,2,4,10"
        ) from None


Data: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        help="adult, vehicle (a SYNTHETIC stand-in), a table (.csv, .csv.gz, "
        ".parquet), or a fedbudget.toml. Required.",
        show_default=False,
        callback=options_from,
        is_eager=True,
    ),
]
DataOrNone: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        help="adult, vehicle (a SYNTHETIC stand-in), a table (.csv, .csv.gz, "
        ".parquet), or a fedbudget.toml. Leave it out with --samples.",
        show_default=False,
        callback=options_from,
        is_eager=True,
    ),
]

Epsilon: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="Privacy each device may lose in the whole run, no unit; 1 to 10 are "
        "usual.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
Cost: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="What each device may spend in the whole run, in the prices' unit.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
Delta: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="The delta of (epsilon, delta), a probability; take less than one "
        "over a device's samples.",
        rich_help_panel=BUDGETS,
    ),
]

Split: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="How rows are dealt out. adult: by-education, iid; vehicle: "
        "by-sensor, iid. Default: the first one named.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
NumDevices: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=parse_whole,
        help="How many devices, for --split iid. Default: 16 (adult), 23 (vehicle).",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
VehiclePath: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The real vehicle.mat, in place of the stand-in. Default: none.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]

Label: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The column to predict. Required for a table.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
DeviceColumn: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The column that names each row's device. Default: none; then give "
        "--partition.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
SchemaFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="JSON or TOML file with public bounds and categories. Default: read "
        "off the rows, which is NOT private.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
PartitionText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Instead of --device, deal the rows out: iid:16, size:60,40, "
        "dirichlet:16:0.3, column:NAME. Default: by --device.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
Missing: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="error|drop",
        help="What to do with rows that have empty cells. Default: error.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]

Samples: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Training samples of each device: 1628x16, 100,200,300 or 51,1628x3. "
        "Default: counted in the data.",
        show_default=False,
        rich_help_panel=_SHAPE,
    ),
]
Dim: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=parse_whole,
        help="Columns of a sample. Required with --samples.",
        show_default=False,
        rich_help_panel=_SHAPE,
    ),
]
Classes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=parse_whole,
        help="Number of classes, for softmax. Default: 2.",
        show_default=False,
        rich_help_panel=_SHAPE,
    ),
]

CommunicationPrice: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="Cost units per round (both ways).",
        rich_help_panel=_PRICES,
    ),
]
ComputationPrice: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number, help="Cost units per local step.", rich_help_panel=_PRICES
    ),
]
SamplePrice: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="Cost units per sample in a local step, on top.",
        rich_help_panel=_PRICES,
    ),
]

Planner: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="joint|bound|paper",
        help="joint plans everything; bound and paper follow the paper's bound.",
        rich_help_panel=PLANNING,
    ),
]
Planners: TypeAlias = Annotated[
    str,
    typer.Option(
        "--planners",
        metavar="joint|bound|paper",
        help="One planner, or several to compare: joint,paper.",
        rich_help_panel=PLANNING,
    ),
]
Accountant: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="gdp|zcdp|pld",
        help="gdp is exact; zcdp is the paper's; pld is for Poisson-sampled batches.",
        rich_help_panel=PLANNING,
    ),
]
Weights: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="auto|uniform|size",
        help="How much each device counts: planned, alike, or by its samples.",
        rich_help_panel=PLANNING,
    ),
]
Target: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="uniform|size",
        help="What planned weights aim at, noise aside: every device alike, or "
        "every sample.",
        rich_help_panel=PLANNING,
    ),
]
BatchSize: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=parse_whole,
        help="Samples per gradient. Default: planned.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
Sampling: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="auto|fixed|cyclic",
        help="How smaller batches than all samples are drawn: fixed, anew in every "
        "step; cyclic, dealt once and taken in turn. auto: cyclic where samples "
        "have a price.",
        rich_help_panel=PLANNING,
    ),
]
LearningRate: TypeAlias = Annotated[
    float | None,
    typer.Option(
        parser=parse_number,
        help="Size of a local step. Default: planned.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
LossName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="logistic, softmax, hinge or huber. Default: what fits the labels; "
        "logistic without data.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
L2: TypeAlias = Annotated[
    float,
    typer.Option(
        "--l2",
        parser=parse_number,
        help="Weight of the L2 term, per parameter squared.",
        rich_help_panel=PLANNING,
    ),
]
Dissimilarity: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="How unlike the devices are: iid, mild, strong, or a share of the "
        "initial gap; for train also measure: one noisy query, charged to every "
        "device. Default: as the rows were dealt out; mild without data.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
SplitSeed: TypeAlias = Annotated[
    int,
    typer.Option(
        parser=parse_whole,
        help="Seeds how rows are dealt out and split 80/10/10 on every device.",
        rich_help_panel=PLANNING,
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]


def _flags_alone(params: list[Any]) -> list[Any]:
    """Show flags without a type: Typer would print <bool> beside them."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command; `--help` is among its flags too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _flags_alone(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands; options that Typer adds for completion are flags too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _flags_alone(super().get_params(ctx))
