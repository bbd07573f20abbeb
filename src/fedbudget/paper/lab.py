"""Run plans on the splits of a case, and return measured runs as plain rows.

Rows are cached on disk as Parquet, in atomically written files ("parts"). The name of a
part contains a hash of everything that its rows depend on: the version, the plans, the
data and the repeats. So a stopped evaluation continues with the parts that it has, and
a changed plan never reads outdated rows.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbudget.data import Dataset
from fedbudget.errors import MissingExtraError, RecordError
from fedbudget.files import whole_file
from fedbudget.paper.cases import Case, move_to_split
from fedbudget.planning import Plan
from fedbudget.problem import Problem
from fedbudget.simulation.sweeping import sweep

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]

MEASURED = ("validation_accuracy", "test_accuracy", "train_loss", "test_loss")

# First noise seeds of runs for selection and of scored runs: they never overlap.
PICKING, SCORING = 10_000, 0

# Seconds of one core for one step of one run; only for the remaining time shown.
STEP_SECONDS = {"adult": 45e-6, "vehicle": 290e-6}

# Fields that describe a plan and do not change its run.
_DESCRIPTION = {"epsilon", "delta", "prior_mu", "cost", "lipschitz", "planner"}
_DESCRIPTION |= {"accountant", "predicted_loss", "epsilon_price", "cost_price"}
_DESCRIPTION |= {"binding", "reasons", "advice", "prior_releases"}
_DESCRIPTION |= {"predicted_range"}

_CHUNK_SECONDS = 6.0  # of work between two reports of progress
_PART_SECONDS = 60.0  # of work in one part; a stop loses at most this much


class Store:
    """A folder of parts that one version of the program wrote."""

    def __init__(self, folder: Path, *, version: str) -> None:
        self.folder, self.version = folder, version

    def cached(
        self,
        name: str,
        depends: Iterable[bytes | str | float],
        make: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> tuple[list[Row], bool]:
        """Return the rows of a part, and whether they were on disk.

        Args:
            name: The name of the part.
            depends: Everything that the rows depend on, except the version.
            make: Makes the rows if the part is missing or damaged.
        """
        path = self.folder / f"{name}-{_digest([self.version, *depends])}.parquet"
        try:
            return read_table(path), True
        except (OSError, ValueError):
            rows = [dict(row) for row in make()]
        write_table(path, rows)
        return rows, False


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A plan to run, and the labels of its rows."""

    plan: Plan
    labels: Mapping[str, Any]

    def row(self) -> Row:
        """Return the columns that do not depend on the run."""
        plan = self.plan
        return dict(self.labels) | {
            "tau": plan.tau,
            "rounds": plan.rounds,
            "learning_rate": float(plan.learning_rate),
            "momentum": float(plan.momentum),
            "drift_correction": bool(plan.drift_correction),
            "largest_weight": float(plan.weights.max()),
            "accountant": plan.accountant,
            "spent_epsilon": float(plan.epsilon.max()),
            "spent_cost": float(plan.cost.max()),
        }


@dataclass(kw_only=True, eq=False)
class Lab:
    """One case: its splits, loaded when first used, and its runs."""

    case: Case
    store: Store
    vehicle: str | None = None
    on_work: Callable[[float, str], None] = lambda seconds, task: None
    cached_seconds: float = 0.0  # run time of the parts that were on disk
    _loaded: dict[int, Dataset] = field(default_factory=dict)

    def data(self, repeat: int) -> Dataset:
        """Return the rows of a repeat."""
        if repeat not in self._loaded:
            self._loaded[repeat] = self.case.load(repeat=repeat, vehicle=self.vehicle)
        return self._loaded[repeat]

    @cached_property
    def problem(self) -> Problem:
        """The public description of the case: all that planners get."""
        return self.data(0).problem(loss=self.case.loss)

    def run(
        self, part: str, entries: Sequence[Entry], *, repeats: range, noise: int
    ) -> list[Row]:
        """Return one row per entry and repeat, from disk if possible.

        Args:
            part: The name of the part.
            entries: The plans to run, with labels.
            repeats: Numbers of splits; each has its own noise, too.
            noise: `PICKING` or `SCORING`.
        """
        plans, positions = distinct([entry.plan for entry in entries])
        by_plan: dict[tuple[int, int], Row] = {}
        share = _PART_SECONDS / len(repeats)
        for chunk in self._chunks(plans, share):
            runs = self._cached_runs(part, [plans[p] for p in chunk], repeats, noise)
            by_plan |= {(chunk[run["plan"]], run["repeat"]): run for run in runs}
        return [
            entry.row()
            | {"case": self.case.name, "part": part, "repeat": repeat}
            | {n: by_plan[number, repeat][n] for n in (*MEASURED, "seconds")}
            for entry, number in zip(entries, positions, strict=True)
            for repeat in repeats
        ]

    def _cached_runs(
        self, part: str, plans: Sequence[Plan], repeats: range, noise: int
    ) -> list[Row]:
        """Return the runs of plans, from disk if possible."""
        runs, on_disk = self.cached(
            part,
            [repr(repeats), noise, *map(_content, plans)],
            lambda: list(self._runs(part, plans, repeats, noise)),
        )
        if on_disk:
            work = self.seconds(plans) * len(repeats)
            self.on_work(work, f"{self.case.name}: {part} (from disk)")
        return runs

    def cached(
        self,
        part: str,
        depends: Sequence[bytes | str | float],
        make: Callable[[], list[Row]],
    ) -> tuple[list[Row], bool]:
        """Return rows, from disk if possible, and whether they were on disk.

        Args:
            part: The name of the part.
            depends: Everything that they depend on, except the case and its data.
            make: Makes the rows.
        """
        name = f"{self.case.name.lower()}-{part}"
        rows, on_disk = self.store.cached(name, [*self._identity(), *depends], make)
        if on_disk:
            self.cached_seconds += sum(row["seconds"] for row in rows)
        return rows, on_disk

    def seconds(self, plans: Sequence[Plan]) -> float:
        """Estimate the work of running plans once, in seconds of one core."""
        return STEP_SECONDS[self.case.data] * sum(plan.steps for plan in plans)

    def _runs(
        self, part: str, plans: Sequence[Plan], repeats: range, noise: int
    ) -> Iterator[Row]:
        for repeat in repeats:
            data = self.data(repeat)
            for chunk in self._chunks(plans, _CHUNK_SECONDS):
                fitted = [move_to_split(plans[p], data) for p in chunk]
                started = time.perf_counter()
                sweep_result = sweep(data, fitted, seeds=[noise + repeat])
                seconds = (time.perf_counter() - started) / len(chunk)
                for i, p in enumerate(chunk):
                    values = {
                        n: float(sweep_result.measured[n][i, 0]) for n in MEASURED
                    }
                    yield {"plan": p, "repeat": repeat, "seconds": seconds} | values
                self.on_work(self.seconds(fitted), f"{self.case.name}: {part}")

    def _chunks(self, plans: Sequence[Plan], limit: float) -> Iterator[list[int]]:
        """Yield chunks of about `limit` seconds of work, sorted by tau.

        Plans of the same tau run side by side.
        """
        order = sorted(range(len(plans)), key=lambda p: (plans[p].tau, plans[p].rounds))
        chunk: list[int] = []
        work = 0.0
        for p in order:
            chunk.append(p)
            work += self.seconds([plans[p]])
            if work > limit:
                yield chunk
                chunk, work = [], 0.0
        if chunk:
            yield chunk

    def _identity(self) -> Iterator[str | float]:
        """Yield what identifies the case and its data."""
        yield self.case.name
        if self.vehicle is not None and self.case.data == "vehicle":
            file = Path(self.vehicle).stat()
            yield from (self.vehicle, float(file.st_size), file.st_mtime)


def _content(plan: Plan) -> bytes:
    """Return what a run of the plan depends on: all fields but its description."""
    pieces: list[bytes | str] = []
    for item in fields(plan):
        if item.name not in _DESCRIPTION:
            value = getattr(plan, item.name)
            raw = value.tobytes() if isinstance(value, np.ndarray) else repr(value)
            pieces += [item.name, raw]
    return _digest(pieces).encode()


def distinct(plans: Sequence[Plan]) -> tuple[list[Plan], list[int]]:
    """Return every distinct plan once, and the position of each plan among them."""
    indices: dict[bytes, int] = {}
    unique: list[Plan] = []
    positions: list[int] = []
    for plan in plans:
        content = _content(plan)
        if content not in indices:
            indices[content] = len(unique)
            unique.append(plan)
        positions.append(indices[content])
    return unique, positions


def _digest(pieces: Iterable[bytes | str | float]) -> str:
    """Return a short hash of the pieces, in order."""
    digest = hashlib.sha256()
    for piece in pieces:
        raw = piece if isinstance(piece, bytes) else repr(piece).encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:16]


def make_folder(folder: Path) -> None:
    """Make the folder.

    Raises:
        RecordError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"cannot write to {folder}: {error.strerror or error}: choose another "
            "folder"
        ) from error


def read_table(path: Path) -> list[Row]:
    """Return the rows of a Parquet file.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged.
    """
    rows: list[Row] = _parquet().read_table(path).to_pylist()
    return rows


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows atomically as Parquet or CSV, by the path's suffix."""
    parquet, table = _parquet(), _table(rows)
    with whole_file(path, "wb") as file:
        if path.suffix == ".csv":
            from pyarrow import csv

            csv.write_csv(table, file)
        else:
            parquet.write_table(table, file)


def _table(rows: Sequence[Mapping[str, Any]]) -> "pyarrow.Table":
    import pyarrow

    names = list(dict.fromkeys(name for row in rows for name in row))
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("the paper's evaluation", "pyarrow") from None
    return parquet
