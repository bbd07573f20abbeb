"""From the options that describe the data to a problem the planner can take."""

import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.cli.config import read_config
from fedbudget.cli.options import Question, ShapeQuestion
from fedbudget.data import Dataset, Schema, from_table, load
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from fedbudget.problem import Counts, Problem
from fedbudget.text import counted

NAMES = ("adult", "vehicle")
MAX_DEVICES = 10_000_000  # a few GB: beyond this, plan for a part of the fleet

# Which options describe which kind of data; any other combination is a mistake.
_BY_NAME = ("split", "num_devices", "path")
_TABLE = ("label", "device", "schema", "partition", "missing")
_SHAPE = ("samples", "dim", "classes")


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A problem, and what to call its data and its devices."""

    line: str  # the data set in one line; says SYNTHETIC where it is
    problem: Problem
    device_names: tuple[str, ...]


def read_source(question: ShapeQuestion) -> Source:
    """Return the problem that the options describe, with data or without."""
    if question.data is None:
        return _without_data(question)
    return source_of(read_data(question), question)


def read_data(question: Question) -> Dataset:
    """Return the rows that the options name."""
    if question.data is None:
        raise InvalidInputError(
            "no data to train on: name them (adult, vehicle or a table)"
        )
    if question.data not in NAMES:
        return _table(question, question.data)
    _refuse(question, (*_TABLE, *_SHAPE), question.data)
    return load(
        question.data,
        split=question.split,
        seed=question.seed,
        path=question.path,
        num_devices=question.num_devices,
    )


def source_of(dataset: Dataset, question: Question) -> Source:
    """Return the problem of a data set, as the options want it seen."""
    dissimilarity = _dissimilarity(question)
    problem = dataset.problem(
        loss=question.loss, l2=question.l2, dissimilarity=dissimilarity
    )
    stated = "" if dissimilarity is None else f" (planned for as {dissimilarity})"
    line = f"{dataset}{stated}"
    return Source(line=line, problem=problem, device_names=dataset.device_names)


def limits(question: Question, source: Source, budget: Budget) -> tuple[Budget, Prices]:
    """Return budgets and prices, one per device where a config sets single ones."""
    prices = question.prices
    if not str(question.schema).endswith(".toml"):
        return budget, prices
    config = read_config(str(question.schema))
    if not config.devices:
        return budget, prices
    names = source.device_names
    config.check_devices(names)

    def each(key: str, usual: float) -> list[float]:
        return [config.devices.get(name, {}).get(key, usual) for name in names]

    return (
        Budget(**{key: each(key, value) for key, value in vars(budget).items()}),
        Prices(**{key: each(key, value) for key, value in vars(prices).items()}),
    )


def data_options(question: Question) -> dict[str, object]:
    """Return the options that decide which rows a device holds, for a record."""
    names = _BY_NAME if question.data in NAMES else _TABLE
    options = {name: getattr(question, name) for name in names}
    if options.get("schema") is not None:  # itself: the file may change later
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotPrivateWarning)  # said already
            options["schema"] = _schema(options["schema"]).to_dict()
    return {"source": question.data, **options}


def about(source: Source) -> dict[str, object]:
    """Return what every JSON object says of its data."""
    constants = {
        name: {"value": item.value, "source": item.source, "note": item.note}
        for name, item in source.problem.constants.items()
    }
    return {"data": source.line, "constants": constants}


def parse_samples(text: str) -> Counts:
    """Read how many samples each device has.

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
            f"--samples {text!r} asks for {sum(counts)} devices, more than "
            f"{MAX_DEVICES}: plan for a part of them"
        )
    return np.repeat(np.array(sizes, dtype=np.int64), counts)


def _without_data(question: ShapeQuestion) -> Source:
    if question.samples is None:
        raise InvalidInputError(
            "nothing to plan for: name the data (adult, vehicle or a table), or "
            "describe it with --samples 1628x16 --dim 102"
        )
    _refuse(question, (*_BY_NAME, *_TABLE), "--samples")
    if question.dim is None:
        raise InvalidInputError(
            "--samples comes without --dim: say how many columns a sample has, such "
            "as --dim 102"
        )
    usual = "logistic" if question.classes in (None, 2) else "softmax"
    dissimilarity = _dissimilarity(question)
    problem = Problem(
        num_samples=parse_samples(question.samples),
        dim=question.dim,
        loss=question.loss or usual,
        num_classes=question.classes,
        l2=question.l2,
        dissimilarity="mild" if dissimilarity is None else dissimilarity,
    )
    line = (
        f"no data: {counted(problem.num_devices, 'device')}, "
        f"{int(problem.num_samples.sum())} "
        f"training samples, {problem.dim} columns"
    )
    names = tuple(map(str, range(problem.num_devices)))
    return Source(line=line, problem=problem, device_names=names)


def _table(question: Question, path: str) -> Dataset:
    if not Path(path).is_file():
        raise DataError(
            f"data {path!r} is not known: name {', '.join(NAMES)}, or a file that is "
            "there"
        )
    _refuse(question, (*_BY_NAME, *_SHAPE), "a table")
    if question.label is None:
        raise InvalidInputError(
            f"table {path!r} comes without --label: name the column to predict"
        )
    if question.device is None and question.partition is None:
        raise InvalidInputError(
            f"table {path!r} comes without --device: name the column that says whose "
            "a row is, or deal the rows out with --partition iid:16"
        )
    return from_table(
        path,
        label=question.label,
        device=question.device,
        schema=None if question.schema is None else _schema(question.schema),
        partition=question.partition,
        seed=question.seed,
        missing=question.missing or "error",  # type: ignore[arg-type]  # it checks
    )


def _schema(path: str) -> Schema:
    if path.endswith(".toml"):
        return read_config(path).schema
    try:
        return Schema.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"schema {path!r} cannot be read ({error}): give a JSON file"
        ) from None


def _refuse(question: Question, names: tuple[str, ...], source: str) -> None:
    """Raise if an option is given that means nothing for this source."""
    for name in names:
        if getattr(question, name, None) is not None:
            raise InvalidInputError(
                f"--{name.replace('_', '-')} {getattr(question, name)} does not go "
                f"with {source}: leave one of them out"
            )


def _dissimilarity(question: Question) -> str | float | None:
    text = question.dissimilarity
    return None if text is None else named_or_number(text)


def named_or_number(text: str) -> str | float:
    """Return a number if it is one; the problem checks the rest."""
    try:
        return float(text)
    except ValueError:
        return text
