"""The ledger: charges within the budget, refusals, and composition."""

from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings, strategies as st

import fedbudget as fb
from fedbudget.ledger import Turns
from fedbudget.privacy import (
    GDP,
    NoisyGradients,
    accountant_named,
    dp_event,
    epsilon_from_mu,
    mu_from_epsilon,
)


def test_a_plan_fits_the_budget_it_was_made_for_and_not_a_round_more() -> None:
    problem = fb.Problem(num_samples=[100, 1000], dim=10)
    budget = fb.Budget(epsilon=[1.0, 3.0], delta=1e-5, cost=1000)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(problem, budget, prices)
    ledger = fb.Ledger(budget, num_devices=2)
    charge = fb.Charge(
        steps=plan.tau,
        noise_multiplier=plan.noise_multiplier,
        cost=plan.cost / plan.rounds,
    )
    for _ in range(plan.rounds):
        assert ledger.charge(charge).all()
    assert ledger.epsilon == pytest.approx(plan.epsilon)
    assert ledger.cost == pytest.approx(plan.cost)
    assert not ledger.charge(charge).any()
    assert ledger.epsilon == pytest.approx(plan.epsilon)  # a refusal costs nothing


@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
def test_epsilons_converted_in_advance_are_those_of_the_charges(
    accountant: str,
) -> None:
    """Charges of one size, then of another, then growing; a mask and a prior."""
    budget = fb.Budget(epsilon=1e3, delta=[1e-4, 1e-4, 1e-6], cost=1e9)
    ledger = fb.Ledger(budget, num_devices=3, accountant=accountant)
    convert = accountant_named(accountant).epsilon_from_mu  # type: ignore[attr-defined]
    everyone, some = np.ones(3, dtype=bool), np.array([True, False, True])
    mu_sq = np.zeros(3)
    charges = [(40.0, everyone)] * 20 + [(10.0, some)] * 20 + [(40.0, everyone)] * 9
    charges += [(40.0 * 0.97**number, everyone) for number in range(20)]
    for number, (noise, mask) in enumerate(charges):
        if number == 10:
            ledger.count_prior(0.3, ["a measurement"])
        charge = fb.Charge(steps=3, noise_multiplier=noise, cost=1)
        assert (ledger.charge(charge, mask=mask) == mask).all()
        mu_sq += np.where(mask, 12 / noise**2, 0.0)
        mu = np.sqrt(mu_sq + (0.09 if number >= 10 else 0.0))
        exact = convert(mu, [1e-4, 1e-4, 1e-6])
        assert ledger.epsilon == pytest.approx(exact, rel=1e-9)
        assert (ledger.epsilon >= exact * (1 - 1e-12)).all()
        # At another delta, the conversions at the budget's are of no use.
        assert ledger.epsilon_at(1e-5) == pytest.approx(convert(mu, 1e-5), rel=1e-9)


@given(
    noise=st.lists(st.floats(5, 500), min_size=1, max_size=30),
    steps=st.integers(1, 20),
    epsilon=st.floats(0.1, 10),
)
def test_adaptive_noise_never_overspends(
    noise: list[float], steps: int, epsilon: float
) -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=epsilon, delta=1e-4, cost=1e9), num_devices=1)
    accepted = [
        multiplier
        for multiplier in noise
        if ledger.charge(fb.Charge(steps=steps, noise_multiplier=multiplier, cost=1))[0]
    ]
    # By hand: mu^2 of Gaussian steps adds up.
    spent = np.sqrt(sum(4 * steps / multiplier**2 for multiplier in accepted))
    assert spent <= float(mu_from_epsilon(epsilon, 1e-4))
    assert float(ledger.epsilon[0]) <= epsilon
    if accepted:
        exact = dp_accounting.get_epsilon_gaussian(1 / spent, 1e-4)
        assert float(ledger.epsilon[0]) == pytest.approx(exact, abs=1e-7)


def test_each_device_has_its_own_account() -> None:
    ledger = fb.Ledger(
        fb.Budget(epsilon=1.0, delta=1e-4, cost=[150, 1000]), num_devices=2
    )
    charge = fb.Charge(steps=1, noise_multiplier=50.0, cost=100)
    assert ledger.charge(charge).tolist() == [True, True]
    assert ledger.charge(charge).tolist() == [False, True]
    only_first = np.array([True, False])
    assert ledger.charge(charge, mask=only_first).tolist() == [False, False]
    assert ledger.cost.tolist() == [100, 200]
    assert ledger.epsilon[1] > ledger.epsilon[0]


SAMPLED = fb.Charge(steps=20, noise_multiplier=4.0, sampling_probability=0.05, cost=1)
QUIETER = fb.Charge(steps=10, noise_multiplier=8.0, sampling_probability=0.04, cost=1)


def test_sampled_steps_compose_with_steps_that_the_first_dominates() -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=2.0, delta=1e-4, cost=1e6), num_devices=1)
    for charge in (SAMPLED, SAMPLED, QUIETER):
        assert ledger.charge(charge).all()
    google = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    run = NoisyGradients(
        lipschitz=1, batch_size=1, noise_std=4.0, steps=50, sampling_probability=0.05
    )
    google.compose(dp_event(run))  # the quieter steps count as the first ones
    assert float(ledger.epsilon[0]) == pytest.approx(google.get_epsilon(1e-4), rel=1e-3)
    longer = fb.Charge(
        steps=100, noise_multiplier=4.0, sampling_probability=0.05, cost=1
    )
    while ledger.charge(longer).all():
        assert float(ledger.epsilon[0]) <= 2.0
    assert float(ledger.epsilon[0]) > 1.5


@pytest.mark.parametrize(
    "other",
    [
        replace(SAMPLED, noise_multiplier=3.9),
        replace(SAMPLED, sampling_probability=0.06),
        fb.Charge(steps=1, noise_multiplier=1000.0, cost=1),
    ],
)
def test_no_adaptive_choice_follows_sampled_steps(other: fb.Charge) -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=4.0, delta=1e-4, cost=1e6), num_devices=2)
    ledger.charge(SAMPLED, mask=np.array([True, False]))
    assert ledger.composes(other).tolist() == [False, True]
    assert ledger.charge(other).tolist() == [False, True]
    counting = fb.Ledger(None, num_devices=1)
    counting.charge(SAMPLED)
    counting.charge(other)
    steps = [(20, 4.0), (other.steps, float(np.asarray(other.noise_multiplier)))]
    mu = np.sqrt(sum(4 * count / noise**2 for count, noise in steps))
    expected = float(GDP.epsilon_from_mu(mu, 1e-4))
    assert float(counting.epsilon_at(1e-4)[0]) == pytest.approx(expected)


def test_sampled_steps_after_others_claim_no_amplification() -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=20.0, delta=1e-4, cost=1e6), num_devices=1)
    ledger.charge(fb.Charge(steps=1, noise_multiplier=100.0, cost=1))
    assert ledger.charge(SAMPLED).all()
    mu = np.sqrt(4 / 100**2 + 4 * 20 / 4.0**2)
    assert float(ledger.epsilon[0]) == pytest.approx(
        float(GDP.epsilon_from_mu(mu, 1e-4))
    )
    measured = fb.Ledger(fb.Budget(epsilon=4.0, delta=1e-4, cost=1e6), num_devices=1)
    measured.count_prior(0.1, ["a measurement"])
    assert not measured.charge(SAMPLED).any()  # without amplification, above 4


def test_a_refusal_is_for_cost_or_else_for_privacy() -> None:
    budget = fb.Budget(epsilon=[4.0, 1e-3, 4.0], delta=1e-4, cost=[100, 100, 99])
    ledger = fb.Ledger(budget, num_devices=3)
    charge = fb.Charge(steps=5, noise_multiplier=10.0, cost=100.0)
    assert ledger.charge(charge).tolist() == [True, False, False]
    assert ledger.affords_cost(charge).tolist() == [False, True, False]


def test_without_a_budget_everything_is_counted_and_nothing_refused() -> None:
    ledger = fb.Ledger(None, num_devices=1)
    assert ledger.epsilon.tolist() == [0.0]
    assert ledger.charge(fb.Charge(steps=1, noise_multiplier=1.0, cost=1e12)).all()
    assert float(ledger.epsilon[0]) == pytest.approx(
        float(GDP.epsilon_from_mu(2.0, 1e-4))
    )
    assert ledger.charge(fb.Charge(steps=1, noise_multiplier=0.0, cost=0)).all()
    assert np.isinf(ledger.epsilon[0])


def test_no_noise_is_refused_by_any_budget() -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=1e6, delta=1e-4, cost=1e6), num_devices=1)
    assert not ledger.charge(fb.Charge(steps=1, noise_multiplier=0.0, cost=1)).any()


def test_costs_may_add_up_to_exactly_the_budget() -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=1e6, delta=1e-4, cost=1.0), num_devices=1)
    charge = fb.Charge(steps=1, noise_multiplier=1e6, cost=0.1)
    assert [bool(ledger.charge(charge)[0]) for _ in range(11)] == [True] * 10 + [False]


class TestTurns:
    """Disjoint batches in turn: at least the largest use of any row is charged."""

    @settings(max_examples=300)
    @given(
        st.lists(
            st.tuples(
                st.integers(1, 5),  # steps of the round
                st.sampled_from([0, 0, 0, 1, 7, -1, -4]),  # skipped, or taken again
                st.sampled_from([(0, 4), (0, 4), (1, 4), (0, 3)]),  # deal, blocks
                st.sampled_from([5, 5, 6]),  # rows of a batch
                st.sampled_from([20.0, 20.0, 10.0]),  # noise
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_no_row_is_used_more_than_is_charged(
        self, rounds: list[tuple[int, int, tuple[int, int], int, float]]
    ) -> None:
        ledger = fb.Ledger(None, num_devices=1)
        used: dict[tuple[int, int, int], np.ndarray] = {}
        now = 0
        for steps, skipped, (deal, blocks), size, noise in rounds:
            now = max(0, now + skipped)
            turns = Turns(deal=deal, blocks=blocks, batch_size=size, first_step=now)
            ledger.charge(
                fb.Charge(steps=steps, noise_multiplier=noise, turns=turns, cost=0)
            )
            of_blocks = used.setdefault((deal, blocks, size), np.zeros(blocks))
            for step in range(now, now + steps):
                of_blocks[step % blocks] += 4 / noise**2
            now += steps
            # Partitions are independent: a row may be in the most used block of each.
            largest = np.sqrt(sum(float(each.max()) for each in used.values()))
            exact = float(epsilon_from_mu(largest, 1e-4))
            assert float(ledger.epsilon[0]) >= exact * (1 - 1e-9)

    @given(
        rounds=st.integers(1, 30),
        tau=st.integers(1, 9),
        blocks=st.integers(1, 12),
        start=st.integers(0, 20),
    )
    def test_rounds_without_a_gap_cost_their_laps(
        self, rounds: int, tau: int, blocks: int, start: int
    ) -> None:
        ledger = fb.Ledger(None, num_devices=1)
        for number in range(rounds):
            first = start + number * tau
            turns = Turns(deal=7, blocks=blocks, batch_size=10, first_step=first)
            ledger.charge(
                fb.Charge(steps=tau, noise_multiplier=30.0, turns=turns, cost=0)
            )
        laps = -(-rounds * tau // blocks)
        run = NoisyGradients(lipschitz=1, batch_size=1, noise_std=30.0, steps=laps)
        assert ledger.epsilon[0] == pytest.approx(float(GDP.epsilon(run, delta=1e-4)))

    def test_a_refused_round_begins_no_lap(self) -> None:
        budget = fb.Budget(epsilon=1.0, delta=1e-4, cost=[10, 100])
        ledger = fb.Ledger(budget, num_devices=2)
        epsilons = []
        for first in range(0, 15, 5):
            turns = Turns(deal=0, blocks=10, batch_size=3, first_step=first)
            charge = fb.Charge(steps=5, noise_multiplier=15.0, turns=turns, cost=8)
            ledger.charge(charge)
            epsilons.append(ledger.epsilon)
        assert epsilons[0] == pytest.approx(epsilons[1])  # within the lap
        assert epsilons[2][1] > epsilons[1][1] and epsilons[2][0] == epsilons[1][0]

    def test_batches_are_not_drawn_and_in_turn(self) -> None:
        turns = Turns(deal=0, blocks=4, batch_size=3, first_step=0)
        charge = fb.Charge(
            steps=1, noise_multiplier=5.0, sampling_probability=0.2, turns=turns, cost=0
        )
        with pytest.raises(fb.InvalidInputError, match="in turn or drawn, not both"):
            fb.Ledger(None, num_devices=1).charge(charge)


@pytest.mark.parametrize(
    ("reports", "mu_squared"),
    [
        ([("a", 1.0), ("a", 1.0)], 1.0),  # reported again
        ([("a", 1.0), ("ab", 4.0)], 4.0),  # the second was measured after the first
        ([("ab", 4.0), ("a", 1.0)], 4.0),
        ([("a", 1.0), ("b", 1.0)], 2.0),  # disjoint
        ([("ab", 4.0), ("bc", 3.0)], 7.0),  # b is counted twice: never too little
        ([("a", 1.0), ("ab", 0.5)], 1.0),  # more names cannot cost less
        ([("a", 1.0), ("b", 2.0), ("abc", 0.0)], 3.0),
        ([("a", 1.0), ("ab", 4.0), ("abc", 0.0)], 4.0),
    ],
)
def test_prior_measurements_are_counted_by_their_names(
    reports: list[tuple[str, float]], mu_squared: float
) -> None:
    ledger = fb.Ledger(None, num_devices=2)
    for names, spent in reports:
        ledger.count_prior(spent**0.5, names)
    exact = GDP.epsilon_from_mu(mu_squared**0.5, 1e-4)
    assert ledger.epsilon == pytest.approx([float(exact)] * 2)


def test_a_measurement_needs_a_name() -> None:
    ledger = fb.Ledger(None, num_devices=2)
    ledger.count_prior(0.0)  # nothing was spent
    with pytest.raises(fb.InvalidInputError, match=r"mu 0\.5 has no name"):
        ledger.count_prior([0.0, 0.5])


def test_a_budget_too_small_for_any_noise_pays_for_nothing() -> None:
    budget = fb.Budget(epsilon=1e-14, delta=1e-25, cost=1e9)
    ledger = fb.Ledger(budget, num_devices=1)
    assert not ledger.charge(fb.Charge(steps=1, noise_multiplier=1.0, cost=1)).any()
    assert ledger.epsilon.tolist() == [0.0]
    problem = fb.Problem(num_samples=[100], dim=3)
    prices = fb.Prices(communication=100, computation=1)
    with pytest.raises(fb.InfeasibleBudgetError, match="too small for any noise"):
        fb.plan(problem, replace(budget, cost=1000), prices)


def test_the_cost_of_a_measurement_counts_once_by_its_name() -> None:
    ledger = fb.Ledger(fb.Budget(epsilon=4, delta=1e-4, cost=250), num_devices=2)
    ledger.charge_release("a", fb.Charge(steps=1, noise_multiplier=20.0, cost=100))
    ledger.count_prior(0.1, {"a"}, 100)  # a plan reports it
    assert ledger.cost.tolist() == [100, 100]
    ledger.count_prior(0.2, {"a", "b"}, [130, 160])  # and one of another process
    assert ledger.cost.tolist() == [130, 160]
    paid = ledger.charge(fb.Charge(steps=1, noise_multiplier=20.0, cost=100))
    assert paid.tolist() == [True, False]
    with pytest.raises(fb.InvalidInputError, match="has no name"):
        ledger.count_prior(0.0, (), 5)
