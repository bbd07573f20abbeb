"""The predicted loss of many candidates at once: shared by the search and the map."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.ledger import Bools
from fedbudget.planning.settings import Setting
from fedbudget.planning.spectral import Response, Schedule, Spectrum
from fedbudget.planning.weights import Weighting, candidate_weights, target_weights

# Local steps of a smooth convex loss do not diverge below 2 / smoothness.
STABLE = 1.9

# Unlike devices cost more than the spread of their optima alone says: what only one of
# them knows is also what the others cannot correct. Fit Adult by education. Beyond a
# squared dissimilarity of 1, devices agree on nothing, and progress slows no further.
OFF_TARGET, DRIFT, SLOWER = 6.0, 2.0, 6.0

# Devices keep a state for drift control: it has to save this share of the loss.
_WORTH_CONTROL = 0.1


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


def _product(pairs: NDArray[np.int64], rates: Array, momenta: Array) -> Array:
    pair, rate, momentum = np.meshgrid(
        np.arange(len(pairs)), rates, momenta, indexing="ij"
    )
    tau, rounds = pairs[pair.ravel()].T.astype(np.float64)
    return np.stack([tau, rounds, rate.ravel(), momentum.ravel()])


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
