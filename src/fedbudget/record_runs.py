"""What a run folder holds, read back; nothing here needs the run or its rows."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import RecordError
from fedbudget.planning import Plan
from fedbudget.record import from_row, read_rounds
from fedbudget.text import counted


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """A run as its folder tells it."""

    path: Path
    plan: Plan
    about: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    theta: Array | None  # None: the run is not finished

    @property
    def finished(self) -> bool:
        """Whether the plan was carried out to its end."""
        return self.theta is not None

    @property
    def data_line(self) -> str:
        """The data set in one line."""
        if "fleet" in self.about:
            count = self.plan.num_devices
            keep = "that keeps its" if count == 1 else "that keep their"
            held = f"{counted(count, 'device')} {keep} rows"
            return f"fleet {self.about['fleet']}: {held}"
        return str(self.about.get("data", "data of which the folder says nothing"))

    @property
    def device_names(self) -> tuple[str, ...]:
        """What devices are called; by their numbers where the folder does not say."""
        told = self.about.get("devices")
        if isinstance(told, list) and len(told) == self.plan.num_devices:
            return tuple(map(str, told))
        return tuple(map(str, range(self.plan.num_devices)))

    @property
    def metric(self) -> str | None:
        """What the run is judged by; None where nothing was measured."""
        measured = self.rounds[-1].get("not_private", {}) if self.rounds else {}
        for name in ("test_accuracy", "test_loss", "train_loss"):
            if name in measured:
                return name
        return None

    def series(self, name: str) -> Array:
        """Return a measured number after every round."""
        return np.array([row["not_private"][name] for row in self.rounds])

    def spent(self, name: str) -> Array:
        """Return epsilon or cost of the device that spent most, after every round."""
        each = [from_row(row[name]).max() for row in self.rounds]
        return np.array(each, dtype=np.float64)

    def spent_by_device(self, name: str) -> Array | None:
        """Return what each device spent; None where only the range was kept."""
        kept = from_row(self.rounds[-1][name] if self.rounds else [])
        return kept if len(kept) == self.plan.num_devices else None


def _check(rounds: list[Any], lines: int, planned: int | None) -> None:
    """Raise a ValueError unless the rows are those that a run has written.

    Only the last line of a run that was killed may be torn; a finished run has a row
    for every round that was `planned`.
    """
    needed = {"round", "epsilon", "cost", "not_private"}
    for number, row in enumerate(rounds, 1):
        if not isinstance(row, Mapping) or not needed <= set(row):
            raise ValueError(f"line {number} is no row of a run")
    if lines > len(rounds) + 1:
        raise ValueError(f"line {len(rounds) + 1} is no row of a run")
    if planned is not None and len(rounds) < planned:
        raise ValueError(f"it holds {len(rounds)} of the {planned} rounds")


def read_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Read a run folder, finished or not.

    Raises:
        RecordError: It is not there, or not a run folder, or damaged.
    """
    folder = Path(path)
    if not (folder / "plan.json").is_file():
        raise RecordError(
            f"{folder} is not a run folder, it has no plan.json: name one that "
            "fedbudget train --out has written"
        )
    with _reading(folder / "plan.json") as place:
        plan = Plan.from_dict(json.loads(place.read_text()))
    with _reading(folder / "about.json") as place:
        about = json.loads(place.read_text())
        if not isinstance(about, Mapping):
            raise ValueError("it holds no names and values")
    theta = None
    if (folder / "model.npz").exists():
        with _reading(folder / "model.npz") as place, np.load(place) as file:
            theta = np.asarray(file["theta"], dtype=np.float64)
    with _reading(folder / "rounds.jsonl") as place:
        rounds = read_rounds(folder)
        lines = len(place.read_text().splitlines()) if place.exists() else 0
        _check(rounds, lines, None if theta is None else plan.rounds)
    return RecordedRun(path=folder, plan=plan, about=about, rounds=rounds, theta=theta)


@contextmanager
def _reading(place: Path) -> Iterator[Path]:
    """Say which file of a run is damaged, and what to do about it."""
    try:
        yield place
    except (OSError, ValueError, LookupError, EOFError, BadZipFile) as error:
        # numpy would have its readers load what it takes for a pickle.
        why = "not what was written" if place.suffix == ".npz" else str(error)
        raise RecordError(
            f"{place.parent} cannot be read as a run, its {place.name} is damaged "
            f"({why}): bring the file back from a copy, or train again into a new "
            "folder"
        ) from None
