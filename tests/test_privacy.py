"""Accounting: by hand, by its inverse, and by libraries we did not write."""

from dataclasses import replace

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import example, given, settings, strategies as st

from fedbudget.errors import InvalidInputError
from fedbudget.privacy import (
    ACCOUNTANTS,
    GDP,
    ZCDP,
    NoisyGradients,
    PldAccountant,
    PrivacyStatement,
    accountant_named,
    delta_from_mu,
    dp_event,
    epsilon_from_mu,
    epsilon_from_rho,
    mu_from_epsilon,
    rho_from_epsilon,
    rounded_up,
)

RUN = NoisyGradients(lipschitz=1.0, batch_size=100, noise_std=0.5, steps=200)
EPSILONS = st.floats(1e-3, 50)
DELTAS = st.floats(1e-12, 0.1)


def exact_delta(mu: float, epsilon: float, digits: int = 60) -> mpmath.mpf:
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        tail = mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return mpmath.ncdf(m / 2 - e / m) - tail


def test_epsilon_is_the_papers_eps_k() -> None:
    # By hand: 2*200/(100^2 0.5^2) = 0.16; 2/(100*0.5) * sqrt(400 ln 1e4) = 2.42788
    assert RUN.rho == pytest.approx(0.16)
    assert epsilon_from_rho(RUN.rho, 1e-4) == pytest.approx(2.58788, abs=1e-5)
    assert ZCDP.epsilon(RUN, delta=1e-4) == pytest.approx(2.58788, abs=1e-5)


@given(epsilon=EPSILONS, delta=DELTAS)
def test_rho_from_epsilon_spends_exactly_epsilon(epsilon: float, delta: float) -> None:
    rho = rho_from_epsilon(epsilon, delta)
    assert epsilon_from_rho(rho, delta) == pytest.approx(epsilon)
    assert float(epsilon_from_rho(rho, delta)) <= epsilon
    with mpmath.workdps(60):
        r = mpmath.mpf(float(rho))
        exact = r + 2 * mpmath.sqrt(-r * mpmath.log(mpmath.mpf(delta)))
        assert float(epsilon_from_rho(rho, delta)) >= exact


@given(mu=st.floats(1e-4, 300), epsilon=st.floats(1e-6, 1e4))
def test_delta_is_exact_or_too_high(mu: float, epsilon: float) -> None:
    exact = exact_delta(mu, epsilon)
    if exact > 1e-250:
        ours = float(delta_from_mu(mu, epsilon))
        assert ours >= exact
        if exact > 1e-13:
            assert ours <= exact * (1 + 1e-7)


@given(epsilon=st.floats(1e-4, 500), delta=st.floats(1e-12, 0.9))
def test_mu_is_the_largest_private_one(epsilon: float, delta: float) -> None:
    mu = float(mu_from_epsilon(epsilon, delta))
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu * (1 + 1e-6), epsilon) > delta


@given(epsilon=st.floats(1e-300, 1e-8), delta=st.floats(1e-100, 1e-8))
@example(epsilon=1e-14, delta=1e-25)  # these gave a negative mu,
@example(epsilon=1e-17, delta=1e-50)  # and this one did not come back
def test_mu_of_a_tiny_budget_is_safe_or_zero(epsilon: float, delta: float) -> None:
    mu = float(mu_from_epsilon(epsilon, delta))
    assert mu >= 0
    with mpmath.workdps(400):
        assert mu == 0 or exact_delta(mu, epsilon, digits=400) <= mpmath.mpf(delta)


@given(mu=st.floats(1e-3, 50), delta=st.floats(1e-10, 0.5))
def test_epsilon_is_the_smallest_true_one(mu: float, delta: float) -> None:
    epsilon = float(epsilon_from_mu(mu, delta))
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 1e-6:
        assert exact_delta(mu, epsilon * (1 - 1e-6)) > delta


@given(mu=st.floats(0.01, 20), delta=st.floats(1e-9, 0.1))
def test_epsilon_agrees_with_google(mu: float, delta: float) -> None:
    theirs = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
    assert float(epsilon_from_mu(mu, delta)) == pytest.approx(theirs, abs=1e-8)


@pytest.mark.parametrize("epsilon, delta", [(1e-300, 1e-4), (1e6, 1e-4), (1, 1e-200)])
def test_extreme_budgets_stay_finite_and_private(epsilon: float, delta: float) -> None:
    mu = float(mu_from_epsilon(epsilon, delta))
    assert 0 < mu < np.inf
    assert float(delta_from_mu(mu, epsilon)) <= delta


def test_zcdp_needs_more_noise_than_gdp() -> None:
    def ratio(epsilon: float) -> float:
        noise = [
            float(a.noise_multiplier(epsilon=epsilon, delta=1e-4, steps=1))
            for a in (ZCDP, GDP)
        ]
        return noise[0] / noise[1]

    assert ratio(1) == pytest.approx(1.38, abs=0.01)
    assert ratio(10) == pytest.approx(1.15, abs=0.01)


@pytest.mark.parametrize(
    "claimed, spent", [(1, 70.8), (2, 73.5), (4, 78.7), (10, 93.2)]
)
def test_the_papers_printed_noise_is_not_private(claimed: float, spent: float) -> None:
    # Erratum 1: opt_sigma and Z with the root that the paper prints.
    log_term = np.log(1e4)
    z = claimed + 2 * log_term + 2 * np.sqrt(log_term**2 + claimed * log_term)
    steps, batch_size = 100, 256
    printed = NoisyGradients(
        lipschitz=1.0,
        batch_size=batch_size,
        noise_std=np.sqrt(2 * steps / (batch_size**2 * z)),
        steps=steps,
    )
    assert float(GDP.epsilon(printed, delta=1e-4)) == pytest.approx(spent, abs=0.05)
    google = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    google.compose(dp_event(printed))
    assert google.get_epsilon(1e-4) == pytest.approx(spent, abs=0.05)
    # The other root is private, and is the one that we use.
    corrected = claimed + 2 * log_term - 2 * np.sqrt(log_term**2 + claimed * log_term)
    assert float(rho_from_epsilon(claimed, 1e-4)) == pytest.approx(corrected)


@pytest.mark.parametrize("name", ["gdp", "zcdp"])
@given(
    epsilon=st.floats(0.01, 100),
    delta=st.floats(1e-10, 0.1),
    steps=st.integers(1, 10_000),
    batch_size=st.integers(1, 100_000),
)
def test_calibration_is_within_budget_and_uses_it(
    name: str, epsilon: float, delta: float, steps: int, batch_size: int
) -> None:
    accountant = accountant_named(name)
    noise_std = accountant.noise_std(
        lipschitz=1.0, batch_size=batch_size, epsilon=epsilon, delta=delta, steps=steps
    )
    run = NoisyGradients(
        lipschitz=1.0, batch_size=batch_size, noise_std=noise_std, steps=steps
    )
    spent = float(accountant.epsilon(run, delta=delta))
    assert epsilon * (1 - 1e-6) <= spent <= epsilon


def test_a_spent_budget_asks_for_infinite_noise() -> None:
    noise = GDP.noise_multiplier(epsilon=1.0, delta=1e-4, steps=10, prior_mu=5.0)
    assert np.isinf(noise)


def test_prior_spending_is_composed() -> None:
    noise = GDP.noise_multiplier(epsilon=2.0, delta=1e-4, steps=10, prior_mu=0.3)
    run = NoisyGradients(lipschitz=1, batch_size=1, noise_std=noise, steps=10)
    google = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    google.compose(dp_event(run))
    google.compose(dp_accounting.GaussianDpEvent(2 / 0.3))
    assert google.get_epsilon(1e-4) == pytest.approx(2.0, rel=1e-3)
    assert float(GDP.epsilon(run, delta=1e-4, prior_mu=0.3)) <= 2.0


def test_a_million_devices_in_one_call() -> None:
    many = 1_000_000
    rng = np.random.default_rng(0)
    epsilon, delta = rng.uniform(0.5, 10, many), 10 ** rng.uniform(-7, -4, many)
    multiplier = GDP.noise_multiplier(epsilon=epsilon, delta=delta, steps=50)
    assert multiplier.shape == (many,)
    for device in rng.integers(many, size=5):
        alone = GDP.noise_multiplier(
            epsilon=epsilon[device], delta=delta[device], steps=50
        )
        assert multiplier[device] == pytest.approx(float(alone), rel=1e-9)


def test_devices_that_share_a_budget_share_its_noise() -> None:
    # Above 1,000 devices the distinct budgets are solved once each.
    epsilon = np.tile([1.0, 2.0, 4.0], 1000)
    delta = np.repeat([1e-4, 1e-5], 1500)
    together = mu_from_epsilon(epsilon, delta)
    alone = [float(mu_from_epsilon(e, d)) for e, d in zip(epsilon, delta, strict=True)]
    assert together == pytest.approx(np.array(alone), rel=1e-10)
    back = epsilon_from_mu(together, delta)
    assert back == pytest.approx(epsilon, rel=1e-9)
    # One shared entry and a thousand distinct ones are no shared pairs.
    many = mu_from_epsilon(np.full(2000, 1.0), np.geomspace(1e-9, 1e-2, 2000))
    assert len(np.unique(many)) == 2000


class TestInTurn:
    """Disjoint batches in turn: a lap of B steps costs what one step costs."""

    RUN = NoisyGradients(
        lipschitz=1.0, batch_size=100, noise_std=0.5, steps=200, blocks=16
    )

    def test_mu_by_hand(self) -> None:
        # 200 steps of 16 are 12.5 laps, charged as 13; 2/(100*0.5) * sqrt(13).
        assert float(self.RUN.laps) == 13
        assert float(self.RUN.mu) == pytest.approx(0.04 * 13**0.5)
        assert float(self.RUN.rho) == pytest.approx(0.0104)

    @given(epsilon=st.floats(0.1, 20), laps=st.integers(1, 50))
    def test_noise_for_the_laps_spends_exactly_epsilon(
        self, epsilon: float, laps: int
    ) -> None:
        for accountant in (GDP, ZCDP):
            noise = accountant.noise_multiplier(epsilon=epsilon, delta=1e-5, steps=laps)
            for steps in (16 * (laps - 1) + 1, 16 * laps):
                run = NoisyGradients(
                    lipschitz=1, batch_size=1, noise_std=noise, steps=steps, blocks=16
                )
                spent = float(accountant.epsilon(run, delta=1e-5))
                assert spent == pytest.approx(epsilon, rel=1e-6)

    def test_google_counts_the_same(self) -> None:
        google = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        noise = float(self.RUN.noise_multiplier)
        google.compose(dp_accounting.GaussianDpEvent(noise), 13)
        exact = float(GDP.epsilon(self.RUN, delta=1e-5))
        assert google.get_epsilon(1e-5) == pytest.approx(exact, abs=2e-4)
        again = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        again.compose(dp_event(self.RUN))
        assert again.get_epsilon(1e-5) == google.get_epsilon(1e-5)
        assert float(PldAccountant().epsilon(self.RUN, delta=1e-5)) >= exact - 1e-9

    def test_batches_are_not_sampled_and_in_turn(self) -> None:
        with pytest.raises(InvalidInputError, match="or taken in turn, not both"):
            replace(self.RUN, sampling_probability=0.1)
        with pytest.raises(InvalidInputError, match="blocks must be whole numbers"):
            replace(self.RUN, blocks=2.5)


class TestSampled:
    """Poisson-sampled batches: dp-accounting does the work, we round it to privacy."""

    pld = ACCOUNTANTS["pld"]

    def test_sampling_needs_less_noise(self) -> None:
        sampled = self.pld.noise_multiplier(
            epsilon=1.0, delta=1e-4, steps=100, sampling_probability=0.1
        )
        full = GDP.noise_multiplier(epsilon=1.0, delta=1e-4, steps=100)
        # In the limit of many steps, a tenth of the rows needs a tenth of the noise.
        assert 0.09 * full < sampled < 0.12 * full

    def test_calibration_is_within_budget(self) -> None:
        noise = self.pld.noise_multiplier(
            epsilon=np.array([1.0, 3.0]),
            delta=1e-5,
            steps=50,
            sampling_probability=0.05,
        )
        run = NoisyGradients(
            lipschitz=1.0,
            batch_size=1.0,
            noise_std=noise,
            steps=50,
            sampling_probability=0.05,
        )
        spent = self.pld.epsilon(run, delta=1e-5)
        assert (spent <= [1.0, 3.0]).all() and (spent >= [0.99, 2.97]).all()

    def test_without_sampling_it_agrees_with_gdp(self) -> None:
        spent = self.pld.epsilon(RUN, delta=1e-4)
        assert float(spent) == pytest.approx(float(GDP.epsilon(RUN, delta=1e-4)), 1e-3)

    def test_tiny_deltas_fall_back_on_no_sampling(self) -> None:
        budget = {"epsilon": 1.0, "delta": 1e-16, "steps": 10}
        sampled = self.pld.noise_multiplier(sampling_probability=0.1, **budget)
        assert sampled <= GDP.noise_multiplier(**budget)

    def test_rejects_to_describe_several_devices(self) -> None:
        run = NoisyGradients(lipschitz=1, batch_size=[1, 2], noise_std=1, steps=1)
        with pytest.raises(InvalidInputError, match="one device, got 2"):
            dp_event(run)


@settings(max_examples=10)
@given(probability=st.floats(0.01, 1), noise=st.floats(2, 30), steps=st.integers(1, 50))
def test_ignoring_sampling_is_too_high_never_too_low(
    probability: float, noise: float, steps: int
) -> None:
    run = NoisyGradients(
        lipschitz=1.0,
        batch_size=1.0,
        noise_std=noise,
        steps=steps,
        sampling_probability=probability,
    )
    sampled = float(ACCOUNTANTS["pld"].epsilon(run, delta=1e-5))
    assert sampled <= float(GDP.epsilon(run, delta=1e-5)) * (1 + 1e-3) + 1e-4


@pytest.mark.parametrize("field", ["lipschitz", "batch_size", "noise_std", "steps"])
@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, [1.0, np.nan], "x"])
def test_a_run_refuses_what_has_no_meaning(field: str, value: object) -> None:
    good: dict[str, object] = {
        "lipschitz": 1,
        "batch_size": 1,
        "noise_std": 1,
        "steps": 1,
    }
    if field == "steps" and value == 0:  # a device that is not selected takes none
        assert float(NoisyGradients(**good | {"steps": 0}).mu) == 0  # type: ignore[arg-type]
        return
    with pytest.raises(InvalidInputError, match=field):
        NoisyGradients(**{**good, field: value})  # type: ignore[arg-type]


def test_part_of_a_step_is_no_step() -> None:
    with pytest.raises(InvalidInputError, match="whole numbers"):
        NoisyGradients(lipschitz=1, batch_size=1, noise_std=1, steps=1.5)


def test_a_statement_rounds_up() -> None:
    statement = PrivacyStatement(epsilon=1.2345644, delta=1.23491e-5, accountant="gdp")
    assert "(1.23457, 1.235e-05)" in str(statement)
    exact = PrivacyStatement(epsilon=4.0, delta=1e-4, accountant="gdp")
    assert "(4, 0.0001)" in str(exact)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (1.23401, "1.235"), (0.64215, "0.6422"), (4.0, "4"), (np.inf, "inf")],
)
def test_no_epsilon_is_shown_smaller_than_it_is(value: float, shown: str) -> None:
    assert rounded_up(value) == shown and float(shown) >= value


def test_an_unknown_accountant_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'rdp' is not known: choose one of"):
        accountant_named("rdp")


def test_a_statement_says_unit_adjacency_adversary_delta_and_accountant() -> None:
    text = str(PrivacyStatement(epsilon=1.5, delta=1e-4, accountant="gdp"))
    for part in ("1.5", "0.0001", "one sample", "replace one", "every upload", "gdp"):
        assert part in text
