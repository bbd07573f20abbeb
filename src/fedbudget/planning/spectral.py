"""A model of the loss after a noisy run that needs no data: the spectral model.

Rows in the unit ball bound the trace of the Hessian, so its d eigenvalues share a known
sum. Take eigenvalue i to fall as i^-q, split the gap between the loss at zero and the
best loss over the eigenvectors in proportion to them, and a linear iteration with noise
can be followed exactly, mode by mode: tau local steps, averaging, server momentum. Two
terms are for unlike devices, whose own optima differ from the common one: local steps
pull each towards its own (drift), and weights other than the target's pull the average.

Scores are computed for many candidates at once, for the search and for the map.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.ledger import Bools
from fedbudget.planning.settings import Setting
from fedbudget.planning.weights import Weighting, candidate_weights, target_weights
from fedbudget.problem import Problem

_MODES = 24  # groups of eigenvalues that are followed one by one

# Drift control takes hold so many times as fast as it would if the devices differed in
# their optima alone; fits Adult by education.
_CONTROL_SPEED = 3

# Local steps of a smooth convex loss do not diverge below 2 / smoothness.
STABLE = 1.9

# Unlike devices cost more than the spread of their optima alone says: what only one of
# them knows is also what the others cannot correct. Fit Adult by education. Beyond a
# squared dissimilarity of 1, devices agree on nothing, and progress slows no further.
OFF_TARGET, DRIFT, SLOWER = 6.0, 2.0, 6.0

# Devices keep a state for drift control: it has to save this share of the loss.
_WORTH_CONTROL = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Groups of Hessian eigenvalues, and the share of the gap each group holds."""

    curvature: Array  # h: the eigenvalue, shape (groups,)
    count: Array  # n: how many eigenvalues a group stands for
    gap: Array  # the part of the initial gap that lies along one of them

    @classmethod
    def of(cls, problem: Problem) -> "Spectrum":
        """Share the Hessian's trace over the parameters by a power law."""
        d, q = problem.num_params, problem["spectrum_decay"]
        edges = np.unique(np.geomspace(1, d + 1, min(_MODES, d) + 1).astype(np.int64))
        count = np.diff(edges).astype(np.float64)
        middle = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
        share = middle**-q / np.sum(count * middle**-q)
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
    """What the modes make of a schedule; the predicted loss is a sum of these.

    loss = remaining + noise * s2 + sampling * v
           + dissimilarity^2 * (drift or controlled + moved * sum (p - target)^2)

    where s2 is the variance of the averaged noise in one step per coordinate, and v
    that of the averaged batch gradient, in units of one sample's.
    """

    remaining: Array
    noise: Array
    sampling: Array
    drift: Array
    controlled: Array  # drift, where drift control works against it
    moved: Array


def respond(spectrum: Spectrum, schedule: Schedule, *, variance: float) -> Response:
    """Follow every candidate along every mode; exact for a quadratic loss."""
    h, n, gap = spectrum.curvature, spectrum.count, spectrum.gap
    tau, eta = schedule.tau[:, None], schedule.learning_rate[:, None]
    contraction = 1 - eta * h
    local = _power(contraction, tau)  # what tau steps leave of a deviation
    # Noise of tau steps: each later step contracts it; the sum of a geometric series.
    spread = eta**2 * _geometric(contraction**2, tau)
    left, gain = _momentum(local, schedule.momentum[:, None], schedule.rounds[:, None])
    moved = np.clip(1 - np.abs(left), 0, 1)
    # Share of a local optimum's pull that averaging does not undo: none for one step,
    # all of it when every device runs to its own optimum.
    pull = 1 - (1 - local) / (tau * eta * h)
    kept = _under_control(local, pull, schedule.rounds[:, None]) ** _CONTROL_SPEED
    with np.errstate(over="ignore", invalid="ignore"):
        noise = 0.5 * h * spread * gain
        return Response(
            remaining=_total(n * gap * left**2),
            noise=_total(n * noise),
            sampling=_total(n * noise * variance * h / np.sum(n * h)),
            drift=_total(n * gap * (pull * moved) ** 2),
            controlled=_total(n * gap * (pull * moved * kept) ** 2),
            moved=_total(n * gap * moved**2),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """One way to batch: what its noise and its weights come to."""

    batch_size: NDArray[np.int64]
    variance: Array  # of the noise of one device in a run of one step
    blocks: float  # B, of a middle device: only every B-th step takes more noise
    target: Array
    weighting: Weighting


def candidates_of(setting: Setting, batch_size: NDArray[np.int64]) -> Candidates:
    """Return what a way to batch comes to."""
    problem = setting.problem
    # Over many steps; for a run's last lap, see `predicted_parts`.
    blocks = setting.blocks(batch_size)
    variance = setting.unit_noise(batch_size) ** 2 / blocks
    target = target_weights(problem, setting.weights, setting.target)
    sampling = 1 / batch_size - 1 / problem.num_samples
    return Candidates(
        batch_size=batch_size,
        variance=variance,
        blocks=float(np.median(blocks)),
        target=target,
        weighting=candidate_weights(
            target, variance, sampling, planned=setting.weights == "auto"
        ),
    )


def stable_rate(setting: Setting, spectrum: Spectrum) -> float:
    """Return the largest learning rate with which local steps do not diverge."""
    steepest = max(setting.problem["smoothness"], float(spectrum.curvature.max()))
    return STABLE / steepest


def combinations(
    pairs: list[tuple[int, int]], rates: Array, momenta: Array
) -> Schedule:
    """Lay out all combinations; momentum needs a few rounds to be of use."""
    with_momentum = np.array([pair for pair in pairs if pair[1] > 2]).reshape(-1, 2)
    tables = [
        _product(np.array(pairs), rates, np.zeros(1)),
        _product(with_momentum, rates, momenta[momenta > 0]),
    ]
    tau, rounds, rate, momentum = np.concatenate(tables, axis=1)
    return Schedule(tau=tau, rounds=rounds, learning_rate=rate, momentum=momentum)


def predicted_parts(
    setting: Setting, schedule: Schedule, response: Response, option: Candidates
) -> tuple[dict[str, Array], Bools]:
    """Return the predicted loss in parts, and for which candidates drift is controlled.

    All have the shape (candidates, weightings).
    """
    unlike = setting.problem["dissimilarity"] ** 2
    weighting, lap = option.weighting, option.blocks
    noise_steps = lap * np.ceil(schedule.tau * schedule.rounds / lap)
    ones = np.ones(len(weighting.kappa))
    remaining = response.remaining[:, None] * ones
    off_target = OFF_TARGET * unlike * response.moved[:, None]
    parts = {
        "progress not made": (1 + SLOWER * min(unlike, 1.0)) * remaining,
        "privacy noise": (response.noise * noise_steps)[:, None] * weighting.noise,
        "batch sampling": response.sampling[:, None] * weighting.sampling,
        "drift of local steps": DRIFT * unlike * response.drift[:, None] * ones,
        "weights off target": off_target * weighting.bias,
    }
    drift = parts["drift of local steps"]
    saved = drift - DRIFT * unlike * response.controlled[:, None]
    controlled = saved > _WORTH_CONTROL * np.sum(list(parts.values()), axis=0)
    controlled &= setting.drift_control
    parts["drift of local steps"] = np.where(controlled, drift - saved, drift)
    return parts, controlled


def _product(pairs: NDArray[np.int64], rates: Array, momenta: Array) -> Array:
    pair, rate, momentum = np.meshgrid(
        np.arange(len(pairs)), rates, momenta, indexing="ij"
    )
    tau, rounds = pairs[pair.ravel()].T.astype(np.float64)
    return np.stack([tau, rounds, rate.ravel(), momentum.ravel()])


def _under_control(local: Array, pull: Array, rounds: Array) -> Array:
    """Return the share of the drift that rounds with drift control end with.

    A round takes the share 1 - pull of what is left of a device's deviation into its
    control; what it drifts by is pulled back by later rounds, which leave the share
    local of it. So it is a weighted sum of pull^(r - 2) with weights local^(R - r).
    Control is of use from the third round on: that of the first, where all gradients
    are large, is worth nothing (so it was on Adult by education).
    """
    later = rounds - 1
    apart = np.abs(pull - local) > 1e-6
    with np.errstate(over="ignore", invalid="ignore"):
        mixed = _power(pull, later) - _power(local, later)
        mixed = mixed / np.where(apart, pull - local, 1.0)
        mixed = np.where(apart, mixed, later * _power(local, np.maximum(later - 1, 0)))
        return np.asarray((mixed + _power(local, later)) / _geometric(local, rounds))


def _momentum(local: Array, beta: Array, rounds: Array) -> tuple[Array, Array]:
    """Return what heavy-ball rounds leave of a deviation, and their noise gain.

    theta_{t+1} = (local + beta) theta_t - beta theta_{t-1} + noise has the impulse
    response e_k = (z1^{k+1} - z2^{k+1}) / (z1 - z2), z1 and z2 the roots of
    z^2 - (local + beta) z + beta. What is left is e_R - beta e_{R-1}, and the noise
    gain is the sum of e_k^2 over k < R: three geometric series.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        a = local + beta
        root = np.sqrt((a**2 - 4 * beta).astype(np.complex128))
        root = np.where(np.abs(root) < 1e-3, 1e-3, root)  # a double root: step aside
        z1, z2 = (a + root) / 2, (a - root) / 2
        z1r, z2r = _power(z1, rounds), _power(z2, rounds)
        left = ((z1r * z1 - z2r * z2) - beta * (z1r - z2r)) / root
        gain = (
            z1**2 * _geometric(z1**2, rounds)
            - 2 * z1 * z2 * _geometric(z1 * z2, rounds)
            + z2**2 * _geometric(z2**2, rounds)
        ) / root**2
    # An unstable run overflows: what is left of it is infinite, never the smallest.
    return _or_infinite(left.real), _or_infinite(gain.real)


def _power(base: Array, exponent: Array) -> Array:
    """Return base^exponent for whole exponents; zero to the zero is one."""
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
    """Sum over the modes; what overflowed is infinite, never NaN."""
    return _or_infinite(parts.sum(axis=1))
