"""The best fall of noise, against explicit noisy recursions and searches."""

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.planning.schedules import best_schedule, noise_share, round_weights
from fedbudget.planning.spectral import Schedule, Spectrum, respond
from fedbudget.privacy import noise_factors

SPECTRUM = Spectrum.of(fb.Problem(num_samples=[500] * 8, dim=60, loss="logistic"))
RUNS = [
    {"tau": 1, "rounds": 1, "learning_rate": 1.0, "momentum": 0.0},
    {"tau": 1, "rounds": 40, "learning_rate": 2.0, "momentum": 0.0},
    {"tau": 5, "rounds": 30, "learning_rate": 1.5, "momentum": 0.0},
    {"tau": 3, "rounds": 25, "learning_rate": 1.0, "momentum": 0.7},
    {"tau": 2, "rounds": 200, "learning_rate": 3.0, "momentum": 0.3},
]


def weights_of(run: dict[str, float]) -> Array:
    return round_weights(SPECTRUM.curvature, SPECTRUM.count, **run)  # type: ignore[arg-type]


def recursion(run: dict[str, float], factors: Array) -> float:
    """Return the noise part of the loss, by the covariance of every local step."""
    loss = 0.0
    eta, beta = run["learning_rate"], run["momentum"]
    for h, count in zip(SPECTRUM.curvature, SPECTRUM.count, strict=True):
        covariance = np.zeros((2, 2))  # of the server's model and its velocity
        for factor in factors:
            local, own = 1.0, 0.0
            for _ in range(int(run["tau"])):
                local, own = (1 - eta * h) * local, (1 - eta * h) ** 2 * own
                own += (eta * factor) ** 2
            # velocity' = beta velocity + (local theta + noise - theta)
            move = np.array([[local, beta], [local - 1, beta]])
            covariance = move @ covariance @ move.T + own
        loss += 0.5 * h * count * covariance[0, 0]
    return loss


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("decay", [1.0, 0.97])
def test_the_weights_of_rounds_are_those_of_the_noisy_recursion(
    run: dict[str, float], decay: float
) -> None:
    factors = noise_factors(decay, int(run["rounds"]))
    expected = recursion(run, factors)
    assert weights_of(run) @ factors**2 == pytest.approx(expected, rel=1e-9)
    share = noise_share(weights_of(run), decay)
    constant = recursion(run, np.ones(len(factors)))
    assert share == pytest.approx(expected / constant, rel=1e-9)


@pytest.mark.parametrize("run", RUNS)
def test_constant_noise_is_that_of_the_spectral_model(run: dict[str, float]) -> None:
    one = {name: np.array([float(value)]) for name, value in run.items()}
    response = respond(SPECTRUM, Schedule(**one), variance=1.0)
    assert weights_of(run).sum() == pytest.approx(response.noise[0], rel=1e-4)


@pytest.mark.parametrize("run", RUNS)
def test_the_search_finds_the_best_decay(run: dict[str, float]) -> None:
    weights = weights_of(run)
    best = best_schedule(weights)
    rounds = len(weights)
    falls = np.geomspace(1, 1e3, 4000)
    decays = falls ** (-1 / max(1, rounds - 1))
    least = min(noise_share(weights, decay) for decay in decays)
    assert best.share <= least * (1 + 1e-4)
    assert best.share == pytest.approx(noise_share(weights, best.decay))
    # No schedule, geometric or not, is better than sigma_r^2 ~ w_r^(-1/2).
    bound = np.sqrt(weights).sum() ** 2 / rounds / weights.sum()
    assert bound * (1 - 1e-9) <= best.share <= 1


def test_two_rounds_by_hand() -> None:
    # J(g) = (1 + g^-2)(1 + 4 g^2) / 10 is least at g^2 = 1/2: 9 / 10.
    best = best_schedule(np.array([1.0, 4.0]))
    assert best.share == pytest.approx(0.9, rel=1e-6)
    assert best.decay == pytest.approx(0.5**0.5, abs=1e-4)


def test_noise_does_not_grow_where_early_noise_weighs_more() -> None:
    assert best_schedule(np.array([9.0, 3.0, 1.0])).decay == 1.0


def test_weights_that_overflow_leave_the_noise_constant() -> None:
    assert best_schedule(np.array([np.inf, 1.0])).decay == 1.0
    assert best_schedule(np.array([np.nan, 1.0])).decay == 1.0


PROBLEM = fb.Problem(num_samples=[1628] * 16, dim=102, dissimilarity="iid")
BUDGET = fb.Budget(epsilon=4.0, delta=1e-4, cost=5000)
PRICES = fb.Prices(communication=100, computation=1)


def test_a_plan_of_many_rounds_has_falling_noise_and_says_so() -> None:
    planned = fb.plan(PROBLEM, BUDGET, PRICES)
    constant = fb.plan(PROBLEM, BUDGET, PRICES, noise_schedule=False)
    assert planned.rounds >= 10 and planned.noise_decay < 1
    assert constant.noise_decay == 1
    assert (constant.tau, constant.rounds) == (planned.tau, planned.rounds)
    assert planned.predicted_loss < 0.995 * constant.predicted_loss
    # The same epsilon, noise of equal cost, and the same price.
    assert planned.epsilon.tolist() == constant.epsilon.tolist()
    assert planned.noise_std.tolist() == constant.noise_std.tolist()
    planned.check_promise()
    assert any(reason.startswith("noise falls by") for reason in planned.reasons)
    assert not any(reason.startswith("noise falls") for reason in constant.reasons)


@pytest.mark.parametrize("options", [{"planner": "bound"}, {"planner": "paper"}])
def test_planners_without_a_schedule_have_constant_noise(
    options: dict[str, str],
) -> None:
    assert fb.plan(PROBLEM, BUDGET, PRICES, **options).noise_decay == 1  # type: ignore[arg-type]


def test_batches_taken_in_turn_have_constant_noise() -> None:
    plan = fb.plan(PROBLEM, BUDGET, PRICES, batch_size=100, sampling="cyclic")
    assert plan.sampling == "cyclic" and plan.noise_decay == 1


def test_the_range_of_falling_noise_holds_the_predicted_loss() -> None:
    """Noise falls to a sixth here, and its part of the loss to less than half."""
    problem = fb.Problem(num_samples=[5] * 5, dim=2, loss="hinge")
    budget = fb.Budget(epsilon=1e3, delta=1e-5, cost=1e6)
    plan = fb.plan(problem, budget, fb.Prices(communication=0.01, computation=1))
    assert plan.noise_decay < 0.9
    assert plan.predicted_range is not None
    low, high = plan.predicted_range
    assert low < plan.predicted_loss < high
