"""The accountant for Poisson-sampled batches, through dp-accounting."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, floats
from fedbudget.privacy.accountants import GDP, Accountant
from fedbudget.privacy.runs import (
    NoisyGradients,
    Releases,
    dp_accounting_or_raise,
    dp_event,
)

_PRECISION = 1e-4  # relative, of a calibrated noise multiplier


class PldAccountant(Accountant):
    """Poisson-sampled batches, by dp-accounting's privacy loss distributions.

    Statement: K steps with noise and sampling probability *fixed in advance* are
    (epsilon, delta)-DP, with epsilon from the K-fold convolution of the loss
    distribution of one step. Proof: for replacement, one sampled Gaussian step is
    dominated by the pair that dp-accounting uses, for any model; the product of
    dominating pairs dominates the adaptive composition (Zhu, Dong and Wang 2022,
    Theorem 10). What was spent before (`prior_mu`) is one more factor: the pair of a
    Gaussian mechanism, which must not have chosen the steps' noise (`Plan` refuses it).
    The theorem does not hold for noise or probabilities chosen by earlier answers: no
    such theorem is known to us, and `Ledger` claims less there. The numerical error of
    the convolution is on the safe side: losses and truncated tails are rounded towards
    privacy (Doroshenko et al. 2022, "connect the dots").

    Each distinct combination of arguments is computed once: a million devices with a
    few distinct budgets and one sampling probability take as long as a few devices.
    """

    name = "pld"

    def epsilon(
        self,
        run: Releases,
        *,
        delta: ArrayLike,
        prior_mu: ArrayLike = 0.0,
        at_most: ArrayLike | None = None,
    ) -> Array:
        """Return the epsilon that each device spends; exact or too high."""
        del at_most
        steps = (run.noise_multiplier, run.sampling_probability, run.laps)
        return self.epsilon_of_steps(*steps, delta=delta, prior_mu=prior_mu)

    def epsilon_of_steps(
        self,
        noise_multiplier: ArrayLike,
        probability: ArrayLike,
        steps: ArrayLike,
        *,
        delta: ArrayLike,
        prior_mu: ArrayLike = 0.0,
    ) -> Array:
        """Return the epsilon of steps that are all alike; 0 steps spend nothing."""
        columns = (noise_multiplier, probability, steps)
        return _over_distinct(_pld_epsilon, delta, prior_mu, *columns)

    def noise_multiplier(
        self,
        *,
        epsilon: ArrayLike,
        delta: ArrayLike,
        steps: ArrayLike,
        sampling_probability: ArrayLike = 1.0,
        prior_mu: ArrayLike = 0.0,
    ) -> Array:
        """Return the least noise multiplier that keeps each device within budget.

        Found by search, and on its private side: `_pld_epsilon` of the result is at
        most epsilon. It is at most that without sampling, whose epsilon is not smaller.
        """
        return _over_distinct(
            _pld_noise_multiplier, epsilon, delta, prior_mu, steps, sampling_probability
        )


def _pld_epsilon(
    delta: float, prior: float, multiplier: float, probability: float, steps: float
) -> float:
    dp_accounting = dp_accounting_or_raise()
    if steps == 0 and prior == 0:
        return 0.0
    run = NoisyGradients(
        lipschitz=1.0,
        batch_size=1.0,
        noise_std=multiplier,
        steps=steps,
        sampling_probability=probability,
    )
    mu = math.hypot(prior, float(run.mu))
    unsampled = float(GDP.epsilon_from_mu(mu, delta))
    if unsampled > 1e8:  # too wide a grid for floats; this bound is valid, too
        return unsampled
    accountant = _pld_accountant(unsampled)
    if steps > 0:
        accountant.compose(dp_event(run))
    if prior > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(2 / prior))
    # The bound without sampling is valid too, and better at tiny deltas, which the
    # distribution's truncated tails cannot resolve.
    return min(float(accountant.get_epsilon(delta)), unsampled)


def _pld_accountant(largest: float) -> Any:
    """Return dp-accounting's accountant, fine enough for losses up to `largest`."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    # Losses are rounded up to this grid. An interval ten times the default costs about
    # 1e-4 of epsilon and is ten times faster; very large losses need it wider still.
    interval = max(1e-3 * min(1.0, largest), 1e-6 * largest)
    return PLDAccountant(NeighboringRelation.REPLACE_ONE, interval)


def _pld_noise_multiplier(
    epsilon: float, delta: float, prior: float, steps: float, probability: float
) -> float:
    """Find the root from above: sampling never needs more noise than no sampling."""
    dp_accounting_or_raise()
    from scipy import optimize

    def excess(log_multiplier: float) -> float:
        multiplier = math.exp(log_multiplier)
        spent = _pld_epsilon(delta, prior, multiplier, probability, steps)
        return math.log(max(spent, 1e-12) / epsilon)

    largest = float(
        GDP.noise_multiplier(epsilon=epsilon, delta=delta, steps=steps, prior_mu=prior)
    )
    if not math.isfinite(largest):
        return largest
    high = math.log(largest)
    # For many steps, sampling a share q of the rows needs a share q of the noise.
    low = high + math.log(probability) - 0.1
    while excess(low) <= 0:
        high, low = low, low - 1
    if high - low < _PRECISION:
        return math.exp(high)
    root = optimize.brentq(excess, low, high, xtol=_PRECISION / 2)
    while excess(root) > 0 and root < high:  # move to the private side of the root
        root += _PRECISION / 2
    return math.exp(min(root, high))


def _over_distinct(function: Callable[..., float], *arguments: ArrayLike) -> Array:
    """Apply a slow function to arrays, once for each distinct combination."""
    columns = np.broadcast_arrays(*(floats(argument) for argument in arguments))
    shape = columns[0].shape
    table = np.stack([column.ravel() for column in columns], axis=1)
    distinct, inverse = np.unique(table, axis=0, return_inverse=True)
    answers = np.array([function(*row) for row in distinct.tolist()])
    return answers[inverse].reshape(shape)
