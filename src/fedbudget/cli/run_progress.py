"""A run while it goes on: its rounds on a bar and in trackers, and Ctrl-C."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.cli.output import Bar, Stopped, progress, telling_of_compilation
from fedbudget.data import Dataset
from fedbudget.planning import Plan
from fedbudget.privacy import Kind, rounded_up
from fedbudget.record import Round, largest
from fedbudget.trackers import Tracker, tracker


@contextmanager
def run_progress(
    dataset: Dataset, plan: Plan, *, kind: Kind, out: str | None, track: Sequence[str]
) -> Iterator[Callable[[Round], None]]:
    """Show the rounds on a bar and log them; on Ctrl-C, say how to continue."""
    label = "training on SYNTHETIC data" if dataset.synthetic else "training"
    with (
        progress(label, total=plan.rounds, counter="") as bar,
        telling_of_compilation(bar, label),
        resumable(out),
        ExitStack() as stack,
    ):
        names = dataset.device_names
        facts: Any = {"kind": kind, "caveats": dataset.caveats, "device_names": names}
        trackers = [
            stack.enter_context(tracker(target, plan, **facts)) for target in track
        ]
        yield lambda latest: _report(latest, bar, plan.rounds, trackers)


def _report(latest: Round, bar: Bar, rounds: int, trackers: Sequence[Tracker]) -> None:
    """Show a round, and log it to all trackers."""
    show_round(bar, latest, rounds=rounds)
    for log in trackers:
        log(latest)


def show_round(bar: Bar, latest: Round, *, rounds: int) -> None:
    """Show a round: accuracy or loss, and spending so far."""
    names = [n for n in ("test_accuracy", "train_loss") if n in latest.measured][:1]
    metrics = [
        f"{name.split('_')[1]} {latest.measured[name]:.3f} (not private)"
        for name in names
    ]
    epsilon, cost = largest(latest.epsilon), largest(latest.cost)
    spent = f"epsilon {'none' if epsilon is None else rounded_up(epsilon)}"
    parts = [f"round {latest.number}/{rounds}", *metrics, spent, f"cost {cost:.4g}"]
    bar.show("  ".join(parts), done=latest.number)


@contextmanager
def resumable(out: str | None) -> Iterator[None]:
    """On Ctrl-C, say where the run stopped and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        if out is None:
            raise Stopped(
                "stopped; nothing was recorded: a run with --out can be continued"
            ) from None
        done = rounds_done(Path(out))
        position = f"after round {done}" if done else "before the end of round 1"
        raise Stopped(f"stopped {position}; run the same command to continue") from None


def rounds_done(folder: Path) -> int:
    """Return how many rounds of a stopped run are safely recorded."""
    if not (folder / "state.npz").exists():
        return 0
    with np.load(folder / "state.npz") as state:
        return int(state["rounds_done"])
