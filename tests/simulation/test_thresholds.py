"""The threshold by a charged query: what it estimates, and what it costs."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.simulation.thresholds import measure_threshold, plan_with_threshold
from tests import iot_tables as iot

DATA = fb.from_table(
    iot.alarms(8000, 10), label="alarm", device="sensor", schema=iot.ALARMS
)
BUDGET = fb.Budget(epsilon=4, delta=1e-4, cost=1000)
PRICES = fb.Prices(communication=100, computation=1)


def devices_of(kind: str) -> Any:
    if kind == "release":
        return fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
    return fb.SimulatedDevices(DATA, seed=0, budget=BUDGET, prices=PRICES)


@pytest.mark.parametrize("kind", ["simulation", "release"])
def test_the_share_is_estimated_and_charged(kind: str) -> None:
    devices = devices_of(kind)
    problem, threshold = measure_threshold(devices, DATA.problem(), BUDGET, PRICES)
    mu = problem.prior_mu
    # Noise of each device over its rows, averaged: below one in a billion beyond 6.5.
    sizes = DATA.num_samples
    deviation = np.sqrt(np.sum((2 / mu) ** 2)) / sizes.sum()
    share = float(DATA.train.y.mean())
    assert abs(threshold - share) < 6.5 * deviation
    assert 0.5 - threshold > 20 * deviation  # the query tells something
    # 5 % of mu squared, charged to every ledger with the price of a round.
    whole = fb.plan(DATA.problem(), BUDGET, PRICES).epsilon
    spent = devices.ledger.epsilon_at(np.full(10, 1e-4))
    assert (spent > 0).all() and (spent < whole).all()
    assert devices.ledger.cost.tolist() == [101.0] * 10
    assert devices.data is DATA  # the rows are as before


@pytest.mark.parametrize("kind", ["simulation", "release"])
def test_query_and_run_stay_within_the_budgets(kind: str, tmp_path: Any) -> None:
    devices = devices_of(kind)
    _, plan = plan_with_threshold(devices, DATA.problem(), BUDGET, PRICES)
    assert (plan.epsilon <= 4).all() and (plan.cost <= 1000).all()
    run = fb.train(plan, devices, record=tmp_path / "run")
    assert len(run.rounds) == plan.rounds and not run.rounds[-1].refused
    assert (run.rounds[-1].epsilon <= 4).all() and (run.rounds[-1].cost <= 1000).all()
    assert (run.rounds[-1].epsilon > 3.9).all()  # the query is in it, once
    model = fb.LinearModel.from_run(tmp_path / "run")
    assert model.threshold == plan.threshold != 0.5


def test_a_device_that_cannot_pay_is_not_read() -> None:
    poor = fb.Budget(epsilon=4, delta=1e-4, cost=50)
    devices = fb.SimulatedDevices(DATA, seed=0, budget=poor, prices=PRICES)
    with pytest.raises(InfeasibleBudgetError):
        measure_threshold(devices, DATA.problem(), BUDGET, PRICES)
    assert (devices.ledger.cost == 0).all()


def test_a_threshold_is_for_two_classes() -> None:
    data = fb.from_table(
        iot.watches(600, 6), label="activity", device="person", schema=iot.WATCHES
    )
    devices = fb.SimulatedDevices(data, seed=0)
    with pytest.raises(InvalidInputError, match="two classes"):
        measure_threshold(devices, data.problem(), BUDGET, PRICES)
    assert (devices.ledger.cost == 0).all()


def test_every_round_is_judged_by_the_threshold() -> None:
    data = fb.from_table(
        iot.alarms(2000, 10), label="alarm", device="sensor", schema=iot.ALARMS
    )
    budget = fb.Budget(epsilon=10, delta=1e-4, cost=1000)
    plan = fb.plan(data.problem(), budget, fb.Prices(communication=100, computation=1))
    run = fb.train(replace(plan, threshold=0.01), fb.SimulatedDevices(data, seed=0))
    again = fb.train(plan, fb.SimulatedDevices(data, seed=0))
    for one, other in zip(run.rounds, again.rounds, strict=True):
        assert one.measured["test_loss"] == other.measured["test_loss"]
        assert one.measured["test_accuracy"] != other.measured["test_accuracy"]
    scores = plan.model.scores(run.theta, data.test.x)
    hits = (1 / (1 + np.exp(-scores)) > 0.01) == data.test.y
    mean = np.mean([hits[a:b].mean() for a, b in pairwise(data.test.offsets)])
    assert run.measured["test_accuracy"] == pytest.approx(mean)
