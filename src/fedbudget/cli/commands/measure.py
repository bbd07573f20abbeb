"""`fedbudget measure`: the cost of a step and a round on this device."""

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
            help="A fedbudget.toml, which gives the size of a step. Default: none; "
            "then use --samples and --dim.",
            show_default=False,
        ),
    ] = None,
    *,
    samples: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Samples in a local step. Default: those of the config's largest "
            "device.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Number of feature columns. Default: the config's.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="logistic, softmax, hinge, smooth_hinge or huber. Default: the one "
            "that fits the config's labels, or logistic.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            help="Number of classes, for softmax. Default: the config's, or 2.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            parser=parse_number,
            help="Seconds to repeat steps, and again to repeat rounds.",
            rich_help_panel=_WORK,
        ),
    ] = 1.0,
    sum_devices: Annotated[
        int | None,
        typer.Option(
            parser=parse_whole,
            metavar="COUNT",
            help="Devices in a secure sum, to measure a round of one, too. Default: "
            "all of the config's, if its trust is sum.",
            show_default=False,
            rich_help_panel=_WORK,
        ),
    ] = None,
    watts: Annotated[
        float | None,
        typer.Option(
            parser=parse_number,
            help="Power of the device while it computes, in watts. Default: read from "
            "the processor (RAPL), if readable.",
            show_default=False,
            rich_help_panel=_ENERGY,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="seconds|joules",
            help="Unit of the prices. Default: joules if measured, else seconds.",
            show_default=False,
            rich_help_panel=_ENERGY,
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="The fleet's MQTT broker, to send the messages of a round through; "
            "port 8883 if not given. Default: none; then TCP on this machine.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            help="Certificate of the fleet's authority, ca.pem; turns on TLS. Default: "
            "none.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            help="Client certificate, measure.pem. Default: none.",
            show_default=False,
            rich_help_panel=_LINK,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Private key of the certificate, measure.key. Default: none.",
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
    """Measure the cost of a local step and of a round on this device.

    A step is one of fedbudget device, ten per round; a round is its messages. A round
    of a secure sum (--sum-devices) also has the cryptography with all peers.
    """
    from fedbudget.metering import measure as measure_work

    if write and config is None:
        raise InvalidInputError("--write needs a file to write to: name the config")
    with progress("reading the config"):
        read = None if config is None else read_config(config)
        sizes = {"samples": samples, "dim": dim, "sum_devices": sum_devices}
        work = _work(read, **sizes, loss=loss, classes=classes)
    address = _address(broker, ca=ca, certificate=certificate, key=key)
    with progress("timing local steps and rounds"):
        measured = measure_work(**work, seconds=seconds, watts=watts, broker=address)
    unit = measured.units[-1] if unit is None else unit
    communication, computation = measured.prices(unit)
    prices = {
        "communication": (communication, f"{unit} for a round ({measured.link})"),
        "computation": (
            computation,
            f"{unit} for a step of {work['num_samples']} rows, "
            f"{measured.tau} per round",
        ),
        "computation_per_sample": (0.0, "included in the price of a step"),
    }
    secure = measured.secure_price(unit)
    if secure is not None:
        prices["secure_round"] = (
            secure,
            f"{unit} for a round of a secure sum of {work['sum_devices']} devices",
        )
    if write and config is not None:
        write_prices(config, prices)
    if as_json:
        print_json(_plain(measured, unit, work))
        return
    from fedbudget.cli.views.measure import show_measured

    show_measured(measured, prices, unit=unit, written=config if write else None)


def _address(broker: str | None, **files: str | None) -> "BrokerAddress | None":
    """Return the address of the broker, with our identity, if one is named."""
    from fedbudget.fleet.transport.address import BrokerAddress
    from fedbudget.fleet.transport.certificates import Identity

    paths = {name: Path(file) for name, file in files.items() if file is not None}
    if paths and broker is None:
        raise InvalidInputError(f"--{next(iter(paths))} needs a broker: add --broker")
    if broker is None:
        return None
    if paths and (missing := [name for name in files if name not in paths]):
        raise InvalidInputError(
            f"--{missing[0]} is missing: TLS needs --ca, --certificate and --key"
        )
    return BrokerAddress(host=broker, identity=Identity(**paths) if paths else None)


def _work(config: Config | None, **options: Any) -> dict[str, Any]:
    """Return the size of a step: the config's, overridden by the options."""
    shape = {} if config is None else _shape(config)
    shape |= {name: value for name, value in options.items() if value is not None}
    if "samples" not in shape or "dim" not in shape:
        raise InvalidInputError(
            "nothing to measure: name a fedbudget.toml, or give the size of a step, "
            "such as --samples 1628 --dim 102"
        )
    classes = shape.get("classes")
    default = "logistic" if classes in (None, 2) else "softmax"
    loss: Loss = loss_named(shape.get("loss", default), num_classes=classes)
    return {
        "loss": loss,
        "num_samples": shape["samples"],
        "dim": shape["dim"],
        "sum_devices": shape.get("sum_devices"),
    }


def _shape(config: Config) -> dict[str, Any]:
    """Return the shape of the config's data; its rows are counted, not used."""
    from fedbudget.cli.sources import DataOptions, read_data

    names = {item.name for item in fields(DataOptions)}
    options = {name: value for name, value in config.options.items() if name in names}
    try:
        data = read_data(DataOptions(data=config.table, **options))
        problem = data.problem(loss=options.get("loss"))
    except InvalidInputError as error:
        raise config.located(error, options) from None
    shape = {
        "samples": int(problem.num_samples.max()),
        "dim": problem.dim,
        "loss": problem.model.name,
        "classes": data.num_classes,
    }
    if config.options.get("trust") == "sum":
        shape["sum_devices"] = data.num_devices
    return shape


def _plain(measured: Any, unit: str, work: dict[str, Any]) -> dict[str, Any]:
    communication, computation = measured.prices(unit)
    return {
        "unit": unit,
        "communication": communication,
        "computation": computation,
        "step": vars(measured.step),
        "round": vars(measured.round),
        "order_bytes": measured.order_bytes,
        "reply_bytes": measured.reply_bytes,
        "link": measured.link,
        "energy": measured.energy,
        "samples": work["num_samples"],
        "dim": work["dim"],
        "loss": work["loss"].name,
        "tau": measured.tau,
        "secure_round": measured.secure_price(unit),
        "secure": None
        if measured.secure is None
        else vars(measured.secure) | {"meter": vars(measured.secure.meter)},
    }
