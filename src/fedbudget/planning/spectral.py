"""The spectral model: predict the loss after a noisy run, without data.

Rows in the unit ball bound the trace of the Hessian, so the sum of its d eigenvalues is
known up to a factor. Rows scaled to [-1, 1] have one large eigenvalue, the spike, along
their mean: it holds most of the trace and little of the gap between the loss at zero
and the best loss. Beside it, eigenvalue i falls as i^-q, and its part of the gap as
i^-r. Then a linear iteration with noise has an exact solution for each mode: tau local
steps, averaging, server momentum. Two terms describe heterogeneous (unlike) devices,
whose optima differ: local steps move each device towards its own optimum (drift), and
weights other than the target's bias the average.

A public sample replaces the assumed modes by measured ones.

Many candidates are scored at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.ledger import Bools
from fedbudget.planning.settings import Setting
from fedbudget.planning.weights import (
    OWN_NOISE,
    OwnNoise,
    SharedNoise,
    Weighting,
    candidate_weights,
    target_weights,
)
from fedbudget.privacy.uploads import move_series
from fedbudget.problem import CURVATURE_SHARE, GAP_DECAY, SPIKE_GAP, Problem
from fedbudget.public_sample import Modes, curvature_at_zero

# Groups of eigenvalues: of each assumed spectrum, and of a measured one.
_MODES, _MEASURED_MODES = 8, 24

# The family of plausible spectra: factors of the trace's share beside the spike. The
# first is the most likely one.
FAMILY = (1.0, 0.3, 1.7)
NARROW_FAMILY = (1.0, 0.6, 1.4)  # where the encoding or the user gives that share
# Noise costs less accuracy than unfinished training of the same loss, and where it is
# large the loss is flatter than the quadratic. Fitted to the regret of classifiers.
NOISE_WEIGHT: Mapping[str, float] = MappingProxyType(
    {"logistic": 0.5, "softmax": 0.5, "hinge": 0.5, "smooth_hinge": 0.5, "huber": 1.0}
)
# With a public sample, the part of the gap that is spread by the prior.
PRIOR_PART = 0.4

# Drift correction of a regression acts faster by this power than the model says: plans
# with more local steps do better. For classifiers the model holds.
_CORRECTION_SPEED: Mapping[str, float] = MappingProxyType(
    {"logistic": 1, "softmax": 1, "hinge": 1, "smooth_hinge": 1, "huber": 3}
)

# Local steps of a smooth convex loss are stable at rates below 2 / smoothness.
STABLE = 1.9
# Of sums: the largest rate of the server. Larger ones gain little more.
MOST_SERVER_RATE = 2.0

# Heterogeneous devices cost more loss than the spread of their optima explains, since
# the other devices cannot correct what only one of them has data on. Fitted to Adult by
# education. Drift is that of the average over M devices: random parts of it cancel as
# 1 / M, a common part does not, and the weight is DRIFT / sqrt(M), in between.
OFF_TARGET, DRIFT = 6.0, 24.0
# Fitted again to sums, on the same rows, on smartwatches and on four tables: without
# drift correction drift costs less than that, a noise that all devices share costs its
# whole loss, and a device of N rows differs from others by FEW_ROWS / N of the gap,
# even if rows are dealt at random.
SUM_OFF_TARGET, SUM_DRIFT, SUM_NOISE_WEIGHT, FEW_ROWS = 2.0, 12.0, 1.0, 0.5

# Drift correction needs a state on devices: it must save at least this share of the
# loss.
_MIN_CORRECTION_GAIN = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Groups of Hessian eigenvalues, and what lies along each.

    A mean over several spectra is a spectrum too: predicted losses are sums over the
    modes, so its counts are weighted, and need not be whole.
    """

    curvature: Array  # h: the eigenvalue, shape (groups,)
    count: Array  # n: the number of eigenvalues in a group
    gap: Array  # the part of the initial gap along one eigenvector

    @classmethod
    def of(cls, problem: Problem) -> "Spectrum":
        """Return the mean over the plausible spectra of a problem."""
        return cls.mean(plausible(problem))

    @classmethod
    def mean(cls, spectra: Sequence["Spectrum"]) -> "Spectrum":
        """Return the mean: every response to it is the mean of the responses."""

        def joined(name: str) -> Array:
            return np.concatenate([getattr(each, name) for each in spectra])

        return cls(
            curvature=joined("curvature"),
            count=joined("count") / len(spectra),
            gap=joined("gap"),
        )

    @property
    def learnable(self) -> float:
        """The initial gap: what the best model gains over theta = 0."""
        return float(self.count @ self.gap)


def plausible(problem: Problem) -> list[Spectrum]:
    """Return the spectra that public knowledge allows: a small family.

    A public sample leaves one. Without it, `FAMILY` varies how much of the trace lies
    beside the spike: how fast all but the mean can be learned.
    """
    gap = problem["initial_gap"] * problem["learnable_share"]
    if problem.modes is not None:
        return [_measured(problem, problem.modes, gap)]
    if problem["spike_share"] == 0:
        family: tuple[float, ...] = (1.0,)
    else:
        family = NARROW_FAMILY if "spike_share" in problem.overrides else FAMILY
    return [_assumed(problem, gap, factor) for factor in family]


def _assumed(problem: Problem, gap: float, rest_factor: float) -> Spectrum:
    """Return a spike along the rows' mean, and power laws over the other modes."""
    spike, spike_gap = problem["spike_share"], problem["spike_gap"]
    modes = problem.dim
    if modes == 1:
        spike = spike_gap = 1.0
    elif spike > 0:
        # No mode is flat: a flat one would never move.
        spike = float(np.clip(1 - (1 - spike) * rest_factor, spike / 2, 0.999))
    if spike == 0:
        spike_gap = 0.0
    first = int(spike > 0)
    count, rank = _groups(modes - first, _MODES)
    curvature = _power_law(count, rank, problem["spectrum_decay"]) * (1 - spike)
    gaps = _power_law(count, rank, problem["gap_decay"]) * (1 - spike_gap)
    return _spectrum(
        problem,
        count=np.concatenate([np.ones(first), count]),
        curvature=problem["hessian_trace"] * np.append([spike] * first, curvature),
        gap=gap * np.append([spike_gap] * first, gaps),
    )


def _measured(problem: Problem, modes: Modes, gap: float) -> Spectrum:
    """Return the modes of a public sample; a part of the gap is spread by the prior.

    A small sample finds only the largest parts of the gap, and says nothing about
    modes that it does not show.
    """
    model = problem.model
    rank = np.arange(1.0, len(modes.eigenvalue) + 1)
    spike = SPIKE_GAP[model.name] if len(rank) > 1 else 1.0
    prior = np.append(spike, (1 - spike) * _power_law(1.0, rank[:-1], GAP_DECAY))
    found = modes.gap.sum()
    share = prior if found == 0 else modes.gap / found
    share = (1 - PRIOR_PART) * share + PRIOR_PART * prior
    count, _ = _groups(len(rank), _MEASURED_MODES)
    starts = np.cumsum(count).astype(np.int64) - count.astype(np.int64)
    scale = CURVATURE_SHARE[model.name] * curvature_at_zero(model)
    outputs = max(1, model.num_outputs - 1)
    return _spectrum(
        problem,
        count=count,
        curvature=scale * outputs * np.add.reduceat(modes.eigenvalue, starts) / count,
        gap=gap * np.add.reduceat(share, starts) / count,
    )


def _spectrum(
    problem: Problem, *, count: Array, curvature: Array, gap: Array
) -> Spectrum:
    """Repeat the modes of the rows for every output, and add the L2 term.

    A softmax over C classes has C - 1 directions of scores: one changes nothing.
    """
    outputs = max(1, problem.model.num_outputs - 1)
    return Spectrum(
        curvature=curvature / outputs + problem.model.l2,
        count=count * outputs,
        gap=gap / outputs,
    )


def _groups(modes: int, groups: int) -> tuple[Array, Array]:
    """Return the sizes of at most this many groups of ranks, and their middle ranks.

    The first ranks stay apart: most of the trace and of the gap is there.
    """
    if modes <= groups:
        edges = np.arange(1, modes + 2)
    else:
        few = np.arange(1, groups // 2)
        many = np.geomspace(groups // 2, modes + 1, groups - len(few) + 1)
        edges = np.unique(np.concatenate([few, np.rint(many).astype(np.int64)]))
    return np.diff(edges).astype(np.float64), np.sqrt(edges[:-1] * (edges[1:] - 1.0))


def _power_law(count: Array | float, rank: Array, decay: float) -> Array:
    """Return rank^-decay, scaled so that all modes add up to 1."""
    power = rank**-decay
    return np.asarray(power / max(float(np.sum(count * power)), 1e-300))


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Candidate runs, one per entry of the arrays."""

    tau: Array
    rounds: Array
    learning_rate: Array
    momentum: Array
    server_rate: Array | float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """The terms of the predicted loss of each candidate, summed over the modes.

    loss = remaining + noise * s2 + sampling * v
           + dissimilarity^2 * (drift or corrected + moved * sum (p - target)^2)

    where s2 is the variance of the averaged noise in one step per coordinate, or in one
    round where noise is added once per upload, and v that of the averaged batch
    gradient, in units of one sample's.
    """

    remaining: Array
    noise: Array
    sampling: Array
    drift: Array
    corrected: Array  # drift with drift correction
    moved: Array
    # Squared length of a device's first move: of the common part, and of that by the
    # variance of its own rows' mean, in units of one sample's.
    first_move: Array
    own_move: Array


def respond(
    spectrum: Spectrum,
    schedule: Schedule,
    *,
    variance: float,
    per_round: bool = False,
    correction_speed: float = 1.0,
) -> Response:
    """Return the response of every candidate; exact for a quadratic loss.

    With `per_round`, noise is added once per round, after its local steps. The share of
    the drift that drift correction leaves is taken to the power `correction_speed`.
    """
    h, n, gap = spectrum.curvature, spectrum.count, spectrum.gap
    tau, eta = schedule.tau[:, None], schedule.learning_rate[:, None]
    contraction = 1 - eta * h
    local = _power(contraction, tau)  # remaining share of a deviation after tau steps
    # Noise of tau steps, contracted by the later steps: a geometric series.
    spread = eta**2 * _geometric(contraction**2, tau)
    rounds = schedule.rounds[:, None]
    server_rate = np.atleast_1d(schedule.server_rate)[:, None]
    served = local + (server_rate - 1) * (local - 1)  # as above, on the server
    residual, gain = _momentum(served, schedule.momentum[:, None], rounds)
    moved = np.clip(1 - np.abs(residual), 0, 1)
    # The share of the pull to a local optimum that averaging does not undo: 0 for one
    # step, 1 if every device reaches its own optimum.
    pull = 1 - (1 - local) / (tau * eta * h)
    drift_share = _corrected_share(local, pull, rounds) ** correction_speed
    with np.errstate(over="ignore", invalid="ignore"):
        round_noise = 0.5 * h * gain * server_rate**2
        noise = round_noise * spread
        return Response(
            remaining=_total(n * gap * residual**2),
            noise=_total(n * (round_noise if per_round else noise)),
            sampling=_total(n * noise * variance * h / np.sum(n * h)),
            drift=_total(n * gap * (pull * moved) ** 2),
            corrected=_total(n * gap * (pull * moved * drift_share) ** 2),
            moved=_total(n * gap * moved**2),
            first_move=_total(n * 2 * gap / h * (1 - local) ** 2),
            own_move=_total(n * variance / np.sum(n * h) / h * (1 - local) ** 2),
        )


def responses(setting: Setting, spectrum: Spectrum, schedule: Schedule) -> Response:
    """Return the response of every candidate in this setting.

    A clip that is given shortens all moves by as much as a typical first one: the
    server then takes a part of the way, with all of the noise.
    """
    settings: dict[str, Any] = {
        "variance": setting.problem["gradient_variance"],
        "per_round": setting.is_sum,
        "correction_speed": _CORRECTION_SPEED[setting.problem.model.name],
    }
    free = respond(spectrum, schedule, **settings)
    if setting.clip is None:
        return free
    part = setting.clip / np.maximum(_first_move(setting, free), setting.clip)
    shorter = replace(schedule, server_rate=schedule.server_rate * part)
    clipped = respond(spectrum, shorter, **settings)
    return replace(clipped, noise=clipped.noise / part**2)


def _first_move(setting: Setting, response: Response) -> Array:
    """Return the typical length of the first move of a device of median size."""
    rows = float(np.median(setting.problem.num_samples))
    return np.asarray(np.sqrt(response.first_move + response.own_move / rows))


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchOption:
    """A choice of batch sizes, with its noise and its candidate weights."""

    batch_size: NDArray[np.int64]
    variance: Array  # of each device's noise in a run of one step
    blocks: float  # B of the median device: only every B-th step adds noise
    target: Array
    weighting: Weighting
    rule: OwnNoise  # how the devices' noise adds up


def batch_option(setting: Setting, batch_size: NDArray[np.int64]) -> BatchOption:
    """Compute the noise and the candidate weights of these batch sizes."""
    problem = setting.problem
    # For many steps; `predicted_parts` rounds up to whole laps.
    blocks = setting.blocks(batch_size)
    rule: OwnNoise
    variance, rule = setting.unit_noise(batch_size) ** 2, OWN_NOISE
    if setting.is_sum:
        budget = setting.budget
        rule = SharedNoise(
            least_answers=budget.least_answers, colluders=budget.colluders
        )
    elif not setting.per_device:
        variance = variance / blocks
    target = target_weights(problem, setting.weights, setting.target)
    variance = np.broadcast_to(variance, target.shape)
    sampling = 1 / batch_size - 1 / problem.num_samples
    return BatchOption(
        batch_size=batch_size,
        variance=variance,
        blocks=float(np.median(blocks)),
        target=target,
        weighting=candidate_weights(
            target, variance, sampling, planned=setting.weights == "auto", rule=rule
        ),
        rule=rule,
    )


def stable_rate(setting: Setting, spectrum: Spectrum) -> float:
    """Return the largest learning rate for which local steps are stable.

    Local steps without noise must not move neighbouring data apart: at most 2 / L.
    """
    stable = STABLE / steepest(setting, spectrum)
    if setting.is_sum and not setting.per_device:
        stable = min(stable, STABLE / setting.problem.model.smoothness)
    return stable


def steepest(setting: Setting, spectrum: Spectrum) -> float:
    """Return the largest curvature that is plausible."""
    return max(setting.problem["smoothness"], float(spectrum.curvature.max()))


def combinations(
    pairs: list[tuple[int, int]],
    rates: Array,
    momenta: Array,
    server_rates: Array | None = None,
) -> Schedule:
    """Return all combinations; the server acts only with more than two rounds.

    Without momentum it has no rate of its own.
    """
    one = np.ones(1)
    longer = np.array([pair for pair in pairs if pair[1] > 2]).reshape(-1, 2)
    served = one if server_rates is None else server_rates
    tables = [
        _product(np.array(pairs), rates, np.zeros(1), one),
        _product(longer, rates, momenta[momenta > 0], served),
    ]
    tau, rounds, rate, momentum, server_rate = np.concatenate(tables, axis=1)
    return Schedule(
        tau=tau,
        rounds=rounds,
        learning_rate=rate,
        momentum=momentum,
        server_rate=server_rate,
    )


def server_rates(setting: Setting, near: float | None = None) -> Array:
    """Return the server rates to try; with uploads, the server averages only."""
    if not setting.is_sum:
        return np.ones(1)
    if near is None:
        return np.array([1.0, MOST_SERVER_RATE])
    return np.unique(np.clip([near / 1.3, near, near * 1.3], 1.0, MOST_SERVER_RATE))


def with_stable_server(schedule: Schedule, curvature: float) -> Schedule:
    """Return the candidates with server rates at most where rounds are stable.

    tau steps on a mode of curvature h take the share 1 - (1 - eta h)^tau of the way,
    and heavy-ball rounds are stable if the rate times that is below 2 (1 + momentum).
    No mode up to this curvature takes more than 1 + (eta curvature - 1)^tau.
    """
    beyond = np.maximum(schedule.learning_rate * curvature - 1, 0.0)
    longest = 1 + np.minimum(beyond, 1.0) ** schedule.tau
    most = np.maximum(STABLE * (1 + schedule.momentum) / longest, 1.0)
    return replace(schedule, server_rate=np.minimum(schedule.server_rate, most))


def predicted_parts(
    setting: Setting, schedule: Schedule, response: Response, option: BatchOption
) -> tuple[dict[str, Array], Bools]:
    """Return the terms of the predicted loss, and where drift correction is used.

    All have the shape (candidates, weightings).
    """
    dissimilarity_sq = setting.problem["dissimilarity"] ** 2
    weighting = option.weighting
    noise_steps = _noise_steps(setting, schedule, response, option)
    ones = np.ones(len(weighting.kappa))
    remaining = response.remaining[:, None] * ones
    drift_weight = _drift_weight(setting)
    off_target = SUM_OFF_TARGET if setting.is_sum else OFF_TARGET
    off_target_weight = off_target * dissimilarity_sq * response.moved[:, None]
    name = setting.problem.model.name
    noise_weight = SUM_NOISE_WEIGHT if setting.is_sum else NOISE_WEIGHT[name]
    parts = {
        "unfinished training": remaining,
        "privacy noise": noise_weight
        * (response.noise * noise_steps)[:, None]
        * weighting.noise,
        "batch sampling": response.sampling[:, None] * weighting.sampling,
        "drift of local steps": drift_weight * response.drift[:, None] * ones,
        "weights off target": off_target_weight * weighting.bias,
    }
    drift = parts["drift of local steps"]
    saved = drift - drift_weight * response.corrected[:, None]
    corrected = saved > _MIN_CORRECTION_GAIN * np.sum(list(parts.values()), axis=0)
    corrected &= setting.drift_correction
    parts["drift of local steps"] = np.where(corrected, drift - saved, drift)
    return parts, corrected


def _drift_weight(setting: Setting) -> float:
    """Return what the drift of local steps counts, as a share of the gap."""
    problem = setting.problem
    unlike, weight = problem["dissimilarity"] ** 2, DRIFT
    if setting.is_sum:
        unlike += FEW_ROWS / float(np.median(problem.num_samples))
        weight = SUM_DRIFT
    return weight * unlike / float(np.sqrt(problem.num_devices))


def planned_clip(setting: Setting, response: Response) -> Array:
    """Return the largest norm of a device's move, for each candidate.

    It is infinite unless a whole device is protected: then the noise covers any move,
    and a typical one is far shorter than the longest that the loss allows. It is given,
    or the typical length of the first move of a device of median size. Later moves are
    shorter.
    """
    if setting.clip is not None:
        return np.full(len(response.first_move), setting.clip)
    if not setting.per_device:
        return np.full(len(response.first_move), np.inf)
    return _first_move(setting, response)


def _noise_steps(
    setting: Setting, schedule: Schedule, response: Response, option: BatchOption
) -> Array:
    """Return the noise of a whole run's steps, over that of a run of one step.

    For noise per step, K steps add K times the variance. In a sum, R rounds need R
    times the variance of one, whose std grows with how far a unit can move its upload.
    """
    lap = 1.0 if setting.per_device else option.blocks
    if not setting.is_sum:
        return np.asarray(lap * np.ceil(schedule.tau * schedule.rounds / lap))
    model = setting.problem.model
    moves = move_series(
        learning_rate=schedule.learning_rate,
        tau=schedule.tau,
        blocks=lap,
        curvature=0.0 if setting.per_device else model.curvature,
        l2=model.l2,
    )
    rows = 1.0 if setting.per_device else float(np.median(option.batch_size))
    longest = planned_clip(setting, response) * rows / setting.problem["lipschitz"]
    moves = np.minimum(moves, longest)
    return np.asarray(schedule.rounds * moves**2)


def _product(
    pairs: NDArray[np.int64], rates: Array, momenta: Array, server_rates: Array
) -> Array:
    pair, *others = np.meshgrid(
        np.arange(len(pairs)), rates, momenta, server_rates, indexing="ij"
    )
    tau, rounds = pairs[pair.ravel()].T.astype(np.float64)
    return np.stack([tau, rounds, *(other.ravel() for other in others)])


def _corrected_share(local: Array, pull: Array, rounds: Array) -> Array:
    """Return the share of the drift that remains with drift correction.

    Each round adds the share 1 - pull of the remaining deviation to a device's
    correction. Later rounds reduce the drift of a round to the share local. The result
    is a weighted sum of pull^(r - 2) with weights local^(R - r). Correction helps from
    the third round on: in the first round all gradients are large, and its correction
    is of no use (observed on Adult by education).
    """
    later = rounds - 1
    distinct = np.abs(pull - local) > 1e-6
    with np.errstate(over="ignore", invalid="ignore"):
        mixed = _power(pull, later) - _power(local, later)
        mixed = mixed / np.where(distinct, pull - local, 1.0)
        double = later * _power(local, np.maximum(later - 1, 0))
        mixed = np.where(distinct, mixed, double)
        return np.asarray((mixed + _power(local, later)) / _geometric(local, rounds))


def _momentum(local: Array, beta: Array, rounds: Array) -> tuple[Array, Array]:
    """Return the residual of a deviation after heavy-ball rounds, and the noise gain.

    theta_{t+1} = (local + beta) theta_t - beta theta_{t-1} + noise has the impulse
    response e_k = (z1^{k+1} - z2^{k+1}) / (z1 - z2), z1 and z2 the roots of
    z^2 - (local + beta) z + beta. The residual is e_R - beta e_{R-1}, and the noise
    gain is the sum of e_k^2 over k < R: three geometric series.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        a = local + beta
        root = np.sqrt((a**2 - 4 * beta).astype(np.complex128))
        root = np.where(np.abs(root) < 1e-3, 1e-3, root)  # avoid a double root
        z1, z2 = (a + root) / 2, (a - root) / 2
        z1r, z2r = _power(z1, rounds), _power(z2, rounds)
        residual = ((z1r * z1 - z2r * z2) - beta * (z1r - z2r)) / root
        gain = (
            z1**2 * _geometric(z1**2, rounds)
            - 2 * z1 * z2 * _geometric(z1 * z2, rounds)
            + z2**2 * _geometric(z2**2, rounds)
        ) / root**2
    # An unstable run overflows: its residual is infinite, so it is never selected.
    return _or_infinite(residual.real), _or_infinite(gain.real)


def _power(base: Array, exponent: Array) -> Array:
    """Return base^exponent for whole exponents; 0^0 is 1."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if np.iscomplexobj(base):
            return np.asarray(base**exponent)
        sign = np.where((base < 0) & (exponent % 2 == 1), -1.0, 1.0)
        return np.asarray(sign * np.abs(base) ** exponent)


def _geometric(ratio: Array, terms: Array) -> Array:
    """Return 1 + ratio + ... + ratio^(terms - 1)."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        total = (1 - _power(ratio, terms)) / (1 - ratio)
    return np.where(np.abs(1 - ratio) < 1e-12, terms, total)


def _or_infinite(value: Array) -> Array:
    return np.where(np.isfinite(value), value, np.inf)


def _total(parts: Array) -> Array:
    """Sum over the modes; an overflow is infinite, not NaN."""
    return _or_infinite(parts.sum(axis=1))
