"""The joint planner: tau, rounds, learning rate, momentum, batches and weights at once.

Every candidate is affordable before it is scored, and is scored by the spectral model;
nothing is rounded afterwards, and no private row is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.planning.advice import advise
from fedbudget.planning.settings import (
    Choice,
    Setting,
    affordable_pairs,
    pairs_near,
    sampled_excess,
)
from fedbudget.planning.spectral import (
    Candidates,
    Spectrum,
    candidates_of,
    combinations,
    predicted_parts,
    respond,
    stable_rate,
)
from fedbudget.planning.weights import (
    Leaving,
    balanced,
    ways_to_leave,
    weigh_leaving,
    without_trifles,
)

# Among plans whose predicted losses differ by less than this share, the cheapest wins.
_TIE = 0.002

_MOMENTA = np.array([0.0, 0.5, 0.8])


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best candidate of a search."""

    tau: int
    rounds: int
    learning_rate: float
    momentum: float
    drift_control: bool
    kappa: float
    loss: float
    parts: dict[str, float]  # what the loss is made of
    leaving: Leaving | None = None  # which devices leave before the end, if any


def choose_joint(setting: Setting) -> Choice:
    """Return the affordable choice with the lowest predicted loss."""
    spectrum = Spectrum.of(setting.problem)
    chosen, option = _best_batch(setting, spectrum)
    if setting.sampling(option.batch_size) == "poisson":
        # Few steps need more noise than the limit for many: measure how much more at
        # the candidate, and search once more with that.
        excess = sampled_excess(setting, option.batch_size, chosen.tau * chosen.rounds)
        setting = replace(setting, sampled_excess=excess)
        chosen, option = _best_batch(setting, spectrum)
    variance, last_round = option.variance, None
    stays = np.zeros(setting.problem.num_devices, dtype=np.bool_)
    if chosen.leaving is not None:
        stays = chosen.leaving.last_round >= chosen.rounds
        variance = chosen.leaving.variance(variance)
        last_round = chosen.leaving.last_round
    weights = balanced(chosen.kappa, option.target, variance)
    if setting.weights == "auto":
        # Who stays when others have left counts for all of them in the last rounds.
        weights = without_trifles(weights, option.target, needed=stays)
    return Choice(
        tau=chosen.tau,
        rounds=chosen.rounds,
        learning_rate=chosen.learning_rate,
        momentum=chosen.momentum,
        drift_control=chosen.drift_control,
        batch_size=option.batch_size,
        weights=weights,
        predicted_loss=chosen.loss,
        reasons=tuple(_reasons(setting, spectrum, option, chosen, weights)),
        last_round=last_round,
        advice=advise(setting.problem, chosen.loss).text,
    )


def _best_batch(setting: Setting, spectrum: Spectrum) -> tuple[Found, Candidates]:
    """Return the best candidate over all batch sizes; the larger batch wins ties."""
    options = [candidates_of(setting, batch) for batch in setting.batches()]
    found = [_search(setting, spectrum, option) for option in options]
    best = min(range(len(found)), key=lambda index: found[index].loss)
    return found[best], options[best]


def _search(setting: Setting, spectrum: Spectrum, option: Candidates) -> Found:
    """Score a coarse grid, then a fine one around its best point."""
    limit = stable_rate(setting, spectrum)
    given = setting.learning_rate
    rates = limit * np.geomspace(1e-3, 1, 9) if given is None else np.array([given])
    budget, batch = setting.budget, option.batch_size
    coarse = affordable_pairs(budget, setting.prices, batch_size=batch)
    best = _score(setting, spectrum, option, coarse, rates, _MOMENTA)
    for _ in range(3):  # most searches end after the first
        fine = pairs_near(
            budget, setting.prices, tau=best.tau, rounds=best.rounds, batch_size=batch
        )
        if given is None:
            near = best.learning_rate * np.geomspace(0.5, 2.0, 9)
            rates = np.unique(np.minimum(near, limit))
        momenta = np.round(best.momentum + np.linspace(-0.2, 0.2, 9), 2)
        refined = _score(
            setting, spectrum, option, fine, rates, np.clip(momenta, 0, 0.9)
        )
        gain = 1 - refined.loss / best.loss
        best = min(best, refined, key=lambda found: found.loss)
        if gain < _TIE:
            break
    going_on = _best_leaving(setting, spectrum, option, best)
    return best if going_on is None else going_on


def _best_leaving(
    setting: Setting, spectrum: Spectrum, option: Candidates, best: Found
) -> Found | None:
    """Return the best way to go on without the poorest devices, if it is better."""
    sampling = 1 / option.batch_size - 1 / setting.problem.num_samples
    rates = np.unique(best.learning_rate * np.array([0.5, 0.7, 1.0]))
    if setting.learning_rate is None:
        limit = stable_rate(setting, spectrum)
        rates = np.unique(np.minimum([*rates, 1.4 * best.learning_rate], limit))
    else:
        rates = np.array([best.learning_rate])
    momenta = np.unique([0.0, best.momentum, *_MOMENTA])
    found = None
    for way in ways_to_leave(
        setting.budget, setting.prices, batch_size=option.batch_size
    ):
        variance = way.variance(option.variance)
        weighting = weigh_leaving(
            way, option.target, variance, sampling, planned=setting.weights == "auto"
        )
        trial = _score(
            setting,
            spectrum,
            replace(option, variance=variance, weighting=weighting),
            [(way.tau, way.rounds)],
            rates,
            momenta,
        )
        if trial.loss < (found or best).loss * (1 - _TIE):
            found = replace(trial, leaving=way)
    return found


def _score(
    setting: Setting,
    spectrum: Spectrum,
    option: Candidates,
    pairs: list[tuple[int, int]],
    rates: Array,
    momenta: Array,
) -> Found:
    """Return the best of all combinations; the cheapest among those as good as it."""
    schedule = combinations(pairs, rates, np.unique(momenta))
    steps = schedule.tau * schedule.rounds
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging plan may be tried
        response = respond(
            spectrum, schedule, variance=setting.problem["gradient_variance"]
        )
        # The weights that suit a candidate depend on its noise: try every weighting.
        parts, controlled = predicted_parts(setting, schedule, response, option)
    loss = np.nan_to_num(np.sum(list(parts.values()), axis=0), nan=np.inf)
    best = loss.min(axis=1)
    # Ten times worse than not training at all: no plan with this rate is one.
    given = setting.learning_rate is not None
    if given and not best.min() < 10 * setting.problem["initial_gap"]:
        raise InvalidInputError(
            f"with learning_rate {rates.min():.6g} every plan diverges: take at most "
            f"{stable_rate(setting, spectrum):.3g}, or leave it out to have it "
            "planned",
            argument="learning_rate",
        )
    cost = np.mean(setting.prices.communication) * schedule.rounds
    cost = (
        cost + np.mean(setting.prices.step_cost(batch_size=option.batch_size)) * steps
    )
    good = np.flatnonzero(best <= best.min() * (1 + _TIE))
    index = good[np.lexsort((best[good], schedule.tau[good], cost[good]))[0]]
    which = int(np.argmin(loss[index]))
    return Found(
        tau=int(schedule.tau[index]),
        rounds=int(schedule.rounds[index]),
        learning_rate=float(schedule.learning_rate[index]),
        momentum=float(schedule.momentum[index]),
        drift_control=bool(controlled[index, which]),
        kappa=float(option.weighting.kappa[which]),
        loss=float(loss[index, which]),
        parts={name: float(part[index, which]) for name, part in parts.items()},
    )


def _turns(option: Candidates, chosen: Found) -> str:
    """Say what taking disjoint batches in turn saves."""
    if option.blocks <= 1:
        return ""
    steps = chosen.tau * chosen.rounds
    return (
        f": {option.blocks:g} disjoint ones are taken in turn, so that {steps} steps "
        f"cost the privacy of {np.ceil(steps / option.blocks):g}"
    )


def _reasons(
    setting: Setting,
    spectrum: Spectrum,
    option: Candidates,
    chosen: Found,
    weights: Array,
) -> Iterator[str]:
    """Say in words why this plan, and what holds it back."""
    parts = sorted(chosen.parts.items(), key=lambda item: -item[1])
    shares = [f"{share / chosen.loss:.0%} {name}" for name, share in parts]
    shares = [share for share in shares if not share.startswith("0%")]
    yield f"predicted excess loss {chosen.loss:.3g}: " + ", ".join(shares)
    if (
        chosen.loss
        > setting.problem["initial_gap"] * setting.problem["learnable_share"]
    ):
        yield "that is no better than not training at all: raise epsilon"
    limit = stable_rate(setting, spectrum)
    if setting.learning_rate is not None:
        above = f", above {limit:.3g}: local steps may not be stable"
        yield (
            f"learning rate {chosen.learning_rate:.3g}: given"
            f"{above if chosen.learning_rate > limit else ''}"
        )
    elif chosen.learning_rate > 0.9 * limit:
        yield (
            f"learning rate {chosen.learning_rate:.3g}: about the largest stable one; "
            "few large steps need less noise than many small ones"
        )
    else:
        yield (
            f"learning rate {chosen.learning_rate:.3g}: below the largest stable one, "
            f"{limit:.3g}, where noise or drift would cost more than progress gains"
        )
    if chosen.momentum > 0:
        yield (
            f"server momentum {chosen.momentum:.2g}: lengthens every step "
            f"{1 / (1 - chosen.momentum):.2g} times, free of privacy and cost"
        )
    if chosen.drift_control:
        yield (
            "drift control: every device takes its last deviation from the average "
            "back, step by step; nothing more is sent, and it costs no privacy"
        )
    sampling = setting.sampling(option.batch_size)
    if sampling == "full":
        yield "full batches: noise falls with the batch, and no sample is worth saving"
    else:
        yield (
            f"batches of {int(np.median(option.batch_size))} (median), {sampling}"
            + _turns(option, chosen)
        )
    if np.ptp(weights) > 1e-9:
        even = option.target @ (option.target * option.variance)
        noise = weights @ (weights * option.variance)
        yield (
            f"weights from {weights.min():.2g} to {weights.max():.2g}: the averaged "
            f"noise has {noise / even:.2g} times the variance it has at target weights"
        )
