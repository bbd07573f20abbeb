"""Advice to the reader of a report, from a run's numbers and its alternatives."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbudget.metrics import cautions
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
    """One piece of advice and its severity."""

    kind: str  # bad, fair or good
    text: str


def advice(run: RecordedRun, comparison: Comparison | None) -> list[Advice]:
    """Return the advice that follows from a run, the most severe first."""
    items = [
        *_about_privacy(run),
        *_about_metrics(run),
        *_about_answers(run),
        *_about_federating(run, comparison),
        *_about_budgets(run, comparison),
    ]
    order = {"bad": 0, "fair": 1, "good": 2}
    return sorted(items, key=lambda item: order[item.kind])


def _about_privacy(run: RecordedRun) -> Iterator[Advice]:
    plan = run.plan
    if np.isinf(plan.epsilon).any():
        yield Advice(
            kind="bad",
            text="There is no privacy guarantee: no noise was added. Use this run as a "
            "baseline, and do not release its model.",
        )
        return
    for weakness in weak_guarantees(plan.epsilon, plan.delta, plan.num_samples):
        yield Advice(kind="fair", text=f"{_sentence(weakness)}.")


def _about_metrics(run: RecordedRun) -> Iterator[Advice]:
    """Yield what recall, AUC and errors in the label's unit warn of."""
    for caution in cautions(run.last_measured):
        yield Advice(kind="bad", text=f"{_sentence(caution)}.")


def _about_answers(run: RecordedRun) -> Iterator[Advice]:
    if not run.finished:
        yield Advice(
            kind="bad",
            text=f"The run stopped after round {len(run.rounds)} of {run.plan.rounds}: "
            "run the same command again to resume it.",
        )
    selected = [int(run.plan.takes_part(done.number).sum()) for done in run.rounds]
    missing = sum(
        max(0, count - done.answered)
        for count, done in zip(selected, run.rounds, strict=True)
    )
    refused = sum(len(done.refused) for done in run.rounds)
    if refused:
        yield Advice(
            kind="fair",
            text=f"Devices refused {counted(refused, 'request')} that would have "
            "exceeded their budgets: plan again with the remaining budgets.",
        )
    if missing > refused:
        lost = missing - refused
        yield Advice(
            kind="fair",
            text=f"{lost} of {counted(sum(selected), 'answer')} "
            f"{'was' if lost == 1 else 'were'} paid for but did not arrive: check the "
            "network, or plan fewer rounds.",
        )


def _about_federating(
    run: RecordedRun, comparison: Comparison | None
) -> Iterator[Advice]:
    if comparison is not None:
        yield from _about_alternatives(run, comparison)
    elif run.plan.advice:  # a prediction: used only where nothing was measured
        yield Advice(kind="fair", text=f"{_sentence(run.plan.advice)}.")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _about_alternatives(
    recorded: RecordedRun, comparison: Comparison
) -> Iterator[Advice]:
    metric = _metric_word(comparison)
    run, local = _show(comparison, RUN), _show(comparison, LOCAL)
    if not _better(comparison, RUN, CONSTANT):
        if not cautions(recorded.last_measured):  # which say it, and what to do
            yield Advice(
                kind="bad",
                text=f"The model ({metric} {run}) is no better than a constant guess "
                f"({_show(comparison, CONSTANT)}): raise a budget, or do not use it.",
            )
        if comparison.higher_is_better and not _better(comparison, CENTRAL, CONSTANT):
            yield Advice(
                kind="fair",
                text="No alternative has a better accuracy than a constant guess: it "
                "does not tell them apart. Compare recall, precision and AUC.",
            )
            return
    if not _better(comparison, RUN, LOCAL):
        yield Advice(
            kind="fair",
            text=f"Federation does not pay on average: this run ({metric} {run}) is "
            f"not clearly better than local-only training ({local}), which sends "
            f"nothing. {_counts(comparison, RUN)}.",
        )
    else:
        yield Advice(
            kind="good",
            text=f"On average this run ({metric} {run}) is better than local-only "
            f"training ({local}). {_counts(comparison, RUN)}.",
        )
    if PERSONAL in comparison.means and (
        _better(comparison, PERSONAL, RUN)
        or (
            _better(comparison, PERSONAL, LOCAL) and not _better(comparison, RUN, LOCAL)
        )
    ):
        yield _about_personal(comparison)
    yield _about_central(comparison)


def _about_personal(comparison: Comparison) -> Advice:
    metric, personal = _metric_word(comparison), _show(comparison, PERSONAL)
    if not _better(comparison, PERSONAL, LOCAL):
        return Advice(
            kind="fair",
            text=f"Personal models, adapted to each device's own rows, reach {metric} "
            f"{personal}; local-only training reaches {_show(comparison, LOCAL)}. At "
            "these budgets federation adds nothing.",
        )
    return Advice(
        kind="good",
        text="Let devices adapt the model to their own rows: these personal models "
        f"reach {metric} {personal} and cost no privacy and no messages. "
        f"{_counts(comparison, PERSONAL)}.",
    )


def _about_central(comparison: Comparison) -> Advice:
    metric, central = _metric_word(comparison), _show(comparison, CENTRAL)
    if not _better(comparison, CENTRAL, RUN):
        return Advice(
            kind="good",
            text="Centralised training on all rows, without privacy, reaches "
            f"{metric} {central}: little is left to gain.",
        )
    return Advice(
        kind="fair",
        text=f"Centralised training on all rows, without privacy, would reach {metric} "
        f"{central}: the budgets and federation cost {_difference(comparison)}.",
    )


def _about_budgets(run: RecordedRun, comparison: Comparison | None) -> Iterator[Advice]:
    plan = run.plan
    useful = comparison is not None and _better(comparison, RUN, CONSTANT)
    if useful and comparison is not None and not _better(comparison, CENTRAL, RUN):
        return  # a larger budget gains nothing
    prices = {
        "privacy": ("epsilon", plan.epsilon_price, plan.epsilon.max()),
        "cost": ("cost", plan.cost_price, plan.cost.max()),
    }
    for name in plan.binding:
        quantity, price, spent = prices[name]
        if np.isfinite(spent):
            share = 0.1 * spent * price / plan.predicted_loss
            yield Advice(
                kind="fair",
                text=f"The {name} budget limits the model: 10% more {quantity} would "
                f"lower the predicted excess loss by {share:.0%}.",
            )


def _metric_word(comparison: Comparison) -> str:
    return "accuracy" if comparison.higher_is_better else "loss"


def _better(comparison: Comparison, name: str, than: str) -> bool:
    """Return whether one alternative is clearly better than another on average."""
    means = comparison.means
    return better(comparison.metric, means[name], means[than])


def _counts(comparison: Comparison, name: str) -> str:
    """Count the devices that an alternative serves better than local-only training."""
    better, same, worse = comparison.better_off(name, LOCAL)
    return (
        f"Compared with local-only training: {counted(better, 'device')} better, "
        f"{same} the same, {worse} worse"
    )


def _show(comparison: Comparison, name: str) -> str:
    value = comparison.means[name]
    return f"{value:.3f}" if comparison.higher_is_better else f"{value:.4f}"


def _difference(comparison: Comparison) -> str:
    """Return the distance between the run and centralised training, with its unit."""
    value = abs(comparison.means[CENTRAL] - comparison.means[RUN])
    points = f"{100 * value:.1f} points"
    return points if comparison.higher_is_better else f"{value:.3g} of loss"
