"""What a reader should do next, from the numbers of a run and its alternatives."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbudget.planning.advice import better
from fedbudget.privacy.runs import weak_guarantees
from fedbudget.record import RecordedRun
from fedbudget.reporting.comparison import (
    CENTRAL,
    CONSTANT,
    LOCAL,
    PERSONAL,
    RUN,
    Comparison,
)
from fedbudget.text import counted


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One sentence, and how it is meant."""

    kind: str  # bad, fair or good
    text: str


def advice(run: RecordedRun, comparison: Comparison | None) -> list[Advice]:
    """Return what follows from a run, the gravest first."""
    found = [
        *_about_privacy(run),
        *_about_answers(run),
        *_about_federating(run, comparison),
        *_about_budgets(run, comparison),
    ]
    order = {"bad": 0, "fair": 1, "good": 2}
    return sorted(found, key=lambda item: order[item.kind])


def _about_privacy(run: RecordedRun) -> Iterator[Advice]:
    plan = run.plan
    if np.isinf(plan.epsilon).any():
        yield Advice(
            kind="bad",
            text="Nothing is promised: no noise was added. Use this run as a baseline, "
            "and release nothing of it.",
        )
        return
    for weakness in weak_guarantees(plan.epsilon, plan.delta, plan.num_samples):
        yield Advice(kind="fair", text=f"{_sentence(weakness)}.")


def _about_answers(run: RecordedRun) -> Iterator[Advice]:
    if not run.finished:
        yield Advice(
            kind="bad",
            text=f"The run stopped after round {len(run.rounds)} of {run.plan.rounds}: "
            "run the same command again, and it goes on from there.",
        )
    asked = [int(run.plan.takes_part(done.number).sum()) for done in run.rounds]
    lost = sum(
        max(0, count - done.answered)
        for count, done in zip(asked, run.rounds, strict=True)
    )
    refused = sum(len(done.refused) for done in run.rounds)
    if refused:
        yield Advice(
            kind="fair",
            text=f"Devices refused {counted(refused, 'round')}, which would have "
            "overdrawn their budgets: plan again with what they have left.",
        )
    if lost > refused:
        gone = counted(lost - refused, "answer")
        gone += " was" if lost - refused == 1 else " were"
        yield Advice(
            kind="fair",
            text=f"{gone} paid for and did not arrive, of "
            f"{sum(asked)}: look at the network, or plan fewer rounds.",
        )


def _about_federating(
    run: RecordedRun, comparison: Comparison | None
) -> Iterator[Advice]:
    if comparison is not None:
        yield from _about_alternatives(comparison)
    elif run.plan.advice:  # only predicted: what is measured says more
        yield Advice(kind="fair", text=f"{_sentence(run.plan.advice)}.")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _about_alternatives(found: Comparison) -> Iterator[Advice]:
    what = "accuracy" if found.higher_is_better else "loss"
    if not _better(found, RUN, CONSTANT):
        yield Advice(
            kind="bad",
            text=f"The model ({_show(found, RUN)}) is no better than a constant guess "
            f"({_show(found, CONSTANT)}): raise a budget, or do not run this at all.",
        )
    if not _better(found, RUN, LOCAL):
        yield Advice(
            kind="fair",
            text="Federation does not pay on average: devices with their own rows "
            f"alone, and nothing sent, reach {what} {_show(found, LOCAL)}, this run "
            f"{_show(found, RUN)}; with it, {_counts(found, RUN)}.",
        )
    else:
        yield Advice(
            kind="good",
            text="On average devices do better with this model than with their own "
            f"rows alone, {what} {_show(found, RUN)} against {_show(found, LOCAL)}: "
            f"{_counts(found, RUN)}.",
        )
    if PERSONAL in found.means and (
        _better(found, PERSONAL, RUN)
        or (_better(found, PERSONAL, LOCAL) and not _better(found, RUN, LOCAL))
    ):
        yield _about_personal(found, what)
    if not _better(found, CENTRAL, RUN):
        yield Advice(
            kind="good",
            text=f"All rows in one place, without privacy, reach {what} "
            f"{_show(found, CENTRAL)}: there is little left to buy.",
        )
    else:
        yield Advice(
            kind="fair",
            text=f"All rows in one place, without privacy, would reach {what} "
            f"{_show(found, CENTRAL)}: budgets and distance cost "
            f"{_difference(found)}.",
        )


def _about_personal(found: Comparison, what: str) -> Advice:
    reached = f"{what} {_show(found, PERSONAL)}"
    if not _better(found, PERSONAL, LOCAL):
        return Advice(
            kind="fair",
            text=f"Adapted to each device's own rows, the model reaches {reached}; "
            f"devices reach {_show(found, LOCAL)} without it: at these budgets "
            "federation adds nothing.",
        )
    return Advice(
        kind="good",
        text=f"Let devices adapt the model to their own rows: {reached}, at no cost in "
        "privacy or messages; against their own rows alone, "
        f"{_counts(found, PERSONAL)}.",
    )


def _about_budgets(run: RecordedRun, comparison: Comparison | None) -> Iterator[Advice]:
    plan = run.plan
    if comparison is not None and not _better(comparison, CENTRAL, RUN):
        return  # nothing to gain from more
    prices = {
        "privacy": ("epsilon", plan.epsilon_price, plan.epsilon.max()),
        "cost": ("cost", plan.cost_price, plan.cost.max()),
    }
    for name in plan.binding:
        what, price, spent = prices[name]
        if np.isfinite(spent):
            share = 0.1 * spent * price / plan.predicted_loss
            yield Advice(
                kind="fair",
                text=f"{name.capitalize()} holds the model back: by the planner's "
                f"model, a tenth more {what} would lower its predicted excess loss by "
                f"{share:.0%}.",
            )


def _better(found: Comparison, name: str, than: str) -> bool:
    """Say whether one is better than another, on average and by enough."""
    return better(found.metric, found.means[name], found.means[than])


def _counts(found: Comparison, name: str) -> str:
    """Say how many devices gain by it over their own rows alone, and how many lose."""
    better, same, worse = found.better_off(name, LOCAL)
    return f"{counted(better, 'device')} better, {same} the same and {worse} worse off"


def _show(found: Comparison, name: str) -> str:
    value = found.means[name]
    return f"{value:.3f}" if found.higher_is_better else f"{value:.4f}"


def _difference(found: Comparison) -> str:
    """Return how far the run is from having all rows in one place."""
    value = abs(found.means[CENTRAL] - found.means[RUN])
    points = f"{100 * value:.1f} points"
    return points if found.higher_is_better else f"{value:.3g} of loss"
