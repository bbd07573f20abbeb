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
"""

import fcntl
import json
import os
import platform
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import RecordError

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


@contextmanager
def whole_file(
    path: str | os.PathLike[str],
    mode: str = "w",
    *,
    permissions: int = 0o666,
    remedy: str = "make room, or choose another place",
) -> Iterator[IO[Any]]:
    """Open a file that is moved to its place once it is whole, or leaves no trace.

    Raises:
        RecordError: It cannot be written; what stood in its place still does.
    """
    place = Path(path)
    partial = place.parent / f".{place.name}.partial"
    text: dict[str, Any] = {"encoding": "utf-8", "newline": ""}
    how = {} if "b" in mode else text

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, permissions)

    try:
        with refusing(place, remedy):
            with open(partial, mode, opener=opener, **how) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)
    finally:
        with suppress(OSError):  # it is gone already, unless something failed
            partial.unlink()


@contextmanager
def refusing(path: Path, remedy: str) -> Iterator[None]:
    """Turn a full disk or a missing right into one line."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}: {remedy}"
        ) from error


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
