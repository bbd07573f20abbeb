"""Planned sums: trust, unit, weights, personal budgets, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import fedbudget as fb
from fedbudget.errors import InvalidInputError
from fedbudget.planning.spectral import Schedule, with_stable_server
from fedbudget.planning.weights import SharedNoise, candidate_weights, capped
from fedbudget.privacy import GDP

PRICES = fb.Prices(communication=100, computation=1)
PROBLEM = fb.Problem(num_samples=[130] * 200, dim=102)
VALUES: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "cost": 1000}


def planned(
    problem: fb.Problem = PROBLEM, prices: fb.Prices = PRICES, **changes: Any
) -> fb.Plan:
    options = {
        name: changes.pop(name)
        for name in ("clip", "weights", "target", "learning_rate", "planner")
        if name in changes
    }
    budget = fb.Budget(**(VALUES | {"trust": "sum"} | changes))
    return fb.plan(problem, budget, prices, **options)


def test_a_budget_names_its_trust_in_the_plan() -> None:
    plan = planned(least_answers=150, colluders=10, unit="device")
    assert (plan.trust, plan.unit) == ("sum", "device")
    assert (plan.least_answers, plan.colluders) == (150, 10)
    assert not plan.drift_correction
    assert plan.noise_decay == 1
    plan.check_promise()


def test_all_who_take_part_are_the_least_number_unless_it_is_given() -> None:
    assert planned().least_answers == 200


def test_sharing_the_noise_is_predicted_to_lower_the_loss() -> None:
    uploads = fb.plan(PROBLEM, fb.Budget(**VALUES), PRICES)
    assert planned().predicted_loss < 0.6 * uploads.predicted_loss


def test_the_noise_of_equal_devices_is_that_of_one_that_holds_all_rows() -> None:
    plan = planned()
    mu = float(GDP.mu_from_epsilon(1.0, 1e-4))
    move = 2 * plan.learning_rate * plan.tau / (130 * 200)
    needed = sqrt(plan.rounds) * move / mu
    assert plan.uploads.sum_noise_std == pytest.approx(needed, rel=1e-6)
    assert plan.noise_std[0] == pytest.approx(needed / sqrt(200), rel=1e-6)


@pytest.mark.parametrize("accountant", ["gdp", "zcdp", "pld"])
def test_every_accountant_keeps_the_budgets(accountant: str) -> None:
    budget = fb.Budget(epsilon=[1, 2, 4], delta=1e-5, cost=[500, 800, 1000])
    problem = fb.Problem(num_samples=[400, 500, 900], dim=12)
    plan = fb.plan(
        problem,
        fb.Budget(**(vars(budget) | {"trust": "sum"})),
        PRICES,
        accountant=accountant,
    )
    assert (plan.epsilon <= [1, 2, 4]).all()
    assert plan.epsilon.max() > 0.9
    assert (plan.cost <= [500, 800, 1000]).all()
    plan.check_promise()


def test_a_secure_round_has_its_own_price() -> None:
    dear = fb.Prices(communication=100, computation=1, secure_round=300)
    plan = planned(prices=dear)
    assert plan.cost == pytest.approx(plan.rounds * (300 + plan.tau), rel=1e-9)
    # It is not paid where the server sees every upload.
    own = planned(prices=dear, trust="uploads")
    assert own.cost == pytest.approx(own.rounds * (100 + own.tau), rel=1e-9)
    assert planned().cost == pytest.approx(planned().rounds * (100 + planned().tau))


def test_the_learning_rate_never_lets_neighbours_move_apart() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 102)) / 40
    # Flat rows: without the limit, a learning rate of hundreds would be stable.
    flat = PROBLEM.with_public_sample(rows, rng.integers(0, 2, 300))
    assert flat["smoothness"] < 0.01
    assert 7.5 < planned(flat, epsilon=1e6).learning_rate <= 8
    assert planned(flat, unit="device", epsilon=1e6).learning_rate > 8


def test_the_server_goes_further_instead_of_longer_local_training() -> None:
    unlike = fb.Problem(num_samples=[1628] * 16, dim=102, dissimilarity="strong")
    plan = planned(unlike)
    assert 1 < plan.server_rate <= 2
    assert any(reason.startswith("server rate") for reason in plan.reasons)
    plan.check_promise()
    # It is post-processing: the noise is that of the same rounds without it.
    assert replace(plan, server_rate=1.0).uploads.mu == pytest.approx(plan.uploads.mu)
    # A server that sees every upload averages them only.
    assert planned(unlike, trust="uploads").server_rate == 1
    with pytest.raises(InvalidInputError, match="server_rate 2 are for trust 'sum'"):
        replace(planned(unlike, trust="uploads"), server_rate=2.0)


@given(
    eta=st.floats(0.1, 7.6),
    tau=st.integers(1, 30),
    momentum=st.floats(0.0, 0.9),
    curvature=st.floats(1e-3, 0.25),
)
def test_the_servers_rate_is_stable_for_any_curvature(
    eta: float, tau: int, momentum: float, curvature: float
) -> None:
    schedule = Schedule(
        tau=np.array([float(tau)]),
        rounds=np.array([9.0]),
        learning_rate=np.array([eta]),
        momentum=np.array([momentum]),
        server_rate=np.array([100.0]),
    )
    rate = float(np.max(with_stable_server(schedule, 0.25).server_rate))
    local = 1 - rate * (1 - (1 - eta * curvature) ** tau)
    matrix = [[local + momentum, -momentum], [1.0, 0.0]]
    assert rate >= 1
    assert np.abs(np.linalg.eigvals(matrix)).max() < 1


def test_cheap_steps_and_dear_rounds_lead_to_one_round_of_many_steps() -> None:
    dear = fb.Prices(communication=600, computation=0.1)
    plan = planned(prices=dear)
    assert plan.rounds == 1
    assert plan.tau > 100
    assert plan.momentum == 0


def test_personal_budgets_lower_the_weight_of_a_demanding_device() -> None:
    problem = fb.Problem(num_samples=[130] * 20, dim=20)
    epsilon = [0.01] + [4.0] * 19
    plan = planned(problem, epsilon=epsilon)
    assert plan.weights[0] < 0.2 * plan.weights[1]
    assert (plan.epsilon <= epsilon).all()
    # With the same weight for everybody, all carry what that device needs.
    plain = planned(problem, epsilon=epsilon, weights="uniform")
    assert plain.epsilon[1] < 0.05
    assert plain.predicted_loss > 1.5 * plan.predicted_loss
    warning = next(reason for reason in plain.reasons if "device 0 needs" in reason)
    assert "weights 'auto' do" in warning
    assert not any("device 0 needs" in reason for reason in plan.reasons)


def test_a_device_of_no_use_is_not_selected() -> None:
    problem = fb.Problem(num_samples=[2] + [1000] * 9, dim=20)
    plan = planned(problem, epsilon=[0.001] + [1.0] * 9)
    assert plan.weights[0] == 0
    assert plan.least_answers == 9
    assert plan.epsilon[0] == plan.cost[0] == 0
    assert any("(number 0) is not selected" in reason for reason in plan.reasons)
    # If a sum of fewer than ten is never seen, it has to stay.
    kept = planned(problem, epsilon=[0.001] + [1.0] * 9, least_answers=10)
    assert kept.weights[0] > 0


def test_devices_that_can_pay_for_fewer_rounds_stop_early() -> None:
    problem = fb.Problem(num_samples=[400] * 10, dim=20)
    cost = np.array([150.0] * 2 + [1500.0] * 8)
    plan = planned(problem, cost=cost)
    assert plan.device_rounds[0] < plan.rounds
    assert plan.least_answers == 8
    assert (plan.cost <= cost).all()
    plan.check_promise()
    # A sum of nine would never be seen after they stop.
    whole = planned(problem, cost=cost, least_answers=9)
    assert whole.device_rounds.min() == whole.rounds == 1


def test_colluders_and_lost_answers_cost_loss() -> None:
    problem = fb.Problem(num_samples=[130] * 20, dim=40)
    alone, wary = planned(problem), planned(problem, least_answers=10, colluders=5)
    assert wary.predicted_loss > alone.predicted_loss
    # If all answer, they carry four times the variance that is needed.
    carried = wary.noise_std[0] * sqrt(20)
    assert carried == pytest.approx(2 * wary.uploads.sum_noise_std)


def test_the_device_as_the_unit_without_sums_is_planned_with_advice() -> None:
    plan = planned(trust="uploads", unit="device", epsilon=4.0)
    plan.check_promise()
    assert plan.epsilon.max() <= 4
    assert "federating may not pay" in plan.advice


def test_a_clip_is_planned_where_a_device_is_the_unit() -> None:
    problem = fb.Problem(num_samples=[13] * 2000, dim=102, dissimilarity="iid")
    plan = planned(problem, unit="device")
    longest = plan.learning_rate * plan.tau
    assert plan.clip is not None
    assert 0.02 * longest < plan.clip < 0.5 * longest
    assert plan.uploads.steps.sensitivity == pytest.approx(2 * plan.clip)
    assert any(reason.startswith("clip ") for reason in plan.reasons)
    plan.check_promise()
    # Without one, the noise would cover the longest move that the loss allows.
    whole = planned(problem, unit="device", clip=1e9)
    assert whole.clip == 1e9
    assert plan.predicted_loss < 0.8 * whole.predicted_loss
    # A row's own share of a move is far below any useful clip.
    assert planned(problem).clip is None


@pytest.mark.parametrize("unit", ["sample", "device"])
def test_a_clip_by_hand_that_cuts_moves_off_is_predicted_to_cost_loss(
    unit: str,
) -> None:
    free = planned(unit=unit, epsilon=8.0)
    losses = [
        planned(unit=unit, epsilon=8.0, clip=clip).predicted_loss
        for clip in (1e-6, 0.1, 10.0)
    ]
    assert losses[0] > losses[1] > losses[2]
    assert losses[0] > 0.3  # nothing is learned: about the initial gap
    if unit == "sample":  # no clip helps where the noise covers one row's part
        assert losses[2] >= free.predicted_loss


def test_the_planned_clip_is_about_the_length_of_real_moves() -> None:
    data = fb.load("adult", split="iid", num_devices=500, seed=0)
    plan = planned(data.problem(), unit="device", epsilon=8.0)
    assert plan.clip is not None
    model, lengths = plan.model, []
    for device in range(0, 500, 25):
        x, y = data.train.device(device)
        theta = np.zeros(model.num_params(data.dim))
        for _ in range(plan.tau):
            theta -= plan.learning_rate * model.gradient(theta, x, y)
        lengths.append(float(np.linalg.norm(theta)))
    assert 0.2 < np.median(lengths) / plan.clip < 5


def test_few_rows_shorten_the_local_training_of_sums() -> None:
    """Devices of a few rows drift apart, even if their rows are dealt at random."""
    few, many = (
        fb.Problem(num_samples=[rows] * 20, dim=102, dissimilarity="iid")
        for rows in (3, 3000)
    )
    assert planned(few, epsilon=1e6).tau < planned(many, epsilon=1e6).tau


@pytest.mark.parametrize("time", [0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("strength", [1e-3, 0.1, 1.0])
def test_stopping_early_beats_an_l2_term_of_equal_sensitivity(
    time: float, strength: float
) -> None:
    """Why no L2 term is planned: one round, small steps, any curvature h.

    Without an L2 term, the learning time T moves a mode by 1 - exp(-hT) of the way and
    has the sensitivity 2 G T / X. With one, it is 2 G (1 - exp(-lT)) / (l X), and the
    mode moves by h / (h + l) (1 - exp(-(h + l) T)).
    """
    h = np.geomspace(1e-6, 1e3, 400)
    equal = -np.expm1(-strength * time) / strength
    without = -np.expm1(-h * equal)
    with_l2 = h / (h + strength) * -np.expm1(-(h + strength) * time)
    assert (without >= with_l2 * (1 - 1e-12)).all()


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1), st.floats(0.01, 100)), min_size=1, max_size=8
    ),
    st.floats(0, 1),
)
def test_capped_weights_are_the_nearest_ones_with_this_noise(
    devices: list[tuple[float, float]], share: float
) -> None:
    target, std = np.array(devices).T
    target = target / target.sum()
    least, most = 1 / float(np.sum(1 / std)), float(np.max(target * std))
    level = float(least + share * (most - least))
    weights = capped(level, target, std**2)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    assert (weights * std <= level * (1 + 1e-9)).all()
    # Moving weight between two devices brings it no nearer.
    for i, j in np.ndindex(len(std), len(std)):
        moved = weights.copy()
        step = min(1e-4, float(weights[j]))
        moved[i], moved[j] = moved[i] + step, moved[j] - step
        if i != j and (moved * std <= level).all():
            nearer = np.sum((moved - target) ** 2) < np.sum((weights - target) ** 2)
            assert not nearer or np.allclose(weights, target, atol=1e-4)


def test_candidates_of_a_sum_reach_from_the_least_noise_to_the_target() -> None:
    target, variance = np.full(4, 0.25), np.array([1.0, 4.0, 9.0, 16.0])
    rule = SharedNoise(least_answers=None, colluders=0)
    result = candidate_weights(target, variance, np.zeros(4), planned=True, rule=rule)
    least = 1 / np.sum(1 / np.sqrt(variance))
    assert result.noise.min() == pytest.approx(least**2)
    assert result.noise.max() == result.noise[0] == pytest.approx(16 / 16)
    assert result.bias[0] == 0
    assert (np.diff(result.bias[1:]) < 0).all()


def test_frontier_plans_for_sums() -> None:
    problem = fb.Problem(num_samples=[130] * 20, dim=40)
    result = fb.frontier(
        problem, PRICES, epsilons=[1], costs=[1000], trust="sum", colluders=2
    )
    plan = result.plans[0][0]
    assert plan is not None
    assert (plan.trust, plan.colluders) == ("sum", 2)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: planned(least_answers=201),
            "least_answers 201 is above the 200 devices",
        ),
        (
            lambda: planned(colluders=200),
            "colluders 200 must be below least_answers 200",
        ),
        (
            lambda: fb.Budget(**VALUES, trust="sum", least_answers=3, colluders=3),
            "colluders 3 must be below least_answers 3",
        ),
        (
            lambda: fb.Budget(**VALUES, least_answers=3),
            "least_answers 3 is for trust 'sum', got trust 'uploads'",
        ),
        (
            lambda: fb.Budget(**VALUES, colluders=1),
            "colluders 1 is for trust 'sum'",
        ),
        (lambda: planned(trust="nobody"), "trust 'nobody' is not known"),
        (lambda: planned(unit="house"), "unit 'house' is not known"),
        (lambda: planned(learning_rate=8.1), "learning_rate 8.1 is above 8"),
        (
            lambda: planned(fb.Problem(num_samples=[9] * 3, dim=2, loss="hinge")),
            "use loss 'smooth_hinge' instead of 'hinge'",
        ),
        (lambda: planned(planner="bound"), "planner 'bound' plans noise per step"),
        (lambda: planned(planner="paper"), "use planner 'joint'"),
        (lambda: planned(clip=-1.0), "clip must be above 0"),
        (lambda: planned(trust="uploads", clip=1.0), "clip 1 is for trust 'sum'"),
        (
            lambda: fb.plan(
                PROBLEM,
                fb.Budget(**VALUES, unit="device"),
                PRICES,
                accountant="pld",
            ),
            "do not protect a whole device",
        ),
        (
            lambda: fb.Prices(communication=1, computation=1, secure_round=-1),
            "secure_round must be at least 0",
        ),
    ],
)
def test_bad_input_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_the_device_as_the_unit_needs_no_smooth_loss() -> None:
    problem = fb.Problem(num_samples=[9] * 300, dim=4, loss="hinge")
    plan = planned(problem, unit="device", epsilon=8.0)
    plan.check_promise()


def test_trust_buys_a_smaller_epsilon_for_the_same_loss() -> None:
    problem = fb.Problem(num_samples=[130] * 50, dim=40)
    points: list[None] = []
    result = fb.compare_trust(
        problem,
        PRICES,
        epsilons=[1, 4],
        costs=[50, 500],
        on_point=lambda: points.append(None),
    )
    assert len(points) == 8
    # 50 does not pay for a round.
    assert np.isnan(result.equal_epsilon[:, 0]).all()
    small, large = result.equal_epsilon[:, 1]
    assert 0 < small < large < 4
    assert small < 0.5
    # The planner confirms it, up to the coarseness of the map.
    confirmed = planned(problem, epsilon=large, cost=500, delta=result.sums.delta)
    loss = result.uploads.predicted_loss[1, 1]
    assert confirmed.predicted_loss == pytest.approx(loss, rel=0.05)
    assert result.to_dict()["equal_epsilon"][0] == [None, small]


def test_dear_secure_rounds_may_need_any_epsilon() -> None:
    problem = fb.Problem(num_samples=[1300] * 2, dim=40)
    dear = fb.Prices(communication=100, computation=1, secure_round=300)
    result = fb.compare_trust(problem, dear, epsilons=[10], costs=[350])
    assert np.isinf(result.equal_epsilon[0, 0])
    assert result.to_dict()["equal_epsilon"] == [[None]]
