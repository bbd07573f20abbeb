"""The run folder: everything a reader needs, and everything a resumed run needs.

    plan.json      the plan
    about.json     release or simulation, privacy statement, versions, seed, data
    rounds.jsonl   one row per round
    devices.bin    for more than 100 devices: spending of each after every round
    state.npz      the server's state after the last complete round
    model.npz      the model (theta), and the spending of each device (epsilon,
                   cost); if it exists, the run is finished

For up to 100 devices, a row holds the spending of each device so far. For more, it
holds the minimum, the median and the maximum, and the first 100 devices that were
silent or refused; the rest is in devices.bin. That file has one record per round, and
no header. With M devices, a record is, little-endian and without padding:

    round      int64          its number
    epsilon    float64 x M    spent so far, at the plan's delta; inf: unbounded
    cost       float64 x M    spent so far
    missing    uint8 x M      1: selected and silent; 2: refused; 0: neither

Losses and accuracies are under "not_private" in a row: they were computed on private
rows for the reader of a simulation, and no guarantee covers them. It is empty in rounds
that were not measured (`measure_every`).

A round is appended to devices.bin, then to rounds.jsonl; the state that is written next
makes it final. On resuming, rounds after the state are cut off. All other files are
written atomically: a run that is killed at any moment leaves the old or the new file.

Older folders of many devices have no devices.bin. They can be read: the last round is
exact, and in earlier rounds every device gets the maximum over the devices.

`read_run` reads a folder back; it needs neither the devices nor their rows.
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import RecordError
from fedbudget.files import FolderLock, lock_folder, refusing, whole_file
from fedbudget.planning import Plan
from fedbudget.planning.plans import is_same_plan
from fedbudget.privacy import Kind, PrivacyStatement
from fedbudget.text import counted

# Of a continued run, until its last round says what all of them have spent.
_CONTINUES = "the run that it continues is not in this epsilon, and adds to it"
# Files of a run that stopped before its plan was written: nothing to resume.
_BEFORE_PLAN = {"about.json", ".about.json.partial", ".plan.json.partial"}
_RESUME = "make room or choose another folder; the run can be resumed"
FEW = 100  # most devices for which a row holds one number each
_SILENT, _REFUSED = 1, 2  # in devices.bin
# What reading a damaged file raises.
_DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(EOFError, BadZipFile),
)
_PACKAGES = ("fedbudget", "numpy", "numba", "scipy", "dp-accounting")


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One round of a run: the answers, and the spending of each device so far."""

    number: int  # from 1
    steps: int  # local steps of this run so far
    answered: int  # number of devices that answered
    silent: tuple[int, ...] = ()  # selected devices that did not answer
    refused: Mapping[int, str] = field(default_factory=dict)  # device -> its reason
    # Spent so far by each device; shape (M,). Epsilon is at the plan's delta, and
    # infinite if the privacy loss is unbounded.
    epsilon: Array
    cost: Array
    # Losses and accuracies, computed on private rows for the reader of a simulation.
    # Empty in a round that was not measured, and in a fleet.
    measured: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the round as a row of rounds.jsonl, with at most 100 devices.

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
            "refused": {str(m): reason for m, reason in refused},
            "epsilon": to_row(self.epsilon),
            "cost": to_row(self.cost),
            "not_private": dict(self.measured),
        }


class Record:
    """A run folder that is being written or resumed."""

    def __init__(
        self, path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(path)
        self._about = dict(about or {})
        self._lock: FolderLock | None = None
        self._plan: Plan | None = None

    def open(
        self,
        plan: Plan,
        *,
        kind: Kind = "simulation",
        caveats: Sequence[str] = (),
        same: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, NDArray[Any]] | None, list[Round]]:
        """Start a folder, or return the state and the rounds of an interrupted run.

        Args:
            plan: The plan of the run.
            kind: A release or a simulation; a resumed run must be of the same kind.
            caveats: What the guarantee does not cover.
            same: Other values that the run's numbers depend on, such as its seed. They
                are stored in about.json; a resumed run must have the same.

        Raises:
            RecordError: The folder holds a finished run, another plan, another seed or
                other files, or another process is writing to it. Nothing in it is
                changed.
        """
        self._about |= same or {}
        self._plan = plan
        more = [_CONTINUES] if self._about.get("steps_before") else []
        privacy = replace(plan.privacy, kind=kind, caveats=(*caveats, *more))
        fixed = {
            "kind": kind,
            "caveats": list(caveats),
            "privacy": str(privacy),
            "versions": versions(),
        }
        with refusing(self.path, _RESUME):
            if not self.path.exists():
                self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
            names = set(os.listdir(self.path))
        if names <= _BEFORE_PLAN:
            self._write("about.json", _dump(self._about | fixed))
            self._write("plan.json", _dump(plan.to_dict()))
            return None, []
        self._check_same(plan.to_dict(), kind)
        if not (self.path / "state.npz").exists():
            self._cut(plan, rounds=0)  # a row may exist without its state
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
        """Write the model and the spending: the run is finished."""
        if self._plan is not None and self._about.get("steps_before"):
            self._state_all(self._plan, last)
        self._save("model.npz", theta=theta, epsilon=last.epsilon, cost=last.cost)
        self._lock = None

    def _state_all(self, plan: Plan, last: Round) -> None:
        """State the epsilon of all rounds of a run that continues another."""
        with refusing(self.path, _RESUME):
            about = json.loads((self.path / "about.json").read_text())
        run = RecordedRun(
            path=self.path, plan=plan, about=about, rounds=[last], theta=None
        )
        self._write("about.json", _dump(about | {"privacy": str(run.privacy)}))

    def _cut(self, plan: Plan, *, rounds: int) -> None:
        """Cut the files after this number of rounds: later ones have no state."""
        rows, records = self.path / "rounds.jsonl", self.path / "devices.bin"
        if rows.exists():
            lines = map(_line, _read_rows(self.path)[:rounds])
            self._write("rounds.jsonl", "".join(lines))
        if records.exists():
            kind = _record_type(plan.num_devices)
            complete = _records(self.path, plan.num_devices)["round"] <= rounds
            with refusing(records, _RESUME):
                os.truncate(records, int(complete.sum()) * kind.itemsize)

    def _append(self, name: str, data: bytes) -> None:
        path = self.path / name
        with refusing(path, _RESUME), open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _check_same(self, plan: dict[str, Any], kind: Kind) -> None:
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
        if not is_same_plan(old_plan, json.loads(_dump(plan))):
            raise RecordError(
                f"{self.path} holds a run of another plan: choose another folder, or "
                "give that plan to resume it"
            )
        if kind_of(old_about) != kind:
            raise RecordError(
                f"{self.path} holds a {kind_of(old_about)}, not a {kind}: choose "
                "another folder"
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
                    f"{value!r}: choose another folder, or give the same to resume"
                )

    def _write(self, name: str, text: str) -> None:
        with whole_file(self.path / name, remedy=_RESUME) as file:
            file.write(text)

    def _save(self, name: str, **arrays: Any) -> None:
        with whole_file(self.path / name, "wb", remedy=_RESUME) as file:
            np.savez(file, **arrays)


def _read_rows(path: Path) -> list[Any]:
    """Return the complete rows of a run folder, without an incomplete last line."""
    file = path / "rounds.jsonl"
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _record_type(num_devices: int) -> np.dtype[np.void]:
    """Return the type of a record of devices.bin: see the module's docstring."""
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
    """Return the complete records of devices.bin, without an incomplete last one."""
    file, kind = path / "devices.bin", _record_type(num_devices)
    if not file.exists():
        return np.empty(0, dtype=kind)
    return np.fromfile(file, dtype=kind, count=file.stat().st_size // kind.itemsize)


def _rounds(
    path: Path, plan: Plan, rows: Sequence[Any], state: Mapping[str, Any]
) -> list[Round]:
    """Return the rounds of a run folder, from its rows.

    In older folders, without devices.bin, the state holds the spending of each device.
    """
    records = {
        int(record["round"]): record for record in _records(path, plan.num_devices)
    }
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
    refused = {int(m): str(reason) for m, reason in row.get("refused", {}).items()}
    if record is None:
        spent = {name: _spent(row, name, plan, exact) for name in ("epsilon", "cost")}
    else:
        spent = {"epsilon": record["epsilon"], "cost": record["cost"]}
        silent = tuple(np.flatnonzero(record["missing"] == _SILENT).tolist())
        refusals = np.flatnonzero(record["missing"] == _REFUSED).tolist()
        refused = {m: refused.get(m, "its reason was not stored") for m in refusals}
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
    """Return the spending of each device from a row; if it holds a range, the maximum.

    That may be too high, but never too low.
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
    """Return one value per device, or their range for more than 100 devices."""
    # JSON has no infinity: None is an unbounded epsilon.
    if len(values) <= FEW:
        return [float(x) if np.isfinite(x) else None for x in values]
    ends = {"min": values.min(), "median": np.median(values), "max": values.max()}
    return {n: float(x) if np.isfinite(x) else None for n, x in ends.items()}


def from_row(values: Any) -> Array:
    """Return the values of `to_row`: one per device, or minimum, median, maximum."""
    numbers = values.values() if isinstance(values, Mapping) else values
    return np.array([np.inf if x is None else x for x in numbers], dtype=np.float64)


def largest(values: Array) -> float | None:
    """Return the maximum over the devices; None: unbounded.

    >>> largest(np.array([1.0, 2.5])), largest(np.array([np.inf, 1.0]))
    (2.5, None)
    """
    most = float(values.max())
    return most if np.isfinite(most) else None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run depends on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _dump(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """A run, read from its folder."""

    path: Path
    plan: Plan
    about: Mapping[str, Any]
    rounds: list[Round]
    theta: Array | None  # None: the run is not finished

    @property
    def kind(self) -> Kind:
        """Whether the run was a release or a simulation."""
        return kind_of(self.about)

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy guarantee of this run, or what a release of it would spend."""
        caveats = tuple(map(str, self.about.get("caveats", ())))
        statement = self.plan.privacy
        if self.rounds and self.about.get("steps_before"):  # it continues another run
            spent = self.rounds[-1].epsilon
            statement = self.plan.privacy_after(spent, len(self.rounds))
        return replace(statement, kind=self.kind, caveats=caveats)

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
            devices = f"{counted(count, 'device')} {keep} rows"
            return f"fleet {self.about['fleet']}: {devices}"
        return str(self.about.get("data", "data not described in the folder"))

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices' names; their numbers if the folder does not name them."""
        names = self.about.get("devices")
        if isinstance(names, list) and len(names) == self.plan.num_devices:
            return tuple(map(str, names))
        return tuple(map(str, range(self.plan.num_devices)))

    @property
    def measured_rounds(self) -> list[Round]:
        """The rounds with measurements: all, some (`measure_every`) or none."""
        return [round for round in self.rounds if round.measured]

    @property
    def last_measured(self) -> Mapping[str, float]:
        """The measurements of the last measured round; empty if there is none."""
        measured = self.measured_rounds
        return measured[-1].measured if measured else {}

    @property
    def metric(self) -> str | None:
        """The metric to show for the run; None if nothing was measured."""
        measured = self.last_measured
        for name in ("test_accuracy", "test_loss", "train_loss"):
            if name in measured:
                return name
        return None

    def series(self, name: str) -> Array:
        """Return a measured number after every measured round."""
        return np.array([round.measured[name] for round in self.measured_rounds])

    def spent(self, name: str, *, measured: bool = False) -> Array:
        """Return the largest epsilon or cost over the devices, after every round.

        With `measured`, only after the rounds of `series`.
        """
        rounds = self.measured_rounds if measured else self.rounds
        largest = [getattr(round, name).max() for round in rounds]
        return np.array(largest, dtype=np.float64)


def kind_of(about: Mapping[str, Any]) -> Kind:
    """Return whether about.json is of a release or of a simulation.

    Older folders do not say: only those of a fleet were releases.
    """
    default = "release" if "fleet" in about else "simulation"
    return "release" if about.get("kind", default) == "release" else "simulation"


def _check(rows: list[Any], lines: int, done: int | None) -> None:
    """Raise a ValueError unless the rows are those of a run.

    Only the last line of a killed run may be incomplete; a finished run has a row for
    each of the `done` rounds.
    """
    needed = {"round", "steps", "answered", "epsilon", "cost", "not_private"}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or not needed <= set(row):
            raise ValueError(f"line {number} is not a row of a run")
    if lines > len(rows) + 1:
        raise ValueError(f"line {len(rows) + 1} is not a row of a run")
    if done is not None and len(rows) < done:
        raise ValueError(f"it holds {len(rows)} of the {done} rounds")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def read_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Read a run folder, finished or not.

    Raises:
        RecordError: It does not exist, is not a run folder, or is damaged.
    """
    folder = Path(path)
    if not (folder / "plan.json").is_file():
        raise RecordError(
            f"{folder} is not a run folder, it has no plan.json: name one that "
            "fedbudget train --out has written"
        )
    with _reading(folder / "plan.json") as file_path:
        plan = Plan.from_dict(json.loads(file_path.read_text()))
    with _reading(folder / "about.json") as file_path:
        about = json.loads(file_path.read_text())
        if not isinstance(about, Mapping):
            raise ValueError("it is not a JSON object")
    with _reading(folder / "state.npz") as file_path:
        state = _arrays(file_path) if file_path.exists() else {}
        done = int(state.get("rounds_done", plan.rounds))
    theta = None
    if (folder / "model.npz").exists():
        with _reading(folder / "model.npz") as file_path, np.load(file_path) as file:
            theta = np.asarray(file["theta"], dtype=np.float64)
    with _reading(folder / "rounds.jsonl") as file_path:
        rows = _read_rows(folder)
        text = file_path.read_text() if file_path.exists() else ""
        lines = len(text.splitlines())
        _check(rows, lines, None if theta is None else done)
        rounds = _rounds(folder, plan, rows, state)
    return RecordedRun(path=folder, plan=plan, about=about, rounds=rounds, theta=theta)


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Turn a read error into a RecordError that names the damaged file."""
    try:
        yield path
    except _DAMAGE as error:
        # NumPy's message recommends allow_pickle, which is not the remedy.
        reason = "not a NumPy archive" if path.suffix == ".npz" else str(error)
        raise RecordError(
            f"{path.parent} cannot be read as a run, its {path.name} is damaged "
            f"({reason}): restore the file from a copy, or train again into a new "
            "folder"
        ) from None
