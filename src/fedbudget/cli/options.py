"""The options that commands share: a type for each, used in the commands' signatures.

A command's options are the arguments of its function. Their order is that of --help.
"""

from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from fedbudget.cli.config import options_from
from fedbudget.errors import InvalidInputError

BUDGETS, RUN, OUTPUT = "Budgets of each device", "Run", "Output"
_DATA, _TABLE, _SHAPE = "Built-in data", "Your own table", "Without data"
PLANNING, _PRICES = "Planner", "Prices of each device"


def parse_number(text: str) -> float:
    """Read an option's number; the error shows the invalid text."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def parse_whole(text: str) -> int:
    """Read an option's whole number; the error shows the invalid text."""
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
        help="adult, wisdm, vehicle (a SYNTHETIC stand-in), beijing (needs --path), a "
        "table (.csv, .csv.gz, .parquet), or a fedbudget.toml. Required.",
        show_default=False,
        callback=options_from,
        is_eager=True,
    ),
]
DataOrNone: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        help="adult, wisdm, vehicle (a SYNTHETIC stand-in), beijing (needs --path), a "
        "table (.csv, .csv.gz, .parquet), or a fedbudget.toml. Leave it out with "
        "--samples.",
        show_default=False,
        callback=options_from,
        is_eager=True,
    ),
]

Epsilon: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="Privacy budget of each device for the whole run; 1 to 10 is usual.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
Cost: TypeAlias = Annotated[
    float,
    typer.Option(
        parser=parse_number,
        help="Cost budget of each device for the whole run, in the unit of the prices.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
Delta: TypeAlias = Annotated[
    float | None,
    typer.Option(
        parser=parse_number,
        help="The delta of (epsilon, delta)-differential privacy; choose less than 1 "
        "divided by 10 times the samples of a device. Default: planned, for the "
        "largest device; at most 1e-4.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
_TRUST_HELP = (
    "What the server sees: uploads (each device's, so each adds all the noise) or sum "
    "(only sums of uploads, by secure aggregation, so devices share the noise)."
)
TrustName: TypeAlias = Annotated[
    str,
    typer.Option(metavar="uploads|sum", help=_TRUST_HELP, rich_help_panel=BUDGETS),
]
TrustOrBoth: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="uploads|sum|both",
        help=f"{_TRUST_HELP} both: compare them, and say what trust buys.",
        rich_help_panel=BUDGETS,
    ),
]
UnitName: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="sample|device",
        help="What epsilon protects: one sample, or all samples of a device.",
        rich_help_panel=BUDGETS,
    ),
]
LeastAnswers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=parse_whole,
        metavar="COUNT",
        help="Answers that a sum must have to be seen, for --trust sum. Fewer need "
        "more noise, and let devices drop out. Default: those of all devices.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
Colluders: TypeAlias = Annotated[
    int,
    typer.Option(
        parser=parse_whole,
        metavar="COUNT",
        help="Devices that may collude with the server, for --trust sum.",
        rich_help_panel=BUDGETS,
    ),
]

Split: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="How to partition the rows: iid, or the devices that the data come from "
        "(adult: by-education; wisdm: by-person; vehicle: by-sensor; beijing: "
        "by-station). Default: the latter.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
NumDevices: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=parse_whole,
        help="Number of devices, for --split iid. Default: as many as the data come "
        "from: 16 (adult), 51 (wisdm), 23 (vehicle), 12 (beijing).",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]
VehiclePath: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The real vehicle.mat, instead of the stand-in, or the folder of "
        "beijing's CSV files. Default: none.",
        show_default=False,
        rich_help_panel=_DATA,
    ),
]

Order: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column of the time: each device's last tenth is the test part. "
        "Default: the parts are drawn; with windows, rows are in order.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
Features: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="linear; fourier or fourier:COUNT, random Fourier features of all columns "
        "(public, from a seed; COUNT is 500 by default): a non-linear model; or auto, "
        "whichever has the lower predicted loss. Default: those of the schema, linear "
        "for built-in data.",
        show_default=False,
        rich_help_panel=PLANNING,
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
        help="The column that names each row's device. Default: none; then use "
        "--partition.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
SchemaFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="JSON or TOML file with public bounds and categories. Default: inferred "
        "from the rows, which is NOT private.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
PartitionText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="How to partition the rows, instead of --device: iid:16, size:60,40, "
        "dirichlet:16:0.3, column:NAME. Default: by --device.",
        show_default=False,
        rich_help_panel=_TABLE,
    ),
]
Missing: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="error|drop",
        help="How to handle rows with empty cells. Default: error.",
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
        help="Number of feature columns. Required with --samples.",
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
        help="Cost units per round (download and upload).",
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
        help="Additional cost units per sample in a local step.",
        rich_help_panel=_PRICES,
    ),
]
SecureRoundPrice: TypeAlias = Annotated[
    float | None,
    typer.Option(
        parser=parse_number,
        help="Cost units per round of secure aggregation, for --trust sum. Default: as "
        "any round.",
        show_default=False,
        rich_help_panel=_PRICES,
    ),
]

Planner: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="joint|bound|paper",
        help="joint plans every setting; bound and paper minimise the paper's bound.",
        rich_help_panel=PLANNING,
    ),
]
Planners: TypeAlias = Annotated[
    str,
    typer.Option(
        "--planners",
        metavar="joint|bound|paper",
        help="One planner, or several to compare, such as joint,paper.",
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
        help="Weights of the devices in the average: planned, equal, or by number of "
        "samples.",
        rich_help_panel=PLANNING,
    ),
]
Target: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="uniform|size",
        help="Target of the planned weights, before noise is considered: equal per "
        "device, or by number of samples.",
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
        help="How batches smaller than a device's data are drawn. fixed: at random in "
        "every step. cyclic: partitioned once, then used in turn. auto: cyclic if "
        "samples have a price.",
        rich_help_panel=PLANNING,
    ),
]
LearningRate: TypeAlias = Annotated[
    float | None,
    typer.Option(
        parser=parse_number,
        help="Learning rate of the local steps. Default: planned.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
LossName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="logistic, softmax, hinge, smooth_hinge or huber. Default: the one that "
        "fits the labels; logistic without data.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
L2: TypeAlias = Annotated[
    float,
    typer.Option(
        "--l2",
        parser=parse_number,
        help="Strength of the L2 penalty, l2/2 times the squared norm.",
        rich_help_panel=PLANNING,
    ),
]
Dissimilarity: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="How heterogeneous the devices are: iid, mild, strong, or a share of the "
        "initial gap. train also accepts measure: one noisy query, charged to every "
        "device. Default: by the partition of the rows; mild without data.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
PublicSample: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Rows that are NOT private, with the columns of the data (.csv, .csv.gz, "
        ".parquet): the planner measures curvature and gap on them. Default: assumed.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
Donors: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME",
        help="Devices that let the planner read their training rows, instead of "
        "--public-sample. No epsilon covers what the plan reveals of them. Default: "
        "none.",
        show_default=False,
        rich_help_panel=PLANNING,
    ),
]
SplitSeed: TypeAlias = Annotated[
    int,
    typer.Option(
        parser=parse_whole,
        help="Seed of the partition and of the 80/10/10 split on every device.",
        rich_help_panel=PLANNING,
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]


def _flags_without_type(params: list[Any]) -> list[Any]:
    """Show flags without a type: Typer would print <bool> beside them."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command; `--help` is among its flags too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _flags_without_type(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands; options that Typer adds for completion are flags too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _flags_without_type(super().get_params(ctx))


class DefaultGroup(PlainGroup):
    """A group whose command `run` may be left out: `server FOLDER` is `server run`.

    A folder or file with the name of a command is written with a path: ./list.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add `run` before anything but a command or a request for help."""
        first = args[0] if args else ""
        if args and first not in self.commands and first not in ctx.help_option_names:
            args = ["run", *args]
        return list(super().parse_args(ctx, args))


FLEET = "Fleet"
Certs: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="FOLDER",
        help="Output folder of fedbudget certs. Required.",
        show_default=False,
        rich_help_panel=FLEET,
    ),
]
BrokerHost: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Host of the broker; for a cluster, its nodes, such as one,two:8884.",
        rich_help_panel=FLEET,
    ),
]
BrokerPort: TypeAlias = Annotated[
    int,
    typer.Option(parser=parse_whole, help="The broker's port.", rich_help_panel=FLEET),
]
