"""Every plan is feasible, states its guarantee, and explains itself."""

import json
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings, strategies as st

import fedbudget as fb
from fedbudget.losses import Huber
from fedbudget.planning.planner import PLANNERS
from fedbudget.privacy import dp_event

ADULT = fb.Problem(num_samples=[1628] * 16, dim=102, dissimilarity="iid")
BUDGET = fb.Budget(epsilon=4.0, delta=1e-4, cost=1000)
PRICES = fb.Prices(communication=100, computation=1)

positive = st.floats(1e-2, 1e4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[fb.Problem, fb.Budget, fb.Prices]:
    """Draw a fleet of up to 5 devices with budgets and prices of their own."""
    count = draw(st.integers(1, 5))

    def scalar_or_list(values: st.SearchStrategy[float]) -> Any:
        return draw(values | st.lists(values, min_size=count, max_size=count))

    loss = draw(
        st.sampled_from(["logistic", "softmax", "hinge", "smooth_hinge", "huber"])
    )
    problem = fb.Problem(
        num_samples=draw(
            st.lists(st.integers(1, 10**5), min_size=count, max_size=count)
        ),
        dim=draw(st.integers(1, 300)),
        loss=loss,
        num_classes=draw(st.integers(2, 12)) if loss == "softmax" else None,
        l2=draw(st.sampled_from([0.0, 1e-3, 0.1])),
        dissimilarity=draw(st.sampled_from(["iid", "strong"]) | st.floats(0, 2)),
    )
    budget = fb.Budget(
        epsilon=scalar_or_list(st.floats(1e-2, 50)),
        delta=scalar_or_list(st.floats(1e-9, 0.1)),
        cost=scalar_or_list(st.floats(1, 1e5)),
    )
    prices = fb.Prices(
        communication=scalar_or_list(st.just(0.0) | positive),
        computation=scalar_or_list(st.just(0.0) | positive),
        computation_per_sample=draw(st.sampled_from([0.0, 0.0, 0.01])),
    )
    return problem, budget, prices


def check_feasible(plan: fb.Plan, problem: fb.Problem, budget: fb.Budget) -> None:
    budget = budget.for_rows(problem.num_samples)
    epsilon, delta, cost = budget.per_device(problem.num_devices)
    assert (plan.epsilon <= epsilon).all() and (plan.cost <= cost).all()
    selected = plan.weights > 0
    if epsilon.min() > 1e-3:  # below, delta alone already allows some noise level
        assert (plan.epsilon >= 0.99 * epsilon)[selected].all()
    assert (plan.epsilon[~selected] == 0).all() and (plan.cost[~selected] == 0).all()
    assert plan.device_rounds.max() == plan.rounds
    assert plan.steps == plan.tau * plan.rounds >= 1
    assert plan.weights.sum() == pytest.approx(1) and (plan.weights >= 0).all()
    assert (plan.batch_size >= 1).all()
    assert (plan.batch_size <= problem.num_samples).all()
    assert np.isfinite(plan.noise_std).all() and (plan.delta == delta).all()
    assert np.isfinite([plan.predicted_loss, plan.epsilon_price, plan.cost_price]).all()
    assert plan.epsilon_price >= 0 and plan.cost_price >= 0


@settings(max_examples=150)
@given(
    case=cases(),
    planner=st.sampled_from(sorted(PLANNERS)),
    accountant=st.sampled_from(["gdp", "zcdp"]),
    weights=st.sampled_from(["auto", "uniform", "size"]),
)
def test_every_plan_is_feasible(
    case: tuple[fb.Problem, fb.Budget, fb.Prices],
    planner: str,
    accountant: str,
    weights: str,
) -> None:
    problem, budget, prices = case
    one_step = prices.run_cost(rounds=1, tau=1, batch_size=1)
    try:
        plan = fb.plan(
            problem,
            budget,
            prices,
            planner=planner,
            accountant=accountant,
            weights=weights,
        )
    except fb.InfeasibleBudgetError:
        assert np.any(one_step > budget.cost)
        return
    check_feasible(plan, problem, budget)
    paid = prices.run_cost(
        rounds=plan.device_rounds, tau=plan.tau, batch_size=plan.batch_size
    )
    assert plan.cost == pytest.approx(paid)


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), accountant=st.sampled_from(["gdp", "zcdp"]))
def test_plans_of_thousands_of_heterogeneous_devices_are_feasible(
    seed: int, accountant: str
) -> None:
    rng = np.random.default_rng(seed)
    num_devices = 3000
    problem = fb.Problem(num_samples=rng.integers(1, 10**5, num_devices), dim=30)
    prices = fb.Prices(
        communication=rng.uniform(0, 100, num_devices),
        computation=rng.uniform(0, 10, num_devices),
    )
    budget = fb.Budget(
        epsilon=10 ** rng.uniform(-2, 2, num_devices),
        delta=10 ** rng.uniform(-9, -1, num_devices),
        cost=rng.uniform(200, 2000, num_devices),
    )
    plan = fb.plan(problem, budget, prices, accountant=accountant)
    check_feasible(plan, problem, budget)


@settings(max_examples=8)
@given(epsilon=st.floats(0.5, 8), cost=st.floats(150, 2000), device=st.integers(0, 2))
def test_a_gdp_plan_spends_all_of_epsilon_by_googles_count(
    epsilon: float, cost: float, device: int
) -> None:
    problem = fb.Problem(num_samples=[51, 1628, 10_000], dim=102)
    budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=cost)
    plan = fb.plan(problem, budget, PRICES, weights="uniform")  # so that all take part
    google = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    google.compose(dp_event(plan.gradients, device))
    # Its distribution is discretised upwards, by up to 1e-4 in epsilon.
    assert 0.99 * epsilon <= google.get_epsilon(1e-4) <= epsilon + 2e-4


def test_a_sampled_plan_is_within_budget() -> None:
    plan = fb.plan(ADULT, BUDGET, PRICES, accountant="pld", batch_size=256)
    assert plan.sampling == "poisson"
    check_feasible(plan, ADULT, BUDGET)
    unsampled = fb.plan(ADULT, BUDGET, PRICES, accountant="gdp", batch_size=256)
    assert unsampled.sampling == "fixed"
    assert plan.noise_std[0] / plan.steps**0.5 < unsampled.noise_std[0] / 5


@settings(max_examples=10)
@given(
    epsilon=st.floats(0.5, 8),
    accountant=st.sampled_from(["gdp", "zcdp"]),
    batch=st.sampled_from([None, 40, [30, 1628, 1234]]),
    device=st.integers(0, 2),
)
def test_a_cyclic_plan_spends_all_of_epsilon_by_googles_count(
    epsilon: float, accountant: str, batch: Any, device: int
) -> None:
    problem = fb.Problem(num_samples=[51, 1628, 10_000], dim=102)
    budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=1000)
    prices = fb.Prices(communication=10, computation=0, computation_per_sample=0.1)
    plan = fb.plan(
        problem,
        budget,
        prices,
        accountant=accountant,
        batch_size=batch,
        weights="uniform",
    )
    assert plan.sampling == "cyclic"
    check_feasible(plan, problem, budget)
    plan.check_promise()
    steps = int(plan.tau * plan.device_rounds[device])
    laps = -(-steps // int(plan.num_samples[device] // plan.batch_size[device]))
    noise = float(plan.noise_multiplier[device])
    google = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    google.compose(dp_accounting.GaussianDpEvent(noise), laps)
    again = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    again.compose(dp_event(plan.gradients, device))
    assert again.get_epsilon(1e-4) == google.get_epsilon(1e-4) <= epsilon + 2e-4
    if accountant == "gdp":
        assert google.get_epsilon(1e-4) >= 0.99 * epsilon


def test_batches_are_cyclic_where_samples_have_a_price() -> None:
    prices = fb.Prices(communication=20, computation=0, computation_per_sample=0.1)
    plan = fb.plan(ADULT, BUDGET, prices)
    assert plan.sampling == "cyclic" and (plan.blocks > 1).all()
    assert any("disjoint batches are taken in turn" in text for text in plan.reasons)
    fixed = fb.plan(ADULT, BUDGET, prices, sampling="fixed")
    assert fixed.sampling == "fixed"
    assert plan.predicted_loss < fixed.predicted_loss
    for other in (
        fb.plan(ADULT, BUDGET, PRICES, batch_size=256),  # as it was without a price
        fb.plan(ADULT, BUDGET, prices, planner="paper", batch_size=256),
        fb.plan(ADULT, BUDGET, prices, batch_size=1000),  # no two fit into a device
    ):
        assert other.sampling == "fixed"
    cyclic = fb.plan(ADULT, BUDGET, PRICES, batch_size=256, sampling="cyclic")
    assert cyclic.sampling == "cyclic" and (cyclic.blocks == 6).all()


def test_a_cyclic_plan_with_too_little_noise_is_refused() -> None:
    plain = fb.plan(ADULT, BUDGET, PRICES, batch_size=256, sampling="cyclic").to_dict()
    for changes in (
        {"sampling": "fixed"},
        {"batch_size": [257] * 16, "num_samples": [800] * 16},  # fewer blocks
        {"batch_size": [200] * 16},
        {"rounds": 2 * plain["rounds"]},
    ):
        with pytest.raises(fb.InvalidInputError, match="plan states"):
            fb.Plan.from_dict({**plain, **changes})
    assert fb.Plan.from_dict(plain).to_dict() == plain


def test_planning_is_pure() -> None:
    first, second = (fb.plan(ADULT, BUDGET, PRICES) for _ in range(2))
    assert first.to_dict() == second.to_dict()


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_a_plan_survives_json(planner: str) -> None:
    plan = fb.plan(ADULT, BUDGET, PRICES, planner=planner)
    plain = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert fb.Plan.from_dict(plain).to_dict() == plan.to_dict()
    with pytest.raises(fb.InvalidInputError, match="missing or unknown: tau"):
        fb.Plan.from_dict({key: value for key, value in plain.items() if key != "tau"})


@pytest.mark.parametrize("planner", sorted(PLANNERS))
def test_a_plan_has_reasons_and_binding_budgets(planner: str) -> None:
    plan = fb.plan(ADULT, BUDGET, PRICES, planner=planner)
    assert len(plan.reasons) >= 3
    assert set(plan.binding) <= {"privacy", "cost"}
    assert "replace one sample" in str(plan.privacy)


def test_the_binding_budget_follows_the_budgets() -> None:
    def binding(epsilon: float, cost: float) -> tuple[str, ...]:
        budget = fb.Budget(epsilon=epsilon, delta=1e-4, cost=cost)
        return fb.plan(ADULT, budget, PRICES).binding

    assert binding(0.1, 1e5) == ("privacy",)
    assert "cost" in binding(50, 130)
    assert binding(1e4, 1e6) == ()


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (fb.Budget(epsilon=[4.0, 101.0, 4.0], cost=1000), "epsilon 101 of device 1 is"),
        (fb.Budget(epsilon=4, delta=0.01, cost=1000), "delta 0.01 is not below one"),
        (fb.Budget(epsilon=1e12, cost=1e100), "weak guarantee"),  # the largest
        (fb.Budget(epsilon=[4.0, 10.1, 4.0], cost=1000), "epsilon 10.1 of device 1"),
    ],
)
def test_a_plan_warns_of_a_weak_guarantee(budget: fb.Budget, text: str) -> None:
    problem = fb.Problem(num_samples=[100, 200, 300], dim=5)
    reasons = fb.plan(problem, budget, PRICES).reasons
    assert len([reason for reason in reasons if text in reason]) == 1
    good = fb.plan(problem, fb.Budget(epsilon=10, cost=1000), PRICES).reasons
    assert not any("promise" in reason or "delta" in reason for reason in good)


def test_heterogeneous_devices_take_fewer_local_steps() -> None:
    def tau(dissimilarity: float) -> int:
        problem = fb.Problem(
            num_samples=ADULT.num_samples, dim=102, dissimilarity=dissimilarity
        )
        return fb.plan(problem, BUDGET, PRICES, drift_correction=False).tau

    assert tau(0.1) > tau(0.35) > tau(1.0)


def test_drift_is_corrected_if_it_matters_and_is_allowed() -> None:
    def problem(dissimilarity: str) -> fb.Problem:
        sizes = ADULT.num_samples
        return fb.Problem(num_samples=sizes, dim=102, dissimilarity=dissimilarity)

    corrected = fb.plan(problem("strong"), BUDGET, PRICES)
    assert corrected.drift_correction
    assert any("drift correction" in reason for reason in corrected.reasons)
    without = fb.plan(problem("strong"), BUDGET, PRICES, drift_correction=False)
    assert not without.drift_correction
    assert without.tau < corrected.tau
    assert without.predicted_loss > corrected.predicted_loss
    low = fb.Budget(epsilon=0.3, delta=1e-4, cost=1000)
    assert not fb.plan(problem("iid"), low, PRICES).drift_correction


def test_noisy_devices_have_smaller_weights() -> None:
    problem = fb.Problem(num_samples=[10_000, 10_000, 50], dim=102)
    plan = fb.plan(problem, BUDGET, PRICES)
    assert plan.weights[2] < plan.weights[0] / 4
    personal = fb.plan(
        ADULT,
        fb.Budget(epsilon=[0.1] + [4.0] * 15, cost=1000),
        PRICES,
    )
    assert personal.weights[0] < personal.weights[1] / 4
    assert personal.noise_std[0] > 10 * personal.noise_std[1]


def test_priced_samples_make_batches_smaller() -> None:
    prices = fb.Prices(communication=10, computation=0, computation_per_sample=0.1)
    plan = fb.plan(ADULT, fb.Budget(epsilon=50, cost=1000), prices)
    assert plan.batch_size.max() < 1628
    check_feasible(plan, ADULT, fb.Budget(epsilon=50, cost=1000))


def test_the_learning_rate_stays_stable() -> None:
    for epsilon in (1, 10):
        for smoothness in (0.25, 0.05):
            problem = ADULT.with_constants(
                smoothness=fb.Constant(value=smoothness, source="assumed")
            )
            plan = fb.plan(problem, fb.Budget(epsilon=epsilon, cost=1000), PRICES)
            assert plan.learning_rate * smoothness < 2


def test_arguments_are_used() -> None:
    sizes = np.arange(100, 116)
    plan = fb.plan(ADULT, BUDGET, PRICES, batch_size=sizes, learning_rate=0.5)
    assert plan.learning_rate == 0.5
    assert (plan.batch_size == sizes).all()
    uniform = fb.plan(ADULT, BUDGET, PRICES, weights="uniform")
    assert (uniform.weights == 1 / 16).all()


def test_sampling_is_not_planned_by_a_private_measurement() -> None:
    measured = fb.Constant(value=0.2, source="measured privately", release="q", mu=0.1)
    problem = fb.Problem(num_samples=[800, 1600], dim=10).with_constants(
        smoothness=measured
    )
    budget = fb.Budget(epsilon=1.0, delta=1e-5, cost=500)
    with pytest.raises(fb.InvalidInputError, match="no theorem composes sampled steps"):
        fb.plan(problem, budget, PRICES, accountant="pld", batch_size=[50, 200])


def test_an_invalid_plan_is_refused() -> None:
    plain = fb.plan(ADULT, BUDGET, PRICES).to_dict()
    for changes, message in (
        (
            {"noise_std": [1e-9] * 16},
            "would spend epsilon .* not 4 as this plan states",
        ),
        ({"rounds": 2 * plain["rounds"]}, "plan states"),
        ({"delta": [2.0] * 16}, "delta must be above 0 and below 1"),
        ({"weights": [5.0] * 16}, "weights must sum to 1"),
        ({"weights": 1.0}, "16 entries, but there are 1 weights"),
        ({"sampling": "lucky"}, "sampling 'lucky' is not known"),
        ({"accountant": "mine"}, "accountant 'mine' is not known"),
        ({"batch_size": [64.9] * 16}, "batch_size must be whole numbers"),
        (
            {"batch_size": [*plain["batch_size"][:2], 9, *plain["batch_size"][3:]]},
            "'full', but batch_size 9 of device 2 is below its [0-9]+ samples: raise",
        ),
        ({"binding": "privacy"}, "binding must be a list"),
        ({"dim": "x"}, "dim must be a whole number of at least 1, got 'x'"),
        ({"dim": -3}, "dim must be a whole number of at least 1, got -3"),
        ({"num_classes": "a"}, "num_classes must be a whole number"),
        ({"learning_rate": [1, 2]}, "learning_rate must be one number"),
        ({"learning_rate": "4"}, "learning_rate must be a number"),
        ({"momentum": None}, "momentum must be at least 0"),
        ({"l2": "a"}, "l2 must be a number"),
        ({"lipschitz": None}, "lipschitz must be above 0"),
        (
            {"drift_correction": "no"},
            "drift_correction must be true or false, got 'no'",
        ),
        ({"epsilon": 5}, "epsilon must be a list, one per device, got 5"),
        ({"epsilon": None}, "epsilon must be a list"),
        ({"noise_std": "abc"}, "noise_std must be a number, or one number per device"),
        ({"noise_std": ["1"] * 16}, "noise_std must be a number, or one number"),
        ({"noise_std": [None] * 16}, "noise_std must be at least 0 and finite"),
        ({"num_samples": [1e30] * 16}, "num_samples must be at least 0 and at most"),
        ({"weights": [[1.0]]}, "weights must be a number or a flat list"),
        ({"loss": 3}, "loss 3 is not known"),
        ({"accountant": ["gdp"]}, "accountant .* is not known"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            fb.Plan.from_dict({**plain, **changes})
    with pytest.raises(fb.InvalidInputError, match="device 99 does not exist"):
        dp_event(fb.plan(ADULT, BUDGET, PRICES).gradients, device=99)


def test_planned_weights_may_aim_at_every_sample() -> None:
    problem = fb.Problem(
        num_samples=[100, 1000, 10_000], dim=10, dissimilarity="strong"
    )
    high = fb.Budget(epsilon=1e3, cost=1000)  # hardly any noise: the target itself
    share = problem.num_samples / problem.num_samples.sum()
    assert fb.plan(problem, high, PRICES).weights == pytest.approx(1 / 3, abs=0.02)
    aimed = fb.plan(problem, high, PRICES, target="size")
    assert aimed.weights == pytest.approx(share, abs=0.02)
    # Noise moves the weights off the target: the small device adds too much of it.
    low = fb.Budget(epsilon=1.0, cost=1000)
    noisy = fb.plan(problem, low, PRICES, target="size").weights
    assert noisy[0] < 0.9 * share[0] and noisy != pytest.approx(share)
    uniform = fb.plan(problem, low, PRICES).weights
    assert noisy[2] > uniform[2]
    for planner in ("bound", "paper"):
        plan = fb.plan(problem, low, PRICES, planner=planner, target="size")
        assert plan.weights == pytest.approx(share)
    same = fb.plan(problem, low, PRICES, weights="size", target="size")
    assert same.weights == pytest.approx(share)


def test_expensive_samples_still_allow_an_affordable_batch() -> None:
    prices = fb.Prices(communication=100, computation=1, computation_per_sample=1)
    for planner in PLANNERS:
        plan = fb.plan(ADULT, BUDGET, prices, planner=planner)
        assert plan.batch_size.max() < 1628
        check_feasible(plan, ADULT, BUDGET)


def test_a_large_delta_is_warned_of() -> None:
    problem = fb.Problem(num_samples=[1_000_000], dim=5)
    plan = fb.plan(problem, BUDGET, PRICES)
    assert any("delta 0.0001 is not below one over" in text for text in plan.reasons)
    problem = fb.Problem(num_samples=[51, 8400], dim=5)
    plan = fb.plan(problem, BUDGET, PRICES)
    hardly = "delta 0.0001 is hardly below one over the 8400 samples of device 1"
    assert any(hardly in text for text in plan.reasons)


def test_a_delta_that_is_not_given_is_planned_for_the_largest_device() -> None:
    problem = fb.Problem(num_samples=[51, 8400], dim=5)
    budget = fb.Budget(epsilon=4, cost=1000)
    plan = fb.plan(problem, budget, PRICES)
    assert plan.delta.tolist() == [1e-5, 1e-5]
    assert "(4, 1e-05)-differential privacy" in str(plan.privacy)
    assert not any("delta" in text for text in plan.reasons)
    grid = fb.frontier(problem, PRICES, epsilons=[4], costs=[1000])
    assert grid.delta == grid.to_dict()["delta"] == 1e-5
    (same,) = grid.plans[0]
    assert same is not None and same.to_dict() == plan.to_dict()


class TestBadInput:
    """One line each: the name, the value, the limit, the remedy."""

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"planner": "best"}, "planner 'best' is not known: choose one of"),
            ({"accountant": "rdp"}, "accountant 'rdp' is not known"),
            ({"weights": "random"}, "weights 'random' is not known"),
            ({"target": "auto"}, "target 'auto' is not known: choose one of uniform"),
            (
                {"weights": "uniform", "target": "size"},
                "weights 'uniform' are their own target, not 'size'",
            ),
            ({"sampling": "lucky"}, "sampling 'lucky' is not known"),
            ({"sampling": "cyclic", "accountant": "pld"}, "not for cyclic ones"),
            (
                {"sampling": "cyclic", "planner": "paper"},
                "does not support cyclic batches",
            ),
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"batch_size": 1.5}, "batch_size must be a whole number"),
            ({"batch_size": [5, 5]}, "2 values but there are 16 devices"),
            ({"batch_size": [9999] * 16}, "9999 of device 0 is above its 1628 samples"),
            ({"learning_rate": 0}, "learning_rate must be above 0"),
            ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
            ({"batch_size": 9999}, "9999 of device 0 is above its 1628 samples"),
            ({"learning_rate": [1, 2]}, "learning_rate must be one number"),
            ({"learning_rate": 10_000}, "every plan diverges: use at most [0-9.]+,"),
            ({"learning_rate": 5, "planner": "paper"}, "use at most 4"),
            ({"learning_rate": 5, "planner": "bound"}, "use at most 4"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(fb.InvalidInputError, match=message):
            fb.plan(ADULT, BUDGET, PRICES, **options)

    def test_a_cost_below_one_round(self) -> None:
        budget = fb.Budget(epsilon=1, cost=[1000] * 3 + [50] + [1000] * 12)
        with pytest.raises(
            fb.InfeasibleBudgetError,
            match=r"cost budget 50 of device 3 is below .* 101: raise the budget",
        ):
            fb.plan(ADULT, budget, PRICES)

    def test_lists_of_another_length(self) -> None:
        budget = fb.Budget(epsilon=[1, 2], cost=1000)
        with pytest.raises(fb.InvalidInputError, match="2 values but there are 16"):
            fb.plan(ADULT, budget, PRICES)

    @pytest.mark.parametrize("planner", sorted(PLANNERS))
    @pytest.mark.parametrize(
        "prices",
        [
            fb.Prices(communication=0, computation=0),
            fb.Prices(communication=0, computation=1),
            fb.Prices(communication=100, computation=0),
        ],
        ids=str,
    )
    def test_zero_prices_give_a_sensible_plan(
        self, planner: str, prices: fb.Prices
    ) -> None:
        plan = fb.plan(ADULT, BUDGET, prices, planner=planner)
        check_feasible(plan, ADULT, BUDGET)

    @pytest.mark.parametrize("planner", sorted(PLANNERS))
    def test_one_device_with_one_sample(self, planner: str) -> None:
        problem = fb.Problem(num_samples=[1], dim=1)
        plan = fb.plan(problem, BUDGET, PRICES, planner=planner)
        check_feasible(plan, problem, BUDGET)

    @pytest.mark.parametrize("planner", sorted(PLANNERS))
    @pytest.mark.parametrize(
        "epsilon, cost", [(1e-300, 101), (1e-6, 101), (1e6, 1e12), (1e-3, 1e12)]
    )
    def test_tiny_and_huge_budgets(
        self, planner: str, epsilon: float, cost: float
    ) -> None:
        budget = fb.Budget(epsilon=epsilon, delta=1e-9, cost=cost)
        check_feasible(fb.plan(ADULT, budget, PRICES, planner=planner), ADULT, budget)


def test_a_plan_cannot_lower_the_lipschitz_bound() -> None:
    plain = fb.plan(fb.Problem(num_samples=[900], dim=3), BUDGET, PRICES).to_dict()
    plain |= {"lipschitz": 0.1, "noise_std": [0.1 * x for x in plain["noise_std"]]}
    with pytest.raises(fb.InvalidInputError, match=r"0\.1 is below the 1 of loss"):
        fb.Plan.from_dict(plain)
    # A plan names its loss: devices would clip slopes at 1, not at this threshold.
    problem = fb.Problem(num_samples=[900], dim=3, loss=Huber(threshold=0.1))
    with pytest.raises(fb.InvalidInputError, match="plan with the loss by name"):
        fb.plan(problem, BUDGET, PRICES)
    for other in (Huber(threshold=2.0), Huber(label_bound=5.0)):
        problem = fb.Problem(num_samples=[900], dim=3, loss=other)
        with pytest.raises(fb.InvalidInputError, match="plan with the loss by name"):
            fb.plan(problem, BUDGET, PRICES)
    same = fb.Problem(num_samples=[900], dim=3, loss=Huber())
    assert fb.plan(same, BUDGET, PRICES).model == Huber()


def test_the_range_holds_the_prediction_and_is_stored() -> None:
    problem = fb.Problem(num_samples=[500] * 8, dim=30)
    best = fb.plan(problem, fb.Budget(epsilon=2, cost=1000), PRICES)
    assert best.predicted_range is not None
    low, high = best.predicted_range
    assert 0 < low < best.predicted_loss < high
    stored = json.loads(json.dumps(best.to_dict()))
    assert fb.Plan.from_dict(stored).predicted_range == best.predicted_range
    del stored["predicted_range"]  # as earlier versions stored it
    assert fb.Plan.from_dict(stored).predicted_range == (best.predicted_loss,) * 2
    with pytest.raises(fb.InvalidInputError, match="a list of two numbers"):
        fb.Plan.from_dict({**stored, "predicted_range": [1.0]})


def test_no_member_of_the_family_alone_decides() -> None:
    # The mean loss of the plan over the family is at most that of each member's best.
    problem = fb.Problem(num_samples=[500] * 8, dim=30)
    budget = fb.Budget(epsilon=2, delta=1e-4, cost=1000)
    robust = fb.plan(problem, budget, PRICES)
    for share in (0.6, 0.75, 0.95):
        known = fb.Constant(value=share, source="stated")
        other = fb.plan(problem.with_constants(spike_share=known), budget, PRICES)
        fixed = fb.plan(problem, budget, PRICES, learning_rate=other.learning_rate)
        assert robust.predicted_loss <= fixed.predicted_loss * 1.003


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
@pytest.mark.parametrize("dim", [5, 60, 600])
def test_no_plan_of_one_step_where_more_is_predicted_to_be_better(
    epsilon: float, dim: int
) -> None:
    problem = fb.Problem(num_samples=[300] * 20, dim=dim)
    best = fb.plan(problem, fb.Budget(epsilon=epsilon, cost=1000), PRICES)
    assert best.steps > 1
