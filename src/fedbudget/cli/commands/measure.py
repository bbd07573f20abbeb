"""`fedbudget measure`: what a step and a round cost on this device."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbudget.cli.config import Config, read_config, write_prices
from fedbudget.cli.options import OUTPUT, AsJson, parse_number, parse_whole
from fedbudget.cli.output import print_json, progress
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss, loss_named

if TYPE_CHECKING:
    from fedbudget.fleet.transport.address import BrokerAddress

_WORK, _ENERGY, _LINK = "Work", "Energy", "Network"


def measure(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A fedbudget.toml, for its largest device. Default: none; then "
            "--samples and --dim.",
            show_default=False,
        ),
    ] = None,
    *,
    samples: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Rows in a local step. Default: those of the config's largest device.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Columns of a row. Default: those of the config.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="logistic, softmax, hinge or huber. Default: what fits the config's "
            "labels, or logistic.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Number of classes, for softmax. Default: 2, or the config's.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="How long to repeat steps, and then rounds.",
            rich_help_panel=_WORK,
        ),
    ] = 1.0,
    watts: Annotated[
        float | None,
        typer.Option(
            parser=parse_number,
            help="What the device draws while it works, in watts. Default: read from "
            "the processor (RAPL), where that is allowed.",
            show_default=False,
            rich_help_panel=_ENERGY,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="seconds|joules",
            help="Of the prices. Default: joules where they are known, else seconds.",
            show_default=False,
            rich_help_panel=_ENERGY,
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="The fleet's broker, to send a round's messages through; port 8883 "
            "unless given. Default: none, TCP on this machine.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            help="The fleet's authority, ca.pem: turns on TLS. Default: none.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            help="The certificate for measuring, measure.pem. Default: none.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The key of that certificate, measure.key. Default: none.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write the prices into the config.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what a step and a round cost on this device: its prices.

    Steps are those of fedbudget device, ten a round; a round is its messages.
    """
    from fedbudget.metering import measure as measured_here

    if write and config is None:
        raise InvalidInputError("--write needs a file to write to: name the config")
    with progress("reading the config"):
        read = None if config is None else read_config(config)
        work = _work(read, samples=samples, dim=dim, loss=loss, classes=classes)
    address = _address(broker, ca=ca, certificate=certificate, key=key)
    with progress("timing local steps and rounds"):
        found = measured_here(**work, seconds=seconds, watts=watts, broker=address)
    unit = found.units[-1] if unit is None else unit
    communication, computation = found.prices(unit)
    prices = {
        "communication": (communication, f"{unit} for a round ({found.link})"),
        "computation": (
            computation,
            f"{unit} for a step of {work['num_samples']} rows, {found.tau} a round",
        ),
        "computation_per_sample": (0.0, "the step's price holds all of it"),
    }
    if write and config is not None:
        write_prices(config, prices)
    if as_json:
        print_json(_plain(found, unit, work))
        return
    from fedbudget.cli.views.measure import show_measured

    show_measured(found, prices, unit=unit, written=config if write else None)


def _address(broker: str | None, **files: str | None) -> "BrokerAddress | None":
    """Return the broker to measure through, if one is named, and our identity there."""
    from fedbudget.fleet.transport.address import BrokerAddress
    from fedbudget.fleet.transport.certificates import Identity

    given = {name: Path(file) for name, file in files.items() if file is not None}
    if given and broker is None:
        raise InvalidInputError(f"--{next(iter(given))} needs a broker: name --broker")
    if broker is None:
        return None
    if given and (lacking := [name for name in files if name not in given]):
        raise InvalidInputError(
            f"--{lacking[0]} is missing: TLS needs --ca, --certificate and --key"
        )
    return BrokerAddress(host=broker, identity=Identity(**given) if given else None)


def _work(config: Config | None, **given: Any) -> dict[str, Any]:
    """Return the size of a step: the config's, but for what the options say."""
    known = {} if config is None else _shape(config)
    known |= {name: value for name, value in given.items() if value is not None}
    if "samples" not in known or "dim" not in known:
        raise InvalidInputError(
            "nothing to measure: name a fedbudget.toml, or say how large a step is, "
            "--samples 1628 --dim 102"
        )
    classes = known.get("classes")
    usual = "logistic" if classes in (None, 2) else "softmax"
    loss: Loss = loss_named(known.get("loss", usual), num_classes=classes)
    return {"loss": loss, "num_samples": known["samples"], "dim": known["dim"]}


def _shape(config: Config) -> dict[str, Any]:
    """Return the shape of the config's data; its rows are counted, not used."""
    from fedbudget.cli.sources import DataOptions, read_data

    names = {item.name for item in fields(DataOptions)}
    options = {name: held for name, held in config.options.items() if name in names}
    try:
        data = read_data(DataOptions(data=config.table, **options))
        problem = data.problem(loss=options.get("loss"))
    except InvalidInputError as error:
        raise config.located(error, options) from None
    return {
        "samples": int(problem.num_samples.max()),
        "dim": problem.dim,
        "loss": problem.model.name,
        "classes": data.num_classes,
    }


def _plain(found: Any, unit: str, work: dict[str, Any]) -> dict[str, Any]:
    communication, computation = found.prices(unit)
    return {
        "unit": unit,
        "communication": communication,
        "computation": computation,
        "step": vars(found.step),
        "round": vars(found.round),
        "order_bytes": found.order_bytes,
        "reply_bytes": found.reply_bytes,
        "link": found.link,
        "energy": found.energy,
        "samples": work["num_samples"],
        "dim": work["dim"],
        "loss": work["loss"].name,
        "tau": found.tau,
    }
