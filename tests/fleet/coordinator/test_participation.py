"""Which devices are asked: shares by turns, pauses of late devices, refused ones."""

from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator.participation import Participation
from fedbudget.fleet.coordinator.process import Settings
from fedbudget.fleet.coordinator.roster import by_turns, plan_fleet
from fedbudget.fleet.device.statement import read_statement
from tests.contract_devices import DIM, rows_of
from tests.fleet.brokers import BrokerProcess
from tests.fleet.examples import declaration
from tests.fleet.mqtt_fleet import MqttFleet

PRICES = fb.Prices(communication=100, computation=1)
NAMES = tuple("abcdefg")
ALL = np.ones(len(NAMES), dtype=bool)


def asked(participation: Participation, round: int, refused: str = "") -> str:
    mask = participation.asked(round, ALL, refused)
    return "".join(name for name, flag in zip(NAMES, mask, strict=True) if flag)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_every_device_has_its_turn_equally_often(share: float) -> None:
    participation = Participation(NAMES, run=bytes(16), share=share)
    rounds = 70
    counts = sum(
        participation.asked(number, ALL, ()).astype(int) for number in range(rounds)
    )
    size = int(np.ceil(share * len(NAMES)))
    assert np.sum(counts) == rounds * size
    assert np.ptp(counts) <= 1


def test_a_run_has_the_same_turns_after_a_restart_and_another_run_others() -> None:
    turns = [
        [asked(Participation(NAMES, run=run, share=0.3), number) for number in (1, 2)]
        for run in (bytes(16), bytes(16), b"another run 0000")
    ]
    assert turns[0] == turns[1] != turns[2]


def test_a_late_device_pauses_for_longer_each_time() -> None:
    participation = Participation(NAMES, run=bytes(16))
    rounds = []
    for number in range(1, 40):
        if "c" in asked(participation, number):
            rounds.append(number)
            participation.closed(number, late=["c"], answered=["a"])
    assert rounds == [1, 3, 6, 11, 20, 37]


def test_an_answer_in_time_or_a_new_connection_ends_the_pause() -> None:
    participation = Participation(NAMES, run=bytes(16))
    for _ in range(5):
        participation.closed(1, late=["c"], answered=())
    assert asked(participation, 2) == "abdefg"
    participation.returned(["c"])
    assert asked(participation, 2) == "abcdefg"
    participation.closed(2, late=(), answered=["c"])
    participation.closed(3, late=["c"], answered=())
    assert [asked(participation, number) for number in (4, 5)] == ["abdefg", "abcdefg"]


def test_somebody_is_always_asked_unless_all_are_refused() -> None:
    participation = Participation(NAMES, run=bytes(16))
    participation.closed(1, late=NAMES, answered=())
    assert asked(participation, 2) == "abcdefg"
    assert asked(participation, 2, refused="bcdefg") == "a"
    with pytest.raises(TrainingError, match="round 2 has no device to ask"):
        asked(participation, 2, refused="abcdefg")


def turns_plan(sizes: list[int], participation: float, cost: float = 1000) -> fb.Plan:
    usual = fb.plan(
        fb.Problem(num_samples=sizes, dim=DIM),
        fb.Budget(epsilon=4, delta=1e-4, cost=cost),
        PRICES,
        noise_schedule=False,
        drift_correction=False,
    )
    return by_turns(usual, participation)


@pytest.mark.parametrize("count", [1, 3, 7, 10, 23])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.34, 0.9])
def test_a_plan_pays_for_every_round_that_asks_a_device(
    count: int, share: float
) -> None:
    plan = turns_plan([100] * count, share)
    names = [str(number) for number in range(count)]
    for run in (bytes(16), b"another run 0000"):
        turns = Participation(names, run=run, share=share)
        asked = sum(
            turns.asked(number, plan.takes_part(number), ()).astype(int)
            for number in range(1, plan.rounds + 1)
        )
        assert (asked <= plan.paid_rounds).all()
        assert np.max(asked) == plan.paid_rounds.max()
    plan.check_promise()
    assert (plan.paid_rounds * (100 + plan.tau) <= 1000).all()
    # The same gradients of all devices, at the same length of steps.
    usual = turns_plan([100] * count, 1.0)
    assert plan.rounds * plan.learning_rate == pytest.approx(
        usual.rounds * usual.learning_rate, rel=0.2
    )
    again = fb.Plan.from_dict(plan.to_dict())
    assert again.participation == share
    with pytest.raises(InvalidInputError, match="only real fleets"):
        fb.train(plan, fb.SimulatedDevices(rows_of([100] * count), seed=0))


def test_a_fleet_is_planned_by_turns() -> None:
    declarations = [declaration(device=f"d{number}") for number in range(10)]
    plan, _ = plan_fleet(declarations, participation=0.2)
    usual, _ = plan_fleet(declarations)
    assert plan.participation == 0.2 and plan.noise_decay == 1
    assert not plan.drift_correction
    assert plan.rounds > 3 * usual.rounds
    assert (plan.epsilon <= 4).all() and (plan.cost <= declarations[0].cost).all()
    assert any("2 of 10 devices" in reason for reason in plan.reasons)


def test_sums_ask_all_devices(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not for sums"):
        Settings(out=tmp_path, signing_key=tmp_path, trust="sum", participation=0.5)


def test_real_devices_spend_what_the_plan_states(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    data = rows_of([40] * 4)
    plan = turns_plan([40] * 4, 0.5, cost=450)
    fleet = MqttFleet(tmp_path, broker.certs, port=broker.port)
    fleet.start(data, fb.Budget(epsilon=4, delta=1e-4, cost=450), PRICES)
    try:
        devices = fleet.coordinate(4, participation=0.5, deadline=120)
        run = fb.train(plan, devices)
    finally:
        fleet.end()
    assert [round.answered for round in run.rounds] == [2] * plan.rounds
    for name, epsilon, cost in zip(
        data.device_names, run.rounds[-1].epsilon, run.rounds[-1].cost, strict=True
    ):
        spent = read_statement(tmp_path / name / "ledger.sqlite")
        assert spent.cost == cost == plan.cost[0]
        assert spent.epsilon == pytest.approx(epsilon, rel=1e-6)
        assert 0.99 * 4 < spent.epsilon <= 4
