"""The spectral model against plain simulations."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import fedbudget as fb
from fedbudget.planning.spectral import (
    PRIOR_PART,
    Schedule,
    Spectrum,
    plausible,
    respond,
)


def one_mode(curvature: float, gap: float = 1.0) -> Spectrum:
    return Spectrum(
        curvature=np.array([curvature]), count=np.ones(1), gap=np.array([gap])
    )


def schedule(
    tau: int, rounds: int, rate: float, momentum: float, server_rate: float = 1.0
) -> Schedule:
    return Schedule(
        tau=np.array([float(tau)]),
        rounds=np.array([float(rounds)]),
        learning_rate=np.array([rate]),
        momentum=np.array([momentum]),
        server_rate=np.array([server_rate]),
    )


def follow(
    h: float,
    tau: int,
    rounds: int,
    rate: float,
    momentum: float,
    server_rate: float = 1.0,
) -> tuple[float, float]:
    """Run a deviation and its noise variance through the rounds, one by one."""
    deviation, previous = 1.0, 1.0
    variance = np.zeros((2, 2))  # of (theta_t, theta_{t-1})
    local, noise = 1.0, 0.0
    for _ in range(tau):
        local, noise = local * (1 - rate * h), noise * (1 - rate * h) ** 2 + rate**2
    local, noise = 1 - server_rate * (1 - local), noise * server_rate**2
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
    server_rate=st.sampled_from([1.0, 1.0, 1.4]),
)
def test_the_closed_form_is_the_recursion(
    h: float, tau: int, rounds: int, rate: float, momentum: float, server_rate: float
) -> None:
    run = tau, rounds, rate, momentum, server_rate
    deviation, variance = follow(h, *run)
    response = respond(one_mode(h), schedule(*run), variance=1.0)
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
    share = np.average(drifts, weights=weights) ** 2
    response = respond(one_mode(h), schedule(tau, rounds, rate, 0.0), variance=1.0)
    expected = share * response.drift[0]
    assert response.corrected[0] == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_drift_correction_of_a_regression_acts_faster() -> None:
    runs = [
        respond(
            one_mode(0.1),
            schedule(20, 8, 2.0, 0.0),
            variance=1.0,
            correction_speed=speed,
        )
        for speed in (1.0, 3.0)
    ]
    share = np.sqrt([run.corrected[0] / run.drift[0] for run in runs])
    assert share[1] == pytest.approx(share[0] ** 3)
    assert 0 < share[1] < share[0] < 1


def test_an_unstable_run_is_infinitely_bad() -> None:
    response = respond(one_mode(1.0), schedule(100, 1000, 50.0, 0.0), variance=1.0)
    assert response.remaining[0] == np.inf


LOSSES = ("logistic", "softmax", "hinge", "smooth_hinge", "huber")


@given(
    dim=st.sampled_from([1, 2, 3, 10, 13, 102, 100_000]),
    loss=st.sampled_from(LOSSES),
    spike=st.floats(0, 1),
    spike_gap=st.floats(0, 1),
    decay=st.floats(0, 4),
)
def test_modes_share_the_trace_and_the_gap(
    dim: int, loss: str, spike: float, spike_gap: float, decay: float
) -> None:
    problem = problem_of(
        dim=dim, loss=loss, spike_share=spike, spike_gap=spike_gap, gap_decay=decay
    )
    outputs = 1 if loss != "softmax" else 2  # 3 classes: 2 directions of scores
    gap = problem["initial_gap"] * problem["learnable_share"]
    for spectrum in [*plausible(problem), Spectrum.of(problem)]:
        assert spectrum.count.sum() == pytest.approx(outputs * dim)
        assert (spectrum.curvature >= 0).all() and (spectrum.gap >= 0).all()
        trace = spectrum.count @ spectrum.curvature
        assert trace == pytest.approx(problem["hessian_trace"])
        assert spectrum.learnable == pytest.approx(gap)


def problem_of(*, dim: int, loss: str = "logistic", **values: float) -> fb.Problem:
    classes = 3 if loss == "softmax" else None
    problem = fb.Problem(num_samples=[100], dim=dim, loss=loss, num_classes=classes)
    constants = {
        name: fb.Constant(value=value, source="assumed")
        for name, value in values.items()
    }
    return problem.with_constants(**constants)


def test_the_spike_has_its_share_of_the_trace_and_another_of_the_gap() -> None:
    problem = problem_of(dim=20, spike_share=0.6, spike_gap=0.2)
    first = plausible(problem)[0]
    trace, gap = problem["hessian_trace"], first.learnable
    assert first.curvature[0] == pytest.approx(0.6 * trace)
    assert first.gap[0] == pytest.approx(0.2 * gap)
    # By hand, for the modes beside it: i^-1.4 and i^-1.1.
    rank = np.arange(1.0, 20)
    curvature = 0.4 * trace * rank**-1.4 / np.sum(rank**-1.4)
    gaps = 0.8 * gap * rank**-1.1 / np.sum(rank**-1.1)
    assert first.curvature[1:4] == pytest.approx(curvature[:3], rel=0.02)
    assert first.gap[1:4] == pytest.approx(gaps[:3], rel=0.02)


def test_a_softmax_has_every_mode_once_for_all_but_one_class() -> None:
    two, binary = (
        plausible(fb.Problem(num_samples=[9], dim=30, loss="softmax", num_classes=n))[0]
        for n in (2, 5)
    )
    assert (binary.count == 4 * two.count).all()
    assert binary.curvature[0] / binary.curvature[1] == pytest.approx(
        two.curvature[0] / two.curvature[1]
    )


def test_the_response_to_a_mean_spectrum_is_the_mean_response() -> None:
    family = plausible(fb.Problem(num_samples=[100], dim=40))
    assert len(family) == 3
    candidate = schedule(7, 5, 3.0, 0.4)
    mean = respond(Spectrum.mean(family), candidate, variance=1.0)
    each = [respond(spectrum, candidate, variance=1.0) for spectrum in family]
    for name in ("remaining", "noise", "drift", "corrected", "moved"):
        values = [getattr(response, name)[0] for response in each]
        assert getattr(mean, name)[0] == pytest.approx(np.mean(values))


def test_what_the_encoding_gives_narrows_the_family() -> None:
    unknown = plausible(fb.Problem(num_samples=[100], dim=40))
    stated = plausible(problem_of(dim=40, spike_share=0.75))
    spread = [np.ptp([each.curvature[0] for each in f]) for f in (unknown, stated)]
    assert spread[0] > spread[1] > 0
    assert len(plausible(problem_of(dim=40, spike_share=0.0))) == 1


@given(
    gap_decay=st.floats(0.2, 3),
    rounds=st.integers(1, 30),
    rate=st.floats(0.1, 7.6),
)
def test_more_rounds_leave_less_unfinished_and_add_noise(
    gap_decay: float, rounds: int, rate: float
) -> None:
    spectrum = Spectrum.of(problem_of(dim=30, gap_decay=gap_decay))
    few, more = (
        respond(spectrum, schedule(4, count, rate, 0.0), variance=1.0)
        for count in (rounds, rounds + 1)
    )
    assert more.remaining[0] <= few.remaining[0] * (1 + 1e-9)
    assert more.noise[0] >= few.noise[0] * (1 - 1e-9)


def test_grouping_eigenvalues_hardly_matters() -> None:
    problem = problem_of(dim=2000, spike_share=0.0)
    rank = np.arange(1, 2001.0)
    share, gaps = rank**-1.4, rank**-1.1
    exact = Spectrum(
        curvature=problem["hessian_trace"] * share / share.sum(),
        count=np.ones(2000),
        gap=0.5 * np.log(2) * gaps / gaps.sum(),
    )
    for candidate in (schedule(10, 9, 7.6, 0.0), schedule(1, 50, 2.0, 0.8)):
        grouped = respond(Spectrum.of(problem), candidate, variance=1.0)
        each = respond(exact, candidate, variance=1.0)
        assert grouped.remaining[0] == pytest.approx(each.remaining[0], rel=0.1)
        assert grouped.noise[0] == pytest.approx(each.noise[0], rel=0.1)


def test_few_modes_of_a_sample_stay_apart() -> None:
    # The gap lies in the flattest of four modes: grouping it would hide that.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 4)) * [1, 0.6, 0.4, 0.1]
    y = (x[:, 3] > 0).astype(int)
    x /= np.linalg.norm(x, axis=1).max()
    problem = fb.Problem(num_samples=[100], dim=4).with_public_sample(x, y)
    spectrum = Spectrum.of(problem)
    assert spectrum.count.tolist() == [1, 1, 1, 1]
    assert spectrum.gap[3] > (1 - PRIOR_PART) * spectrum.learnable
    assert spectrum.gap.argmax() == 3
    assert (np.diff(spectrum.curvature) < 0).all()
