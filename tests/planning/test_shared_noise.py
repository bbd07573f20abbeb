"""Plans whose server sees only sums: their noise, promise and storage."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning.plans import is_same_plan
from fedbudget.planning.shared_noise import (
    SumSchedule,
    least_noise_weights,
    shared_noise_plan,
)
from fedbudget.privacy import GDP

SIZES = [100, 300, 50, 150]
PROBLEM = fb.Problem(num_samples=SIZES, dim=6)
BUDGET = fb.Budget(epsilon=1.0, delta=1e-5, cost=1000)
PRICES = fb.Prices(communication=20, computation=1)
SCHEDULE = SumSchedule(tau=10, rounds=8, learning_rate=2.0)


def planned(
    problem: fb.Problem = PROBLEM, budget: fb.Budget = BUDGET, **changes: Any
) -> fb.Plan:
    schedule = replace(SCHEDULE, **changes)
    return shared_noise_plan(problem, budget, PRICES, schedule)


def test_with_equal_budgets_it_is_centralised_gradient_descent() -> None:
    """One V for all: that of one device that holds all the rows."""
    plan = planned()
    assert plan.weights == pytest.approx(np.array(SIZES) / 600)
    assert plan.epsilon == pytest.approx(np.full(4, 1.0), rel=1e-6)
    assert (plan.epsilon <= 1).all()
    mu = float(GDP.mu_from_epsilon(1.0, 1e-5))
    sigma = sqrt(8) * (2 * 2.0 * 10 / 600) / mu
    assert plan.uploads.sum_noise_std == pytest.approx(sigma, rel=1e-6)
    assert plan.noise_std == pytest.approx(np.full(4, sigma / 2), rel=1e-6)
    assert plan.cost == pytest.approx(np.full(4, 8 * 30.0))


def test_lost_answers_and_colluders_need_larger_shares() -> None:
    share = planned().noise_std[0]
    wary = planned(least_answers=3, colluders=1)
    assert wary.noise_std[0] == pytest.approx(share * sqrt(4 / 2))
    assert wary.epsilon == pytest.approx(planned().epsilon)
    # The share alone protects better, if it is larger.
    alone, wary_alone = planned().privacy, wary.privacy
    assert alone.epsilon_alone is not None
    assert wary_alone.epsilon_alone is not None
    assert 1 < wary_alone.epsilon_alone < alone.epsilon_alone


def test_personal_budgets_share_one_noise() -> None:
    budget = fb.Budget(epsilon=[1, 4, 2, 8], delta=1e-5, cost=1000)
    plan = planned(budget=budget)
    # With these weights every budget is spent.
    assert plan.epsilon == pytest.approx([1, 4, 2, 8], rel=1e-6)
    # Weights by samples alone leave all but one unspent, and that one is named.
    plain = planned(budget=budget, weights=SIZES)
    assert plain.epsilon[0] == pytest.approx(1, rel=1e-6)
    assert (plain.epsilon[1:] < [4, 2, 8]).all()
    assert "device 0 needs" in plain.reasons[1]
    assert len(plan.reasons) == 1


def test_least_noise_weights_need_the_least_noise_for_their_samples() -> None:
    sizes, mu = np.array(SIZES), np.array([1.0, 0.5, 2.0, 1.0])
    best = least_noise_weights(sizes, mu, "sample")

    def noise(weights: np.ndarray) -> float:
        return float(np.max(weights / sizes / mu))

    assert noise(best) == pytest.approx(1 / np.sum(sizes * mu))
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert noise(rng.dirichlet(np.ones(4))) >= noise(best)
    assert least_noise_weights(sizes, 1.0, "device") == pytest.approx([0.25] * 4)


def test_the_device_as_the_unit_costs_its_number_of_samples() -> None:
    sample = planned(weights=[1, 1, 1, 1])
    device = planned(weights=[1, 1, 1, 1], unit="device")
    # The smallest device has 50 rows.
    assert device.noise_std[0] == pytest.approx(50 * sample.noise_std[0])
    clipped = planned(weights=[1, 1, 1, 1], unit="device", clip=0.5)
    assert clipped.noise_std[0] == pytest.approx(device.noise_std[0] * 0.5 / 20)
    assert "for one device (replace all samples of one device)" in str(device.privacy)


def test_a_device_without_weight_spends_nothing() -> None:
    plan = planned(weights=[1, 0, 1, 1])
    assert plan.epsilon[1] == 0
    assert plan.cost[1] == 0
    assert plan.least_answers == 3


def test_disjoint_batches_are_cyclic() -> None:
    plan = planned(batch_size=50)
    assert plan.sampling == "cyclic"
    assert plan.batch_size.tolist() == [50, 50, 50, 50]
    assert plan.blocks.tolist() == [2, 6, 1, 3]
    # A row of device 1 is in at most ceil(10 / 6) = 2 of 10 steps.
    expected = [5, 2, 10, 4]
    assert plan.uploads.steps.sensitivity == pytest.approx(
        2 * 2.0 / 50 * np.array(expected)
    )


def test_prior_spending_counts() -> None:
    measured = fb.Constant(
        value=0.2, source="measured privately", mu=0.1, release="asked once"
    )
    problem = PROBLEM.with_constants(smoothness=measured)
    plan = planned(problem)
    assert plan.prior_mu == pytest.approx([0.1] * 4)
    assert plan.epsilon == pytest.approx(np.ones(4), rel=1e-6)
    assert plan.noise_std[0] > planned().noise_std[0]


@pytest.mark.parametrize("accountant", ["gdp", "zcdp", "pld"])
def test_every_accountant_keeps_the_budget(accountant: str) -> None:
    plan = shared_noise_plan(PROBLEM, BUDGET, PRICES, SCHEDULE, accountant=accountant)
    assert (plan.epsilon <= 1).all()
    assert plan.epsilon.max() > 0.99
    plan.check_promise()


def test_the_statement_names_the_adversary_and_the_epsilon_alone() -> None:
    statement = planned(least_answers=3, colluders=1).privacy
    assert statement.trust == "sum"
    assert "up to 1 colluding device, who together see only sums of at least 3" in str(
        statement
    )
    alone = float(GDP.epsilon_from_mu(GDP.mu_from_epsilon(1.0, 1e-5) * sqrt(2), 1e-5))
    assert statement.epsilon_alone == pytest.approx(alone, rel=1e-6)


def test_a_plan_that_promises_too_much_is_found_out() -> None:
    plan = planned(least_answers=3)
    plan.check_promise()
    for lie in (
        {"noise_std": plan.noise_std * 0.99},
        {"colluders": 1},
        {"least_answers": 2},
        {"unit": "device"},
        {"tau": 11},
        {"rounds": 9},
        {"learning_rate": 2.1},
        {"weights": np.array([0.3, 0.3, 0.3, 0.1])},
    ):
        with pytest.raises(InvalidInputError, match="would spend epsilon"):
            replace(plan, **lie).check_promise()


def test_a_plan_without_privacy_has_no_share_to_state() -> None:
    plan = planned().without_privacy()
    assert "NOT PRIVATE" in str(plan.privacy)
    assert not plan.noise_multiplier.any()
    plan.check_promise()


def test_the_unit_of_noise_per_step_may_be_a_device() -> None:
    plan = fb.plan(PROBLEM, BUDGET, PRICES, noise_schedule=False)
    with pytest.raises(InvalidInputError, match="would spend epsilon"):
        replace(plan, unit="device").check_promise()
    device = replace(plan, unit="device", noise_std=plan.noise_std * plan.batch_size)
    device.check_promise()
    assert device.noise_multiplier == pytest.approx(plan.noise_multiplier)
    assert "for one device" in str(device.privacy)


def test_plans_are_stored_and_follow_the_schema() -> None:
    for plan in (
        planned(),
        planned(least_answers=2, colluders=1, unit="device", clip=0.3, batch_size=20),
    ):
        plain = json.loads(json.dumps(plan.to_dict()))
        jsonschema.validate(plain, fb.plan_schema())
        back = fb.Plan.from_dict(plain)
        assert is_same_plan(plain, json.loads(json.dumps(back.to_dict())))
        assert (back.trust, back.clip) == ("sum", plan.clip)


def test_plans_from_before_trust_was_a_value_are_read() -> None:
    new = {"trust", "unit", "least_answers", "colluders", "clip"}
    path = Path(__file__).parent.parent / "old_runs" / "few" / "plan.json"
    old = json.loads(path.read_text())
    assert not new & set(old)
    plan = fb.Plan.from_dict(old)
    assert (plan.trust, plan.unit, plan.least_answers) == ("uploads", "sample", 1)
    assert is_same_plan(old, json.loads(json.dumps(plan.to_dict())))


def test_a_plan_knows_which_releases_it_has() -> None:
    with pytest.raises(InvalidInputError, match=r"use plan\.releases"):
        _ = planned().gradients
    with pytest.raises(InvalidInputError, match=r"use plan\.releases"):
        _ = fb.plan(PROBLEM, BUDGET, PRICES).uploads


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"sampling": "fixed"}, "trust 'sum' needs full or cyclic batches"),
        ({"drift_correction": True}, "drift_correction needs uploads"),
        ({"noise_std": [1, 2, 1, 1]}, "every device adds the same share"),
        ({"least_answers": 5}, "least_answers 5 is above the 4 devices"),
        ({"colluders": 4}, "colluders 4 must be below least_answers 4"),
        ({"learning_rate": 8.5}, "learning_rate 8.5 is above 8"),
        ({"loss": "hinge"}, "the loss is not smooth"),
        ({"trust": "nobody"}, "trust 'nobody' is not known"),
        ({"unit": "house"}, "unit 'house' is not known"),
        ({"trust": "uploads"}, "are for trust 'sum': leave them out"),
        # Two devices stop before the end: a sum of 4 would never be seen.
        ({"last_round": [8, 8, 3, 3]}, "least_answers 4 is above the 2 devices"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(planned(), **changes)


def test_poisson_batches_do_not_protect_a_device() -> None:
    plan = fb.plan(PROBLEM, BUDGET, PRICES, noise_schedule=False)
    with pytest.raises(
        InvalidInputError, match="unit 'device' needs batches of a fixe"
    ):
        replace(plan, unit="device", sampling="poisson")


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (
            lambda: planned(rounds=100),
            InfeasibleBudgetError,
            "the schedule costs device 0 3000, above its budget of 1000: lower rounds",
        ),
        (
            lambda: planned(fb.Problem(num_samples=SIZES, dim=6, loss="hinge")),
            InvalidInputError,
            "use loss 'smooth_hinge'",
        ),
        (
            lambda: planned(weights=[0, 0, 0, 0]),
            InvalidInputError,
            "weights are all 0",
        ),
        (
            lambda: planned(
                fb.Problem(num_samples=SIZES, dim=6, spent_mu=[0, 5, 0, 0]),
                weights=[1, 1, 1, 1],
            ),
            InfeasibleBudgetError,
            "the privacy budget of device 1 was spent before the run",
        ),
        (
            lambda: planned(fb.Problem(num_samples=SIZES, dim=6, spent_mu=5)),
            InfeasibleBudgetError,
            "the privacy budget of every device was spent",
        ),
        (lambda: planned(least_answers=5), InvalidInputError, "is above the 4 devices"),
    ],
)
def test_schedules_that_cannot_be_paid_are_refused(
    make: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()
