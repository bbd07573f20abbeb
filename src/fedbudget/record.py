"""The run folder: everything a reader needs, and everything a resumed run needs.

    plan.json      the plan
    about.json     who ran what: versions, seed, data, privacy statement
    rounds.jsonl   one row per round
    devices.bin    of more than 100 devices, what each has spent after every round
    state.npz      the server's state after the last complete round
    model.npz      the released model (theta), and what each device has spent (epsilon,
                   cost); its presence says that the run is finished

A row of up to 100 devices tells what each of them has spent so far. Of more, it tells
the least, the median and the most, and the first 100 that were silent or refused; the
rest is in devices.bin. That file has one record per round, and no header. With M
devices, a record is, little-endian and without gaps:

    round      int64          its number
    epsilon    float64 x M    spent so far, at the plan's delta; inf is without bound
    cost       float64 x M    spent so far
    missing    uint8 x M      1: asked and silent; 2: refused; 0: neither

Losses and accuracies stand under "not_private" in a row: they were read off private
rows for the reader of a simulation, and no guarantee covers them.

A round is appended to devices.bin, then to rounds.jsonl; the state that is written next
makes it final. On resuming, whatever goes beyond the state is cut off. All other files
are written beside their place and moved there, so that a run that is killed at any
moment leaves either the old or the new one.

Folders of many devices that were written before there was a devices.bin can be read:
their last round is exact, and in those before every device counts as the one that spent
most.

`read_run` reads a folder back; it needs neither the devices nor their rows.
"""

import fcntl
import json
import os
import platform
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
FEW = 100  # devices whose numbers a row holds one by one
_SILENT, _REFUSED = 1, 2  # in devices.bin
# What reading a file raises that is not what was written.
_DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(EOFError, BadZipFile),
)
_PACKAGES = ("fedbudget", "numpy", "numba", "scipy", "dp-accounting")


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One round of a run: who answered, and what each device has spent by its end."""

    number: int  # from 1
    steps: int  # local steps of this run so far
    answered: int  # how many devices
    silent: tuple[int, ...] = ()  # devices that were asked and said nothing
    refused: Mapping[int, str] = field(default_factory=dict)  # device -> its reason
    # Spent so far by each device; shape (M,). Epsilon is at the plan's delta, and
    # infinite where nothing bounds it.
    epsilon: Array
    cost: Array
    # Losses and accuracies, read off private rows for the reader of a simulation.
    measured: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the round as a row of rounds.jsonl: plain values, cut at 100 devices.

        >>> spent = {"epsilon": np.array([0.5]), "cost": np.array([9.0])}
        >>> Round(number=1, steps=9, answered=1, **spent).to_dict()["epsilon"]
        [0.5]
        """
        refused = list(self.refused.items())[:FEW]
        return {
            "round": self.number,
            "steps": self.steps,
            "answered": self.answered,
            "silent": list(self.silent[:FEW]),
            "refused": {str(m): why for m, why in refused},
            "epsilon": to_row(self.epsilon),
            "cost": to_row(self.cost),
            "not_private": dict(self.measured),
        }


class Record:
    """A run folder that is being written, or was interrupted."""

    def __init__(
        self, path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(path)
        self._about = dict(about or {})
        self._hold: _Hold | None = None

    def open(
        self, plan: Plan, *, same: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]] | None, list[Round]]:
        """Start a folder, or return the state and the rounds of an interrupted run.

        Args:
            plan: Of the run.
            same: What else the numbers of the run depend on, such as its seed. It is
                written down with what the record is `about`; a run that goes on must
                have the same.

        Raises:
            RecordError: The folder holds a finished run, another plan, another seed or
                something else altogether, or another process is writing to it. Nothing
                in it is changed.
        """
        self._about |= same or {}
        promise = {"privacy": str(plan.privacy), "versions": versions()}
        with refusing(self.path, _RESUME):
            if not self.path.exists():
                self.path.mkdir(parents=True, exist_ok=True)
            self._hold = _hold(self.path)
            names = set(os.listdir(self.path))
        if names <= _BEFORE_PLAN:
            self._write("about.json", _dump(self._about | promise))
            self._write("plan.json", _dump(plan.to_dict()))
            return None, []
        self._check_same(plan.to_dict())
        if not (self.path / "state.npz").exists():
            self._cut(plan, rounds=0)  # the first row, without its state
            return None, []
        try:
            state = _arrays(self.path / "state.npz")
            done, rows = int(state["rounds_done"]), _read_rows(self.path)
            if len(rows) < done:
                raise ValueError(f"of round {done}, rounds.jsonl of {len(rows)}")
            rounds = _rounds(self.path, plan, rows[:done], state)
        except _DAMAGE as error:
            raise RecordError(
                f"{self.path} cannot be resumed, its state.npz is damaged ({error}): "
                "choose another folder"
            ) from error
        self._cut(plan, rounds=len(rounds))
        return state, rounds

    def add_round(self, round: Round, state: Mapping[str, NDArray[Any]]) -> None:
        """Write a round, then the state that makes it final."""
        if len(round.cost) > FEW:
            self._append("devices.bin", _to_bytes(round))
        self._append("rounds.jsonl", _line(round.to_dict()).encode())
        self._save("state.npz", **state)

    def finish(self, theta: NDArray[Any], last: Round) -> None:
        """Write the released model and what each device spent: the run is over."""
        self._save("model.npz", theta=theta, epsilon=last.epsilon, cost=last.cost)
        self._hold = None

    def _cut(self, plan: Plan, *, rounds: int) -> None:
        """Drop what goes beyond so many rounds: their state was never written."""
        rows, held = self.path / "rounds.jsonl", self.path / "devices.bin"
        if rows.exists():
            lines = map(_line, _read_rows(self.path)[:rounds])
            self._write("rounds.jsonl", "".join(lines))
        if held.exists():
            kind = _record_type(plan.num_devices)
            complete = _records(self.path, plan.num_devices)["round"] <= rounds
            with refusing(held, _RESUME):
                os.truncate(held, int(complete.sum()) * kind.itemsize)

    def _append(self, name: str, data: bytes) -> None:
        path = self.path / name
        with refusing(path, _RESUME), open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

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


def _read_rows(path: Path) -> list[Any]:
    """Return the complete rows of a run folder; a torn last line is left out."""
    file = path / "rounds.jsonl"
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _record_type(num_devices: int) -> np.dtype[np.void]:
    """Return how devices.bin holds a round: see the head of this module."""
    each = (num_devices,)
    return np.dtype(
        [
            ("round", "<i8"),
            ("epsilon", "<f8", each),
            ("cost", "<f8", each),
            ("missing", "u1", each),
        ]
    )


def _to_bytes(round: Round) -> bytes:
    """Return a round as a record of devices.bin."""
    record = np.zeros(1, dtype=_record_type(len(round.cost)))
    record["round"], record["epsilon"] = round.number, round.epsilon
    record["cost"] = round.cost
    record["missing"][0, list(round.silent)] = _SILENT
    record["missing"][0, list(round.refused)] = _REFUSED
    return record.tobytes()


def _records(path: Path, num_devices: int) -> NDArray[np.void]:
    """Return the complete records of devices.bin; a torn last one is left out."""
    file, kind = path / "devices.bin", _record_type(num_devices)
    if not file.exists():
        return np.empty(0, dtype=kind)
    return np.fromfile(file, dtype=kind, count=file.stat().st_size // kind.itemsize)


def _rounds(
    path: Path, plan: Plan, rows: Sequence[Any], state: Mapping[str, Any]
) -> list[Round]:
    """Return the rounds of a run folder, from its rows.

    A state that was written before there was a devices.bin holds what each device has
    spent by then.
    """
    records = {int(held["round"]): held for held in _records(path, plan.num_devices)}
    done = int(state.get("rounds_done", 0))
    return [
        _round(row, plan, records.get(row["round"]), state if number == done else {})
        for number, row in enumerate(rows, 1)
    ]


def _round(
    row: Mapping[str, Any], plan: Plan, record: Any | None, exact: Mapping[str, Any]
) -> Round:
    """Return a row as a round, completed by its record in devices.bin."""
    silent = tuple(row.get("silent", ()))
    refused = {int(m): str(why) for m, why in row.get("refused", {}).items()}
    if record is None:
        spent = {name: _spent(row, name, plan, exact) for name in ("epsilon", "cost")}
    else:
        spent = {"epsilon": record["epsilon"], "cost": record["cost"]}
        silent = tuple(np.flatnonzero(record["missing"] == _SILENT).tolist())
        refusing = np.flatnonzero(record["missing"] == _REFUSED).tolist()
        refused = {m: refused.get(m, "its reason was not kept") for m in refusing}
    return Round(
        number=int(row["round"]),
        steps=int(row["steps"]),
        answered=int(row["answered"]),
        silent=silent,
        refused=refused,
        measured=dict(row["not_private"]),
        **spent,
    )


def _spent(
    row: Mapping[str, Any], name: str, plan: Plan, exact: Mapping[str, Any]
) -> Array:
    """Return what each device has spent, from a row; where it tells a range, the most.

    Too much, then, but never too little.
    """
    values = from_row(row[name])
    if isinstance(row[name], Mapping):
        values = exact.get(name, np.full(plan.num_devices, values.max()))
    if values.shape != (plan.num_devices,):
        raise ValueError(
            f"its {name} is for {len(values)} devices, the plan for {plan.num_devices}"
        )
    return values


def to_row(values: Array) -> list[float | None] | dict[str, float | None]:
    """Return one value per device, or their range where there are many devices."""
    # JSON has no infinity: None is an epsilon that nothing bounds.
    if len(values) <= FEW:
        return [float(x) if np.isfinite(x) else None for x in values]
    ends = {"min": values.min(), "median": np.median(values), "max": values.max()}
    return {n: float(x) if np.isfinite(x) else None for n, x in ends.items()}


def from_row(values: Any) -> Array:
    """Return what `to_row` kept: a value per device, or least, median and most."""
    kept = values.values() if isinstance(values, Mapping) else values
    return np.array([np.inf if x is None else x for x in kept], dtype=np.float64)


def largest(values: Array) -> float | None:
    """Return the most that any device spent; None is without bound.

    >>> largest(np.array([1.0, 2.5])), largest(np.array([np.inf, 1.0]))
    (2.5, None)
    """
    most = float(values.max())
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
    rounds: list[Round]
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
        measured = self.rounds[-1].measured if self.rounds else {}
        for name in ("test_accuracy", "test_loss", "train_loss"):
            if name in measured:
                return name
        return None

    def series(self, name: str) -> Array:
        """Return a measured number after every round."""
        return np.array([round.measured[name] for round in self.rounds])

    def spent(self, name: str) -> Array:
        """Return epsilon or cost of the device that spent most, after every round."""
        most = [getattr(round, name).max() for round in self.rounds]
        return np.array(most, dtype=np.float64)


def _check(rows: list[Any], lines: int, done: int | None) -> None:
    """Raise a ValueError unless the rows are those that a run has written.

    Only the last line of a run that was killed may be torn; a finished run has a row
    for every round that was `done`.
    """
    needed = {"round", "steps", "answered", "epsilon", "cost", "not_private"}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or not needed <= set(row):
            raise ValueError(f"line {number} is no row of a run")
    if lines > len(rows) + 1:
        raise ValueError(f"line {len(rows) + 1} is no row of a run")
    if done is not None and len(rows) < done:
        raise ValueError(f"it holds {len(rows)} of the {done} rounds")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


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
    with _reading(folder / "state.npz") as place:
        state = _arrays(place) if place.exists() else {}
        done = int(state.get("rounds_done", plan.rounds))
    theta = None
    if (folder / "model.npz").exists():
        with _reading(folder / "model.npz") as place, np.load(place) as file:
            theta = np.asarray(file["theta"], dtype=np.float64)
    with _reading(folder / "rounds.jsonl") as place:
        rows = _read_rows(folder)
        lines = len(place.read_text().splitlines()) if place.exists() else 0
        _check(rows, lines, None if theta is None else done)
        rounds = _rounds(folder, plan, rows, state)
    return RecordedRun(path=folder, plan=plan, about=about, rounds=rounds, theta=theta)


@contextmanager
def _reading(place: Path) -> Iterator[Path]:
    """Say which file of a run is damaged, and what to do about it."""
    try:
        yield place
    except _DAMAGE as error:
        # numpy would have its readers load what it takes for a pickle.
        why = "not what was written" if place.suffix == ".npz" else str(error)
        raise RecordError(
            f"{place.parent} cannot be read as a run, its {place.name} is damaged "
            f"({why}): bring the file back from a copy, or train again into a new "
            "folder"
        ) from None
