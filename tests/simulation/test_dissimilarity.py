"""The dissimilarity of devices: measured with noise, accurate, and charged."""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.privacy import GDP
from fedbudget.simulation import dissimilarity
from fedbudget.simulation.dissimilarity import (
    estimate,
    measure_dissimilarity,
    plan_with_query,
    query_cost,
)
from fedbudget.simulation.thresholds import plan_with_threshold
from tests.examples import small_data

BUDGET = fb.Budget(epsilon=[4.0, 1.0, 4.0, 4.0], cost=1000)
PRICES = fb.Prices(communication=100, computation=1)


def test_more_heterogeneous_devices_give_a_larger_dissimilarity() -> None:
    values = []
    for unlike in (0.0, 0.5, 3.0):
        data = small_data(devices=4, rows=2000, unlike=unlike, seed=2)
        devices = fb.SimulatedDevices(data)
        problem = measure_dissimilarity(devices, data.problem(), BUDGET, PRICES)
        values.append(problem["dissimilarity"])
    assert values == sorted(values) and values[0] < 0.25 < values[2]


def test_the_estimate_is_corrected_for_noise() -> None:
    rng = np.random.default_rng(0)
    devices, dim = 4, 100
    common = np.full(dim, 0.3)
    true = common + 0.1 * rng.standard_normal((devices, dim))
    std = np.array([0.1, 0.2, 0.3, 0.2])
    w = 1 / std**2 / np.sum(1 / std**2)
    mean = w @ true
    exact = np.sqrt(w @ np.sum((true - mean) ** 2, axis=1) / (mean @ mean))
    noisy = [
        estimate(true + std[:, None] * rng.standard_normal((devices, dim)), std)
        for _ in range(200)
    ]
    # By hand from the definition, on gradients without noise.
    assert np.mean(noisy) == pytest.approx(exact, rel=0.05)
    raw = true + std[:, None] * rng.standard_normal((devices, dim))
    spread = w @ np.sum((raw - w @ raw) ** 2, axis=1)
    assert np.sqrt(spread / ((w @ raw) @ (w @ raw))) > 1.3 * exact  # noise is not small
    assert estimate(std[:, None] * rng.standard_normal((devices, 1)) * 0, std) == 1.0


def test_the_noise_is_that_of_the_share_and_plans_spend_the_rest() -> None:
    data = small_data(devices=4, rows=200)
    devices = fb.SimulatedDevices(data, budget=BUDGET, prices=PRICES)
    problem = measure_dissimilarity(devices, data.problem(), BUDGET, PRICES, share=0.1)
    total_mu = np.asarray(GDP.mu_from_epsilon(BUDGET.epsilon, 1e-4))
    assert problem.prior_mu == pytest.approx(total_mu * 0.1**0.5)
    constant = problem.constants["dissimilarity"]
    assert constant.source == "measured privately" and "10%" in constant.note
    plan = fb.plan(problem, BUDGET, PRICES, learning_rate=2.0)
    assert (plan.epsilon <= np.asarray(BUDGET.epsilon)).all()
    assert plan.prior_mu == pytest.approx(problem.prior_mu)
    again = measure_dissimilarity(devices, problem, BUDGET, PRICES, share=0.1)
    assert again.prior_mu == pytest.approx(total_mu * (0.1 + 0.9 * 0.1) ** 0.5)
    assert query_cost(problem, PRICES).tolist() == [101] * 4


def test_replacing_a_sample_moves_the_answer_by_at_most_its_sensitivity() -> None:
    data = small_data(devices=2, rows=20)
    problem = data.problem()
    before = dissimilarity.device_gradient(data.train, problem.model, 0)
    x = np.array(data.train.x)
    x[3] = -x[3]
    other = replace(data.train, x=x)
    after = dissimilarity.device_gradient(other, problem.model, 0)
    moved = np.linalg.norm(after - before)
    assert 0 < moved <= 2 * problem["lipschitz"] / 16


def test_a_problem_of_other_data_is_refused() -> None:
    data = small_data(devices=4, rows=40)
    problem = data.problem()
    sizes = problem.num_samples
    for other, message in (
        (fb.Problem(num_samples=[10] * 3, dim=5), "for 3 devices, the data have 4"),
        (fb.Problem(num_samples=sizes, dim=7), "for 7 columns, the data have 5"),
        (fb.Problem(num_samples=sizes + 1, dim=5), "training rows, the data have 32"),
        (fb.Problem(num_samples=sizes, dim=5, loss="huber"), "huber"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            measure_dissimilarity(fb.SimulatedDevices(data), other, BUDGET, PRICES)


def test_a_query_and_its_plan_fit_both_budgets_together() -> None:
    data = small_data(devices=4, rows=200)
    devices = fb.SimulatedDevices(data, budget=BUDGET, prices=PRICES)
    problem, plan = plan_with_query(
        devices, data.problem(), BUDGET, PRICES, weights="uniform"
    )
    assert problem.constants["dissimilarity"].source == "measured privately"
    spent = GDP.epsilon_from_mu(problem.prior_mu, 1e-4)
    assert devices.ledger.epsilon == pytest.approx(spent)
    assert devices.ledger.cost.tolist() == [101] * 4
    run = fb.train(plan, devices)
    assert run.rounds[-1].cost.tolist() == plan.cost.tolist()
    assert run.rounds[-1].answered == 4
    assert (plan.cost <= 1000).all()
    assert run.rounds[-1].epsilon == pytest.approx(plan.epsilon)


@pytest.mark.parametrize("cost", [100, 101, 150, 201])
def test_a_query_that_leaves_no_round_is_refused_before_it_is_charged(
    cost: float,
) -> None:
    data, small = small_data(devices=4, rows=200), replace(BUDGET, cost=cost)
    devices = fb.SimulatedDevices(data, budget=small, prices=PRICES)
    for query in (plan_with_query, plan_with_threshold):
        with pytest.raises(fb.InfeasibleBudgetError, match="cost budget"):
            query(devices, data.problem(), small, PRICES)
    for wrong in ({"sampling": "none"}, {"planner": "none"}):
        with pytest.raises(fb.InvalidInputError, match="'none' is not known"):
            plan_with_query(devices, data.problem(), BUDGET, PRICES, **wrong)
    assert (devices.ledger.cost == 0).all() and (devices.ledger.epsilon == 0).all()


def test_a_query_is_repeated_by_the_same_seed_alone() -> None:
    data = small_data(devices=4, rows=200)
    problems = [
        measure_dissimilarity(
            fb.SimulatedDevices(data, seed=seed), data.problem(), BUDGET, PRICES
        )
        for seed in (0, 0, 1)
    ]
    names = [problem.prior_releases for problem in problems]
    assert names[0] == names[1] != names[2]
    assert problems[0]["dissimilarity"] == problems[1]["dissimilarity"]
