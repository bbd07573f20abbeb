"""Rounds that are simulated ahead are those that the loop would have ordered."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.simulation import lookahead
from fedbudget.simulation.kernels import runs
from fedbudget.training import Order
from tests.examples import honest, plain, small_data

DATA = small_data(devices=4, rows=200, unlike=1.0)
BUDGET = fb.Budget(epsilon=4.0, delta=1e-4, cost=3000)
PRICES = fb.Prices(communication=100, computation=1)
PLAN = honest(
    fb.plan(DATA.problem(), BUDGET, PRICES, drift_correction=False),
    rounds=9,
    momentum=0.37,
)
DRIFT = replace(PLAN, drift_correction=True)
EARLY = replace(PLAN, last_round=np.array([3, 9, 5, 9]))
SUM = replace(
    fb.plan(DATA.problem(), replace(BUDGET, trust="sum"), PRICES),
    momentum=0.37,
    server_rate=1.3,
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds of every call of the kernels."""
    calls: list[int] = []
    original = runs.simulate

    def counting(*arguments: Any, rounds: int, **options: Any) -> Any:
        calls.append(rounds)
        return original(*arguments, rounds=rounds, **options)

    monkeypatch.setattr(lookahead, "simulate", counting)
    return calls


@pytest.mark.parametrize("plan", [PLAN, DRIFT], ids=["plain", "drift"])
def test_a_run_is_one_call_of_the_kernels(plan: fb.Plan, calls: list[int]) -> None:
    run = fb.train(plan, fb.SimulatedDevices(DATA, seed=1))
    assert calls == [9]
    assert len(run.rounds) == 9


def test_a_run_in_which_orderedstop_early_is_one_call_per_stage(
    calls: list[int],
) -> None:
    fb.train(EARLY, fb.SimulatedDevices(DATA, seed=1))
    assert calls == [3, 2, 4]


@pytest.mark.parametrize("participation", [1.0, 0.8])
@pytest.mark.parametrize(
    "plan", [PLAN, DRIFT, EARLY, SUM], ids=["plain", "drift", "early", "sum"]
)
def test_it_gives_the_bits_of_one_round_at_a_time(
    plan: fb.Plan, participation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> fb.Run:
        devices = fb.SimulatedDevices(DATA, seed=1, participation=participation)
        return fb.train(plan, devices)

    ahead = run()
    monkeypatch.setattr(lookahead, "_SECONDS", 0.0)
    single = run()
    assert np.array_equal(ahead.theta, single.theta)
    assert plain(ahead.rounds) == plain(single.rounds)


def test_a_refusal_that_was_not_foreseen(calls: list[int]) -> None:
    budget = fb.Budget(epsilon=[4.0, 4.0, 1.0, 4.0], cost=3000)
    devices = fb.SimulatedDevices(DATA, seed=1, budget=budget, prices=PRICES)
    run = fb.train(PLAN, devices)
    answers = [done.answered for done in run.rounds]
    assert answers[0] == 4 and answers[-1] == 3
    assert calls[0] == 9 and calls[1] == 1  # simulated in vain, then with care
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookahead, "_SECONDS", 0.0)
        devices = fb.SimulatedDevices(DATA, seed=1, budget=budget, prices=PRICES)
        assert np.array_equal(run.theta, fb.train(PLAN, devices).theta)


@pytest.mark.parametrize("plan", [PLAN, DRIFT], ids=["plain", "drift"])
def test_another_order_than_the_foreseen_one_is_carried_out(plan: fb.Plan) -> None:
    devices = fb.SimulatedDevices(DATA, seed=1)
    devices.begin(plan)
    zero = np.zeros(DATA.dim)
    first = devices.run_round(Order(number=1, theta=zero, velocity=zero, plan=plan))
    other = np.ones(DATA.dim)
    orders = [
        Order(number=2, theta=theta, velocity=zero, plan=changed, state=first.state)
        for theta, changed in (
            (other, plan),
            (first.theta, replace(plan, learning_rate=plan.learning_rate / 2)),
        )
    ]
    for order in orders:
        fresh = fb.SimulatedDevices(DATA, seed=1)
        fresh.begin(plan)
        expected = fresh.run_round(order).theta
        ordered = fb.SimulatedDevices(DATA, seed=1)
        ordered.begin(plan)
        ordered.run_round(Order(number=1, theta=zero, velocity=zero, plan=plan))
        assert np.array_equal(ordered.run_round(order).theta, expected)


def test_a_server_with_unknown_momentum_is_not_foreseen(calls: list[int]) -> None:
    devices = fb.SimulatedDevices(DATA, seed=1)
    devices.begin(PLAN)
    devices.run_round(Order(number=1, theta=np.zeros(DATA.dim), plan=PLAN))
    assert calls == [1]


def test_any_model_can_be_measured_at_any_time() -> None:
    devices = fb.SimulatedDevices(DATA, seed=1)
    with pytest.raises(fb.InvalidInputError, match="begin a run first"):
        devices.measure(np.zeros(DATA.dim))
    run = fb.train(PLAN, devices)
    assert devices.measure(np.zeros(DATA.dim))["train_loss"] == pytest.approx(np.log(2))
    measured = devices.measure(run.theta)
    assert "test_loss" in measured and measured.items() <= run.measured.items()


def test_measurements_can_be_changed_by_those_who_get_them() -> None:
    devices = fb.SimulatedDevices(DATA, seed=1)
    run = fb.train(PLAN, devices, personal=True)
    assert "personal_test_loss" in run.measured
    measured = devices.measure(run.theta)
    assert "personal_test_loss" not in measured
    measured.clear()
    assert devices.measure(run.theta)
