"""Weights: the closed form against a solver we did not write."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import optimize

import fedbudget as fb
from fedbudget.planning.settings import rounds_each
from fedbudget.planning.weights import (
    EarlyStops,
    balanced,
    candidate_weights,
    candidate_weights_with_stops,
    early_stop_candidates,
)
from fedbudget.privacy import GDP
from tests.examples import honest, small_data

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

    # The weights sum to 1.
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


def test_candidate_sums_are_those_of_the_weights() -> None:
    variance, sampling = np.array([1.0, 2.0, 8.0]), np.array([0.1, 0.2, 0.3])
    target = np.full(3, 1 / 3)
    weighting = candidate_weights(target, variance, sampling, planned=True)
    for index, kappa in enumerate(weighting.kappa):
        p = balanced(kappa, target, variance)
        assert weighting.noise[index] == pytest.approx(np.sum(p**2 * variance))
        assert weighting.sampling[index] == pytest.approx(np.sum(p**2 * sampling))
        assert weighting.bias[index] == pytest.approx(np.sum((p - target) ** 2))
    assert len(candidate_weights(target, variance, sampling, planned=False).kappa) == 1
    equal = candidate_weights(target, np.ones(3), sampling, planned=True)
    assert len(equal.kappa) == 1


PROBLEM = fb.Problem(num_samples=[1628] * 16, dim=102, dissimilarity="iid")
PRICES = fb.Prices(communication=100, computation=1)
ONE_SMALL = fb.Budget(epsilon=4, cost=[150] + [1000] * 15)


def test_one_small_budget_does_not_end_the_run_for_all() -> None:
    plan = fb.plan(PROBLEM, ONE_SMALL, PRICES)
    assert plan.rounds > 1 and plan.device_rounds[0] == 1
    assert (plan.device_rounds[1:] == plan.rounds).all()
    common = fb.plan(PROBLEM, fb.Budget(epsilon=4, cost=150), PRICES)
    assert plan.predicted_loss < common.predicted_loss
    # Device 0 takes fewer steps: less noise in each, and the same epsilon.
    assert plan.noise_std[0] == pytest.approx(plan.noise_std[1] / plan.rounds**0.5)
    assert plan.epsilon == pytest.approx(4, rel=1e-6)
    assert (
        plan.cost.tolist() == [100 + plan.tau] + [plan.rounds * (100 + plan.tau)] * 15
    )
    assert any("1 of 16 devices stops before the last" in text for text in plan.reasons)


def test_devices_with_equal_budgets_stay_to_the_end() -> None:
    plan = fb.plan(PROBLEM, fb.Budget(epsilon=4, cost=1000), PRICES)
    assert plan.last_round is None
    assert (plan.device_rounds == plan.rounds).all()


def test_a_plan_with_early_stops_survives_json() -> None:
    plan = fb.plan(PROBLEM, ONE_SMALL, PRICES)
    plain = json.loads(json.dumps(plan.to_dict()))
    again = fb.Plan.from_dict(plain)
    assert (again.device_rounds == plan.device_rounds).all()
    assert again.to_dict() == plan.to_dict()
    # The noise of device 0 suits one round only.
    with pytest.raises(fb.InvalidInputError, match="would spend epsilon"):
        fb.Plan.from_dict(plain | {"last_round": [plan.rounds] * 16})


def test_rounds_without_a_device_are_refused() -> None:
    plan = fb.plan(PROBLEM, ONE_SMALL, PRICES)
    with pytest.raises(fb.InvalidInputError, match="the last device stops after"):
        replace(plan, last_round=np.ones(16, int))
    with pytest.raises(fb.InvalidInputError, match="one entry per device"):
        replace(plan, last_round=np.array([plan.rounds]))


def test_training_sweeps_and_ledgers_follow_early_stops() -> None:
    data = small_data(devices=4, rows=200)
    whole = fb.plan(
        data.problem(), fb.Budget(epsilon=4, cost=1000), PRICES, noise_schedule=False
    )
    last = np.array([1, 3, 3, 3])
    plan = replace(
        whole,
        tau=5,
        rounds=3,
        last_round=last,
        noise_std=whole.noise_std * np.sqrt(5 * last / whole.steps),
        cost=105.0 * last,
    )
    plan.check_promise()
    budget = fb.Budget(epsilon=4, cost=[150, 1000, 1000, 1000])
    devices = fb.SimulatedDevices(data, seed=5, budget=budget, prices=PRICES)
    run = fb.train(plan, devices)
    assert [done.answered for done in run.rounds][-1] == 3
    assert not any(done.refused for done in run.rounds)
    assert devices.ledger.cost == pytest.approx(plan.cost)
    assert devices.ledger.epsilon == pytest.approx(plan.epsilon, rel=1e-6)
    swept = fb.sweep(data, [plan, honest(plan, last_round=None)], seeds=[5])
    assert swept.theta[0, 0] == pytest.approx(run.theta, abs=1e-6)
    assert swept.theta[1, 0] != pytest.approx(run.theta, abs=1e-6)


def test_a_device_of_negligible_weight_is_not_selected_and_spends_nothing() -> None:
    sizes = [5000] * 7 + [10]
    problem = fb.Problem(num_samples=sizes, dim=20, dissimilarity="iid")
    plan = fb.plan(problem, fb.Budget(epsilon=1, cost=1000), PRICES)
    assert plan.weights[7] == plan.epsilon[7] == plan.cost[7] == 0
    assert plan.device_rounds[7] == 0 and plan.weights.sum() == pytest.approx(1)
    assert any("(number 7) is not selected" in text for text in plan.reasons)
    spent = GDP.epsilon(plan.gradients, delta=1e-4)
    assert spent[7] == 0 and (spent[:7] <= 1).all()
    plan.check_promise()


def test_a_device_that_is_not_selected_has_still_spent_on_constants() -> None:
    measured = fb.Constant(value=0.3, source="measured privately", release="q", mu=0.1)
    problem = fb.Problem(num_samples=[5000] * 7 + [10], dim=20, dissimilarity="iid")
    problem = problem.with_constants(dissimilarity=measured)
    plan = fb.plan(problem, fb.Budget(epsilon=1, delta=1e-4, cost=1000), PRICES)
    if plan.weights[7] == 0:
        assert plan.epsilon[7] == pytest.approx(float(GDP.epsilon_from_mu(0.1, 1e-4)))


def test_each_device_pays_for_its_rounds_and_not_for_one_more() -> None:
    rng = np.random.default_rng(0)
    budget = fb.Budget(epsilon=1, cost=rng.uniform(50, 5000, 200))
    prices = fb.Prices(
        communication=rng.uniform(1, 100, 200), computation=rng.uniform(0, 3, 200)
    )
    for tau in (1, 7, 60):
        each = rounds_each(budget, prices, tau=tau, batch_size=1)
        price = prices.run_cost(rounds=1, tau=tau, batch_size=1)
        assert (each * price <= budget.cost).all()
        assert ((each + 1) * price > budget.cost).all()


def test_sums_over_the_phases_by_hand() -> None:
    stops = EarlyStops(tau=2, rounds=4, last_round=np.array([1, 4]))
    even, unit = np.array([0.5, 0.5]), np.array([8.0, 8.0])
    variance = stops.variance(unit)
    assert variance.tolist() == [2, 8]  # device 0: a quarter of the steps
    weighting = candidate_weights_with_stops(
        stops, even, variance, np.zeros(2), planned=False
    )
    # Round 1 averages both: (2 + 8) / 4; rounds 2 to 4 have only device 1: 8.
    assert weighting.noise[0] == pytest.approx((2.5 + 3 * 8) / 4)
    assert weighting.bias[0] == pytest.approx(0.5)  # (0 - 1/2)^2 + (1 - 1/2)^2


def test_a_sample_of_many_devices_stands_for_all() -> None:
    rng = np.random.default_rng(1)
    many = 60_000
    last = rng.integers(1, 7, many)
    stops = EarlyStops(tau=1, rounds=6, last_round=last)
    target, variance = np.full(many, 1 / many), rng.uniform(1, 2, many)
    weighting = candidate_weights_with_stops(
        stops, target, variance, variance, planned=True
    )
    active = [variance[last >= number] for number in range(1, 7)]
    # With even weights, the noise is the mean variance over the number of devices.
    even = np.mean([np.mean(values) / len(values) for values in active])
    assert weighting.noise[0] == pytest.approx(even, rel=0.05)


def test_early_stop_candidates_are_affordable() -> None:
    batch = np.full(16, 1628)
    candidates = list(early_stop_candidates(ONE_SMALL, PRICES, batch_size=batch))
    assert candidates
    for stops in candidates:
        paid = PRICES.run_cost(rounds=stops.last_round, tau=stops.tau, batch_size=batch)
        assert (paid <= np.asarray(ONE_SMALL.cost)).all()
        assert stops.last_round.max() == stops.rounds > stops.last_round.min() >= 1


def test_every_number_of_rounds_is_tried_if_there_are_few() -> None:
    # A larger budget of one device hardly ever raises the loss.
    problem = fb.Problem(num_samples=[300] * 6, dim=30, dissimilarity="strong")
    losses = []
    for times in np.linspace(1, 8, 15):
        cost = np.array([200.0 * times, 250, 300, 400, 500, 600])
        plan = fb.plan(problem, fb.Budget(epsilon=2, cost=cost), PRICES)
        losses.append(plan.predicted_loss)
    assert (np.diff(losses) <= 0.003 * np.array(losses[:-1])).all()
    candidates = early_stop_candidates(
        fb.Budget(epsilon=2, cost=[200, 300, 400, 500, 600, 700]),
        PRICES,
        batch_size=problem.num_samples,
    )
    assert {stops.rounds for stops in candidates if stops.tau == 1} == {2, 3, 4, 5, 6}
