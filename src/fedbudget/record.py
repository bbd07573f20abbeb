"""The run folder: everything a reader needs, and everything a resumed run needs.

    plan.json      the plan
    about.json     who ran what: versions, seed, data, privacy statement
    rounds.jsonl   one row per round
    state.npz      the server's state after the last complete round, and what each
                   device has spent by then (epsilon, cost)
    model.npz      the released model (theta), and what each device has spent (epsilon,
                   cost); its presence says that the run is finished

A row tells what each device has spent as well, but of more than 100 devices only the
least, the median and the most.

Losses and accuracies stand under "not_private" in a row: they were read off private
rows for the reader of a simulation, and no guarantee covers them.

Every file is written beside its place and moved there, so that a run that is killed at
any moment leaves either the old or the new one. A row is final once the state that goes
with it is there; a row without it is dropped on resuming.

`read_run` reads a folder back; it needs neither the devices nor their rows.
"""

import fcntl
import json
import os
import platform
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import RecordError
from fedbudget.files import refusing, whole_file
from fedbudget.planning import Plan
from fedbudget.text import counted

# What a run leaves that stopped before its plan was written: nothing to resume.
_BEFORE_PLAN = {"about.json", ".about.json.partial", ".plan.json.partial"}
_RESUME = "make room or choose another folder; what was written before can be resumed"
_PACKAGES = ("fedbudget", "numpy", "numba", "scipy", "dp-accounting")


class Record:
    """A run folder that is being written, or was interrupted."""

    def __init__(
        self, path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(path)
        self._about = dict(about or {})
        self._hold: _Hold | None = None

    def open(
        self, plan: dict[str, Any], *, same: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]] | None, list[dict[str, Any]]]:
        """Start a folder, or return the state and the rows of an interrupted run.

        Args:
            plan: Of the run, as plain values.
            same: What else the numbers of the run depend on, such as its seed. It is
                written down with what the record is `about`; a run that goes on must
                have the same.

        Raises:
            RecordError: The folder holds a finished run, another plan, another seed or
                something else altogether, or another process is writing to it. Nothing
                in it is changed.
        """
        self._about |= same or {}
        about = {**self._about, "privacy": plan["privacy"], "versions": versions()}
        with refusing(self.path, _RESUME):
            if not self.path.exists():
                self.path.mkdir(parents=True, exist_ok=True)
            self._hold = _hold(self.path)
            there = set(os.listdir(self.path))
        if there <= _BEFORE_PLAN:
            self._write("about.json", _dump(about))
            self._write("plan.json", _dump(plan))
            return None, []
        self._check_same(plan)
        if not (self.path / "state.npz").exists():
            if (self.path / "rounds.jsonl").exists():
                self._write("rounds.jsonl", "")  # the first row, without its state
            return None, []
        try:
            with np.load(self.path / "state.npz") as file:
                state = {name: file[name] for name in file.files}
            rows = read_rounds(self.path)[: int(state["rounds_done"])]
        except (OSError, ValueError, LookupError, EOFError, BadZipFile) as error:
            raise RecordError(
                f"{self.path} cannot be resumed, its state.npz is damaged ({error}): "
                "choose another folder"
            ) from error
        self._write("rounds.jsonl", "".join(_line(row) for row in rows))
        return state, rows

    def add_round(
        self, row: Mapping[str, Any], state: Mapping[str, NDArray[Any]]
    ) -> None:
        """Write a row, then the state that makes it final."""
        place = self.path / "rounds.jsonl"
        with refusing(place, _RESUME), open(place, "a") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())
        self._save("state.npz", **state)

    def finish(self, theta: NDArray[Any], **spent: NDArray[Any] | None) -> None:
        """Write the released model and what each device spent: the run is over."""
        known = {name: each for name, each in spent.items() if each is not None}
        self._save("model.npz", theta=theta, **known)
        self._hold = None

    def _check_same(self, plan: dict[str, Any]) -> None:
        if (self.path / "model.npz").exists():
            raise RecordError(
                f"{self.path} already holds a finished run: choose another folder, or "
                "remove it"
            )
        try:
            old_plan = json.loads((self.path / "plan.json").read_text())
            old_about = json.loads((self.path / "about.json").read_text())
        except (OSError, ValueError):
            raise RecordError(
                f"{self.path} is not empty and holds no run: choose another folder"
            ) from None
        if old_plan != json.loads(_dump(plan)):
            raise RecordError(
                f"{self.path} holds a run of another plan: choose another folder, or "
                "ask for that plan to resume it"
            )
        if tail := old_about.get("tail_average"):
            raise RecordError(
                f"{self.path} holds a run with tail_average {tail}, which has been "
                "removed: choose another folder, or finish it with the version that "
                "began it"
            )
        for name, value in self._about.items():
            if old_about.get(name) != json.loads(_dump(value)):
                raise RecordError(
                    f"{self.path} holds a run with {name} {old_about.get(name)!r}, not "
                    f"{value!r}: choose another folder, or ask for the same to resume"
                )

    def _write(self, name: str, text: str) -> None:
        with whole_file(self.path / name, remedy=_RESUME) as file:
            file.write(text)

    def _save(self, name: str, **arrays: Any) -> None:
        with whole_file(self.path / name, "wb", remedy=_RESUME) as file:
            np.savez(file, **arrays)


class _Hold:
    """A folder that this process writes to, until nothing refers to this any more.

    The folder itself is locked, not a file in it: nothing is left behind, also not by
    a process that is killed.
    """

    def __init__(self, handle: int) -> None:
        weakref.finalize(self, os.close, handle)


# One for each folder, by device and inode: a process does not keep itself off.
_held: weakref.WeakValueDictionary[tuple[int, int], _Hold] = (
    weakref.WeakValueDictionary()
)


def _hold(path: Path) -> _Hold:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    found = os.fstat(handle)
    held = _held.get((found.st_dev, found.st_ino))
    if held is not None:
        os.close(handle)
        return held
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RecordError(
            f"{path}: another process is writing to it: wait for it, or choose another "
            "folder"
        ) from None
    except OSError:
        pass  # some network file systems lock no folders: go on without
    held = _held[found.st_dev, found.st_ino] = _Hold(handle)
    return held


def read_rounds(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the complete rows of a run folder; a torn last line is left out."""
    file = Path(path) / "rounds.jsonl"
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def to_row(values: Array) -> list[float | None] | dict[str, float | None]:
    """Return one value per device, or their range where there are many devices."""
    # JSON has no infinity: None is an epsilon that nothing bounds.
    if len(values) <= 100:
        return [float(x) if np.isfinite(x) else None for x in values]
    ends = {"min": values.min(), "median": np.median(values), "max": values.max()}
    return {n: float(x) if np.isfinite(x) else None for n, x in ends.items()}


def from_row(values: Any) -> Array:
    """Return what `to_row` kept: a value per device, or least, median and most."""
    kept = values.values() if isinstance(values, Mapping) else values
    return np.array([np.inf if x is None else x for x in kept], dtype=np.float64)


def largest(values: Any) -> float | None:
    """Return the most that any device spent, from a row; None is without bound.

    >>> largest([1.0, 2.5]), largest({"min": 1.0, "max": 3.0}), largest([None, 1.0])
    (2.5, 3.0, None)
    """
    most = float(from_row(values).max())
    return most if np.isfinite(most) else None


def versions() -> dict[str, str]:
    """Return what a run depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _dump(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


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
