"""Attack: devices whose budget is spent are asked for one more noisy gradient.

Measuring how unlike devices are is a release like any other. It must be charged before
a row is read, be refused when it overdraws, and have noise that nothing else has: two
answers with the same noise reveal it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InfeasibleBudgetError
from fedbudget.privacy import GDP
from fedbudget.simulation.dissimilarity import (
    device_gradient,
    measure_dissimilarity,
    plan_with_query,
)
from tests.examples import small_data

BUDGET = fb.Budget(epsilon=4, delta=1e-4, cost=1000)
PRICES = fb.Prices(communication=100, computation=1)
DATA = small_data(devices=4, rows=200)
PROBLEM = DATA.problem()
STD = np.full(4, 0.05)
NO_COST = np.zeros(4)


def devices(**values: Any) -> fb.SimulatedDevices:
    usual: dict[str, Any] = {"budget": BUDGET, "prices": PRICES}
    return fb.SimulatedDevices(DATA, **usual | values)


def test_a_query_after_a_run_that_spent_everything_is_refused() -> None:
    asked = devices(budget=replace(BUDGET, cost=9000))
    fb.train(fb.plan(PROBLEM, BUDGET, PRICES), asked)
    before = asked.ledger.epsilon, asked.ledger.cost
    says = r"device 0 has spent epsilon 4 of 4 and .* more: ask for less, or raise"
    with pytest.raises(InfeasibleBudgetError, match=says):
        measure_dissimilarity(asked, PROBLEM, BUDGET, PRICES)
    assert np.array_equal((asked.ledger.epsilon, asked.ledger.cost), before)


def test_a_release_answers_exactly_and_within_its_budget() -> None:
    asked = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
    tiny = np.full(4, 1e-7)
    with pytest.raises(InfeasibleBudgetError, match="ask for less"):
        asked.noisy_gradients(PROBLEM.model, tiny, cost=NO_COST)
    free = fb.ReleaseDevices(DATA)
    first = free.noisy_gradients(PROBLEM.model, tiny, cost=NO_COST)
    again = free.noisy_gradients(PROBLEM.model, tiny, cost=NO_COST)
    exact = [device_gradient(DATA.train, PROBLEM.model, m) for m in range(4)]
    assert first.gradients == pytest.approx(np.array(exact), abs=2e-6)
    assert (first.gradients != again.gradients).all() and first.name != again.name
    _, plan = plan_with_query(asked, PROBLEM, BUDGET, PRICES)
    fb.train(plan, asked)
    assert (asked.ledger.epsilon <= 4).all() and (asked.ledger.cost <= 1000).all()


def test_a_query_that_one_device_cannot_pay_is_charged_to_none() -> None:
    asked = devices(budget=replace(BUDGET, cost=[1000, 1000, 50, 1000]))
    with pytest.raises(
        InfeasibleBudgetError, match=r"device 2 .* cost 0 of 50, .* 101"
    ):
        measure_dissimilarity(asked, PROBLEM, BUDGET, PRICES)
    assert asked.ledger.epsilon.tolist() == asked.ledger.cost.tolist() == [0] * 4


def test_no_row_is_read_before_the_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = devices()
    seen = []

    def reads(*args: Any) -> Any:
        seen.append(asked.ledger.epsilon.min())
        return device_gradient(*args)

    monkeypatch.setattr("fedbudget.simulation.devices.device_gradient", reads)
    measure_dissimilarity(asked, PROBLEM, BUDGET, PRICES)
    assert len(seen) == 4 and min(seen) > 0.1


def test_queries_add_up_and_a_plan_reports_its_own_once() -> None:
    asked = devices()
    problem, plan = plan_with_query(asked, PROBLEM, BUDGET, PRICES)
    once = GDP.epsilon_from_mu(problem.prior_mu, 1e-4)
    asked.begin(plan)
    assert asked.ledger.epsilon == pytest.approx(once)
    measure_dissimilarity(asked, PROBLEM, BUDGET, PRICES)  # does not know of the first
    twice = GDP.epsilon_from_mu(problem.prior_mu * 2**0.5, 1e-4)
    assert asked.ledger.epsilon == pytest.approx(twice)


def test_every_query_has_noise_of_its_own() -> None:
    asked, other = devices(), devices(seed=1)
    exact = [device_gradient(DATA.train, PROBLEM.model, m) for m in range(4)]
    noises = []
    for each in (asked, asked, other):
        release = each.noisy_gradients(PROBLEM.model, STD, cost=NO_COST)
        noises.append((release.gradients - exact) / STD[:, None])
    # The noise of a run's first step, from the same seed: one full-batch step.
    plan = fb.plan(PROBLEM, BUDGET, PRICES, learning_rate=1.0)
    for m in range(4):
        alone = replace(plan, weights=np.eye(4)[m], tau=1, rounds=1, momentum=0.0)
        theta = fb.train(alone.without_privacy(), devices(budget=None)).theta
        noisy = fb.train(
            replace(alone, epsilon=plan.epsilon * 9), devices(budget=None)
        ).theta
        noises.append((theta - noisy) / plan.noise_std[m])
    rows = np.concatenate([np.reshape(noise, (-1, 5)) for noise in noises])
    for i, first in enumerate(rows):
        for second in rows[i + 1 :]:
            assert not np.allclose(first, second, rtol=0.01)


def test_a_plan_that_names_more_releases_erases_none() -> None:
    asked = fb.ReleaseDevices(DATA)
    problem = measure_dissimilarity(asked, PROBLEM, BUDGET, PRICES, share=0.5)
    spent = asked.ledger.epsilon
    names = (*problem.prior_releases, "another")
    forged = replace(fb.plan(PROBLEM, BUDGET, PRICES), prior_releases=names)
    asked.begin(forged)  # it says that all of them cost nothing
    assert (asked.ledger.epsilon >= spent).all()


def test_a_plan_whose_measurements_have_no_names_is_refused() -> None:
    spent = fb.Problem(num_samples=PROBLEM.num_samples, dim=PROBLEM.dim, spent_mu=0.5)
    unnamed = fb.plan(spent, BUDGET, PRICES)
    with pytest.raises(fb.InvalidInputError, match=r"mu 0\.5 has no name"):
        devices(budget=None).begin(unnamed)
