"""The joint planner: tau, rounds, learning rate, momentum, batches and weights.

The spectral model scores affordable candidates only. Nothing is rounded afterwards, and
no private row is read.
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
    BatchOption,
    Spectrum,
    batch_option,
    combinations,
    predicted_parts,
    respond,
    stable_rate,
)
from fedbudget.planning.weights import (
    EarlyStops,
    balanced,
    candidate_weights_with_stops,
    drop_negligible,
    early_stop_candidates,
)

# Plans whose predicted losses differ by less than this share are equivalent, and the
# cheapest one is selected.
_TIE = 0.002

_MOMENTA = np.array([0.0, 0.5, 0.8])


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best candidate of a search."""

    tau: int
    rounds: int
    learning_rate: float
    momentum: float
    drift_correction: bool
    kappa: float
    loss: float
    parts: dict[str, float]  # the terms of the loss
    early_stops: EarlyStops | None = None  # None: all devices stay to the last round


def choose_joint(setting: Setting) -> Choice:
    """Return the affordable choice with the lowest predicted loss."""
    spectrum = Spectrum.of(setting.problem)
    best, option = _best_batch(setting, spectrum)
    if setting.sampling(option.batch_size) == "poisson":
        # Few steps need more noise than the limit for many steps: compute the ratio
        # for the best candidate, and search again with it.
        excess = sampled_excess(setting, option.batch_size, best.tau * best.rounds)
        setting = replace(setting, sampled_excess=excess)
        best, option = _best_batch(setting, spectrum)
    variance, last_round = option.variance, None
    stays = np.zeros(setting.problem.num_devices, dtype=np.bool_)
    if best.early_stops is not None:
        stays = best.early_stops.last_round >= best.rounds
        variance = best.early_stops.variance(variance)
        last_round = best.early_stops.last_round
    weights = balanced(best.kappa, option.target, variance)
    if setting.weights == "auto":
        # The last rounds need the devices that stay, even those of small weight.
        weights = drop_negligible(weights, option.target, needed=stays)
    return Choice(
        tau=best.tau,
        rounds=best.rounds,
        learning_rate=best.learning_rate,
        momentum=best.momentum,
        drift_correction=best.drift_correction,
        batch_size=option.batch_size,
        weights=weights,
        predicted_loss=best.loss,
        reasons=tuple(_reasons(setting, spectrum, option, best, weights)),
        last_round=last_round,
        advice=advise(setting.problem, best.loss).text,
    )


def _best_batch(
    setting: Setting, spectrum: Spectrum
) -> tuple[SearchResult, BatchOption]:
    """Return the best candidate over all batch sizes; the larger batch wins ties."""
    options = [batch_option(setting, batch) for batch in setting.batches()]
    results = [_search(setting, spectrum, option) for option in options]
    best = min(range(len(results)), key=lambda index: results[index].loss)
    return results[best], options[best]


def _search(setting: Setting, spectrum: Spectrum, option: BatchOption) -> SearchResult:
    """Score a coarse grid, then a fine one around its best point."""
    limit = stable_rate(setting, spectrum)
    fixed = setting.learning_rate
    rates = limit * np.geomspace(1e-3, 1, 9) if fixed is None else np.array([fixed])
    budget, batch = setting.budget, option.batch_size
    coarse = affordable_pairs(budget, setting.prices, batch_size=batch)
    best = _score(setting, spectrum, option, coarse, rates, _MOMENTA)
    for _ in range(3):  # most searches end after the first
        fine = pairs_near(
            budget, setting.prices, tau=best.tau, rounds=best.rounds, batch_size=batch
        )
        if fixed is None:
            near = best.learning_rate * np.geomspace(0.5, 2.0, 9)
            rates = np.unique(np.minimum(near, limit))
        momenta = np.round(best.momentum + np.linspace(-0.2, 0.2, 9), 2)
        refined = _score(
            setting, spectrum, option, fine, rates, np.clip(momenta, 0, 0.9)
        )
        gain = 1 - refined.loss / best.loss
        best = min(best, refined, key=lambda result: result.loss)
        if gain < _TIE:
            break
    return _best_early_stops(setting, spectrum, option, best) or best


def _best_early_stops(
    setting: Setting, spectrum: Spectrum, option: BatchOption, best: SearchResult
) -> SearchResult | None:
    """Return the best result with early stops, or None if none is better.

    Devices with the smallest budgets stop early, so that the others can run longer.
    """
    sampling = 1 / option.batch_size - 1 / setting.problem.num_samples
    rates = np.unique(best.learning_rate * np.array([0.5, 0.7, 1.0]))
    if setting.learning_rate is None:
        limit = stable_rate(setting, spectrum)
        rates = np.unique(np.minimum([*rates, 1.4 * best.learning_rate], limit))
    else:
        rates = np.array([best.learning_rate])
    momenta = np.unique([0.0, best.momentum, *_MOMENTA])
    result = None
    for stops in early_stop_candidates(
        setting.budget, setting.prices, batch_size=option.batch_size
    ):
        variance = stops.variance(option.variance)
        weighting = candidate_weights_with_stops(
            stops, option.target, variance, sampling, planned=setting.weights == "auto"
        )
        trial = _score(
            setting,
            spectrum,
            replace(option, variance=variance, weighting=weighting),
            [(stops.tau, stops.rounds)],
            rates,
            momenta,
        )
        if trial.loss < (result or best).loss * (1 - _TIE):
            result = replace(trial, early_stops=stops)
    return result


def _score(
    setting: Setting,
    spectrum: Spectrum,
    option: BatchOption,
    pairs: list[tuple[int, int]],
    rates: Array,
    momenta: Array,
) -> SearchResult:
    """Return the best combination; the cheapest one among equivalent ones."""
    schedule = combinations(pairs, rates, np.unique(momenta))
    steps = schedule.tau * schedule.rounds
    with np.errstate(over="ignore", invalid="ignore"):  # some candidates diverge
        response = respond(
            spectrum, schedule, variance=setting.problem["gradient_variance"]
        )
        # The best weights depend on the candidate's noise: try every weighting.
        parts, corrected = predicted_parts(setting, schedule, response, option)
    loss = np.nan_to_num(np.sum(list(parts.values()), axis=0), nan=np.inf)
    best = loss.min(axis=1)
    # A predicted loss above ten times the initial gap means divergence.
    fixed = setting.learning_rate is not None
    if fixed and not best.min() < 10 * setting.problem["initial_gap"]:
        raise InvalidInputError(
            f"with learning_rate {rates.min():.6g} every plan diverges: use at most "
            f"{stable_rate(setting, spectrum):.3g}, or leave it out to have it "
            "planned",
            argument="learning_rate",
        )
    cost = np.mean(setting.prices.communication) * schedule.rounds
    cost = (
        cost + np.mean(setting.prices.step_cost(batch_size=option.batch_size)) * steps
    )
    equivalent = np.flatnonzero(best <= best.min() * (1 + _TIE))
    order = np.lexsort((best[equivalent], schedule.tau[equivalent], cost[equivalent]))
    index = equivalent[order[0]]
    column = int(np.argmin(loss[index]))
    return SearchResult(
        tau=int(schedule.tau[index]),
        rounds=int(schedule.rounds[index]),
        learning_rate=float(schedule.learning_rate[index]),
        momentum=float(schedule.momentum[index]),
        drift_correction=bool(corrected[index, column]),
        kappa=float(option.weighting.kappa[column]),
        loss=float(loss[index, column]),
        parts={name: float(part[index, column]) for name, part in parts.items()},
    )


def _cyclic_saving(option: BatchOption, best: SearchResult) -> str:
    """Describe the privacy that disjoint batches, taken in turn, save."""
    if option.blocks <= 1:
        return ""
    steps = best.tau * best.rounds
    return (
        f": {option.blocks:g} disjoint batches are taken in turn, so {steps} steps "
        f"cost the privacy of {np.ceil(steps / option.blocks):g}"
    )


def _reasons(
    setting: Setting,
    spectrum: Spectrum,
    option: BatchOption,
    best: SearchResult,
    weights: Array,
) -> Iterator[str]:
    """Explain the plan to its user, and what limits its loss."""
    parts = sorted(best.parts.items(), key=lambda item: -item[1])
    shares = [f"{share / best.loss:.0%} {name}" for name, share in parts]
    shares = [share for share in shares if not share.startswith("0%")]
    yield f"predicted excess loss {best.loss:.3g}: " + ", ".join(shares)
    if best.loss > setting.problem["initial_gap"] * setting.problem["learnable_share"]:
        yield "this is no better than not training at all: raise epsilon"
    limit = stable_rate(setting, spectrum)
    if setting.learning_rate is not None:
        above = f", above the largest stable one, {limit:.3g}"
        yield (
            f"learning rate {best.learning_rate:.3g}: set by the user"
            f"{above if best.learning_rate > limit else ''}"
        )
    elif best.learning_rate > 0.9 * limit:
        yield (
            f"learning rate {best.learning_rate:.3g}: close to the largest stable one; "
            "few large steps need less noise than many small ones"
        )
    else:
        yield (
            f"learning rate {best.learning_rate:.3g}: below the largest stable one, "
            f"{limit:.3g}; a larger one would add more noise or drift than progress"
        )
    if best.momentum > 0:
        yield (
            f"server momentum {best.momentum:.2g}: makes every step "
            f"{1 / (1 - best.momentum):.2g} times longer, and costs nothing"
        )
    if best.drift_correction:
        yield (
            "drift correction: each device corrects its local steps by its last "
            "deviation from the average; nothing more is sent, and it costs no privacy"
        )
    sampling = setting.sampling(option.batch_size)
    if sampling == "full":
        yield "full batches: larger ones need less noise; smaller ones save too little"
    else:
        yield (
            f"batches of {int(np.median(option.batch_size))} (median), {sampling}"
            + _cyclic_saving(option, best)
        )
    if np.ptp(weights) > 1e-9:
        target_noise = option.target @ (option.target * option.variance)
        noise = weights @ (weights * option.variance)
        yield (
            f"weights from {weights.min():.2g} to {weights.max():.2g}: the variance of "
            f"the averaged noise is {noise / target_noise:.2g} times that of the "
            "target weights"
        )
