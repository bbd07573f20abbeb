"""The joint planner: tau, rounds, learning rate, momentum, batches and weights.

The spectral model scores affordable candidates only. Nothing is rounded afterwards, and
no private row is read.

The spectrum is not known, so a candidate is scored by its mean loss over a small family
of plausible spectra. The plan with the lowest mean loss also has the lowest mean
regret: the two differ by the mean of every spectrum's own best loss, which no candidate
changes. So no assumption alone decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.planning.advice import advise
from fedbudget.planning.schedules import (
    CONSTANT,
    NoiseSchedule,
    best_schedule,
    round_weights,
)
from fedbudget.planning.settings import (
    Choice,
    Setting,
    affordable_pairs,
    pairs_near,
    sampled_excess,
)
from fedbudget.planning.spectral import (
    BatchOption,
    Schedule,
    Spectrum,
    batch_option,
    combinations,
    planned_clip,
    plausible,
    predicted_parts,
    responses,
    server_rates,
    stable_rate,
    steepest,
    with_stable_server,
)
from fedbudget.planning.weights import (
    EarlyStops,
    Weighting,
    candidate_weights_with_stops,
    drop_negligible,
    early_stop_candidates,
)

# Plans whose predicted losses differ by less than this share are equivalent, and the
# cheapest one is selected.
_TIE = 0.002

# Falling noise must save at least this share of the predicted loss.
_MIN_SCHEDULE_GAIN = 0.005
# Less noise at the end allows longer steps.
_LONGER = np.array([1.0, 1.1, 1.2, 1.35, 1.5])

_MOMENTA = np.array([0.0, 0.5, 0.8])
_MIN_SERVER_GAIN = 0.03  # the share of the loss that a server rate must save

# In 8 of 10 cases the measured excess loss is between these multiples of the least and
# of the largest loss over the family: benchmarks/regret.py.
RANGE = (0.5, 3.0)


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
    weighting: Weighting  # sums of the weights with this kappa
    server_rate: float = 1.0  # a factor of a round's averaged move, for sums
    clip: float = np.inf  # largest norm of a device's move in a round, for sums
    early_stops: EarlyStops | None = None  # None: all devices stay to the last round
    schedule: NoiseSchedule = CONSTANT


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
    best = _with_falling_noise(setting, spectrum, option, best)
    variance, last_round = option.variance, None
    stays = np.zeros(setting.problem.num_devices, dtype=np.bool_)
    if best.early_stops is not None:
        stays = best.early_stops.last_round >= best.rounds
        variance = best.early_stops.variance(variance)
        last_round = best.early_stops.last_round
    weights = option.rule.weights(best.kappa, option.target, variance)
    if setting.weights == "auto":
        # The last rounds need the devices that stay, even those of small weight.
        fewer = drop_negligible(weights, option.target, needed=stays)
        weights = fewer if option.rule.allows(int((fewer > 0).sum())) else weights
    members = _member_losses(setting, option, best)
    return Choice(
        tau=best.tau,
        rounds=best.rounds,
        learning_rate=best.learning_rate,
        momentum=best.momentum,
        drift_correction=best.drift_correction,
        batch_size=option.batch_size,
        weights=weights,
        predicted_loss=best.loss,
        predicted_range=(RANGE[0] * min(members), RANGE[1] * max(members)),
        reasons=(
            *_reasons(setting, spectrum, option, best, weights),
            *_robustness(setting, option, members, best.schedule.share),
        ),
        last_round=last_round,
        advice=advise(setting.problem, best.loss).text,
        noise_decay=best.schedule.decay,
        server_rate=best.server_rate,
        clip=best.clip if np.isfinite(best.clip) else None,
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
    best = _score(
        setting, spectrum, option, coarse, rates, _MOMENTA, server_rates(setting)
    )
    for _ in range(3):  # most searches end after the first
        fine = pairs_near(
            budget, setting.prices, tau=best.tau, rounds=best.rounds, batch_size=batch
        )
        if fixed is None:
            near = best.learning_rate * np.geomspace(0.5, 2.0, 9)
            rates = np.unique(np.minimum(near, limit))
        momenta = np.round(best.momentum + np.linspace(-0.2, 0.2, 9), 2)
        refined = _score(
            setting,
            spectrum,
            option,
            fine,
            rates,
            np.clip(momenta, 0, 0.9),
            server_rates(setting, best.server_rate),
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
        setting.budget, setting.prices, batch_size=option.batch_size, rule=option.rule
    ):
        variance = stops.variance(option.variance)
        weighting = candidate_weights_with_stops(
            stops,
            option.target,
            variance,
            sampling,
            planned=setting.weights == "auto",
            rule=option.rule,
        )
        trial = _score(
            setting,
            spectrum,
            replace(option, variance=variance, weighting=weighting),
            [(stops.tau, stops.rounds)],
            rates,
            momenta,
            np.unique([1.0, best.server_rate]),
        )
        if trial.loss < (result or best).loss * (1 - _TIE):
            result = replace(trial, early_stops=stops)
    return result


def _with_falling_noise(
    setting: Setting, spectrum: Spectrum, option: BatchOption, best: SearchResult
) -> SearchResult:
    """Return the result with falling noise, if it gains enough, or as it is.

    Only where constant noise is not needed for the account, and where all devices stay
    to the last round: others would spend less than they may.
    """
    sampling = setting.sampling(option.batch_size)
    constant = not setting.noise_schedule or best.early_stops is not None
    constant |= setting.is_sum or setting.per_device
    if constant or sampling not in ("full", "fixed"):
        return best
    rates = np.array([best.learning_rate])
    if setting.learning_rate is None:
        longer = best.learning_rate * _LONGER
        rates = np.unique(np.minimum(longer, stable_rate(setting, spectrum)))
    trials = [_falling(setting, spectrum, option, best, rate) for rate in rates]
    trial = min(trials, key=lambda result: result.loss)
    return trial if trial.loss < best.loss * (1 - _MIN_SCHEDULE_GAIN) else best


def _falling(
    setting: Setting,
    spectrum: Spectrum,
    option: BatchOption,
    best: SearchResult,
    rate: float,
) -> SearchResult:
    """Return a result at another learning rate, with its best schedule of noise."""
    pair, momenta = (best.tau, best.rounds), np.array([best.momentum])
    trial = _score(setting, spectrum, option, [pair], np.array([rate]), momenta)
    with np.errstate(over="ignore", invalid="ignore"):  # some candidates diverge
        weights = round_weights(
            spectrum.curvature,
            spectrum.count,
            tau=best.tau,
            rounds=best.rounds,
            learning_rate=float(rate),
            momentum=trial.momentum,
        )
    schedule = best_schedule(weights)
    noise = schedule.share * trial.parts["privacy noise"]
    parts = trial.parts | {"privacy noise": noise}
    return replace(
        trial, parts=parts, loss=float(sum(parts.values())), schedule=schedule
    )


def _score(
    setting: Setting,
    spectrum: Spectrum,
    option: BatchOption,
    pairs: list[tuple[int, int]],
    rates: Array,
    momenta: Array,
    server_rates: Array | None = None,
) -> SearchResult:
    """Return the best combination; the cheapest one among equivalent ones."""
    schedule = combinations(pairs, rates, np.unique(momenta), server_rates)
    schedule = with_stable_server(schedule, steepest(setting, spectrum))
    steps = schedule.tau * schedule.rounds
    with np.errstate(over="ignore", invalid="ignore"):  # some candidates diverge
        response = responses(setting, spectrum, schedule)
        # The best weights depend on the candidate's noise: try every weighting.
        parts, corrected = predicted_parts(setting, schedule, response, option)
    loss = np.nan_to_num(np.sum(list(parts.values()), axis=0), nan=np.inf)
    best = loss.min(axis=1)
    best = np.where(schedule.server_rate > 1, best / (1 - _MIN_SERVER_GAIN), best)
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
        server_rate=float(np.broadcast_to(schedule.server_rate, best.shape)[index]),
        drift_correction=bool(corrected[index, column]),
        kappa=float(option.weighting.kappa[column]),
        loss=float(loss[index, column]),
        parts={name: float(part[index, column]) for name, part in parts.items()},
        weighting=option.weighting.only(column),
        clip=float(planned_clip(setting, response)[index])
        if setting.is_sum
        else np.inf,
    )


def _member_losses(
    setting: Setting, option: BatchOption, best: SearchResult
) -> list[float]:
    """Return the predicted loss of the result under every plausible spectrum."""
    schedule = Schedule(
        tau=np.array([float(best.tau)]),
        rounds=np.array([float(best.rounds)]),
        learning_rate=np.array([best.learning_rate]),
        momentum=np.array([best.momentum]),
        server_rate=np.array([best.server_rate]),
    )
    option = replace(option, weighting=best.weighting)
    return [
        float(_losses(setting, spectrum, schedule, option, best.schedule.share)[0])
        for spectrum in plausible(setting.problem)
    ]


def _losses(
    setting: Setting,
    spectrum: Spectrum,
    schedule: Schedule,
    option: BatchOption,
    noise_share: float = 1.0,
) -> Array:
    """Return the predicted loss of every candidate, with its best weights.

    `noise_share` is what falling noise leaves of the noise's part.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # some candidates diverge
        response = responses(setting, spectrum, schedule)
        parts, _ = predicted_parts(setting, schedule, response, option)
        parts["privacy noise"] = noise_share * parts["privacy noise"]
        loss = np.nan_to_num(np.sum(list(parts.values()), axis=0), nan=np.inf)
    return np.asarray(loss.min(axis=1))


def _robustness(
    setting: Setting, option: BatchOption, members: list[float], noise_share: float
) -> Iterator[str]:
    """Say over which spectra the plan is robust, and what a public sample would save.

    With a sample, the spectrum is known, and the plan is the best one for it. The
    saving is a mean over the family, each member's best one taken from a coarse grid,
    with noise that falls as the plan's does.
    """
    if len(members) == 1:
        if setting.problem.modes is not None:
            note = setting.problem.constants["smoothness"].note
            yield f"planned for modes that were measured on {note}"
        return
    yield (
        f"robust: the lowest mean loss over {len(members)} plausible spectra, which "
        f"predict {min(members):.3g} to {max(members):.3g}"
    )
    if not setting.explain or setting.learning_rate is not None:
        return
    pairs = affordable_pairs(
        setting.budget, setting.prices, batch_size=option.batch_size
    )
    saved = []
    for spectrum, loss in zip(plausible(setting.problem), members, strict=True):
        rates = stable_rate(setting, spectrum) * np.geomspace(1e-2, 1, 7)
        schedule = combinations(pairs, rates, _MOMENTA)
        losses = _losses(setting, spectrum, schedule, option, noise_share)
        saved.append(max(0.0, loss - float(losses.min())))
    share = float(np.mean(saved) / np.mean(members))
    yield (
        "a public sample (--public-sample, with_public_sample) would tell them apart, "
        "and is predicted to lower the loss by "
        + ("less than 1%" if share < 0.01 else f"{share:.0%}")
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
        why = (
            "noise depends on learning rate times steps, and steps cost"
            if setting.is_sum
            else "few large steps need less noise than many small ones"
        )
        yield (
            f"learning rate {best.learning_rate:.3g}: close to the largest stable one; "
            f"{why}"
        )
    else:
        yield (
            f"learning rate {best.learning_rate:.3g}: below the largest stable one, "
            f"{limit:.3g}; a larger one would add more noise or drift than progress"
        )
    if setting.clip is None and np.isfinite(best.clip):
        longest = setting.problem["lipschitz"] * best.learning_rate * best.tau
        yield (
            f"clip {best.clip:.3g}: the expected length of a device's first move, and "
            f"{best.clip / longest:.2g} of the longest that the loss allows; the noise "
            "covers no more than that"
        )
    if best.momentum > 0:
        yield (
            f"server momentum {best.momentum:.2g}: makes every step "
            f"{1 / (1 - best.momentum):.2g} times longer, and costs nothing"
        )
    if best.server_rate > 1:
        yield (
            f"server rate {best.server_rate:.2g}: multiplies every round's averaged "
            "move, and costs nothing; longer local training would drift instead"
        )
    if best.schedule.decay < 1:
        yield (
            f"noise falls by {1 - best.schedule.decay:.2g} of itself per round: "
            f"{1 - best.schedule.share:.0%} less of it stays in the model than of "
            "constant noise, at the same cost in privacy"
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
        everybody = np.ones(len(weights), dtype=np.bool_)
        target_noise = option.rule.noise(option.target, option.variance, everybody)
        noise = option.rule.noise(weights, option.variance, everybody)
        yield (
            f"weights from {weights.min():.2g} to {weights.max():.2g}: the variance of "
            f"the averaged noise is {noise / target_noise:.2g} times that of the "
            "target weights"
        )
