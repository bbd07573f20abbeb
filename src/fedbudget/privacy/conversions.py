"""Conversions between rho, mu, epsilon and delta: vectorised, rounded towards privacy.

NumPy and the standard library only: devices run this code too.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import Array, floats

Index: TypeAlias = NDArray[np.intp]

_SQRT_2PI = math.sqrt(2 * math.pi)
_ROUNDING = 8 * np.finfo(np.float64).eps  # above the rounding error of a closed formula


def epsilon_from_rho(rho: ArrayLike, delta: ArrayLike) -> Array:
    """Return the epsilon of rho-zCDP (paper: zcdp-dp), rounded up.

    Statement: rho-zCDP is (rho + 2 sqrt(rho log(1/delta)), delta)-DP for every delta.
    Proof: Bun and Steinke 2016, Proposition 1.3: Markov's inequality for the moment of
    order alpha of the privacy loss, which is at most exp((alpha - 1) alpha rho), at the
    best alpha.

    >>> float(epsilon_from_rho(0.16, 1e-4))
    2.587...
    """
    r = floats(rho)
    epsilon = r + 2 * np.sqrt(r * -np.log(floats(delta)))
    return np.asarray(epsilon * (1 + _ROUNDING))


def rho_from_epsilon(epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """Return the rho that spends epsilon (paper: opt_sigma), rounded down.

    Statement: with l = log(1/delta), the largest rho whose `epsilon_from_rho` is at
    most epsilon is (sqrt(l + epsilon) - sqrt(l))^2. Proof: epsilon = rho +
    2 sqrt(rho l) is (sqrt(rho) + sqrt(l))^2 - l, which grows with rho. The code writes
    the difference of roots as a quotient, which does not cancel.
    """
    # Departs from the paper's Z, whose other root overspends: docs/paper.md, erratum 1.
    eps, log_term = floats(epsilon), -np.log(floats(delta))
    rho = (eps / (np.sqrt(log_term + eps) + np.sqrt(log_term))) ** 2
    return np.asarray(
        rho * (1 - 4 * _ROUNDING)
    )  # so that its epsilon is not above the input


def delta_from_mu(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    """Return the delta of mu-Gaussian DP at epsilon, rounded up.

    Statement: the least delta is, exactly,

        delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    (Dong, Roth and Su 2022, Corollary 2.13; Balle and Wang 2018, Theorem 8). Proof: the
    most revealing event for N(0, 1) against N(mu, 1) is a half-line (Neyman and
    Pearson), on which the likelihood ratio exceeds e^epsilon: x > epsilon/mu + mu/2.
    The two terms are its probabilities under both.

    >>> float(delta_from_mu(1.0, 1.0))
    0.1269...
    """
    return _delta_and_slope(floats(mu), floats(epsilon))[0]


def mu_from_epsilon(epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """Return the largest mu whose Gaussian DP is within (epsilon, delta).

    The inverse of `delta_from_mu` in mu, rounded down. Proof that delta grows with mu:
    d delta / d mu = phi(epsilon/mu - mu/2) > 0, the normal density. The result is
    tested against `delta_from_mu`, and lowered until it is safe.

    >>> float(mu_from_epsilon(1.0, 0.12694))
    1.0000...
    """
    shared = _shared_pairs(epsilon, delta, exact=True)
    if shared is not None:
        return mu_from_epsilon(*shared[:2])[shared[2]]
    eps, limit, shape = _flat(epsilon, delta)
    # Two lower bounds: zCDP's, and delta(mu, epsilon) <= delta(mu, 0) <= mu/sqrt(2 pi).
    start = np.maximum(np.sqrt(2 * rho_from_epsilon(eps, limit)), limit * _SQRT_2PI)

    def step(mu: Array, index: Index) -> Array:
        # d delta / d mu = phi(u), u = epsilon/mu - mu/2, and d phi(u) / d mu follows.
        e = eps[index]
        delta_at, _ = _delta_and_slope(mu, e)
        u = e / mu - mu / 2
        first = np.exp(-(u**2) / 2) / _SQRT_2PI
        second = first * u * (e / mu**2 + 0.5)
        return mu + _halley(limit[index], delta_at, first, second)

    def overspends(mu: Array, index: Index) -> NDArray[np.bool_]:
        return delta_from_mu(mu, eps[index]) > limit[index]

    return _nudge(_iterate(step, start), overspends, by=-1e-12).reshape(shape)


def epsilon_from_mu(
    mu: ArrayLike, delta: ArrayLike, *, at_most: ArrayLike | None = None
) -> Array:
    """Return the epsilon of mu-Gaussian DP at delta, rounded up.

    The inverse of `delta_from_mu` in epsilon. Proof that delta falls with epsilon:
    d delta / d epsilon = -e^epsilon Phi(-epsilon/mu - mu/2) < 0. The result is tested
    against `delta_from_mu`, and raised until it is safe. `at_most` is a known upper
    bound, from which the search starts.

    >>> float(epsilon_from_mu(1.0, 0.12694))
    0.9999...
    """
    shared = _shared_pairs(mu, delta)
    if shared is not None:
        return epsilon_from_mu(*shared[:2])[shared[2]]
    m, limit, shape = _flat(mu, delta)
    start = epsilon_from_rho(m**2 / 2, limit)  # zCDP's is never below the exact one
    if at_most is not None:
        start = np.minimum(start, np.broadcast_to(floats(at_most), shape).ravel())

    def step(epsilon: Array, index: Index) -> Array:
        # d delta / d epsilon = -e^epsilon Phi(-epsilon/mu - mu/2).
        mu = m[index]
        delta_at, slope = _delta_and_slope(mu, epsilon)
        phi = np.exp(-((epsilon / mu - mu / 2) ** 2) / 2) / _SQRT_2PI
        move = _halley(limit[index], delta_at, -slope, phi / mu - slope)
        return np.maximum(epsilon + move, 0.0)

    def too_low(epsilon: Array, index: Index) -> NDArray[np.bool_]:
        return delta_from_mu(m[index], epsilon) > limit[index]

    return _nudge(_iterate(step, start), too_low, by=1e-12).reshape(shape)


def _delta_and_slope(mu: Array, epsilon: Array) -> tuple[Array, Array]:
    """Return delta, rounded up, and -d delta / d epsilon = e^epsilon Phi(-b sqrt 2)."""
    a = (epsilon / mu - mu / 2) / math.sqrt(2)
    b = (epsilon / mu + mu / 2) / math.sqrt(2)
    first = 0.5 * _erfc(a)
    # e^epsilon erfc(b) = e^(epsilon - b^2) erfcx(b), and b^2 - a^2 = epsilon.
    second = 0.5 * np.exp(-(a**2)) * _erfcx(b)
    # The difference may cancel: add a bound on the rounding error.
    rounding = np.finfo(np.float64).eps * (4 + 2 * np.minimum(b, 26.0) ** 2)
    delta = np.maximum(first - second, 0.0) + rounding * first
    return np.minimum(delta, 1.0), second


def _halley(goal: Array, value: Array, first: Array, second: Array) -> Array:
    """Return Halley's step towards log(value) = log(goal); converges cubically.

    It is Newton's step divided by a correction. log delta is concave in mu and in
    epsilon, so Newton's step stays on the safe side; at most twice that step is taken.
    """
    error = np.log(value / goal)
    slope = first / value
    curvature = second / value - slope**2
    correction = np.maximum(1 - error * curvature / (2 * slope**2), 0.5)
    return -error / slope / correction


def _iterate(step: Callable[[Array, Index], Array], start: Array) -> Array:
    """Repeat a step on the entries that have not converged."""
    values = np.array(start)
    moving = np.arange(values.size)
    for _ in range(
        50
    ):  # 3 or 4 are enough; the limit stops oscillation of the last bits
        old = values[moving]
        with np.errstate(all="ignore"):
            new = step(old, moving)
        # If delta underflows, the start is kept: it is on the safe side.
        values[moving] = np.where(np.isfinite(new), new, old)
        # After such a small step, the next one would be below rounding.
        moving = moving[np.abs(values[moving] - old) > 1e-5 * np.abs(old)]
        if moving.size == 0:
            break
    return values


def _nudge(
    values: Array, unsafe: Callable[[Array, Index], NDArray[np.bool_]], *, by: float
) -> Array:
    """Move all entries slightly to the safe side, and unsafe ones further.

    Downwards, the limit is zero: if rounding hides every positive mu, none is safe.
    """
    index = np.arange(values.size)
    while index.size:
        if by <= -1:
            values[index] = 0.0
            break
        values[index] += by * np.maximum(values[index], 1e-300)
        by *= 2  # doubled each time: it ends, however flat the function is
        index = index[unsafe(values[index], index)]
    return values


def _flat(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array, tuple[int, ...]]:
    """Broadcast two arguments; return them flat, and their shape."""
    one, other = np.broadcast_arrays(floats(first), floats(second))
    return one.ravel(), other.ravel(), one.shape


def _shared_pairs(
    first: ArrayLike, second: ArrayLike, *, exact: bool = False
) -> tuple[Array, Array, Index] | None:
    """Return the distinct pairs and their inverse, if a large fleet has few of them.

    Unless exact, `first` is rounded up to 12 digits: devices of different sizes with
    one budget have the same mu except for the last bits.
    """
    one, other, shape = _flat(first, second)
    if one.size < 1000:
        return None
    if not exact:
        mantissa, exponent = np.frexp(one)
        one = np.ldexp(np.ceil(np.ldexp(mantissa, 40)), exponent - 40)
    # Complex numbers sort by both parts, much faster than rows of a table do.
    both = one + 1j * other
    if np.unique(both[:1000]).size > 500:
        return None
    pairs, inverse = np.unique(both, return_inverse=True)
    return pairs.real.copy(), pairs.imag.copy(), inverse.reshape(shape)


def _erfc(x: Array) -> Array:
    """Return erfc elementwise; NumPy has none, and the base install has no SciPy."""
    values = map(math.erfc, np.ravel(x).tolist())
    return np.fromiter(values, np.float64, np.size(x)).reshape(np.shape(x))


def _erfcx(x: Array) -> Array:
    """Return exp(x^2) erfc(x) for x >= 0, without overflow."""
    x = floats(x)
    near = np.minimum(x, 25.0)
    z = 1 / (2 * np.maximum(x, 25.0) ** 2)
    # Asymptotic series; at x = 25 its sixth term is below 1e-16.
    series = 1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z * (1 - 9 * z))))
    far = series / (np.maximum(x, 25.0) * math.sqrt(math.pi))
    return np.where(x < 25.0, np.exp(near**2) * _erfc(near), far)
