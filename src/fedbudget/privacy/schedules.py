"""Noise that falls from round to round, at the cost of constant noise.

In round r of R, counted from 1, the noise is sigma f_r with f_r = c gamma^(r - 1) and

    c^2 = mean over r = 1 .. R of gamma^(-2 (r - 1)).

*Statement.* Over all rounds, the releases cost exactly the privacy of constant noise
sigma. A device that stops early spends at most that of as many rounds at sigma.

*Proof.* A round of tau steps with sensitivity 2 G / X is Gaussian-DP with mu_r^2 =
tau (2 G / (X sigma f_r))^2, and rounds compose by the sum of mu_r^2, also if each is
selected after seeing the earlier ones (Dong, Roth and Su 2022, Corollary 3.3). The
factors are fixed before the run. By the choice of c, 1 / f_r^2 =
gamma^(-2 (r - 1)) / c^2 sums to R, as R times 1 does. Since 1 / f_r^2 does not decrease
with r, its mean over the first s rounds is at most its mean over all, which is 1: the
first s rounds sum to at most s. zCDP adds up rho_r = mu_r^2 / 2 alike.

The statement is for steps on all rows or on batches that count in full. It does not
hold for disjoint batches taken in turn, where different rows meet different rounds,
nor for amplification by sampling, which is not a function of the sum.
"""

import math

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError

# The noise of the last round over that of the first: far below any use, and far above
# where the powers would overflow.
LEAST_FALL = 1e-6
# Covers the rounding of c, of the powers and of their sum: never too little noise.
_ROUNDING = 1 + 1e-12


def first_factor(decay: float, rounds: int) -> float:
    """Return c: the noise of the first round over the constant noise of equal cost.

    >>> first_factor(1.0, 100)
    1.0
    >>> round(first_factor(0.5, 2) ** 2, 9)  # the mean of 1 and 4
    2.5
    """
    if decay == 1:
        return 1.0
    if not decay ** (rounds - 1) >= LEAST_FALL:  # also of a decay that is not above 0
        raise InvalidInputError(
            f"noise_decay {decay:g} lets the noise of {rounds} rounds fall below "
            f"{LEAST_FALL:g} of the first: raise it"
        )
    step = -2 * math.log(decay)  # gamma^-2 = exp(step): a geometric series
    mean_square = math.expm1(rounds * step) / math.expm1(step) / rounds
    return math.sqrt(mean_square) * _ROUNDING


def noise_factors(decay: float, rounds: int) -> Array:
    """Return f_r for all rounds: their noise over the constant noise of equal cost.

    The sum of 1 / f_r^2 is the number of rounds, or a little less.
    """
    return np.asarray(first_factor(decay, rounds) * decay ** np.arange(rounds))
