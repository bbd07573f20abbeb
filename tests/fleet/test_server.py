"""The coordinator's whole life, over scripted devices: plan, run, end, start again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.fleet import server, topics
from fedbudget.fleet.channel import Message
from fedbudget.fleet.messages import Declaration
from fedbudget.fleet.mqtt import Broker
from fedbudget.fleet.roster import alike
from fedbudget.fleet.server import Settings, plan_for, run_server
from fedbudget.ui.fleet_status import read_status, round_rows
from tests.fleet.examples import declaration
from tests.fleet.test_coordinator import DECLARED, NAMES, SIGNER, Scripted
from tests.ui.browsing import free_port

MADE: list[Scripted] = []


class Connected(Scripted):
    """Devices that declare themselves as soon as somebody listens."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        MADE.append(self)
        for told in DECLARED:
            self.inbox.put(
                Message(
                    topic=topics.declare(told.device),
                    payload=told.to_bytes(),
                    receiver=self.name,
                )
            )

    def start(self) -> "Connected":
        return self

    def stop(self) -> None:
        pass


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(server, "Connection", Connected)
    (tmp_path / "key.pem").write_bytes(SIGNER.to_pem())
    return Settings(
        out=tmp_path / "out",
        broker=Broker(),
        signing_key=tmp_path / "key.pem",
        devices=4,
        wait=5,
        precision="float64",
        status_port=0,
    )


def test_a_run_from_declarations_to_release(settings: Settings) -> None:
    begun: list[Any] = []
    seconds: list[Any] = []

    def look(row: dict[str, Any]) -> None:
        status = read_status(f"http://127.0.0.1:{begun[0][2]}/status")
        assert status is not None
        seconds[:] = round_rows(status)

    run = run_server(settings, on_begin=lambda *told: begun.append(told), on_round=look)
    ((plan, names, port),) = begun
    assert names == NAMES and port > 0
    assert len(run.rounds) == plan.rounds and run.rounds[-1]["answered"] == 4
    assert np.load(settings.out / "run" / "model.npz")["theta"].tolist() == (
        run.theta.tolist()
    )
    assert (plan.cost <= 1000).all() and (plan.epsilon <= 4).all()
    assert [row["round"] for row in seconds] == list(range(1, plan.rounds + 1))
    assert all(row["seconds"] > 0 for row in seconds)


def test_the_status_is_told_before_the_first_device_comes(settings: Settings) -> None:
    port, told = free_port(), []

    class Late(Connected):
        def start(self) -> "Connected":
            told.append(read_status(f"http://127.0.0.1:{port}/status"))
            return self

    run_server(replace(settings, status_port=port), channel=Late())
    assert told == [{"name": "run", "devices": []}]


def test_a_run_that_has_ended_is_told_again_and_carried_out_never(
    settings: Settings,
) -> None:
    # A kill between the last round and the end of the process leaves this.
    first = run_server(settings)
    again = run_server(settings)
    assert again.theta.tolist() == first.theta.tolist()
    assert again.rounds == first.rounds
    assert MADE[-1].orders == [] and MADE[-1].kept == {}


def test_too_few_devices_are_told(settings: Settings) -> None:
    with pytest.raises(fb.TrainingError, match=r"4 devices have declared .* of the 9"):
        run_server(replace(settings, devices=9, wait=0.2))


def told(**changes: Any) -> list[Declaration]:
    return [declaration(device=name, **changes) for name in "abc"]


def test_every_device_is_planned_within_its_own_budget() -> None:
    declared = [
        declaration(device="a", num_samples=500, epsilon=1.0, cost=700.0),
        declaration(device="b", num_samples=900, communication_price=150.0),
        declaration(device="c", num_samples=200, delta=1e-6),
    ]
    plan = plan_for(declared)
    assert plan.num_samples.tolist() == [500, 900, 200]
    assert (plan.epsilon <= [1.0, 4.0, 4.0]).all()
    assert (plan.cost <= [700.0, 1000.0, 1000.0]).all()
    assert plan.delta.tolist() == [1e-4, 1e-4, 1e-6]
    plan.check_promise()


def test_owners_who_demand_more_noise_get_it() -> None:
    usual = plan_for(told())
    most = float(usual.noise_multiplier.max())
    plan = plan_for(told(least_noise_multiplier=3 * most))
    assert (plan.noise_multiplier >= 3 * most).all()
    plan.check_promise()


def test_a_strict_ledger_makes_a_strict_plan() -> None:
    assert plan_for(told()).accountant == "gdp"
    mixed = [*told()[:2], declaration(device="c", accountant="zcdp")]
    assert plan_for(mixed).accountant == "zcdp"


def test_devices_of_another_kind_are_left_out() -> None:
    fitting, left_out = alike([*told(), declaration(device="odd", dim=9)])
    assert [found.device for found in fitting] == ["a", "b", "c"]
    assert "9 columns" in left_out["odd"]


def test_a_device_with_nothing_to_spend_is_named() -> None:
    with pytest.raises(fb.InvalidInputError, match="device b declares epsilon 0"):
        plan_for([told()[0], declaration(device="b", epsilon=0.0)])
