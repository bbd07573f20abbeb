"""What run folders hold, read for the page; a folder may still be written."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedbudget.record import largest, read_rounds
from fedbudget.ui.fleet import shown_epsilon

T = TypeVar("T")
MEASURES = ("test_accuracy", "validation_accuracy", "test_loss", "train_loss")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFolder:
    """A run as its folder tells it."""

    path: Path
    name: str
    plan: dict[str, Any]
    about: dict[str, Any]
    rounds: list[dict[str, Any]]
    finished: bool

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured in every round; none of it is private."""
        last = self.rounds[-1]["not_private"] if self.rounds else {}
        return tuple(name for name in MEASURES if name in last)

    @property
    def is_private(self) -> bool:
        """Whether noise was added at all."""
        return bool(self.plan["accountant"] != "none")

    def curve(self) -> list[dict[str, Any]]:
        """Return one row per round: the most that any device spent, and measures."""
        return [
            {
                "run": self.name,
                "round": row["round"],
                "epsilon": largest(row["epsilon"]),
                "cost": largest(row["cost"]),
                **row["not_private"],
            }
            for row in thinned(self.rounds)
        ]

    def spending(self) -> list[dict[str, Any]]:
        """Return the share of what the plan spends that was spent after each round."""
        whole = {"epsilon": self.plan["epsilon"], "cost": self.plan["cost"]}
        found = []
        for row in thinned(self.rounds):
            for name, planned in whole.items():
                spent, most = largest(row[name]), largest(planned)
                if spent is not None and most:
                    found.append(
                        {"round": row["round"], "budget": name, "share": spent / most}
                    )
        return found


def thinned(rounds: list[T], most: int = 500) -> list[T]:
    """Return at most so many rounds, evenly spread, with the first and the last.

    A chart has no room for more, and a browser no time.

    >>> thinned(list(range(10)), most=4)
    [0, 3, 6, 9]
    """
    if len(rounds) <= most:
        return rounds
    return [rounds[i * (len(rounds) - 1) // (most - 1)] for i in range(most)]


def read_folder(path: Path, *, root: Path | None = None) -> RunFolder | None:
    """Return the run in a folder; None where there is none, or not yet."""
    try:
        plan = json.loads((path / "plan.json").read_text(encoding="utf-8"))
        about = json.loads((path / "about.json").read_text(encoding="utf-8"))
        rounds = read_rounds(path)
    except (OSError, ValueError):
        return None
    if not isinstance(plan, dict) or "rounds" not in plan:
        return None
    name = str(path.relative_to(root)) if root is not None else path.name
    return RunFolder(
        path=path,
        name=name,
        plan=plan,
        about=about,
        rounds=rounds,
        finished=(path / "model.npz").exists(),
    )


def find_folders(root: Path) -> list[RunFolder]:
    """Return the runs in a folder and in its folders, newest first."""
    places = [*root.glob("*/plan.json"), *root.glob("*/*/plan.json")]
    places.sort(key=lambda place: place.stat().st_mtime, reverse=True)
    found = (read_folder(place.parent, root=root) for place in places)
    return [run for run in found if run is not None]


def summary(run: RunFolder) -> dict[str, Any]:
    """Return a row of the table that compares runs."""
    last = run.curve()[-1] if run.rounds else {}
    plan = run.plan
    return {
        "run": run.name,
        "data": str(run.about.get("data", "")).split(":")[0],
        "rounds": f"{len(run.rounds)} of {plan['rounds']}",
        "tau": plan["tau"],
        "accuracy": last.get("test_accuracy"),
        "test loss": last.get("test_loss"),
        "epsilon": shown_epsilon(last.get("epsilon")) if run.is_private else None,
        "cost": last.get("cost"),
        "promise": plan["privacy"] if run.is_private else "none: NOT PRIVATE",
    }


def shown(folder: Path) -> str:
    """Return how to call a folder: by its name where that is enough."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
