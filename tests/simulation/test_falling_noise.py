"""Runs whose noise falls from round to round: charges, resumed runs, releases."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device import exact_steps
from fedbudget.record import Round
from fedbudget.simulation import lookahead
from fedbudget.training import Order
from tests.examples import honest, small_data

DATA = small_data(devices=3, rows=120)
BUDGET = fb.Budget(epsilon=4.0, delta=1e-4, cost=3000)
PRICES = fb.Prices(communication=100, computation=1)
CONSTANT = honest(
    fb.plan(
        DATA.problem(), BUDGET, PRICES, drift_correction=False, noise_schedule=False
    ),
    rounds=8,
)
PLAN = replace(CONSTANT, noise_decay=0.8)


def devices(**options: object) -> fb.SimulatedDevices:
    return fb.SimulatedDevices(DATA, seed=3, prices=PRICES, **options)  # type: ignore[arg-type]


def test_every_round_pays_for_its_own_noise() -> None:
    simulated = devices()
    spent = [r.epsilon[0] for r in fb.train(PLAN, simulated).rounds]
    constant = [r.epsilon[0] for r in fb.train(CONSTANT, devices()).rounds]
    # Early rounds cost less than constant noise, and all of them as much.
    assert (np.array(spent[:-1]) < np.array(constant[:-1])).all()
    assert spent[-1] == pytest.approx(constant[-1], rel=1e-9)
    assert (simulated.ledger.epsilon_at(PLAN.delta) <= PLAN.epsilon).all()


def test_a_run_of_falling_noise_is_within_the_budget_to_the_last_round() -> None:
    problem = DATA.problem()
    planned = fb.plan(problem, BUDGET, PRICES, drift_correction=False)
    run = fb.train(replace(planned, noise_decay=0.7), devices(budget=BUDGET))
    assert run.plan.rounds > 3
    assert all(r.answered == 3 and not r.refused for r in run.rounds)


def test_rounds_simulated_ahead_are_those_simulated_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = fb.train(PLAN, devices())
    monkeypatch.setattr(lookahead, "_SECONDS", 0.0)
    assert np.array_equal(fb.train(PLAN, devices()).theta, ahead.theta)
    swept = fb.sweep(DATA, [PLAN, CONSTANT], seeds=[3])
    assert swept.theta[0, 0] == pytest.approx(ahead.theta, abs=1e-5)
    assert np.abs(swept.theta[1, 0] - ahead.theta).max() > 1e-3


def test_a_run_that_continues_another_begins_with_its_own_first_noise() -> None:
    first, again = devices(), devices()
    start = fb.train(PLAN, first, stop=lambda latest: latest.number == 3)
    # Foreseen rounds 4, 5, .. of the first run have less noise than these.
    continued = fb.train(PLAN, first, after=start)
    fb.train(PLAN, again, stop=lambda latest: latest.number == 3)
    again._ahead = lookahead.Lookahead(DATA)  # nothing foreseen
    assert np.array_equal(fb.train(PLAN, again, after=start).theta, continued.theta)


def test_a_resumed_run_pays_for_the_noise_of_every_round(tmp_path: Path) -> None:
    whole = devices()
    expected = fb.train(PLAN, whole)

    def interrupt(latest: Round) -> None:
        if latest.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.train(PLAN, devices(), record=tmp_path, on_round=interrupt)
    other = devices()
    resumed = fb.train(PLAN, other, record=tmp_path)
    assert np.array_equal(resumed.theta, expected.theta)
    assert other.ledger.epsilon == pytest.approx(whole.ledger.epsilon, rel=1e-12)


def test_devices_that_stop_early_spend_at_most_what_the_plan_states() -> None:
    early = replace(PLAN, last_round=np.array([2, 8, 5]))
    run = fb.train(early, devices())
    swept = fb.sweep(DATA, [early], seeds=[3])
    assert swept.theta[0, 0] == pytest.approx(run.theta, abs=1e-5)
    spent = run.rounds[-1].epsilon
    most = fb.train(PLAN, devices()).rounds[-1].epsilon
    assert spent[1] == pytest.approx(most[1], rel=1e-9)
    assert spent[0] < spent[2] < spent[1]


@pytest.mark.parametrize("number", [1, 3])
def test_a_release_draws_the_noise_of_its_round(number: int) -> None:
    plan = honest(replace(CONSTANT, tau=1, noise_decay=0.3), rounds=4)
    released = fb.ReleaseDevices(DATA, prices=PRICES)
    released.begin(plan)
    order = Order(number=number, theta=np.zeros(DATA.dim), plan=plan)
    moves = [released.run_round(order).theta for _ in range(400)]
    expected = np.sqrt(np.sum((plan.weights * plan.noise_std_of(number)) ** 2))
    # 2000 normals: the standard error of their spread is 1.6 %; six times that
    spread = np.std(moves, axis=0).mean() / plan.learning_rate
    assert spread == pytest.approx(expected, rel=0.1)


def test_a_last_round_whose_noise_cannot_be_drawn_is_refused_at_the_start() -> None:
    released = fb.ReleaseDevices(DATA)
    least = PLAN.lipschitz / 2.0 ** (
        exact_steps._EXACT_GRID - exact_steps.LEAST_SCALE_BITS
    )
    weak = honest(PLAN, noise_std=np.full(3, 1.2 * least))
    assert weak.noise_factors[-1] * 1.2 < 1
    released.begin(replace(weak, noise_decay=1.0))
    with pytest.raises(InvalidInputError, match="cannot be drawn exactly"):
        released.begin(weak)
