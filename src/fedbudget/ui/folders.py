"""The run folders that the page lists, complete or still being written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedbudget.errors import RecordError
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.record import RecordedRun, largest, read_run
from fedbudget.ui.fleet import epsilon_text, shown_epsilon

T = TypeVar("T")
MEASURES = ("test_accuracy", "validation_accuracy", "test_loss", "train_loss")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFolder:
    """A run and its name on the page."""

    name: str
    run: RecordedRun

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures of the measured rounds; they are NOT private."""
        return tuple(name for name in MEASURES if name in self.run.last_measured)

    @property
    def is_private(self) -> bool:
        """Whether noise was added."""
        return self.run.plan.accountant != NOT_PRIVATE

    def curve(self) -> list[dict[str, Any]]:
        """Return one row per round: the maximum spending of a device, and measures.

        If only some rounds were measured, these.
        """
        return [
            {
                "run": self.name,
                "round": done.number,
                "epsilon": largest(done.epsilon),
                "spent": epsilon_text(largest(done.epsilon)),
                "cost": largest(done.cost),
                **done.measured,
            }
            for done in thinned(self.run.measured_rounds or self.run.rounds)
        ]

    def spending(self) -> list[dict[str, Any]]:
        """Return the share of the planned spending after each round."""
        rows = []
        for done in thinned(self.run.rounds):
            for name in ("epsilon", "cost"):
                spent = largest(getattr(done, name))
                planned = largest(getattr(self.run.plan, name))
                if spent is not None and planned:
                    share = spent / planned
                    rows.append({"round": done.number, "budget": name, "share": share})
        return rows


def thinned(rounds: list[T], most: int = 500) -> list[T]:
    """Return at most `most` rounds, evenly spread, with the first and the last.

    A chart cannot show more, and would be slow.

    >>> thinned(list(range(10)), most=4)
    [0, 3, 6, 9]
    """
    if len(rounds) <= most:
        return rounds
    return [rounds[i * (len(rounds) - 1) // (most - 1)] for i in range(most)]


def read_folder(path: Path, *, root: Path | None = None) -> RunFolder | None:
    """Return the run in a folder, or None."""
    try:
        run = read_run(path)
    except RecordError:
        return None
    name = str(path.relative_to(root)) if root is not None else path.name
    return RunFolder(name=name, run=run)


def find_folders(root: Path) -> list[RunFolder]:
    """Return the runs in a folder and in its folders, newest first."""
    plans = [*root.glob("*/plan.json"), *root.glob("*/*/plan.json")]
    plans.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    folders = (read_folder(path.parent, root=root) for path in plans)
    return [folder for folder in folders if folder is not None]


def summary(folder: RunFolder) -> dict[str, Any]:
    """Return a row of the table that compares runs."""
    last = folder.curve()[-1] if folder.run.rounds else {}
    plan, private = folder.run.plan, folder.is_private
    return {
        "run": folder.name,
        "kind": folder.run.kind,
        "data": str(folder.run.about.get("data", "")).split(":")[0],
        "rounds": f"{len(folder.run.rounds)} of {plan.rounds}",
        "tau": plan.tau,
        "accuracy": last.get("test_accuracy"),
        "a constant's": last.get("constant_test_accuracy"),
        "AUC": last.get("test_auc"),
        "R2": last.get("test_r2"),
        "test loss": last.get("test_loss"),
        "epsilon": shown_epsilon(last.get("epsilon")) if private else None,
        "cost": last.get("cost"),
        "privacy": str(folder.run.privacy) if private else "none: NOT PRIVATE",
    }


def shown(folder: Path) -> str:
    """Return a folder's path, relative to the current folder if it is inside."""
    current = Path.cwd()
    inside = folder.is_relative_to(current)
    return str(folder.relative_to(current)) if inside else str(folder)
