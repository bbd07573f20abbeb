"""Noise once per upload: local steps without noise, and noise that devices share.

The server sees only sums of at least t answers, and up to c devices are on its side. A
device takes tau gradient steps *without* noise from the common theta, which moves it by
Delta_m, and uploads p_m Delta_m plus its share of the noise.

**Sensitivity.** The mean loss of X_m rows is convex and L-smooth, with an L2 term of
weight l also l-strongly convex. Replacing one row moves Delta_m by at most

    s_m = (2 G eta / X_m) (1 + q + .. + q^(tau-1)),   q = max(1 - eta l, eta L - 1)

if eta <= 2 / L; without an L2 term, q = 1 and s_m = 2 G eta tau / X_m. *Proof.* Let T
and T' be the steps on both data sets, and theta, theta' the models before a step. Then
|T theta - T' theta'| <= |T theta - T theta'| + |T theta' - T' theta'|. The second term
is at most 2 G eta / X_m: one of X_m gradients differs, each of norm at most G. The
first is at most q |theta - theta'|: subtract the L2 term; the gradient of the remaining
convex, (L-l)-smooth function is (L-l)/2 (1 + N) with N non-expansive (Baillon and
Haddad 1977), so T = (1 - eta (L+l)/2) - eta (L-l)/2 N, whose Lipschitz constant is q.
Both runs start from the same theta; sum up. For q = 1 this is Hardt, Recht and Singer
(2016), Lemma 3.7 and Theorem 3.8. For tau to infinity it is 2 G / (l X_m), the
sensitivity of the minimum (Chaudhuri, Monteleoni and Sarwate 2011, Corollary 8).

*Disjoint batches in turn.* With B batches of X_m rows, a row is in every B-th step. The
other steps are the same on both data sets, and contract by q. So a round's sum has one
term per use, q^B apart: at most ceil(tau / B), and the largest if the last step is one
of them. Every round is counted, although a row may be in none of its steps if tau < B.

*The device as the unit.* If all rows of a device are replaced, gradients still have
norm at most G. The difference of two runs shrinks by |1 - eta l| and grows by at most
2 eta G in every step: s_m = 2 G eta (1 + r + .. + r^(tau-1)), r = |1 - eta l|. This
needs no smoothness, and eta <= 2 / l only.

*Clipping.* Scaling Delta_m to a norm of at most C is a projection, hence
non-expansive: s_m is at most the bound above and at most 2 C.

**Composition.** If V is the variance per coordinate of the honest noise in the sum, a
round is (p_m s_m / sqrt(V))-Gaussian DP for a row of device m, whatever the earlier
sums were: the other uploads do not depend on that row. R rounds are
mu_m = sqrt(R) p_m s_m / sqrt(V) (Dong, Roth and Su 2022, Corollary 3.3).

**Shares.** Each device adds noise of variance V / (t - c). Of at least t answers, at
most c are from colluding devices, who know their own noise: V remains. If everybody
else colludes, only the device's own share remains: mu_m sqrt(t - c).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fedbudget.checks import Array, floats, number, one_of, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.privacy.accountants import Accountant
from fedbudget.privacy.runs import UNITS, Unit

_ROUNDING = 16 * np.finfo(np.float64).eps  # above the rounding error of the formulas


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """The local steps of a round, without noise: how far one unit can move them.

    Batch size and blocks are numbers, or arrays with one entry per device.

    >>> steps = LocalSteps(
    ...     lipschitz=1, curvature=0.25, learning_rate=2.0, tau=10, batch_size=100)
    >>> round(float(steps.sensitivity), 6)
    0.4
    """

    lipschitz: float  # G: largest norm of one sample's gradient
    curvature: float  # largest second derivative, without the L2 term
    learning_rate: float  # eta
    tau: int
    batch_size: ArrayLike  # X_m: samples averaged in each gradient
    l2: float = 0.0  # weight of the L2 term
    blocks: ArrayLike = 1  # B: disjoint batches taken in turn; 1: all rows, every step
    unit: Unit = "sample"
    clip: float | None = None  # C: largest norm of Delta_m

    def __post_init__(self) -> None:
        number("lipschitz", self.lipschitz, above=0)
        number("learning_rate", self.learning_rate, above=0)
        number("l2", self.l2, least=0)
        whole("tau", self.tau)
        within("batch_size", self.batch_size, above=0)
        within("blocks", self.blocks, least=1)
        one_of("unit", self.unit, UNITS)
        if self.clip is not None:
            number("clip", self.clip, above=0)
        curvature = 0.0 if self.unit == "device" else self.curvature
        check_learning_rate(self.learning_rate, curvature, self.l2)

    @property
    def sensitivity(self) -> Array:
        """s_m: how far Delta_m moves at most when one unit is replaced; rounded up."""
        whole_device = self.unit == "device"
        series = move_series(
            learning_rate=self.learning_rate,
            tau=self.tau,
            blocks=1 if whole_device else self.blocks,
            # As if the loss had no curvature: 1 - |1 - eta l|.
            curvature=0.0 if whole_device else self.curvature,
            l2=self.l2,
        )
        bound = 2 * self.lipschitz * series
        if not whole_device:
            bound = bound / floats(self.batch_size)
        most = np.inf if self.clip is None else 2 * self.clip
        return np.minimum(bound, most) * (1 + _ROUNDING)


@dataclass(frozen=True, kw_only=True)
class NoisyUploads:
    """All uploads of a run, of which the server sees sums of at least t answers.

    Weights and rounds are numbers, or arrays with one entry per device.

    >>> steps = LocalSteps(
    ...     lipschitz=1, curvature=0.25, learning_rate=2.0, tau=10, batch_size=100)
    >>> run = NoisyUploads(steps=steps, weights=0.1, rounds=25, noise_std=0.05,
    ...                    least_answers=8, colluders=4)
    >>> round(float(run.mu), 6), round(float(run.mu_alone), 6)
    (2.0, 4.0)
    """

    steps: LocalSteps
    weights: ArrayLike  # p_m: what Delta_m is multiplied by
    rounds: ArrayLike  # R: uploads; 0 for a device that is not selected
    noise_std: float  # of every device's share, per coordinate of its upload
    least_answers: int  # t: a sum of fewer answers is never seen
    colluders: int = 0  # c: devices that may collude with the server
    sampling_probability = 1.0  # no amplification is claimed

    def __post_init__(self) -> None:
        within("weights", self.weights, least=0)
        within("rounds", self.rounds, least=0)
        number("noise_std", self.noise_std, above=0)
        check_answers(self.least_answers, self.colluders)

    @property
    def sum_noise_std(self) -> float:
        """sqrt(V): std of the honest noise in a sum of t answers, per coordinate."""
        return self.noise_std * float(np.sqrt(self.least_answers - self.colluders))

    @property
    def laps(self) -> Array:
        """The number of uploads: each of them may use any one unit."""
        return floats(self.rounds)

    @property
    def noise_multiplier(self) -> Array:
        """Noise std over half the sensitivity (as in dp-accounting, for replacement).

        Infinite for a device of weight 0.
        """
        moved = floats(self.weights) * self.steps.sensitivity
        with np.errstate(divide="ignore"):
            return np.asarray(2 * self.sum_noise_std / moved)

    @property
    def mu(self) -> Array:
        """The run's Gaussian-DP parameter, against the server and c colluders.

        sqrt(R) p_m s_m / sqrt(V): "Composition" and "Shares" above have the proof.
        """
        return 2 * np.sqrt(self.laps) / self.noise_multiplier

    @property
    def rho(self) -> Array:
        """The zCDP of the whole run: see `NoisyGradients.rho`."""
        return self.mu**2 / 2

    @property
    def alone(self) -> "NoisyUploads":
        """The same uploads if everybody else colludes: only the own share is noise."""
        return replace(self, least_answers=1, colluders=0)

    @property
    def mu_alone(self) -> Array:
        """The Gaussian-DP parameter if everybody else colludes with the server."""
        return self.alone.mu


def noise_for_budget(
    steps: LocalSteps,
    *,
    accountant: Accountant,
    weights: ArrayLike,
    rounds: ArrayLike,
    epsilon: ArrayLike,
    delta: ArrayLike,
    prior_mu: ArrayLike = 0.0,
) -> Array:
    """Return sqrt(V) that each device needs in the sum; the largest serves them all.

    Statement: R uploads with sqrt(V) = z p_m s_m / 2 spend what R releases with noise
    multiplier z do: mu_m = 2 sqrt(R) / z, by "Composition" above. More noise in the sum
    than a device needs costs it less: mu_m falls with V.

    Infinite for a device whose budget `prior_mu` has spent already.
    """
    multiplier = accountant.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        steps=np.maximum(floats(rounds), 1.0),
        prior_mu=prior_mu,
    )
    # A device of weight 0 needs none, even if its budget is spent.
    moved = floats(weights) * steps.sensitivity
    with np.errstate(invalid="ignore"):
        return np.where(moved > 0, multiplier * moved / 2, 0.0) * (1 + _ROUNDING)


def check_learning_rate(learning_rate: float, curvature: float, l2: float) -> None:
    """Raise unless local steps without noise are non-expansive: eta <= 2 / L."""
    if not np.isfinite(curvature):
        raise InvalidInputError(
            "the loss is not smooth (its curvature is infinite): local steps without "
            "noise could move neighbouring data apart without a bound; use loss "
            "'smooth_hinge' instead of 'hinge'",
            argument="loss",
        )
    smoothness = number("curvature", curvature, least=0) + l2
    # Exact, as quotients: a rounded product could hide a step that expands. The module
    # `fractions` would take a device half a megabyte.
    eta, curve, ridge = (
        float(value).as_integer_ratio() for value in (learning_rate, curvature, l2)
    )
    above = eta[0] * (curve[0] * ridge[1] + ridge[0] * curve[1])
    if above > 2 * eta[1] * curve[1] * ridge[1]:
        raise InvalidInputError(
            f"learning_rate {learning_rate:g} is above {2 / smoothness:g}, which is 2 "
            f"over the smoothness {smoothness:g}: local steps without noise need it at "
            "most there; lower it, and take more steps instead",
            argument="learning_rate",
        )


def check_answers(
    least_answers: int, colluders: int, num_devices: int | None = None
) -> None:
    """Raise unless 0 <= colluders < least_answers <= num_devices."""
    least = whole("least_answers", least_answers)
    whole("colluders", colluders, least=0)
    if colluders >= least:
        raise InvalidInputError(
            f"colluders {colluders} must be below least_answers {least}: a sum of "
            "colluding devices and one more shows its upload; lower colluders or raise "
            "least_answers",
            argument="colluders",
        )
    if num_devices is not None and least > num_devices:
        raise InvalidInputError(
            f"least_answers {least} is above the {num_devices} devices that take part: "
            "no sum could ever be seen; lower it",
            argument="least_answers",
        )


def move_series(
    *,
    learning_rate: ArrayLike,
    tau: ArrayLike,
    blocks: ArrayLike,
    curvature: float,
    l2: float,
) -> Array:
    """Return eta (1 + q^B + q^2B + ..), a term per use of a row; rounded up.

    Proof: "Sensitivity" and "Disjoint batches in turn" above. 1 - q is rounded down and
    the sum up, so that it is never below the exact one.

    Times 2 G / X_m it is s_m. Arrays are for many candidates or many devices.
    """
    eta, power = floats(learning_rate), floats(blocks)
    uses = np.ceil(floats(tau) / power)  # of a row, in one round
    # 1 - q: the share by which a step at least shrinks a difference; rounded down.
    gap = np.minimum(
        eta * l2 * (1 - _ROUNDING), 2 - eta * (curvature + l2) * (1 + _ROUNDING)
    )
    return np.asarray(eta * _series(uses, gap, power))


def _series(terms: Array, gap: Array, power: Array) -> Array:
    """Return 1 + r + .. + r^(terms-1) for r = (1 - gap)^power and gap <= 1.

    Written with expm1, the quotient has no cancellation; it is rounded up.
    """
    contracts = gap > 0
    # gap 1: the next step forgets all before it
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log1p(-np.where(contracts, np.minimum(gap, 1.0), 0.5)) * power
        ratio = np.expm1(terms * log_ratio) / np.expm1(log_ratio)
    return np.where(contracts, ratio * (1 + _ROUNDING), terms)
