"""Run plans on the splits of a case, and return measured runs as plain rows.

Rows are kept on disk as Parquet, whole or not at all. A part's file name holds a hash
of everything that its rows depend on: the version, the plans, the data and the repeats.
A stopped evaluation finds what it has; a change of a planner finds nothing that is no
longer true.
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
from fedbudget.paper.cases import Case, moved
from fedbudget.planning import Plan
from fedbudget.problem import Problem
from fedbudget.simulation.sweeping import sweep

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]

MEASURED = ("validation_accuracy", "test_accuracy", "train_loss", "test_loss")

# Noise seeds of what is picked from, and of what is scored: never the same.
PICKING, SCORING = 10_000, 0

# Seconds of one core for one step of one run: for the time that is left, no more.
STEP_SECONDS = {"adult": 45e-6, "vehicle": 290e-6}

# Fields of a plan that say something about it, and change nothing in a run.
_PROMISES = {"epsilon", "delta", "prior_mu", "cost", "lipschitz", "planner"}
_PROMISES |= {"accountant", "predicted_loss", "epsilon_price", "cost_price"}
_PROMISES |= {"binding", "reasons", "advice", "prior_releases"}

_CHUNK_SECONDS = 6.0  # of work between two signs of life
_KEPT_SECONDS = 60.0  # of work that are kept together; less is lost by stopping


class Store:
    """A folder of parts that one version of the program made."""

    def __init__(self, folder: Path, *, version: str) -> None:
        self.folder, self.version = folder, version

    def kept(
        self,
        name: str,
        depends: Iterable[bytes | str | float],
        make: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> tuple[list[Row], bool]:
        """Return the rows of a part, and whether they were on disk already.

        Args:
            name: Of the part.
            depends: All that the rows depend on, other than the version.
            make: Makes them, where they are not there, or damaged.
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
    """A plan to run, and what the rows shall say of it."""

    plan: Plan
    says: Mapping[str, Any]

    def row(self) -> Row:
        """Return what is known before the run."""
        plan = self.plan
        return dict(self.says) | {
            "tau": plan.tau,
            "rounds": plan.rounds,
            "learning_rate": float(plan.learning_rate),
            "momentum": float(plan.momentum),
            "drift_control": bool(plan.drift_control),
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
    on_work: Callable[[float, str], None] = lambda seconds, what: None
    found_seconds: float = 0.0  # that parts took which were there already
    _loaded: dict[int, Dataset] = field(default_factory=dict)

    def data(self, repeat: int) -> Dataset:
        """Return the rows of a repeat."""
        if repeat not in self._loaded:
            self._loaded[repeat] = self.case.load(repeat=repeat, vehicle=self.vehicle)
        return self._loaded[repeat]

    @cached_property
    def problem(self) -> Problem:
        """What planners may know of the case: its public shape."""
        return self.data(0).problem(loss=self.case.loss)

    def run(
        self, part: str, entries: Sequence[Entry], *, repeats: range, noise: int
    ) -> list[Row]:
        """Return one row per entry and repeat, from disk where they are there.

        Args:
            part: Names the rows.
            entries: What to run.
            repeats: Numbers of splits; each has its own noise as well.
            noise: `PICKING` or `SCORING`.
        """
        plans, which = distinct([entry.plan for entry in entries])
        by_plan: dict[tuple[int, int], Row] = {}
        share = _KEPT_SECONDS / len(repeats)
        for chosen in self._shares(plans, share):
            runs = self._kept_runs(part, [plans[p] for p in chosen], repeats, noise)
            by_plan |= {(chosen[run["plan"]], run["repeat"]): run for run in runs}
        return [
            entry.row()
            | {"case": self.case.name, "part": part, "repeat": repeat}
            | {n: by_plan[number, repeat][n] for n in (*MEASURED, "seconds")}
            for entry, number in zip(entries, which, strict=True)
            for repeat in repeats
        ]

    def _kept_runs(
        self, part: str, plans: Sequence[Plan], repeats: range, noise: int
    ) -> list[Row]:
        """Return the runs of plans, from disk where they are there."""
        runs, there = self.kept(
            part,
            [repr(repeats), noise, *map(_content, plans)],
            lambda: list(self._runs(part, plans, repeats, noise)),
        )
        if there:
            work = self.seconds(plans) * len(repeats)
            self.on_work(work, f"{self.case.name}: {part} found")
        return runs

    def kept(
        self,
        part: str,
        depends: Sequence[bytes | str | float],
        make: Callable[[], list[Row]],
    ) -> tuple[list[Row], bool]:
        """Return rows, from disk where they are there, and whether they were.

        Args:
            part: Names the rows.
            depends: All that they depend on, other than the case and its data.
            make: Makes them.
        """
        name = f"{self.case.name.lower()}-{part}"
        rows, there = self.store.kept(name, [*self._identity(), *depends], make)
        if there:
            self.found_seconds += sum(row["seconds"] for row in rows)
        return rows, there

    def seconds(self, plans: Sequence[Plan]) -> float:
        """Estimate the work of running plans once, in seconds of one core."""
        return STEP_SECONDS[self.case.data] * sum(plan.steps for plan in plans)

    def _runs(
        self, part: str, plans: Sequence[Plan], repeats: range, noise: int
    ) -> Iterator[Row]:
        for repeat in repeats:
            data = self.data(repeat)
            for chunk in self._shares(plans, _CHUNK_SECONDS):
                fitted = [moved(plans[p], data) for p in chunk]
                started = time.perf_counter()
                found = sweep(data, fitted, seeds=[noise + repeat])
                taken = (time.perf_counter() - started) / len(chunk)
                for at, p in enumerate(chunk):
                    values = {n: float(found.measured[n][at, 0]) for n in MEASURED}
                    yield {"plan": p, "repeat": repeat, "seconds": taken} | values
                self.on_work(self.seconds(fitted), f"{self.case.name}: {part}")

    def _shares(self, plans: Sequence[Plan], most: float) -> Iterator[list[int]]:
        """Deal plans out in shares of so much work, like taus together.

        Plans of one tau run side by side.
        """
        order = sorted(range(len(plans)), key=lambda p: (plans[p].tau, plans[p].rounds))
        chunk: list[int] = []
        work = 0.0
        for p in order:
            chunk.append(p)
            work += self.seconds([plans[p]])
            if work > most:
                yield chunk
                chunk, work = [], 0.0
        if chunk:
            yield chunk

    def _identity(self) -> Iterator[str | float]:
        """Yield what tells the case and its data from any other."""
        yield self.case.name
        if self.vehicle is not None and self.case.data == "vehicle":
            file = Path(self.vehicle).stat()
            yield from (self.vehicle, float(file.st_size), file.st_mtime)


def _content(plan: Plan) -> bytes:
    """Return what a run of the plan depends on: all of it but words and promises."""
    found = []
    for item in fields(plan):
        if item.name not in _PROMISES:
            value = getattr(plan, item.name)
            raw = value.tobytes() if isinstance(value, np.ndarray) else repr(value)
            found += [item.name, raw]
    return _digest(found).encode()


def distinct(plans: Sequence[Plan]) -> tuple[list[Plan], list[int]]:
    """Return every different plan once, and the place of each plan among them."""
    places: dict[bytes, int] = {}
    kept: list[Plan] = []
    which: list[int] = []
    for plan in plans:
        content = _content(plan)
        if content not in places:
            places[content] = len(kept)
            kept.append(plan)
        which.append(places[content])
    return kept, which


def _digest(pieces: Iterable[bytes | str | float]) -> str:
    """Return a short hash of the pieces, in their order."""
    found = hashlib.sha256()
    for piece in pieces:
        raw = piece if isinstance(piece, bytes) else repr(piece).encode()
        found.update(len(raw).to_bytes(8, "little") + raw)
    return found.hexdigest()[:16]


def make_folder(folder: Path) -> None:
    """Make the folder; refuse where that cannot be."""
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
    """Write rows as Parquet or CSV, by the path's ending; whole or not at all."""
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
