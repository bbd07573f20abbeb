"""The accountants: one interface, three methods."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, floats
from fedbudget.privacy.conversions import (
    epsilon_from_mu,
    epsilon_from_rho,
    mu_from_epsilon,
    rho_from_epsilon,
)
from fedbudget.privacy.runs import Releases

# Calibration aims below the budget's rho by this share. A strict ledger adds up the
# same steps in another order; rounding must not make it refuse the last one.
SLACK = 1e-9


class Accountant(ABC):
    """Computes the epsilon of a run, and the noise for a budget.

    `prior_mu` is the privacy loss before the run, as Gaussian DP: of constants that
    were measured on the same rows, or of earlier rounds.
    """

    name: str

    @abstractmethod
    def epsilon(
        self,
        run: Releases,
        *,
        delta: ArrayLike,
        prior_mu: ArrayLike = 0.0,
        at_most: ArrayLike | None = None,
    ) -> Array:
        """Return the epsilon that each device spends; exact or too high.

        `at_most` is a known upper bound of epsilon; it only speeds up the search.
        """

    @abstractmethod
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

        Infinite if `prior_mu` has already spent the budget.
        """

    def noise_std(
        self, *, lipschitz: ArrayLike, batch_size: ArrayLike, **budget: ArrayLike
    ) -> Array:
        """Return the noise std on a mean gradient; see `noise_multiplier`.

        >>> float(ZCDP.noise_std(
        ...     lipschitz=1, batch_size=100, epsilon=2.58788, delta=1e-4, steps=200))
        0.500000...
        """
        multiplier = self.noise_multiplier(**budget)
        return multiplier * floats(lipschitz) / floats(batch_size)


@dataclass(frozen=True)
class GaussianAccountant(Accountant):
    """Composes Gaussian mechanisms by adding mu^2, then converts to epsilon.

    Statement: releases of mu_1, mu_2, .. and what was spent before (`prior_mu`) are
    together mu-GDP with mu^2 the sum of their squares, and (mu^2 / 2)-zCDP. Proof:
    Dong, Roth and Su 2022, Corollary 3.3; Bun and Steinke 2016, Lemma 1.7. Each release
    may depend on the answers before it, and so may its noise, as long as the sum stays
    within a limit fixed in advance (Smith and Thakurta 2022; Koskela, Tobaben and
    Honkela 2023; for zCDP, Whitehouse, Ramdas, Rogers and Wu 2023).

    Sampled batches are accounted for as if every sample took part in every step: valid,
    but too high. Proof: given the batches, which do not depend on the rows, a step
    either has the replaced sample or is the same on both tables; a mixture of pairs
    that are mu-GDP or equal is mu-GDP (joint convexity of the hockey-stick divergence).
    """

    name: str
    epsilon_from_mu: Callable[..., Array]
    mu_from_epsilon: Callable[[ArrayLike, ArrayLike], Array]

    def epsilon(
        self,
        run: Releases,
        *,
        delta: ArrayLike,
        prior_mu: ArrayLike = 0.0,
        at_most: ArrayLike | None = None,
    ) -> Array:
        """Return the epsilon that each device spends (paper: eps_k)."""
        mu = np.hypot(run.mu, floats(prior_mu))
        if np.all(mu > 0):
            return self.epsilon_from_mu(mu, delta, at_most=at_most)
        # A device without any step, now or before, has epsilon 0.
        epsilon = self.epsilon_from_mu(np.where(mu > 0, mu, 1.0), delta)
        return np.where(mu > 0, epsilon, 0.0)

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

        Statement: K releases with noise multiplier z, which is 2 / mu of each, are
        within the budget if 4 K / z^2 + prior_mu^2 is at most mu^2 of the budget. It is
        the composition above, solved for z, at a budget lowered by `SLACK`.
        """
        del sampling_probability  # no amplification is claimed
        rho = floats(self.mu_from_epsilon(epsilon, delta)) ** 2 / 2
        spent = floats(prior_mu) ** 2 / 2
        remaining = np.maximum(rho * (1 - SLACK) - spent, 0.0)
        with np.errstate(divide="ignore"):
            return np.sqrt(2 * floats(steps) / remaining)


def _zcdp_epsilon(
    mu: ArrayLike, delta: ArrayLike, *, at_most: ArrayLike | None = None
) -> Array:
    del at_most  # a closed form needs no starting point
    return epsilon_from_rho(floats(mu) ** 2 / 2, delta)


def _zcdp_mu(epsilon: ArrayLike, delta: ArrayLike) -> Array:
    return np.sqrt(2 * rho_from_epsilon(epsilon, delta))


GDP = GaussianAccountant("gdp", epsilon_from_mu, mu_from_epsilon)
ZCDP = GaussianAccountant("zcdp", _zcdp_epsilon, _zcdp_mu)
