"""The claims of a plan: grouped, ordered, and without what was spent before."""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.auditing.settings import MOST_CLAIMS, Claim, claims_of
from fedbudget.errors import InvalidInputError
from fedbudget.privacy import GDP


def plan_of(sizes: list[int], epsilon: object = 4.0, **options: object) -> fb.Plan:
    return fb.plan(
        fb.Problem(num_samples=sizes, dim=5),
        fb.Budget(epsilon=epsilon, delta=1e-5, cost=300),  # type: ignore[arg-type]
        fb.Prices(communication=10, computation=1),
        **{"noise_schedule": False} | options,  # type: ignore[arg-type]
    )


def test_devices_with_the_same_steps_and_noise_make_one_claim() -> None:
    plan = plan_of([100] * 5 + [400] * 3)
    (claim,), notes = claims_of(plan)
    assert claim.name == "8 of 8 devices" and notes == ()
    assert claim.steps == plan.steps and claim.dim == 5
    assert claim.epsilon == pytest.approx(4.0, rel=1e-6)
    assert claim.noise_multiplier == pytest.approx(plan.noise_multiplier[0])


def test_the_largest_claims_come_first_and_the_rest_is_named() -> None:
    plan = plan_of([200] * 6, epsilon=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    claims, notes = claims_of(plan)
    assert [round(claim.epsilon) for claim in claims] == [6, 5, 4][:MOST_CLAIMS]
    assert notes == ("the 3 largest of 6 different claims are audited",)


def test_falling_noise_is_audited_as_constant_noise_of_equal_cost() -> None:
    plan = plan_of([200, 200], noise_schedule=True)
    assert plan.noise_decay < 1
    (claim,), notes = claims_of(plan)
    assert isinstance(claim, Claim)
    assert claim.noise_std == float(plan.noise_std[0])
    assert "constant noise that costs the same" in notes[0]


def test_the_claim_of_cyclic_batches_is_for_the_steps_on_a_row() -> None:
    plan = plan_of([400, 400], sampling="cyclic", batch_size=100)
    (claim,), _ = claims_of(plan)
    assert claim.steps == -(-plan.steps // 4) and claim.batch_size == 100


def test_what_was_spent_before_is_not_in_the_claim() -> None:
    plan = plan_of([100, 100])
    measured = replace(plan, prior_mu=np.full(2, 0.5), epsilon=np.full(2, 9.0))
    (claim,), notes = claims_of(measured)
    alone = GDP.epsilon(plan.gradients, delta=1e-5)
    assert claim.epsilon == pytest.approx(float(alone[0])) and claim.epsilon < 9
    assert "not audited" in notes[0]


def test_devices_that_take_no_step_claim_nothing() -> None:
    plan = plan_of([100, 100])
    idle = replace(plan, weights=np.array([1.0, 0.0]))
    (claim,), _ = claims_of(idle)
    assert claim.name == "1 of 2 devices"


def test_plans_without_a_claim_are_refused() -> None:
    plan = plan_of([100, 100])
    with pytest.raises(InvalidInputError, match="no noise"):
        claims_of(plan.without_privacy())
    poisson = replace(plan, sampling="poisson", batch_size=np.array([50, 50]))
    with pytest.raises(InvalidInputError, match="Poisson"):
        claims_of(poisson)


def test_earlier_rounds_are_not_in_the_claim_of_the_rest() -> None:
    plan = plan_of([100, 100])
    rest = replace(plan, epsilon=plan.epsilon * 2)
    (claim,), notes = claims_of(rest)
    assert claim.epsilon == pytest.approx(4.0, rel=1e-6)
    assert "earlier rounds: these are not audited" in notes[0]
