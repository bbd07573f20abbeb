"""`fedbudget train`."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import fedbudget
from fedbudget.budget import Budget
from fedbudget.cli.options import OUTPUT, RUN, Cost, Epsilon, Question, asks
from fedbudget.cli.output import (
    Bar,
    Stopped,
    print_json,
    progress,
    telling_of_compilation,
)
from fedbudget.cli.sources import about, data_options, limits, read_data, source_of
from fedbudget.errors import NotPrivateWarning
from fedbudget.privacy import rounded_up
from fedbudget.record import Round, largest, to_row
from fedbudget.simulation.dissimilarity import charge_query, plan_with_query
from fedbudget.trackers import Tracker, tracker


@asks
def train(
    question: Question,
    *,
    epsilon: Epsilon,
    cost: Cost,
    participation: Annotated[
        float,
        typer.Option(
            help="Probability that a device's answer arrives in a round; one that does "
            "not has still been paid for.",
            rich_help_panel=RUN,
        ),
    ] = 1.0,
    personal: Annotated[
        bool,
        typer.Option(
            "--personal",
            help="At the end, let every device adapt the model to its own rows, and "
            "compare with what it reaches alone. No message, no charge.",
            rich_help_panel=RUN,
        ),
    ] = False,
    no_privacy: Annotated[
        bool,
        typer.Option(
            "--no-privacy",
            help="Run the same plan without noise, as a baseline: NOT PRIVATE, and no "
            "device enforces a budget.",
            rich_help_panel=RUN,
        ),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHERE",
            help="Also log rounds, epsilon and cost to tensorboard:FOLDER, "
            "mlflow[:URI] or wandb[:PROJECT]; may be given again. Default: nowhere.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to record the run in; a run that was stopped goes on from "
            "there. Default: none, nothing is recorded.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Train on simulated devices, each of which enforces its own budgets."""
    budget = Budget(epsilon=epsilon, delta=question.delta, cost=cost)
    measure = question.dissimilarity == "measure"
    if measure:
        question = replace(question, dissimilarity=None)
    with progress("planning"):
        dataset = read_data(question)
        source = source_of(dataset, question)
        budget, prices = limits(question, source, budget)
        asked = source.problem, budget, prices
        if measure:
            problem, chosen = plan_with_query(
                dataset, *asked, seed=question.seed, **question.how
            )
            source = replace(source, problem=problem)
        else:
            chosen = fedbudget.plan(*asked, **question.how)
    if no_privacy:
        warnings.warn(
            "--no-privacy adds no noise: the model may give away the rows it was "
            "trained on, and no device enforces a budget; use it as a baseline only",
            NotPrivateWarning,
            stacklevel=2,
        )
        chosen = chosen.without_privacy()
    devices = fedbudget.SimulatedDevices(
        dataset,
        seed=question.seed,
        budget=None if no_privacy else budget,
        prices=prices,
        participation=participation,
    )
    if measure and not no_privacy:
        charge_query(devices.ledger, source.problem, prices)
    record = None
    if out is not None:
        settings = {
            "data": source.line,
            **data_options(question),
            "budget": {
                name: to_row(np.atleast_1d(getattr(budget, name)))
                for name in ("epsilon", "cost")
            },
            "feature_names": dataset.feature_names,
            "classes": dataset.classes,
        }
        record = fedbudget.Record(out, about=settings)
    what = "training on SYNTHETIC data" if dataset.synthetic else "training"
    started = time.perf_counter()
    with (
        progress(what, total=chosen.rounds, counter="") as bar,
        telling_of_compilation(bar, what),
        resumable(out),
        ExitStack() as stack,
    ):
        trackers = [
            stack.enter_context(
                tracker(where, chosen, device_names=dataset.device_names)
            )
            for where in track or ()
        ]
        run = fedbudget.train(
            chosen,
            devices,
            record=record,
            personal=personal,
            on_round=lambda latest: _tell(latest, bar, chosen.rounds, trackers),
        )
    if question.json:
        measured = {
            "accuracy": run.measured.get("test_accuracy"),
            "loss": run.measured["train_loss"],  # the plan's is now loss_name
            "loss_name": chosen.loss,
            "seconds": time.perf_counter() - started,
            "measured": run.measured,
            "advice": run.advice,
            "rounds_run": len(run.rounds),
            "record": out,
        }
        print_json(chosen.to_dict() | measured | about(source))
        return
    from fedbudget.cli.views.run import show_run  # rich's tables, only where shown

    show_run(source, budget, run, record=out)


def _tell(latest: Round, bar: Bar, rounds: int, trackers: Sequence[Tracker]) -> None:
    """Show a round, and log it wherever the user asked for."""
    show_round(bar, latest, rounds=rounds)
    for log in trackers:
        log(latest)


def show_round(bar: Bar, latest: Round, *, rounds: int) -> None:
    """Show what a round has brought and cost so far."""
    measured = latest.measured
    name = "test_accuracy" if "test_accuracy" in measured else "train_loss"
    epsilon, cost = largest(latest.epsilon), largest(latest.cost)
    bar.show(
        f"round {latest.number}/{rounds}  {name.split('_')[1]} {measured[name]:.3f} "
        f"(not private)  epsilon {'none' if epsilon is None else rounded_up(epsilon)}  "
        f"cost {cost:.4g}",
        done=latest.number,
    )


@contextmanager
def resumable(out: str | None) -> Iterator[None]:
    """On Ctrl-C, say where the run stopped and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if out is None:
            raise Stopped(
                "stopped; nothing was recorded: a run with --out can go on later"
            ) from None
        done = rounds_done(Path(out))
        where = f"after round {done}" if done else "before the end of round 1"
        raise Stopped(f"stopped {where}; run the same command to go on") from None


def rounds_done(folder: Path) -> int:
    """Return how many rounds of a stopped run are safely recorded."""
    if not (folder / "state.npz").exists():
        return 0
    with np.load(folder / "state.npz") as state:
        return int(state["rounds_done"])
