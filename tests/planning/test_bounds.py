"""The paper's bound and its errata, and the planners that minimise it."""

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.planning.bounds import (
    largest_rate,
    noise_floor,
    paper_bound,
    sound_bound,
    step_condition,
)
from fedbudget.planning.settings import affordable_pairs, max_rounds
from fedbudget.privacy import ZCDP

PRICES = fb.Prices(communication=100, computation=1)
ADULT = fb.Problem(num_samples=[1628] * 16, dim=102)


def problem_with(**values: float) -> fb.Problem:
    constants = {
        name: fb.Constant(value=value, source="assumed")
        for name, value in values.items()
    }
    return fb.Problem(num_samples=[100] * 4, dim=3).with_constants(**constants)


def test_noise_floor_is_the_papers_b_by_hand() -> None:
    # eta=0.1, L=2, lam=0.5, M=4, tau=3, xi^2 + d sigma^2 = 6 on every device:
    # (0.1*2 + 0.01*4*2*4) / (2*0.5*4) * 6 = 0.78
    problem = problem_with(smoothness=2.0, strong_convexity=0.5)
    assert float(noise_floor(problem, 3, 0.1, (6 / 4, 6.0))) == pytest.approx(0.78)


def test_the_printed_bound_is_below_the_truth() -> None:
    # Erratum 3: gradient descent on f(x) = x^2/2 from alpha = 1/2, without noise.
    problem = problem_with(smoothness=1.0, strong_convexity=1.0, initial_gap=0.5)
    x = 1.0
    for _ in range(10):
        x -= 0.01 * x
    truth = x**2 / 2
    assert truth == pytest.approx(0.409, abs=5e-4)
    printed = paper_bound(problem, 10, 0.01, 0.0)
    assert printed == pytest.approx(0.045, abs=5e-4)
    assert printed < truth
    sound = sound_bound(problem, np.array(10.0), np.array(0.01), np.array(0.0))
    assert float(sound) >= truth


def test_the_sound_bound_holds_for_noisy_descent() -> None:
    rng = np.random.default_rng(0)
    problem = problem_with(smoothness=1.0, strong_convexity=1.0, initial_gap=0.5)
    eta, sigma, runs = 0.3, 0.8, 100_000
    x = np.ones(runs)
    for steps in range(1, 30):
        x -= eta * (x + sigma * rng.normal(size=runs))
        floor = float(noise_floor(problem, 1, eta, (sigma**2, sigma**2)))
        bound = sound_bound(
            problem, np.array(float(steps)), np.array(eta), np.array(floor)
        )
        assert 0.5 * np.mean(x**2) <= float(bound) * 1.02


@pytest.mark.parametrize("tau", [1, 2, 10, 20])
def test_the_largest_rate_just_satisfies_the_step_condition(tau: int) -> None:
    rate = largest_rate(ADULT, tau)
    assert float(step_condition(ADULT, tau, rate)) == pytest.approx(1)
    assert largest_rate(ADULT, 1) == pytest.approx(1 / 0.25)


def test_plain_rounding_would_overspend() -> None:
    # Erratum 2: K* = 60.4 rounds to K = 60, tau* = 6.43 to tau = 6.
    steps = 60.4
    tau = 100 * steps / (1000 - steps)
    cost = 100 * round(steps) / round(tau) + round(steps)
    assert (round(steps), round(tau), cost) == (60, 6, 1060)


@pytest.mark.parametrize("cost", [200, 500, 777, 1000, 5000])
@pytest.mark.parametrize("epsilon", [1, 2, 4, 10])
def test_the_papers_planner_rounds_next_to_its_optimum(
    cost: float, epsilon: float
) -> None:
    budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=cost)
    plan = fb.plan(ADULT, budget, PRICES, planner="paper", accountant="zcdp")
    assert plan.cost.max() <= cost
    assert float(step_condition(ADULT, plan.tau, plan.learning_rate)) <= 1 + 1e-9
    # No affordable pair of whole numbers near it has a much lower objective.
    best = min(
        objective(tau, rounds, epsilon, plan.learning_rate)
        for tau in range(1, 21)
        for rounds in range(1, 1 + max_rounds(budget, PRICES, tau=tau, batch_size=1))
    )
    assert best * (1 - 1e-9) <= plan.predicted_loss <= 1.05 * best


def objective(tau: int, rounds: int, epsilon: float, eta: float) -> float:
    """The paper's F, from its parts, for Adult-2."""
    steps = tau * rounds
    sigma = ZCDP.noise_std(
        lipschitz=1.0, batch_size=1628, epsilon=epsilon, delta=1e-4, steps=steps
    )
    L, lam, alpha, M, d = 0.25, 0.25 / 102, np.log(2), 16, 102
    B = (eta * L + eta**2 * L**2 * (tau - 1) * M) / (2 * lam * M) * d * sigma**2
    return float((1 - eta * lam) ** steps * (alpha - B) / steps + B)


def test_the_papers_tau_grows_with_epsilon_and_falls_with_cost() -> None:
    def tau(epsilon: float, cost: float) -> int:
        budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=cost)
        return fb.plan(ADULT, budget, PRICES, planner="paper", accountant="zcdp").tau

    assert tau(1, 1000) <= tau(4, 1000) <= tau(10, 1000)
    assert tau(10, 500) >= tau(10, 1000)
    assert tau(10, 1000) > tau(1, 1000)


def test_the_bound_planner_finds_the_lowest_bound() -> None:
    budget = fb.Budget(epsilon=4, delta=1e-4, cost=400)
    plan = fb.plan(ADULT, budget, PRICES, planner="bound", learning_rate=0.5)
    sigma1 = plan.noise_std[0] / plan.steps**0.5
    best = np.inf
    for tau, rounds in affordable_pairs(budget, PRICES, batch_size=1628):
        if step_condition(ADULT, tau, 0.5) <= 1:
            V = 102 * sigma1**2 * tau * rounds
            floor = noise_floor(ADULT, tau, 0.5, (V / 16, V))
            steps = np.array(float(tau * rounds))
            best = min(best, float(sound_bound(ADULT, steps, np.array(0.5), floor)))
    assert plan.predicted_loss <= best


@pytest.mark.parametrize("cost", [12_625, 20_000, 1e6])
def test_more_cost_never_raises_the_bound(cost: float) -> None:
    smaller, larger = (
        fb.plan(ADULT, fb.Budget(epsilon=4, cost=c), PRICES, planner="bound")
        for c in (cost, 1.5 * cost)
    )
    assert larger.predicted_loss <= smaller.predicted_loss * (1 + 1e-3)


def test_the_bound_planner_satisfies_the_step_condition() -> None:
    for epsilon in (1, 10, 50):
        budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=1000)
        plan = fb.plan(ADULT, budget, PRICES, planner="bound")
        assert float(step_condition(ADULT, plan.tau, plan.learning_rate)) <= 1 + 1e-9
