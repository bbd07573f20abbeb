"""Noise per upload: sensitivity and mu by hand, by inverse and by dp-accounting.

The bound itself is attacked in `attacks/test_crafted_neighbours.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, strategies as st

from fedbudget.errors import InvalidInputError
from fedbudget.privacy import (
    GDP,
    ZCDP,
    LocalSteps,
    NoisyUploads,
    PldAccountant,
    PrivacyStatement,
    dp_event,
    noise_for_budget,
)
from fedbudget.privacy.uploads import check_answers

STEPS = LocalSteps(
    lipschitz=1, curvature=0.25, learning_rate=2.0, tau=10, batch_size=100
)
RUN = NoisyUploads(
    steps=STEPS,
    weights=0.1,
    rounds=25,
    noise_std=0.05,
    least_answers=8,
    colluders=4,
)


def test_sensitivity_by_hand() -> None:
    assert float(STEPS.sensitivity) == pytest.approx(2 * 1 * 2.0 * 10 / 100)
    # With an L2 term: q = 1 - 2 * 0.1 = 0.8, and 1 + 0.8 + 0.64 = 2.44.
    regularised = replace(STEPS, l2=0.1, tau=3)
    assert float(regularised.sensitivity) == pytest.approx(2 * 2.0 / 100 * 2.44)
    # eta L = 6 * 0.3 = 1.8: now the steepest direction contracts least, q = 0.8.
    steep = replace(STEPS, l2=0.05, learning_rate=6.0, tau=3)
    assert float(steep.sensitivity) == pytest.approx(2 * 6.0 / 100 * 2.44)


def test_sensitivity_of_disjoint_batches_by_hand() -> None:
    # 10 steps over 4 batches use a row at most 3 times, over 20 batches once.
    batches = replace(STEPS, batch_size=[25, 5], blocks=[4, 20])
    expected = [2 * 2.0 * 3 / 25, 2 * 2.0 * 1 / 5]
    assert batches.sensitivity == pytest.approx(expected)
    # With q = 0.8, the uses are 4 steps apart: 1 + 0.8^4 + 0.8^8.
    regularised = replace(STEPS, l2=0.1, batch_size=25, blocks=4)
    series = 1 + 0.8**4 + 0.8**8
    assert float(regularised.sensitivity) == pytest.approx(2 * 2.0 / 25 * series)


def test_the_device_as_the_unit_by_hand() -> None:
    device = replace(STEPS, unit="device")
    assert float(device.sensitivity) == pytest.approx(2 * 2.0 * 10)
    assert float(replace(device, clip=3.0).sensitivity) == pytest.approx(6)
    assert float(replace(device, clip=30.0).sensitivity) == pytest.approx(40)
    regularised = replace(device, l2=0.1, tau=3)
    assert float(regularised.sensitivity) == pytest.approx(2 * 2.0 * 2.44)
    # Any bounded gradients do: no smoothness is needed.
    kinked = replace(device, curvature=np.inf)
    assert float(kinked.sensitivity) == float(device.sensitivity)


def test_many_steps_approach_the_sensitivity_of_the_minimum() -> None:
    # Chaudhuri, Monteleoni and Sarwate (2011), Corollary 8: 2 G / (l2 X).
    one_shot = replace(STEPS, l2=0.01, tau=10**6)
    assert float(one_shot.sensitivity) == pytest.approx(2 / (0.01 * 100))


@given(
    tau=st.integers(1, 60),
    blocks=st.integers(1, 9),
    share=st.floats(1e-3, 1),
    l2=st.floats(0, 2),
)
def test_the_series_is_never_too_small(
    tau: int, blocks: int, share: float, l2: float
) -> None:
    eta = share * 2 / (0.25 + l2) * (1 - 1e-15)
    steps = replace(STEPS, learning_rate=eta, l2=l2, tau=tau, blocks=blocks)
    exact_eta, exact_l2 = Fraction(eta), Fraction(l2)
    q = max(1 - exact_eta * exact_l2, exact_eta * (Fraction(1, 4) + exact_l2) - 1)
    distance = Fraction(0)
    for step in reversed(range(tau)):
        distance = q * distance
        if step % blocks == 0:
            distance += 2 * exact_eta / 100
    assert Fraction(float(steps.sensitivity)) >= distance
    assert float(steps.sensitivity) == pytest.approx(float(distance), rel=1e-9)


def test_mu_by_hand() -> None:
    # V = 0.05^2 (8 - 4) = 0.1^2; a round has 0.1 * 0.4 / 0.1 = 0.4, 25 rounds 5 x 0.4.
    assert pytest.approx(0.1) == RUN.sum_noise_std
    assert float(RUN.mu) == pytest.approx(2.0)
    assert float(RUN.rho) == pytest.approx(2.0)
    # Alone, the noise is 0.05 instead of 0.1.
    assert float(RUN.mu_alone) == pytest.approx(4.0)


def test_one_device_that_trusts_nobody_has_the_noise_alone() -> None:
    run = replace(RUN, least_answers=1, colluders=0)
    assert float(run.mu) == float(run.mu_alone) == float(RUN.mu_alone)


def test_it_is_the_ordinary_mechanism_for_one_step() -> None:
    # One step of eta = 1 of one device with weight 1 is a noisy gradient.
    steps = replace(STEPS, learning_rate=1.0, tau=1)
    run = replace(RUN, steps=steps, weights=1.0, least_answers=1, colluders=0)
    assert float(run.mu) == pytest.approx(2 * sqrt(25) / (100 * 0.05))


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("rounds", [1, 40])
def test_epsilons_against_dp_accounting(rounds: int, delta: float) -> None:
    run = replace(RUN, rounds=rounds, noise_std=0.2)
    for view in (run, run.alone):
        witness = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        event = dp_accounting.GaussianDpEvent(float(view.noise_multiplier))
        witness.compose(event, rounds)
        exact = float(GDP.epsilon(view, delta=delta))
        assert exact == pytest.approx(witness.get_epsilon(delta), rel=2e-3)
        assert dp_event(view) == dp_accounting.SelfComposedDpEvent(event, rounds)
        # A third way: the Gaussian mechanism of the whole run, at once.
        whole = dp_accounting.get_epsilon_gaussian(1 / float(view.mu), delta)
        assert exact == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("accountant", [GDP, ZCDP, PldAccountant()])
def test_noise_for_a_budget_is_the_inverse_of_epsilon(accountant: Any) -> None:
    weights, epsilon = np.array([0.5, 0.3, 0.2, 0.0]), np.array([4.0, 1.0, 8.0, 1.0])
    rounds = np.array([20, 20, 10, 0])
    prior = [0.0, 0.1, 0.0, 0.0]
    need = noise_for_budget(
        STEPS,
        accountant=accountant,
        weights=weights,
        rounds=rounds,
        epsilon=epsilon,
        delta=1e-5,
        prior_mu=prior,
    )
    assert need[3] == 0
    for device in range(3):
        run = NoisyUploads(
            steps=STEPS,
            weights=weights,
            rounds=rounds,
            noise_std=float(need[device]),
            least_answers=1,
        )
        spent = accountant.epsilon(run, delta=1e-5, prior_mu=prior)
        assert spent[device] == pytest.approx(epsilon[device], rel=1e-3)
        assert spent[device] <= epsilon[device]
        # The device that needs most has noise enough for everybody.
        if device == int(np.argmax(need)):
            assert (spent <= epsilon).all()


def test_a_spent_budget_needs_infinite_noise() -> None:
    need = noise_for_budget(
        STEPS,
        accountant=GDP,
        weights=[0.5, 0.0],
        rounds=1,
        epsilon=1.0,
        delta=1e-5,
        prior_mu=9.0,
    )
    assert need.tolist() == [np.inf, 0.0]


def test_shares_hold_v_whoever_colludes() -> None:
    """Any t answers minus any c colluders carry at least V."""
    for t, c in ((1, 0), (5, 0), (5, 4), (40, 13)):
        run = replace(RUN, least_answers=t, colluders=c)
        honest = (t - c) * run.noise_std**2
        assert honest == pytest.approx(run.sum_noise_std**2)
        assert float(run.mu_alone) == pytest.approx(float(run.mu) * sqrt(t - c))


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: replace(STEPS, learning_rate=8.1),
            r"learning_rate 8.1 is above 8, which is 2 over the smoothness 0.25",
        ),
        (
            lambda: replace(STEPS, learning_rate=np.nextafter(8, 9)),
            "learning_rate 8 is above 8",
        ),
        (lambda: replace(STEPS, learning_rate=8.0, l2=1e-9), "is above 8"),
        (
            lambda: replace(STEPS, curvature=np.inf),
            "the loss is not smooth .* use loss 'smooth_hinge'",
        ),
        (
            lambda: replace(STEPS, unit="row"),  # type: ignore[arg-type]
            "unit 'row' is not known",
        ),
        (lambda: replace(STEPS, unit="device", clip=0.0), "clip must be above 0"),
        (
            lambda: replace(STEPS, unit="device", l2=1.1),
            "learning_rate 2 is above 1.81",
        ),
        (lambda: replace(STEPS, tau=0), "tau must be a whole number of at least 1"),
        (lambda: replace(STEPS, batch_size=0), "batch_size must be above 0"),
        (
            lambda: replace(RUN, colluders=8),
            "colluders 8 must be below least_answers 8: .* raise least_answers",
        ),
        (lambda: replace(RUN, least_answers=0), "least_answers must be"),
        (lambda: replace(RUN, noise_std=0.0), "noise_std must be above 0"),
        (
            lambda: check_answers(17, 0, num_devices=16),
            "least_answers 17 is above the 16 devices that take part",
        ),
    ],
)
def test_bad_uploads_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_the_largest_learning_rate_itself_is_allowed() -> None:
    assert float(replace(STEPS, learning_rate=8.0).sensitivity) == pytest.approx(1.6)


def test_the_statement_says_what_is_trusted() -> None:
    statement = PrivacyStatement(
        epsilon=1.0,
        delta=1e-5,
        accountant="gdp",
        trust="sum",
        least_answers=40,
        colluders=5,
        epsilon_alone=9.25,
    )
    assert str(statement) == (
        "(1, 1e-05)-differential privacy for one sample (replace one sample of one "
        "device) against the server and up to 5 colluding devices, who together see "
        "only sums of at least 40 answers; alone, without the others' noise, a "
        "device's share gives epsilon 9.25; accountant gdp"
    )
    device = replace(statement, unit="device", colluders=1)
    assert "for one device (replace all samples of one device)" in str(device)
    assert "up to 1 colluding device, who" in str(device)
    assert "against the server and devices that do not collude, who together" in str(
        replace(statement, colluders=0)
    )
    # Without trust in sums, the words are those of noise per step.
    plain = PrivacyStatement(epsilon=1.0, delta=1e-5, accountant="gdp")
    assert "against the server, the other devices and anyone who sees every" in str(
        plain
    )
