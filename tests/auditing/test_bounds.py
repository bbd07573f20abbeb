"""Lower bounds on epsilon: by hand, by simulation of known laws, and by witnesses."""

import math

import numpy as np
import pytest

from fedbudget.auditing.bounds import Trials, _clopper_pearson, lower_bounds
from fedbudget.privacy import delta_from_mu, epsilon_from_mu

DELTA = 1e-5


def normal_trials(
    mu: float, *, count: int = 40_000, seed: int = 0, std: float = 1.0
) -> Trials:
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, count)) * std
    return Trials(first=first + mu * std, second=second)


@pytest.mark.parametrize("mu", [0.25, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("std", [1.0, 1e-6, 1e9])
def test_bounds_are_below_the_truth_and_near_it(mu: float, std: float) -> None:
    truth = float(epsilon_from_mu(mu, DELTA))
    bounds = lower_bounds(normal_trials(mu, std=std), delta=DELTA, error=1e-3)
    assert 0.8 * truth < bounds.gaussian < truth
    assert 0.2 * truth < bounds.free < truth
    assert bounds.best_fit == pytest.approx(truth, rel=0.06)
    assert bounds.largest == bounds.gaussian and bounds.trials == 80_000


def test_bounds_are_too_high_as_rarely_as_stated() -> None:
    # At an error of 0.2, the Gaussian bound's share is 0.1 and the other's 0.1: of 400
    # repetitions, 40 may be too high, and more than 80 are less likely than 1e-9.
    mu, truth = 1.0, float(epsilon_from_mu(1.0, DELTA))
    bounds = [
        lower_bounds(normal_trials(mu, count=300, seed=k), delta=DELTA, error=0.2)
        for k in range(400)
    ]
    assert sum(b.gaussian > truth for b in bounds) <= 80
    assert sum(b.free > truth for b in bounds) <= 80
    # It is no accident that they are low: with some luck they are too high.
    assert sum(b.gaussian > truth for b in bounds) >= 5


def test_equal_tables_give_zero() -> None:
    bounds = lower_bounds(normal_trials(0.0), delta=DELTA, error=1e-3)
    assert bounds.gaussian == bounds.free == 0
    reverse = lower_bounds(normal_trials(-1.0), delta=DELTA, error=1e-3)
    assert reverse.gaussian == reverse.best_fit == 0


def test_clopper_pearson_by_hand() -> None:
    # None of n: the limit solves (1 - q)^n = error / 2; all of n: p^n = error / 2.
    n, error = 1000, 1e-3
    limit = 1 - (error / 2) ** (1 / n)
    above = [np.array([float(n)]), np.array([0.0])]
    bound = float(_clopper_pearson(above, [n, n], 0.0, error)[0])
    assert bound == pytest.approx(math.log((1 - limit) / limit))
    # All of both: nothing is told apart. None of the first: no bound either.
    both = [np.array([float(n)]), np.array([float(n)])]
    assert float(_clopper_pearson(both, [n, n], 0.0, error)[0]) == 0
    none = [np.array([0.0]), np.array([0.0])]
    assert float(_clopper_pearson(none, [n, n], 0.0, error)[0]) == 0


@pytest.mark.parametrize("count, n", [(3, 50), (40, 1000)])
def test_clopper_pearson_by_brute_force(count: int, n: int) -> None:
    # The upper limit q is where the binomial P(at most count) is error / 2.
    error = 0.01
    above = [np.array([float(n)]), np.array([float(count)])]
    bound = float(_clopper_pearson(above, [n, n], 0.0, error)[0])
    p = (error / 2) ** (1 / n)
    q = p / math.exp(bound)
    below = sum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(count + 1))
    assert below == pytest.approx(error / 2, rel=1e-6)


def test_the_conversion_of_mu_against_dp_accounting() -> None:
    gaussian_mechanism = pytest.importorskip("dp_accounting").gaussian_mechanism
    bounds = lower_bounds(normal_trials(1.0), delta=DELTA, error=1e-3)
    theirs = gaussian_mechanism.get_epsilon_gaussian(1 / bounds.mu, DELTA)
    assert bounds.best_fit == pytest.approx(theirs, rel=1e-6)
    assert float(delta_from_mu(bounds.mu, bounds.best_fit)) <= DELTA


def test_the_bound_against_jax_privacy() -> None:
    auditing = pytest.importorskip("jax_privacy.auditing")
    trials = normal_trials(1.0)
    auditor = auditing.CanaryScoreAuditor(trials.first, trials.second)
    theirs = auditor.epsilon_clopper_pearson(1e-3, DELTA)
    ours = lower_bounds(trials, delta=DELTA, error=1e-3).free
    assert ours == pytest.approx(theirs, rel=0.3)


@pytest.mark.parametrize("distance", [-40.0, 0.0, 40.0])
def test_thresholds_that_no_trial_reaches_are_no_error(distance: float) -> None:
    # Few trials far apart: expected counts are as small as 1e-309.
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 10))
    trials = Trials(first=first + distance, second=second)
    bounds = lower_bounds(trials, delta=1e-5, error=1e-8)
    assert 0 <= bounds.free < np.log(10)
