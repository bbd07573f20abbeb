"""How fast noise should fall from round to round, by the spectral model.

Noise of early rounds is contracted by the rounds after it; noise of the last round
stays in the model. The sum over rounds of 1 / sigma_r^2 is what privacy limits
(`privacy.schedules`), so early rounds should have more noise and late ones less. If
round r's noise variance enters the final loss with weight w_r, the best schedule has
sigma_r^2 in proportion to w_r^(-1/2), by Lagrange. A geometric one comes close, has one
parameter, and is what a plan states.

With x_r = (r - 1) / (R - 1) and s the logarithm of the noise's whole fall, the noise
part of the loss is

    J(s) = mean_r exp(2 s x_r) * sum_r w_r exp(-2 s x_r).

Its logarithm is a sum of two log-sum-exps of functions that are linear in s, so it is
convex: a one-dimensional search finds the minimum.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array

_MOST_FALL = (
    1e3  # the noise of the first round over that of the last: more gains nothing
)
_DIGITS = 4  # of the decay
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH = 40  # evaluations: the interval shrinks to 1e-8 of its length


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """Noise that falls by a factor from round to round."""

    decay: float  # in (0, 1]
    share: float  # the noise part of the loss, over that of constant noise


CONSTANT = NoiseSchedule(decay=1.0, share=1.0)


def round_weights(
    curvature: Array,
    count: Array,
    *,
    tau: int,
    rounds: int,
    learning_rate: float,
    momentum: float,
) -> Array:
    """Return the loss per noise variance of each round's steps; shape (rounds,).

    Along an eigenvector of curvature h, tau local steps contract a deviation by
    (1 - eta h)^tau and add eta^2 sum_j (1 - eta h)^(2 j) of their noise variance. The
    server's momentum beta makes this the recursion theta_(t+1) = (local + beta) theta_t
    - beta theta_(t-1) + noise, whose impulse response e_k is 1, local + beta, and so
    on. Round r has e_(R-r)^2 of its noise in the final model, and the loss h / 2 times
    that.
    """
    step = 1 - learning_rate * curvature
    local = step**tau
    # Whole powers are summed: a closed form divides by zero where step^2 is 1.
    powers = np.cumprod(np.broadcast_to(step**2, (tau, len(step))), axis=0)
    spread = learning_rate**2 * (1 + powers[:-1].sum(axis=0))
    response, before = np.ones_like(local), np.zeros_like(local)
    squares = np.empty((rounds, len(local)))
    for k in range(rounds):
        squares[rounds - 1 - k] = response**2
        now = (local + momentum) * response - momentum * before
        response, before = now, response
    return np.asarray(squares @ (0.5 * count * curvature * spread))


def best_schedule(weights: Array) -> NoiseSchedule:
    """Return the geometric schedule of least noise in the loss, from `round_weights`.

    >>> best_schedule(np.ones(10))  # without contraction, constant noise is best
    NoiseSchedule(decay=1.0, share=1.0)
    """
    rounds = len(weights)
    if rounds < 2 or not (np.isfinite(weights).all() and weights.sum() > 0):
        return CONSTANT
    low, high = 0.0, math.log(_MOST_FALL)
    for _ in range(_SEARCH):
        width = _GOLDEN * (high - low)
        left, right = high - width, low + width
        if noise_share(weights, math.exp(-left / (rounds - 1))) <= noise_share(
            weights, math.exp(-right / (rounds - 1))
        ):
            high = right
        else:
            low = left
    decay = round(math.exp(-(low + high) / 2 / (rounds - 1)), _DIGITS)
    best = NoiseSchedule(decay=decay, share=noise_share(weights, decay))
    return best if best.share < 1 else CONSTANT


def noise_share(weights: Array, decay: float) -> float:
    """Return the noise part of the loss at a decay, over that of constant noise."""
    powers = decay ** (2.0 * np.arange(len(weights)))
    return float(np.mean(1 / powers) * (weights @ powers) / weights.sum())
