"""Options of the commands: declared, shown in --help, and turned into values."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from fedbudget.budget import Prices
from fedbudget.cli.config import options_from, read_config
from fedbudget.errors import InvalidInputError

BUDGETS, RUN, OUTPUT = "Budgets of a device", "Run", "Output"
_DATA, _TABLE, _SHAPE = "Data by name", "Your own table", "No data at all"
_PRICES, _PLANNER = "Prices a device pays", "Planner"
PANELS = (BUDGETS, RUN, _DATA, _TABLE, _SHAPE, _PRICES, _PLANNER, OUTPUT)

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]
Epsilon: TypeAlias = Annotated[
    float,
    typer.Option(
        help="Privacy each device may lose in the whole run, no unit; 1 to 10 are "
        "usual.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]
Cost: TypeAlias = Annotated[
    float,
    typer.Option(
        help="What each device may spend in the whole run, in the prices' unit.",
        show_default=False,
        rich_help_panel=BUDGETS,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What every command is asked with that needs rows; each field is an option."""

    data: Annotated[
        str | None,
        typer.Argument(
            help="adult, vehicle (a SYNTHETIC stand-in), a table (.csv, .csv.gz, "
            ".parquet), or a fedbudget.toml. Required.",
            show_default=False,
            callback=options_from,
            is_eager=True,
        ),
    ] = None
    delta: Annotated[
        float,
        typer.Option(
            help="The delta of (epsilon, delta), a probability; take less than one "
            "over a device's samples.",
            rich_help_panel=BUDGETS,
        ),
    ] = 1e-4
    split: Annotated[
        str | None,
        typer.Option(
            help="How rows are dealt out. adult: by-education, iid; vehicle: "
            "by-sensor, iid. Default: the first one named.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None
    num_devices: Annotated[
        int | None,
        typer.Option(
            help="How many devices, for --split iid. Default: 16 (adult), 23 "
            "(vehicle).",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None
    path: Annotated[
        str | None,
        typer.Option(
            help="The real vehicle.mat, in place of the stand-in. Default: none.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None
    label: Annotated[
        str | None,
        typer.Option(
            help="The column to predict. Required for a table.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            help="The column that names each row's device. Default: none; then give "
            "--partition.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            help="JSON or TOML file with public bounds and categories. Default: read "
            "off the rows, which is NOT private.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None
    partition: Annotated[
        str | None,
        typer.Option(
            help="Instead of --device, deal the rows out: iid:16, size:60,40, "
            "dirichlet:16:0.3, column:NAME. Default: by --device.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None
    missing: Annotated[
        str | None,
        typer.Option(
            metavar="error|drop",
            help="What to do with rows that have empty cells. Default: error.",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None
    communication_price: Annotated[
        float,
        typer.Option(help="Cost units per round (both ways).", rich_help_panel=_PRICES),
    ] = 100
    computation_price: Annotated[
        float,
        typer.Option(help="Cost units per local step.", rich_help_panel=_PRICES),
    ] = 1
    computation_price_per_sample: Annotated[
        float,
        typer.Option(
            help="Cost units per sample in a local step, on top.",
            rich_help_panel=_PRICES,
        ),
    ] = 0
    planner: Annotated[
        str,
        typer.Option(
            metavar="joint|bound|paper",
            help="joint plans everything; bound and paper follow the paper's bound.",
            rich_help_panel=_PLANNER,
        ),
    ] = "joint"
    accountant: Annotated[
        str,
        typer.Option(
            metavar="gdp|zcdp|pld",
            help="gdp is exact; zcdp is the paper's; pld is for Poisson-sampled "
            "batches.",
            rich_help_panel=_PLANNER,
        ),
    ] = "gdp"
    weights: Annotated[
        str,
        typer.Option(
            metavar="auto|uniform|size",
            help="How much each device counts: planned, alike, or by its samples.",
            rich_help_panel=_PLANNER,
        ),
    ] = "auto"
    target: Annotated[
        str,
        typer.Option(
            metavar="uniform|size",
            help="What planned weights aim at, noise aside: every device alike, or "
            "every sample.",
            rich_help_panel=_PLANNER,
        ),
    ] = "uniform"
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples per gradient. Default: planned.",
            show_default=False,
            rich_help_panel=_PLANNER,
        ),
    ] = None
    sampling: Annotated[
        str,
        typer.Option(
            metavar="auto|fixed|cyclic",
            help="How smaller batches than all samples are drawn: fixed, anew in every "
            "step; cyclic, dealt once and taken in turn. auto: cyclic where samples "
            "have a price.",
            rich_help_panel=_PLANNER,
        ),
    ] = "auto"
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Size of a local step. Default: planned.",
            show_default=False,
            rich_help_panel=_PLANNER,
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(
            help="logistic, softmax, hinge or huber. Default: what fits the labels; "
            "logistic without data.",
            show_default=False,
            rich_help_panel=_PLANNER,
        ),
    ] = None
    l2: Annotated[
        float,
        typer.Option(
            "--l2",
            help="Weight of the L2 term, per parameter squared.",
            rich_help_panel=_PLANNER,
        ),
    ] = 0
    dissimilarity: Annotated[
        str | None,
        typer.Option(
            help="How unlike the devices are: iid, mild, strong, or a share of the "
            "initial gap; for train also measure: one noisy query, charged to every "
            "device. Default: as the rows were dealt out; mild without data.",
            show_default=False,
            rich_help_panel=_PLANNER,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            help="Seeds how rows are dealt out and split 80/10/10 on every device, and "
            "the noise and the batches of a run. Who knows it knows the noise: nothing "
            "is promised against them.",
            rich_help_panel=_PLANNER,
        ),
    ] = 0
    json: AsJson = False

    @property
    def prices(self) -> Prices:
        """What a device pays."""
        return Prices(
            communication=self.communication_price,
            computation=self.computation_price,
            computation_per_sample=self.computation_price_per_sample,
        )

    @property
    def how(self) -> dict[str, Any]:
        """How to plan: what `plan` and `frontier` both take."""
        names = ("planner", "accountant", "weights", "target", "batch_size")
        more = ("learning_rate", "sampling")
        return {name: getattr(self, name) for name in (*names, *more)}


@dataclass(frozen=True, kw_only=True)
class ShapeQuestion(Question):
    """What a command is asked with that needs no rows, only their shape."""

    data: Annotated[
        str | None,
        typer.Argument(
            help="adult, vehicle (a SYNTHETIC stand-in), a table (.csv, .csv.gz, "
            ".parquet), or a fedbudget.toml. Leave it out with --samples.",
            show_default=False,
            callback=options_from,
            is_eager=True,
        ),
    ] = None
    samples: Annotated[
        str | None,
        typer.Option(
            help="Training samples of each device: 1628x16, 100,200,300 or 51,1628x3. "
            "Default: counted in the data.",
            show_default=False,
            rich_help_panel=_SHAPE,
        ),
    ] = None
    dim: Annotated[
        int | None,
        typer.Option(
            help="Columns of a sample. Required with --samples.",
            show_default=False,
            rich_help_panel=_SHAPE,
        ),
    ] = None
    classes: Annotated[
        int | None,
        typer.Option(
            help="Number of classes, for softmax. Default: 2.",
            show_default=False,
            rich_help_panel=_SHAPE,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            help="Seeds how rows are dealt out and split 80/10/10 on every device.",
            rich_help_panel=_PLANNER,
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class SweepQuestion(Question):
    """What a sweep is asked with: several planners, and seeds of its own."""

    planner: Annotated[
        str,
        typer.Option(
            "--planners",
            metavar="joint|bound|paper",
            help="One planner, or several to compare: joint,paper.",
            rich_help_panel=_PLANNER,
        ),
    ] = "joint"
    seed: Annotated[
        int,
        typer.Option(
            help="Seeds how rows are dealt out and split on every device.",
            rich_help_panel=_PLANNER,
        ),
    ] = 0


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its question, in place of its first argument."""
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    question = first.annotation
    hints = get_type_hints(question, include_extras=True)
    shared = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default,
            annotation=hints[item.name],
        )
        for item in fields(question)
    ]

    def asked(**values: Any) -> None:
        told = {item.name: values[item.name] for item in shared}
        rest = {name: value for name, value in values.items() if name not in told}
        try:
            command(question(**told), **rest)
        except InvalidInputError as error:
            if not str(told["schema"]).endswith(".toml"):
                raise
            raise read_config(told["schema"]).located(error, values) from None

    signature = inspect.Signature(sorted([*own, *shared], key=_place))
    asked.__name__, asked.__doc__ = command.__name__, command.__doc__
    asked.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
    asked.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
    return asked


def _place(option: inspect.Parameter) -> int:
    """Return where help shows an option: its panels come in the order of PANELS."""
    (told,) = option.annotation.__metadata__
    return PANELS.index(told.rich_help_panel) if told.rich_help_panel else -1


def numbers(name: str, text: str) -> list[float]:
    """Read a list of numbers, such as ``1,2,4,10``.

    >>> numbers("--epsilons", "1, 2.5")
    [1.0, 2.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"{name} {text!r} is not a list of numbers: write them as 1,2,4,10"
        ) from None


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command; `--help` is among its flags too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all options and arguments."""
        return _plain(super().get_params(ctx))
