"""Simulated devices whose server sees only sums: noise, charges and lost answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedbudget as fb
from fedbudget.algorithm import Batch, local_steps, model_of_sum, noisy_upload
from fedbudget.errors import TrainingError
from fedbudget.planning.shared_noise import SumSchedule, shared_noise_plan
from fedbudget.training import Order
from tests.examples import small_data

DATA = small_data(devices=6, rows=50)
BUDGET = fb.Budget(epsilon=2.0, delta=1e-5, cost=1000, trust="sum")
PRICES = fb.Prices(communication=20, computation=1)
SCHEDULE = SumSchedule(tau=5, rounds=6, learning_rate=2.0, least_answers=4)


def planned(budget: fb.Budget = BUDGET, **changes: Any) -> fb.Plan:
    schedule = replace(SCHEDULE, **changes)
    problem = DATA.problem(loss="smooth_hinge")
    return shared_noise_plan(problem, budget, PRICES, schedule)


def quiet(plan: fb.Plan) -> fb.Plan:
    return plan.without_privacy()


def test_without_noise_a_run_is_the_reference() -> None:
    plan = planned(weights=np.arange(1.0, 7.0), momentum=0.4, server_rate=1.5)
    plan = quiet(plan)
    run = fb.train(plan, fb.SimulatedDevices(DATA))
    theta, velocity = np.zeros(DATA.dim), np.zeros(DATA.dim)
    rng = np.random.default_rng(0)
    for _ in range(plan.rounds):
        uploads = []
        for m in range(6):
            x, y = DATA.train.device(m)
            reply = local_steps(
                theta,
                x,
                y,
                loss=plan.model,
                tau=plan.tau,
                learning_rate=plan.learning_rate,
                noise_std=0.0,
                batch=Batch(),
                rng=rng,
            )
            weight = float(plan.weights[m])
            uploads.append(
                noisy_upload(theta, reply, weight=weight, noise_std=0.0, rng=rng)
            )
        mean = model_of_sum(theta, uploads, plan.weights)
        velocity = 0.4 * velocity + 1.5 * (mean - theta)
        theta = theta + velocity
    assert run.theta == pytest.approx(theta, abs=2e-5)


def noise_of(plan: fb.Plan, answers: int, seeds: int = 500) -> float:
    """Return the std of the mean's noise if this many of 6 devices answer."""
    from fedbudget.simulation.devices import round_plan
    from fedbudget.simulation.kernels.runs import run_rounds
    from fedbudget.simulation.packing import packed_rows

    rows = packed_rows(DATA.train, plan.model)
    weights = np.where(np.arange(6) < answers, plan.weights, 0.0)
    zeros = np.zeros(DATA.dim)
    clean = run_rounds(rows, zeros, round_plan(quiet(plan), weights), rounds=1, seed=0)
    kernel_plan = round_plan(plan, weights)
    noise = [
        run_rounds(rows, zeros, kernel_plan, rounds=1, seed=seed)[0] - clean[0]
        for seed in range(seeds)
    ]
    return float(np.std(noise))


@pytest.mark.parametrize("answers", [6, 4])
def test_the_sum_carries_the_noise_of_those_who_answered(answers: int) -> None:
    plan = planned(weights=[1, 2, 3, 4, 5, 6])
    share, weight = plan.noise_std[0], plan.weights[:answers].sum()
    # 500 x 5 normals: five standard errors of their std are 7 %.
    expected = np.sqrt(answers) * share / weight
    assert noise_of(plan, answers) == pytest.approx(expected, rel=0.07)


def test_ledgers_spend_what_the_plan_states() -> None:
    plan = planned()
    devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES)
    run = fb.train(plan, devices)
    last = run.rounds[-1]
    assert last.answered == 6
    assert last.epsilon == pytest.approx(plan.epsilon, rel=1e-9)
    assert last.cost == pytest.approx(plan.cost)
    # Half the rounds are half of rho.
    halfway = run.rounds[2].epsilon
    assert (halfway < last.epsilon).all()
    assert "see only sums of at least 4 answers" in str(run.privacy)
    # A second run does not fit the budgets.
    with pytest.raises(TrainingError, match="would overdraw this device's privacy"):
        fb.train(plan, devices)


def test_ledgers_of_cyclic_batches_count_every_upload() -> None:
    plan = planned(batch_size=7)
    assert plan.sampling == "cyclic"
    run = fb.train(plan, fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES))
    assert run.rounds[-1].epsilon == pytest.approx(plan.epsilon, rel=1e-9)


def test_the_unit_of_the_ledger_is_the_plans() -> None:
    budget = replace(BUDGET, unit="device")
    for plan in (planned(unit="device"), planned(unit="device", clip=0.1)):
        run = fb.train(plan, fb.SimulatedDevices(DATA, budget=budget))
        assert run.rounds[-1].epsilon == pytest.approx(plan.epsilon, rel=1e-9)


def test_a_run_with_lost_answers_goes_on() -> None:
    devices = fb.SimulatedDevices(DATA, participation=0.7, seed=3)
    run = fb.train(planned(), devices)
    answered = [done.answered for done in run.rounds]
    assert 0 in answered  # fewer than four arrived
    assert any(4 <= count < 6 for count in answered)
    assert all(count == 0 or count >= 4 for count in answered)
    # Everybody was charged in every round.
    assert run.rounds[-1].epsilon == pytest.approx(planned().epsilon, rel=1e-9)


def test_runs_are_recorded_and_resumed(tmp_path: Path) -> None:
    plan = planned(momentum=0.5, server_rate=1.3)
    full = fb.train(plan, fb.SimulatedDevices(DATA, seed=1))
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fb.train(
            plan, fb.SimulatedDevices(DATA, seed=1), record=folder, on_round=_interrupt
        )
    resumed = fb.train(plan, fb.SimulatedDevices(DATA, seed=1), record=folder)
    assert (resumed.theta == full.theta).all()
    assert "see only sums of at least 4" in (folder / "plan.json").read_text()


def _interrupt(done: fb.Round) -> None:
    if done.number == 3:
        raise KeyboardInterrupt


def test_sweeps_take_the_same_rounds() -> None:
    plans = [planned(), planned(tau=3), planned(unit="device", clip=0.2)]
    plans += [planned(momentum=0.3, server_rate=rate) for rate in (1.2, 1.9)]
    sweep = fb.sweep(DATA, plans, seeds=[1])
    for plan, theta in zip(plans, sweep.theta[:, 0], strict=True):
        run = fb.train(plan, fb.SimulatedDevices(DATA, seed=1))
        assert theta == pytest.approx(run.theta, abs=1e-4)


def test_devices_that_stop_early_leave_less_noise_behind() -> None:
    plan = planned()
    last = np.array([6, 6, 6, 6, 2, 2])
    early = replace(plan, last_round=last)
    assert (early.releases.mu[4:] < plan.releases.mu[4:]).all()
    run = fb.train(early, fb.SimulatedDevices(DATA, seed=1))
    assert [done.answered for done in run.rounds] == [6, 6, 4, 4, 4, 4]
    sweep = fb.sweep(DATA, [early], seeds=[1])
    assert sweep.theta[0, 0] == pytest.approx(run.theta, abs=1e-4)


def test_shared_noise_learns_where_noise_per_step_does_not() -> None:
    """The reason for all this: 40 devices with 25 rows each, at epsilon 0.5."""
    data = small_data(devices=40, rows=31, seed=5)
    budget = fb.Budget(epsilon=0.5, delta=1e-5, cost=1000)
    problem = data.problem()
    shared = shared_noise_plan(
        problem, budget, PRICES, SumSchedule(tau=10, rounds=20, learning_rate=4.0)
    )
    own = fb.plan(problem, budget, PRICES)
    swept = fb.sweep(data, [shared, own], seeds=range(10))
    accuracy = swept.measured["test_accuracy"].mean(axis=1)
    assert accuracy[0] > accuracy[1] + 0.05


def test_an_order_of_a_round_keeps_the_model_if_too_few_answer() -> None:
    devices = fb.SimulatedDevices(DATA, participation=0.01, seed=1)
    plan = planned()
    devices.begin(plan)
    theta = np.arange(float(DATA.dim))
    replies = devices.run_round(Order(number=1, theta=theta, plan=plan))
    assert not replies.answered.any()
    assert (replies.theta == theta).all()
    assert (replies.epsilon > 0).all()


def test_lost_answers_leave_the_noise_of_a_sum_of_the_others() -> None:
    """Simulated rounds against brute force: uploads of those who answered, one by one.

    All seeds are fixed: the test cannot fail by chance.
    """
    plan = planned(weights=[1, 2, 3, 4, 5, 6], least_answers=3)
    theta = np.linspace(-0.2, 0.3, DATA.dim)
    rng = np.random.default_rng(7)
    settings: dict[str, Any] = {"rng": rng, "loss": plan.model, "tau": plan.tau}
    settings |= {"learning_rate": plan.learning_rate, "batch": Batch()}
    replies = [
        local_steps(theta, *DATA.train.device(m), noise_std=0.0, **settings)
        for m in range(6)
    ]
    simulated, brute = [], []
    for seed in range(400):
        devices = fb.SimulatedDevices(DATA, participation=0.7, seed=seed)
        devices.begin(plan)
        done = devices.run_round(Order(number=1, theta=theta, plan=plan))
        answered = np.flatnonzero(done.answered)
        if not len(answered):
            continue
        weights = plan.weights[answered]
        clean = weights @ np.array(replies)[answered] / weights.sum()
        uploads = [
            noisy_upload(
                theta,
                replies[m],
                weight=float(plan.weights[m]),
                noise_std=float(plan.noise_std[m]),
                rng=rng,
            )
            for m in answered
        ]
        expected = np.sqrt(len(answered)) * plan.noise_std[0] / weights.sum()
        simulated.append((done.theta - clean) / expected)
        brute.append((model_of_sum(theta, uploads, weights) - clean) / expected)
    counts = {len(drawn) for drawn in (simulated, brute)}
    assert min(counts) > 300
    assert stats.ks_2samp(np.ravel(simulated), np.ravel(brute)).pvalue > 0.01
    assert stats.kstest(np.ravel(simulated), "norm").pvalue > 0.01
