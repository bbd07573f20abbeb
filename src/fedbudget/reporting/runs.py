"""What a run folder holds, read back; nothing here needs the run or its rows."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedbudget.checks import Array
from fedbudget.data.messages import counted
from fedbudget.errors import InvalidInputError, RecordError
from fedbudget.planning import Plan
from fedbudget.record import from_row, read_rounds


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


def _check(about: object, rounds: list[Any]) -> None:
    """Raise a ValueError unless the files hold what a run has written."""
    if not isinstance(about, Mapping):
        raise ValueError("about.json holds no names and values")
    needed = {"round", "epsilon", "cost", "not_private"}
    for number, row in enumerate(rounds, 1):
        if not isinstance(row, Mapping) or not needed <= set(row):
            raise ValueError(f"line {number} of rounds.jsonl is no row of a run")


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
    try:
        plan = Plan.from_dict(json.loads((folder / "plan.json").read_text()))
        about = json.loads((folder / "about.json").read_text())
        theta = None
        if (folder / "model.npz").exists():
            with np.load(folder / "model.npz") as file:
                theta = np.asarray(file["theta"], dtype=np.float64)
        rounds = read_rounds(folder)
        _check(about, rounds)
    except (
        OSError,
        ValueError,
        LookupError,
        EOFError,
        BadZipFile,
        InvalidInputError,
    ) as error:
        raise RecordError(f"{folder} cannot be read as a run: {error}") from None
    return RecordedRun(path=folder, plan=plan, about=about, rounds=rounds, theta=theta)
