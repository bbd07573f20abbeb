"""Read the data options into rows and a planning problem."""

import json
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.budget import Budget, Prices, personal_values
from fedbudget.cli.config import read_config
from fedbudget.data import BUILT_IN, Dataset, Schema, from_table, load
from fedbudget.data.fourier import FeatureStep
from fedbudget.data.partitions import SEED
from fedbudget.data.tables import read_sample
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from fedbudget.planning.feature_steps import predicted_losses
from fedbudget.problem import USUAL_DISSIMILARITY, Counts, Problem
from fedbudget.text import counted

NAMES = tuple(BUILT_IN)
_NAMES = ", ".join(NAMES)
MAX_DEVICES = 10_000_000  # a few GB of memory

# The options of each kind of data; any other combination is an error.
_BY_NAME = ("split", "num_devices", "path")
_TABLE = ("label", "device", "schema", "partition", "missing", "order")
_SHAPE = ("samples", "dim", "classes")
_MEASURED = ("public_sample", "donors")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The options that name the data, or describe their shape."""

    data: str | None = None  # a built-in name, or a table's path
    split: str | None = None
    num_devices: int | None = None
    path: str | None = None
    label: str | None = None
    device: str | None = None
    schema: str | None = None  # the path of the config, if there is one
    partition: str | None = None
    missing: str | None = None
    order: str | None = None
    samples: str | None = None
    dim: int | None = None
    classes: int | None = None
    loss: str | None = None
    l2: float = 0.0
    dissimilarity: str | None = None
    public_sample: str | None = None
    donors: str | None = None
    features: str | None = None  # linear, fourier, fourier:COUNT or auto
    note: str = ""  # about the features, for the line that describes the data
    seed: int = SEED


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A problem, with the names of its data and its devices."""

    line: str  # describes the data set; says SYNTHETIC if it is
    problem: Problem
    device_names: tuple[str, ...]


def read_source(options: DataOptions) -> Source:
    """Return the problem that the options describe, with data or without."""
    if options.data is None:
        return _without_data(options)
    return source_of(read_data(options), options)


def read_data(options: DataOptions) -> Dataset:
    """Return the rows that the options name."""
    if options.data is None:
        raise InvalidInputError(f"no data to train on: name them ({_NAMES} or a table)")
    if options.data not in NAMES:
        return _table(options, options.data)
    _refuse(options, (*_TABLE, *_SHAPE), options.data)
    return load(
        options.data,
        split=options.split,
        seed=options.seed,
        path=options.path,
        num_devices=options.num_devices,
        features=options.features,
    )


def source_of(dataset: Dataset, options: DataOptions) -> Source:
    """Return the problem of a data set under the options."""
    return Source(
        line=data_line(dataset, options),
        problem=problem_of(dataset, options),
        device_names=dataset.device_names,
    )


def data_line(dataset: Dataset, options: DataOptions) -> str:
    """Return the line that describes the data."""
    dissimilarity = _dissimilarity(options)
    stated = "" if dissimilarity is None else f" (planned as {dissimilarity})"
    return f"{dataset}{stated}{options.note}"


def problem_of(dataset: Dataset, options: DataOptions) -> Problem:
    """Return the shape of the rows under the options."""
    if options.public_sample is not None:
        _refuse(options, ("donors",), "--public-sample")
    donors = options.donors.split(",") if options.donors else []
    problem = dataset.problem(
        loss=options.loss,
        l2=options.l2,
        dissimilarity=_dissimilarity(options),
        donors=[name.strip() for name in donors],
    )
    if options.public_sample is None:
        return problem
    return _with_sample(problem, dataset, options)


def before_features(options: DataOptions) -> tuple[Dataset, FeatureStep]:
    """Return the rows without a feature step, and the step that is to follow."""
    step: FeatureStep = options.features
    if step is None and options.schema is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotPrivateWarning)  # shown with the rows
            step = _schema(options.schema).expansion
    return read_data(replace(options, features="linear")), step


def with_features(
    options: DataOptions, budget: Budget, prices: Prices, **method: Any
) -> DataOptions:
    """Replace features ``auto`` by the feature step of the lowest predicted loss."""
    if options.features != "auto":
        return options
    options = replace(options, features="linear")
    dataset = read_data(options)
    devices, sizes = dataset.device_names, dataset.num_samples
    budget, prices = limits(options, devices, sizes, budget, prices)
    names = ("linear",) if dataset.schema is None else ("linear", "fourier")
    problems = {
        name: dataset.problem(
            loss=options.loss,
            l2=options.l2,
            dissimilarity=_dissimilarity(options),
            features=None if dataset.schema is None else name,
        )
        for name in names
    }
    losses = predicted_losses(problems, budget, prices, **method)
    shown = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items())
    best = next(iter(losses))
    note = f", {best} features (predicted loss: {shown})"
    return replace(options, features=best, note=note)


def _with_sample(problem: Problem, dataset: Dataset, options: DataOptions) -> Problem:
    """Return the problem with the modes of a file of public rows."""
    path = str(options.public_sample)
    if dataset.schema is None:
        raise InvalidInputError(
            f"--public-sample {path} does not go with {dataset.name}, whose rows have "
            "no schema: leave it out, or use Problem.with_public_sample",
            argument="public_sample",
        )
    if not Path(path).is_file():
        raise DataError(
            f"public sample {path!r} is not a file: name a table of public rows",
            argument="public_sample",
        )
    try:
        return problem.with_public_sample(*read_sample(path, dataset.schema))
    except InvalidInputError as error:
        raise DataError(
            f"public sample {path!r}: {error}", argument="public_sample"
        ) from error


def limits(
    options: DataOptions,
    names: tuple[str, ...],
    num_samples: Counts,
    budget: Budget,
    prices: Prices,
) -> tuple[Budget, Prices]:
    """Return budgets and prices, per device if the config sets some per device.

    A delta that was not given is planned.
    """
    budget = budget.for_rows(num_samples)
    if not str(options.schema).endswith(".toml"):
        return budget, prices
    config = read_config(str(options.schema))
    if not config.devices:
        return budget, prices
    config.check_devices(names)
    secure = any("secure_round" in values for values in config.devices.values())
    if secure and prices.secure_round is None:  # of all other devices
        prices = replace(prices, secure_round=prices.communication)

    def personal(owner: Budget | Prices) -> dict[str, Any]:
        return {
            key: [config.devices.get(name, {}).get(key, value) for name in names]
            for key, value in personal_values(owner).items()
        }

    return replace(budget, **personal(budget)), replace(prices, **personal(prices))


def rows_record(options: DataOptions) -> dict[str, object]:
    """Return the options that decide which rows a device holds, for a record."""
    names = _BY_NAME if options.data in NAMES else _TABLE
    record = {"source": options.data} | {n: getattr(options, n) for n in names}
    record["features"] = options.features
    if options.data not in NAMES and options.schema is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotPrivateWarning)  # shown already
            # The schema, not its path: the file may change later.
            record["schema"] = _schema(options.schema).to_dict()
    return record


def about(source: Source) -> dict[str, object]:
    """Return the description of the data for JSON output."""
    constants = {
        name: {"value": item.value, "source": item.source, "note": item.note}
        for name, item in source.problem.constants.items()
    }
    return {"data": source.line, "constants": constants}


def parse_samples(text: str) -> Counts:
    """Read the number of samples of each device.

    >>> parse_samples("51,1628x3").tolist()
    [51, 1628, 1628, 1628]
    """
    matches = [
        re.fullmatch(r"\s*(\d{1,15})(?:x(\d{1,15}))?\s*", part)
        for part in text.split(",")
    ]
    pairs = [(int(m[1]), int(m[2] or 1)) for m in matches if m is not None]
    if len(pairs) < len(matches) or any(count == 0 for _, count in pairs):
        raise InvalidInputError(
            f"--samples {text!r} is not a list of counts: write 1628x16 for 16 devices "
            "with 1628 samples each, or 100,200,300, or 51,1628x3"
        )
    sizes, counts = zip(*pairs, strict=True)
    if sum(counts) > MAX_DEVICES:
        raise InvalidInputError(
            f"--samples {text!r} has {sum(counts)} devices, more than {MAX_DEVICES}: "
            "plan for a part of them"
        )
    return np.repeat(np.array(sizes, dtype=np.int64), counts)


def _without_data(options: DataOptions) -> Source:
    if options.samples is None:
        raise InvalidInputError(
            f"nothing to plan for: name the data ({_NAMES} or a table), or "
            "describe it with --samples 1628x16 --dim 102"
        )
    _refuse(options, (*_BY_NAME, *_TABLE, *_MEASURED, "features"), "--samples")
    if options.dim is None:
        raise InvalidInputError(
            "--samples needs --dim: give the number of feature columns, such as "
            "--dim 102"
        )
    default = "logistic" if options.classes in (None, 2) else "softmax"
    dissimilarity = _dissimilarity(options)
    problem = Problem(
        num_samples=parse_samples(options.samples),
        dim=options.dim,
        loss=options.loss or default,
        num_classes=options.classes,
        l2=options.l2,
        dissimilarity=USUAL_DISSIMILARITY if dissimilarity is None else dissimilarity,
    )
    line = (
        f"no data: {counted(problem.num_devices, 'device')}, "
        f"{int(problem.num_samples.sum())} "
        f"training samples, {problem.dim} columns"
    )
    names = tuple(map(str, range(problem.num_devices)))
    return Source(line=line, problem=problem, device_names=names)


def _table(options: DataOptions, path: str) -> Dataset:
    if not Path(path).is_file():
        raise DataError(
            f"data {path!r} is not known: name {_NAMES}, or an existing file",
            argument="data",
        )
    _refuse(options, (*_BY_NAME, *_SHAPE), "a table")
    if options.label is None:
        raise InvalidInputError(
            f"table {path!r} needs --label: name the column to predict"
        )
    if options.device is None and options.partition is None:
        raise InvalidInputError(
            f"table {path!r} needs --device: name the column that names each row's "
            "device, or partition the rows with --partition iid:16",
            argument="data",
        )
    data = from_table(
        path,
        label=options.label,
        device=options.device,
        schema=None if options.schema is None else _schema(options.schema),
        partition=options.partition,
        seed=options.seed,
        missing=options.missing or "error",  # type: ignore[arg-type]  # checked there
        features=options.features,
        order=options.order,
    )
    if str(options.schema).endswith(".toml"):
        more = read_config(str(options.schema)).caveats
        return replace(data, caveats=(*data.caveats, *more))
    return data


def _schema(path: str) -> Schema:
    if path.endswith(".toml"):
        return read_config(path).schema
    try:
        return Schema.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"schema {path!r} cannot be read ({error}): give a JSON file"
        ) from None


def _refuse(options: DataOptions, names: tuple[str, ...], source: str) -> None:
    """Raise if an option does not apply to this source."""
    for name in names:
        if getattr(options, name, None) is not None:
            raise InvalidInputError(
                f"--{name.replace('_', '-')} {getattr(options, name)} does not go "
                f"with {source}: leave one of them out"
            )


def _dissimilarity(options: DataOptions) -> str | float | None:
    text = options.dissimilarity
    return None if text is None else named_or_number(text)


def named_or_number(text: str) -> str | float:
    """Return the number, or the text, which the problem checks."""
    try:
        return float(text)
    except ValueError:
        return text
