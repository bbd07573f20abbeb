"""Grid points are plans that spend their stated epsilon and cost, on every split."""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.paper.cases import (
    CASES,
    DELTA,
    FULL,
    PRICES,
    QUICK,
    Maker,
    Point,
    case_named,
    first_rounds,
    max_rounds,
    move_to_split,
    power_weights,
)
from fedbudget.paper.grid import Search, full_grid, paper_grid
from fedbudget.paper.planners import printed_noise
from fedbudget.privacy import accountant_named

PROBLEM = fb.Problem(num_samples=[100, 900], dim=5, loss="logistic")
POINT = Point(epsilon=4, tau=5, rounds=3, learning_rate=2.0, power=0.5)


@pytest.mark.parametrize("accountant", ["zcdp", "gdp"])
def test_a_point_spends_its_epsilon_and_its_cost(accountant: str) -> None:
    plan = Maker(PROBLEM, accountant).plan(POINT)
    run = fb.NoisyGradients(
        lipschitz=1.0, batch_size=plan.batch_size, noise_std=plan.noise_std, steps=15
    )
    spent = accountant_named(accountant).epsilon(run, delta=DELTA)
    assert spent == pytest.approx([4, 4], rel=1e-6)
    assert (spent <= 4).all()
    assert plan.cost.tolist() == [315, 315]
    assert plan.weights == pytest.approx([0.25, 0.75])


def test_a_point_has_the_noise_that_planners_calibrate() -> None:
    budget = fb.Budget(epsilon=4, delta=DELTA, cost=1000)
    planned = fb.plan(PROBLEM, budget, PRICES, planner="bound", accountant="zcdp")
    point = replace(POINT, tau=planned.tau, rounds=planned.rounds)
    made = Maker(PROBLEM, "zcdp").plan(point)
    assert made.noise_std == pytest.approx(planned.noise_std, rel=1e-9)


def test_a_plan_moved_to_another_split_is_as_private() -> None:
    case = case_named("Adult-2")
    first, second = case.load(repeat=0), case.load(repeat=1)
    plan = Maker(first.problem(loss=case.loss), "gdp").plan(POINT)
    other = move_to_split(plan, second)
    assert other.num_samples.tolist() == second.num_samples.tolist()
    assert other.noise_multiplier == pytest.approx(plan.noise_multiplier)
    assert move_to_split(plan, first) is plan


def test_the_first_rounds_of_a_run_keep_its_noise() -> None:
    plan = Maker(PROBLEM, "gdp").plan(POINT)
    start = first_rounds(plan, 2)
    assert start.noise_std.tolist() == plan.noise_std.tolist()
    assert start.cost == pytest.approx([210, 210])


def test_weights_as_a_power_of_rows() -> None:
    assert power_weights(np.array([1, 4]), 0.5) == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize(("epsilon", "spent"), [(1, 70.75), (10, 93.18)])
def test_the_printed_noise_spends_what_the_erratum_says(
    epsilon: float, spent: float
) -> None:
    plan = Maker(PROBLEM, "zcdp").plan(replace(POINT, epsilon=epsilon))
    assert printed_noise(plan, epsilon=epsilon).epsilon == pytest.approx(
        [spent, spent], abs=0.01
    )


def test_the_grid_is_complete_for_the_papers_taus() -> None:
    points = paper_grid(FULL)
    assert max(point.cost for point in points) <= 1000
    for tau in range(1, 21):
        rounds = {p.rounds for p in points if p.tau == tau and p.learning_rate == 16}
        assert rounds == set(range(1, max_rounds(tau, 1000) + 1))
    assert {p.learning_rate for p in points} == set(FULL.rates)


def test_the_full_grid_varies_all_that_is_planned() -> None:
    points = full_grid(QUICK, iid=False)
    assert {p.power for p in points} == set(QUICK.powers)
    assert {p.momentum for p in points} == set(QUICK.momenta)
    assert {p.drift_correction for p in points} == {False, True}
    iid = full_grid(QUICK, iid=True)
    assert {(p.power, p.drift_correction) for p in iid} == {(QUICK.powers[0], False)}
    assert all(p.tau > 1 and p.rounds > 1 for p in points if p.drift_correction)
    assert all(p.rounds >= 3 for p in points if p.momentum > 0)


def test_a_search_picks_within_the_budget_and_the_cheapest_on_ties() -> None:
    cheap, expensive = POINT, replace(POINT, rounds=8)
    tie = Search(points=[expensive, cheap], accuracy=np.array([0.8, 0.8]), seconds=0)
    assert tie.ranked(4, 1000)[0] == cheap
    better = Search(points=[expensive, cheap], accuracy=np.array([0.9, 0.8]), seconds=0)
    assert better.ranked(4, 1000) == [expensive, cheap]
    assert better.ranked(4, 500) == [cheap]
    assert better.ranked(1, 1000) == []


def test_cases_that_are_not_real_say_so() -> None:
    labels = [case.label() for case in CASES]
    assert ["SYNTHETIC" in label for label in labels] == [False, False, True, True]
    assert CASES[2].label("vehicle.mat") == "Vehicle-1"
    with pytest.raises(fb.InvalidInputError, match="adult-1"):
        case_named("adult-3")
