"""The spectral model: predict the loss after a noisy run, without data.

Rows in the unit ball bound the trace of the Hessian, so the sum of its d eigenvalues is
known. Assume that eigenvalue i falls as i^-q, and that the gap between the loss at zero
and the best loss splits over the eigenvectors in proportion to the eigenvalues. Then a
linear iteration with noise has an exact solution for each mode: tau local steps,
averaging, server momentum. Two terms describe heterogeneous (unlike) devices, whose
optima differ: local steps move each device towards its own optimum (drift), and weights
other than the target's bias the average.

Many candidates are scored at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.ledger import Bools
from fedbudget.planning.settings import Setting
from fedbudget.planning.weights import Weighting, candidate_weights, target_weights
from fedbudget.problem import Problem

_MODES = 24  # groups of eigenvalues

# Drift correction acts faster by this factor than if devices differed in their optima
# only. Fitted to Adult by education.
_CORRECTION_SPEED = 3

# Local steps of a smooth convex loss are stable at rates below 2 / smoothness.
STABLE = 1.9

# Heterogeneous devices cost more loss than the spread of their optima explains, since
# the other devices cannot correct what only one of them has data on. Factors fitted to
# Adult by education. SLOWER applies up to a squared dissimilarity of 1.
OFF_TARGET, DRIFT, SLOWER = 6.0, 2.0, 6.0

# Drift correction needs a state on devices: it must save at least this share of the
# loss.
_MIN_CORRECTION_GAIN = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Groups of Hessian eigenvalues, and the share of the gap of each."""

    curvature: Array  # h: the eigenvalue, shape (groups,)
    count: Array  # n: the number of eigenvalues in a group
    gap: Array  # the part of the initial gap along one eigenvector

    @classmethod
    def of(cls, problem: Problem) -> "Spectrum":
        """Distribute the Hessian's trace over the parameters by a power law."""
        d, q = problem.num_params, problem["spectrum_decay"]
        edges = np.unique(np.geomspace(1, d + 1, min(_MODES, d) + 1).astype(np.int64))
        count = np.diff(edges).astype(np.float64)
        center = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
        share = center**-q / np.sum(count * center**-q)
        curvature = problem["hessian_trace"] * share + problem.model.l2
        gap = problem["initial_gap"] * problem["learnable_share"] * share
        return cls(curvature=curvature, count=count, gap=gap)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Candidate runs, one per entry of the arrays."""

    tau: Array
    rounds: Array
    learning_rate: Array
    momentum: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """The terms of the predicted loss of each candidate, summed over the modes.

    loss = remaining + noise * s2 + sampling * v
           + dissimilarity^2 * (drift or corrected + moved * sum (p - target)^2)

    where s2 is the variance of the averaged noise in one step per coordinate, and v
    that of the averaged batch gradient, in units of one sample's.
    """

    remaining: Array
    noise: Array
    sampling: Array
    drift: Array
    corrected: Array  # drift with drift correction
    moved: Array


def respond(spectrum: Spectrum, schedule: Schedule, *, variance: float) -> Response:
    """Return the response of every candidate; exact for a quadratic loss."""
    h, n, gap = spectrum.curvature, spectrum.count, spectrum.gap
    tau, eta = schedule.tau[:, None], schedule.learning_rate[:, None]
    contraction = 1 - eta * h
    local = _power(contraction, tau)  # remaining share of a deviation after tau steps
    # Noise of tau steps, contracted by the later steps: a geometric series.
    spread = eta**2 * _geometric(contraction**2, tau)
    rounds = schedule.rounds[:, None]
    residual, gain = _momentum(local, schedule.momentum[:, None], rounds)
    moved = np.clip(1 - np.abs(residual), 0, 1)
    # The share of the pull to a local optimum that averaging does not undo: 0 for one
    # step, 1 if every device reaches its own optimum.
    pull = 1 - (1 - local) / (tau * eta * h)
    drift_share = _corrected_share(local, pull, rounds) ** _CORRECTION_SPEED
    with np.errstate(over="ignore", invalid="ignore"):
        noise = 0.5 * h * spread * gain
        return Response(
            remaining=_total(n * gap * residual**2),
            noise=_total(n * noise),
            sampling=_total(n * noise * variance * h / np.sum(n * h)),
            drift=_total(n * gap * (pull * moved) ** 2),
            corrected=_total(n * gap * (pull * moved * drift_share) ** 2),
            moved=_total(n * gap * moved**2),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchOption:
    """A choice of batch sizes, with its noise and its candidate weights."""

    batch_size: NDArray[np.int64]
    variance: Array  # of each device's noise in a run of one step
    blocks: float  # B of the median device: only every B-th step adds noise
    target: Array
    weighting: Weighting


def batch_option(setting: Setting, batch_size: NDArray[np.int64]) -> BatchOption:
    """Compute the noise and the candidate weights of these batch sizes."""
    problem = setting.problem
    # For many steps; `predicted_parts` rounds up to whole laps.
    blocks = setting.blocks(batch_size)
    variance = setting.unit_noise(batch_size) ** 2 / blocks
    target = target_weights(problem, setting.weights, setting.target)
    sampling = 1 / batch_size - 1 / problem.num_samples
    return BatchOption(
        batch_size=batch_size,
        variance=variance,
        blocks=float(np.median(blocks)),
        target=target,
        weighting=candidate_weights(
            target, variance, sampling, planned=setting.weights == "auto"
        ),
    )


def stable_rate(setting: Setting, spectrum: Spectrum) -> float:
    """Return the largest learning rate for which local steps are stable."""
    steepest = max(setting.problem["smoothness"], float(spectrum.curvature.max()))
    return STABLE / steepest


def combinations(
    pairs: list[tuple[int, int]], rates: Array, momenta: Array
) -> Schedule:
    """Return all combinations; momentum is tried only with more than two rounds."""
    with_momentum = np.array([pair for pair in pairs if pair[1] > 2]).reshape(-1, 2)
    tables = [
        _product(np.array(pairs), rates, np.zeros(1)),
        _product(with_momentum, rates, momenta[momenta > 0]),
    ]
    tau, rounds, rate, momentum = np.concatenate(tables, axis=1)
    return Schedule(tau=tau, rounds=rounds, learning_rate=rate, momentum=momentum)


def predicted_parts(
    setting: Setting, schedule: Schedule, response: Response, option: BatchOption
) -> tuple[dict[str, Array], Bools]:
    """Return the terms of the predicted loss, and where drift correction is used.

    All have the shape (candidates, weightings).
    """
    dissimilarity_sq = setting.problem["dissimilarity"] ** 2
    weighting, lap = option.weighting, option.blocks
    noise_steps = lap * np.ceil(schedule.tau * schedule.rounds / lap)
    ones = np.ones(len(weighting.kappa))
    remaining = response.remaining[:, None] * ones
    off_target = OFF_TARGET * dissimilarity_sq * response.moved[:, None]
    parts = {
        "unfinished training": (1 + SLOWER * min(dissimilarity_sq, 1.0)) * remaining,
        "privacy noise": (response.noise * noise_steps)[:, None] * weighting.noise,
        "batch sampling": response.sampling[:, None] * weighting.sampling,
        "drift of local steps": DRIFT
        * dissimilarity_sq
        * response.drift[:, None]
        * ones,
        "weights off target": off_target * weighting.bias,
    }
    drift = parts["drift of local steps"]
    saved = drift - DRIFT * dissimilarity_sq * response.corrected[:, None]
    corrected = saved > _MIN_CORRECTION_GAIN * np.sum(list(parts.values()), axis=0)
    corrected &= setting.drift_correction
    parts["drift of local steps"] = np.where(corrected, drift - saved, drift)
    return parts, corrected


def _product(pairs: NDArray[np.int64], rates: Array, momenta: Array) -> Array:
    pair, rate, momentum = np.meshgrid(
        np.arange(len(pairs)), rates, momenta, indexing="ij"
    )
    tau, rounds = pairs[pair.ravel()].T.astype(np.float64)
    return np.stack([tau, rounds, rate.ravel(), momentum.ravel()])


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
