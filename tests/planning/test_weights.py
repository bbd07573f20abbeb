"""Weights: the closed form against a solver we did not write."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import optimize

from fedbudget.planning.weights import balanced, candidate_weights

variances = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=6).map(np.array)


@given(variance=variances, kappa=st.floats(0, 1e3))
def test_weights_are_a_distribution(variance: np.ndarray, kappa: float) -> None:
    weights = balanced(kappa, np.full(len(variance), 1 / len(variance)), variance)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()


@pytest.mark.parametrize("kappa", [0.0, 0.1, 1.0, 30.0])
def test_weights_minimise_noise_plus_bias(kappa: float) -> None:
    variance = np.array([0.5, 2.0, 9.0, 0.1])
    target = np.array([0.4, 0.3, 0.2, 0.1])

    # The last weight is what the others leave of 1.
    def objective(free: np.ndarray) -> float:
        p = np.append(free, 1 - free.sum())
        return float(p @ (p * variance) + kappa * np.sum((p - target) ** 2))

    free = optimize.minimize(objective, target[:-1], method="BFGS", tol=1e-10).x
    solved = np.append(free, 1 - free.sum())
    assert balanced(kappa, target, variance) == pytest.approx(solved, abs=1e-5)


def test_the_ends_are_inverse_variance_and_the_target() -> None:
    target, variance = np.array([0.5, 0.5]), np.array([1.0, 4.0])
    assert balanced(0.0, target, variance) == pytest.approx([0.8, 0.2])
    assert balanced(np.inf, target, variance) is target
    assert balanced(1e9, target, variance) == pytest.approx(target, abs=1e-6)


def test_adults_noise_by_weights() -> None:
    # Erratum 12: uniform : by size : inverse variance = 117 : 1 : 0.33.
    sizes = [10501, 7291, 5355, 1723, 1382, 1175, 1067, 933]
    n = np.array([*sizes, 646, 576, 514, 433, 413, 333, 168, 51], dtype=float)

    def noise(p: np.ndarray) -> float:
        return float(np.sum((p / p.sum() / n) ** 2))

    by_size = noise(n)
    assert noise(np.ones(16)) / by_size == pytest.approx(117, rel=0.01)
    assert noise(n**2) / by_size == pytest.approx(0.33, abs=0.005)


def test_candidates_sum_up_what_the_weights_are() -> None:
    variance, sampling = np.array([1.0, 2.0, 8.0]), np.array([0.1, 0.2, 0.3])
    target = np.full(3, 1 / 3)
    found = candidate_weights(target, variance, sampling, planned=True)
    for index, kappa in enumerate(found.kappa):
        p = balanced(kappa, target, variance)
        assert found.noise[index] == pytest.approx(np.sum(p**2 * variance))
        assert found.sampling[index] == pytest.approx(np.sum(p**2 * sampling))
        assert found.bias[index] == pytest.approx(np.sum((p - target) ** 2))
    assert len(candidate_weights(target, variance, sampling, planned=False).kappa) == 1
    alike = candidate_weights(target, np.ones(3), sampling, planned=True)
    assert len(alike.kappa) == 1
