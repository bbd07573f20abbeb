"""Attack: learn one device's upload from a sum of few answers.

A server that may see the sum of fewer than t answers subtracts what its colluders sent,
and is left with one upload and one share of noise. Devices promise that it never sees
such a sum. Here answers are lost until fewer than t remain.
"""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.planning.shared_noise import SumSchedule, shared_noise_plan
from fedbudget.release.rows import exact_rows
from fedbudget.release.uploads import UploadRounds
from fedbudget.training import Order
from tests.examples import small_data

DATA = small_data(devices=8, rows=30)
PLAN = shared_noise_plan(
    DATA.problem(),
    fb.Budget(epsilon=2.0, delta=1e-5, cost=1000),
    fb.Prices(communication=20, computation=1),
    SumSchedule(tau=5, rounds=20, learning_rate=2.0, least_answers=6, colluders=2),
)


def test_no_model_is_computed_from_fewer_answers_than_the_plan_says() -> None:
    devices = fb.SimulatedDevices(DATA, participation=0.7, seed=2)
    devices.begin(PLAN)
    unseen = seen = 0
    for number in range(1, 21):
        theta = np.full(DATA.dim, float(number))
        order = Order(number=number, theta=theta, plan=PLAN)
        replies = devices.run_round(order)
        count = int(replies.answered.sum())
        assert count == 0 or count >= 6
        if count == 0:
            unseen += 1
            assert (replies.theta == theta).all()
        else:
            seen += 1
            assert (replies.theta != theta).any()
    assert unseen > 3
    assert seen > 3
    # A round whose sum nobody sees is charged like the others.
    assert devices.ledger.epsilon_at(1e-5) == pytest.approx(PLAN.epsilon, rel=1e-9)


def test_no_model_is_released_from_fewer_answers_than_the_plan_says() -> None:
    # Three of eight devices have no budget left: a sum of five is never computed.
    epsilon = [2.0] * 5 + [0.1] * 3
    budget = fb.Budget(epsilon=epsilon, delta=1e-5, cost=1000, trust="sum")
    devices = fb.ReleaseDevices(DATA, budget=budget)
    devices.begin(PLAN)
    theta = np.arange(float(DATA.dim))
    for number in range(1, 4):
        replies = devices.run_round(Order(number=number, theta=theta, plan=PLAN))
        assert not replies.answered.any() and (replies.theta == theta).all()
        assert sorted(replies.refused) == [5, 6, 7]
    assert (devices.ledger.epsilon_at(1e-5)[:5] > 0).all()


def test_the_sum_of_a_release_refuses_too_few_devices() -> None:
    packed = exact_rows(DATA.train, PLAN.model)
    rounds = UploadRounds.of(PLAN, packed)
    none = np.zeros(0, dtype=np.uint32)
    with pytest.raises(fb.InvalidInputError, match="5 devices answered, below"):
        rounds.model_after(np.zeros(DATA.dim), np.arange(5), first_step=0, deal=none)


def test_a_plan_cannot_lower_the_number_without_more_noise() -> None:
    with pytest.raises(fb.InvalidInputError, match="would spend epsilon"):
        replace(PLAN, least_answers=5).check_promise()
    with pytest.raises(fb.InvalidInputError, match="must be below least_answers"):
        replace(PLAN, least_answers=2)
