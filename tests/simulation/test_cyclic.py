"""Cyclic batches: disjoint, taken in turn, and charged per pass over the rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

import fedbudget as fb
from fedbudget.algorithm import Batch
from fedbudget.losses import Logistic, Loss, Softmax
from fedbudget.simulation.kernels import layouts
from fedbudget.simulation.kernels.layouts import pack_rows
from fedbudget.simulation.kernels.random import SHUFFLE, draw_subset, stream
from fedbudget.simulation.kernels.runs import (
    RoundPlan,
    device_replies,
    run_rounds,
    sweep_runs,
)
from fedbudget.training import Order
from tests.examples import small_data
from tests.simulation.examples import OFFSETS, SIZES, WEIGHTS, reference

BATCHES = np.array([16, 1, 5, 32])  # 4, 1, 6 and 3 blocks
TAU, ROUNDS, SEED = 3, 4, 11


def shuffled(seed: int, device: int, num_samples: int) -> NDArray[np.int64]:
    order = np.arange(num_samples, dtype=np.uint32)
    picks = np.empty(num_samples + 1, dtype=np.uint32)
    state, gamma = stream(seed, device, 0, SHUFFLE)
    words = np.uint64(state), np.uint64(gamma)
    draw_subset(order, picks, num_samples, num_samples, *words)
    return order.astype(np.int64)


def rows(kind: str) -> Any:
    rng = np.random.default_rng(7)
    if kind == "one-hot":
        columns = np.stack([g * 6 + rng.integers(0, 6, 200) for g in range(4)], axis=1)
        x = np.zeros((200, 24))
        np.put_along_axis(x, columns, 0.5, axis=1)
        return csr_array(x)
    x = rng.normal(size=(200, 24))
    if kind == "sparse":
        return csr_array(x * (rng.random(x.shape) < 0.2) * 0.3)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def round_plan(learning_rate: float, noise_std: float = 0.0) -> RoundPlan:
    return RoundPlan(
        tau=TAU,
        learning_rate=learning_rate,
        batch_size=BATCHES,
        noise_std=noise_std,
        weights=WEIGHTS,
        sampling="cyclic",
    )


def test_a_pass_takes_every_row_of_its_blocks_once() -> None:
    batch, order = Batch(sampling="cyclic", size=5), shuffled(SEED, 2, 33)
    assert sorted(order) == list(range(33))
    rng = np.random.default_rng()
    drawn = [
        batch.draw(33, rng, step=step, permutation=order) for step in range(4, 4 + 6)
    ]
    assert sorted(np.concatenate(drawn)) == sorted(order[:30])
    assert (batch.draw(33, rng, step=10, permutation=order) == drawn[0]).all()
    with pytest.raises(fb.InvalidInputError, match="need a permutation of the rows"):
        batch.draw(33, rng)


def test_shuffles_are_uniform() -> None:
    firsts = [shuffled(seed, 0, 6)[0] for seed in range(3000)]
    counts = np.bincount(firsts, minlength=6)
    assert np.abs(counts - 500).max() < 5 * (500 * 5 / 6) ** 0.5


@pytest.mark.parametrize("kind", ["dense", "sparse", "one-hot"])
@pytest.mark.parametrize("loss", [Logistic(l2=0.1), Softmax(num_classes=3)])
def test_kernels_take_the_references_steps(kind: str, loss: Loss) -> None:
    x = rows(kind)
    y = np.random.default_rng(8).integers(0, max(2, loss.num_outputs), 200)
    packed = pack_rows(x, y, OFFSETS, loss=loss)
    theta = np.full(packed.num_params, 0.1)
    plans = [round_plan(rate) for rate in (0.7, 0.1, 0.2, 0.3, 0.5)]
    orders = [shuffled(SEED, m, int(n)) for m, n in enumerate(SIZES)]
    expected = [
        reference(loss, x, y, theta, plan, ROUNDS, orders=orders) for plan in plans
    ]
    # A plan with other batches runs in another group, and changes nothing.
    other = replace(plans[0], batch_size=np.array([35, 1, 11, 40]))
    all_plans = [*plans, other]
    swept = sweep_runs(packed, theta, all_plans, rounds=[ROUNDS] * 6, seeds=[SEED, 5])
    assert swept[:5, 0] == pytest.approx(np.stack(expected), abs=2e-5)
    assert np.abs(swept[:5, 1] - swept[:5, 0]).max() > 1e-3  # another order
    single = sweep_runs(packed, theta, plans[:1], rounds=[ROUNDS], seeds=[SEED])
    assert single[0, 0] == pytest.approx(expected[0], abs=2e-5)
    if kind != "dense" or loss.num_outputs > 1:
        return  # the rest shares its steps with the above and compiles slowly
    models = run_rounds(packed, theta, plans[0], rounds=ROUNDS, seed=SEED)
    assert models[-1] == pytest.approx(expected[0], abs=2e-5)
    resumed = run_rounds(
        packed, models[1], plans[0], rounds=2, seed=SEED, first_step=2 * TAU
    )
    assert resumed[-1] == pytest.approx(models[-1], abs=1e-6)
    replies = device_replies(packed, theta, plans[0], seed=SEED)
    assert WEIGHTS @ replies == pytest.approx(models[0], abs=1e-5)


PRICES = fb.Prices(communication=20, computation=1, computation_per_sample=0.2)
BUDGET = fb.Budget(epsilon=4.0, cost=1000)
DATA = small_data(devices=3, rows=80)
PLAN = fb.plan(
    DATA.problem(), BUDGET, PRICES, sampling="cyclic", batch_size=16, weights="uniform"
)


def by_row(rounds: list[int], *, plan: fb.Plan = PLAN, before: int = 0) -> float:
    """Return the epsilon of the row that a device's rounds use most, counted by row."""
    n, size = int(plan.num_samples[0]), int(plan.batch_size[0])
    uses = np.zeros(n)
    for number in rounds:
        first = before + (number - 1) * plan.tau
        for step in range(first, first + plan.tau):
            block = step % (n // size)
            uses[block * size : (block + 1) * size] += 1
    noise = float(plan.noise_multiplier[0]) / 2  # replacing a row counts twice
    return float(dp_accounting.get_epsilon_gaussian(noise / uses.max() ** 0.5, 1e-4))


def test_a_run_spends_what_its_plan_says() -> None:
    assert PLAN.sampling == "cyclic" and (PLAN.blocks == 4).all()
    assert PLAN.steps > 8
    run = fb.train(PLAN, fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES))
    assert len(run.rounds) == PLAN.rounds
    assert run.rounds[-1].epsilon == pytest.approx(PLAN.epsilon)
    epsilon = by_row(list(range(1, PLAN.rounds + 1)))
    assert PLAN.epsilon[0] == pytest.approx(epsilon, rel=1e-6)
    assert 0.99 * 4 < epsilon <= 4


def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path: Path) -> None:
    def devices() -> fb.SimulatedDevices:
        return fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES, seed=5)

    uninterrupted = fb.train(PLAN, devices())
    folder = str(tmp_path / "run")

    def crash(latest: fb.Round) -> None:
        if latest.number == PLAN.rounds - 1:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fb.train(PLAN, devices(), record=folder, on_round=crash)
    resumed = fb.train(PLAN, devices(), record=folder)
    assert resumed.theta == pytest.approx(uninterrupted.theta)
    expected = uninterrupted.rounds[-1].epsilon
    assert resumed.rounds[-1].epsilon.tolist() == expected.tolist()


@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 3))
def test_skipped_rounds_are_never_counted_too_low(
    takes_part: list[bool], before: int
) -> None:
    devices = fb.SimulatedDevices(DATA)
    plan = replace(PLAN, rounds=len(takes_part), tau=3, epsilon=np.full(3, 1e6))
    devices.begin(plan)
    numbers = [number for number, trains in enumerate(takes_part, 1) if trains]
    for number in numbers:
        order = Order(number=number, theta=np.zeros(5), plan=plan, steps_before=before)
        spent = devices.run_round(order).epsilon[0]
    if numbers:
        assert spent >= by_row(numbers, plan=plan, before=before) * (1 - 1e-9)


def test_a_run_continued_with_other_batches_is_charged_again() -> None:
    devices = fb.SimulatedDevices(DATA, prices=PRICES)
    one = replace(PLAN, rounds=1, tau=1)
    first = fb.train(one, devices)
    same = fb.train(one, devices, after=first)
    assert same.rounds[-1].epsilon.tolist() == first.rounds[-1].epsilon.tolist()
    smaller = replace(
        one, batch_size=PLAN.batch_size - 1, noise_std=PLAN.noise_std * 16 / 15
    )
    assert (smaller.blocks == PLAN.blocks).all()
    other = fb.train(smaller, devices, after=same)
    again = fb.train(one, devices)  # a separate run shuffles again
    spent = [run.rounds[-1].epsilon[0] for run in (first, other, again)]
    noise = float(PLAN.noise_multiplier[0]) / 2
    for uses, epsilon in enumerate(spent, 1):
        exact = dp_accounting.get_epsilon_gaussian(noise / uses**0.5, 1e-4)
        assert epsilon == pytest.approx(exact, rel=1e-6)


def test_replanned_runs_stay_within_the_budget() -> None:
    problem = DATA.problem()
    expensive = fb.Prices(communication=20, computation=1, computation_per_sample=9)
    devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=expensive)
    started = fb.plan(problem, BUDGET, expensive)
    assert started.sampling == "cyclic" and started.rounds > 2
    run = fb.train(started, devices, stop=lambda latest: latest.number == 2)
    # The rest of the budget of 1000 does not pay for a step on all 64 rows.
    assert max(run.rounds[-1].cost) > 1000 - 9 * 64
    rest = fb.replan(run, problem, BUDGET, expensive)
    after = fb.train(rest, devices, after=run)
    assert max(after.rounds[-1].epsilon) <= 4
    assert not after.rounds[-1].refused


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
def test_rows_in_the_order_of_their_batches_change_no_bit(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rows(kind), np.random.default_rng(3).integers(0, 2, 200)
    plan = RoundPlan(
        tau=TAU,
        learning_rate=0.5,
        batch_size=BATCHES,
        noise_std=0.01,
        weights=WEIGHTS,
        sampling="cyclic",
    )
    models = []
    for limit in (layouts.MAX_DEALT, 0):  # stored once more, or shuffled in each round
        monkeypatch.setattr(layouts, "MAX_DEALT", limit)
        packed = pack_rows(x, y, OFFSETS, loss=Logistic())
        assert (packed.dealt(packed.rows, SEED) is None) == (limit == 0)
        start = np.zeros(packed.num_params)
        models += [run_rounds(packed, start, plan, rounds=3, seed=SEED)]
        models += [run_rounds(packed, start, plan, rounds=3, seed=SEED)]
        other = run_rounds(packed, start, plan, rounds=3, seed=SEED + 1)
        assert (other != models[0]).any()
    assert all((model == models[0]).all() for model in models)
