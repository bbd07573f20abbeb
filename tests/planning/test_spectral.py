"""The spectral model against plain simulations."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import fedbudget as fb
from fedbudget.planning.spectral import Schedule, Spectrum, respond


def one_mode(curvature: float, gap: float = 1.0) -> Spectrum:
    return Spectrum(
        curvature=np.array([curvature]), count=np.ones(1), gap=np.array([gap])
    )


def schedule(tau: int, rounds: int, rate: float, momentum: float) -> Schedule:
    return Schedule(
        tau=np.array([float(tau)]),
        rounds=np.array([float(rounds)]),
        learning_rate=np.array([rate]),
        momentum=np.array([momentum]),
    )


def follow(
    h: float, tau: int, rounds: int, rate: float, momentum: float
) -> tuple[float, float]:
    """Run a deviation and its noise variance through the rounds, one by one."""
    deviation, previous = 1.0, 1.0
    variance = np.zeros((2, 2))  # of (theta_t, theta_{t-1})
    local, noise = 1.0, 0.0
    for _ in range(tau):
        local, noise = local * (1 - rate * h), noise * (1 - rate * h) ** 2 + rate**2
    matrix = np.array([[local + momentum, -momentum], [1.0, 0.0]])
    for _ in range(rounds):
        deviation, previous = matrix @ (deviation, previous)
        variance = matrix @ variance @ matrix.T + np.diag([noise, 0.0])
    return deviation, variance[0, 0]


@given(
    h=st.floats(1e-4, 0.25),
    tau=st.integers(1, 30),
    rounds=st.integers(1, 40),
    rate=st.floats(0.01, 7.6),
    momentum=st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.9]),
)
def test_the_closed_form_is_the_recursion(
    h: float, tau: int, rounds: int, rate: float, momentum: float
) -> None:
    deviation, variance = follow(h, tau, rounds, rate, momentum)
    response = respond(one_mode(h), schedule(tau, rounds, rate, momentum), variance=1.0)
    assert response.remaining[0] == pytest.approx(deviation**2, rel=1e-2, abs=1e-5)
    assert response.noise[0] == pytest.approx(0.5 * h * variance, rel=1e-2, abs=1e-9)


def test_noise_is_that_of_simulated_devices() -> None:
    # 4 devices, 3 local steps, 5 rounds, momentum 0.5, on f = h theta^2 / 2.
    h, rate, momentum, sigma = 0.2, 2.0, 0.5, 0.7
    rng = np.random.default_rng(0)
    runs = 200_000
    theta, before = np.zeros(runs), np.zeros(runs)
    for _ in range(5):
        local = np.repeat(theta[:, None], 4, axis=1)
        for _ in range(3):
            local -= rate * (h * local + sigma * rng.normal(size=local.shape))
        moved = local.mean(axis=1) + momentum * (theta - before)
        theta, before = moved, theta
    response = respond(one_mode(h), schedule(3, 5, rate, momentum), variance=1.0)
    predicted = float(response.noise[0]) * sigma**2 / 4
    assert 0.5 * h * theta.var() == pytest.approx(predicted, rel=0.02)


def test_one_local_step_does_not_drift_and_many_do() -> None:
    drift = [
        float(respond(one_mode(0.1), schedule(tau, 5, 2.0, 0.0), variance=1).drift[0])
        for tau in (1, 2, 5, 20, 400)
    ]
    assert drift[0] == pytest.approx(0, abs=1e-12)
    assert (np.diff(drift) > 0).all()
    assert drift[-1] == pytest.approx(1, abs=0.05)


@given(h=st.floats(1e-3, 0.25), tau=st.integers(2, 100), rounds=st.integers(1, 12))
def test_drift_with_correction_is_the_weighted_sum(
    h: float, tau: int, rounds: int
) -> None:
    rate = 3.0
    local = (1 - rate * h) ** tau
    pull = 1 - (1 - local) / (tau * rate * h)
    drifts = [pull ** max(0, r - 2) for r in range(1, rounds + 1)]
    weights = [local ** (rounds - r) for r in range(1, rounds + 1)]
    share = (np.average(drifts, weights=weights) ** 3) ** 2
    response = respond(one_mode(h), schedule(tau, rounds, rate, 0.0), variance=1.0)
    expected = share * response.drift[0]
    assert response.corrected[0] == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_an_unstable_run_is_infinitely_bad() -> None:
    response = respond(one_mode(1.0), schedule(100, 1000, 50.0, 0.0), variance=1.0)
    assert response.remaining[0] == np.inf


@pytest.mark.parametrize("dim", [1, 2, 10, 102, 100_000])
def test_eigenvalues_share_the_trace_and_the_gap(dim: int) -> None:
    problem = fb.Problem(num_samples=[100], dim=dim)
    spectrum = Spectrum.of(problem)
    assert spectrum.count.sum() == dim
    assert (spectrum.count @ spectrum.curvature) == pytest.approx(0.25)
    assert (spectrum.count @ spectrum.gap) == pytest.approx(0.5 * np.log(2))


def test_grouping_eigenvalues_hardly_matters() -> None:
    problem = fb.Problem(num_samples=[100], dim=2000)
    rank = np.arange(1, 2001.0)
    share = rank**-1.4 / np.sum(rank**-1.4)
    exact = Spectrum(
        curvature=0.25 * share, count=np.ones(2000), gap=0.5 * np.log(2) * share
    )
    for candidate in (schedule(10, 9, 7.6, 0.0), schedule(1, 50, 2.0, 0.8)):
        grouped = respond(Spectrum.of(problem), candidate, variance=1.0)
        each = respond(exact, candidate, variance=1.0)
        assert grouped.remaining[0] == pytest.approx(each.remaining[0], rel=0.1)
        assert grouped.noise[0] == pytest.approx(each.noise[0], rel=0.1)
