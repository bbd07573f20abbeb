"""The coordinator's process with scripted devices: plan, run, end, start again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import MessageError
from fedbudget.fleet.coordinator import process as server
from fedbudget.fleet.coordinator.process import Settings, run_server
from fedbudget.fleet.coordinator.roster import Roster, compatible, plan_fleet
from fedbudget.fleet.demo import HeldPort
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Declaration
from fedbudget.ui.fleet import read_status, round_rows
from tests.examples import plain
from tests.fleet.examples import declaration
from tests.fleet.scripted import DECLARATIONS, NAMES, SIGNER, Scripted

CONNECTIONS: list[Scripted] = []


class Connected(Scripted):
    """A connection to devices that declare themselves at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        CONNECTIONS.append(self)
        for message in DECLARATIONS:
            self.inbox.put(
                Message(
                    topic=topics.declare(message.device),
                    payload=message.to_bytes(),
                    receiver=self.name,
                )
            )

    def start(self) -> "Connected":
        return self

    def stop(self) -> None:
        pass

    def receive(self, seconds: float | None = None) -> Message | None:
        """Do not wait: all messages of the devices are in the inbox."""
        return super().receive(0)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(server, "Connection", Connected)
    (tmp_path / "key.pem").write_bytes(SIGNER.to_pem())
    return Settings(
        out=tmp_path / "out",
        broker=BrokerAddress(),
        signing_key=tmp_path / "key.pem",
        devices=4,
        wait=5,
        precision="float64",
        status_port=0,
    )


def test_a_run_from_declarations_to_release(settings: Settings) -> None:
    starts: list[Any] = []
    rows: list[Any] = []

    def look(_: fb.Round) -> None:
        status = read_status(f"http://127.0.0.1:{starts[0][2]}/status")
        assert status is not None
        rows[:] = round_rows(status)

    run = run_server(
        settings, on_begin=lambda *start: starts.append(start), on_round=look
    )
    ((plan, names, port),) = starts
    assert names == NAMES and port > 0
    assert len(run.rounds) == plan.rounds and run.rounds[-1].answered == 4
    assert np.load(settings.out / "run" / "model.npz")["theta"].tolist() == (
        run.theta.tolist()
    )
    assert (plan.cost <= 1000).all() and (plan.epsilon <= 4).all()
    for path in settings.out.iterdir():  # files 0600, folders 0700
        assert path.stat().st_mode & 0o077 == 0, path
    assert [row["round"] for row in rows] == list(range(1, plan.rounds + 1))
    assert all(row["seconds"] > 0 for row in rows)


def test_a_fleets_release_carries_the_schema(settings: Settings) -> None:
    columns = DECLARATIONS[0].dim - 1  # and the intercept
    schema = fb.Schema(
        features={f"volts{j}": fb.Numeric(0, 5) for j in range(columns)},
        label="alarm",
        target=fb.Categorical(("no", "yes")),
    )
    run_server(replace(settings, schema=schema))
    model = fb.LinearModel.from_run(settings.out / "run")
    assert model.schema == schema
    assert model.feature_names == (*schema.features, "intercept")
    row: dict[str, Any] = {name: [2.5] for name in schema.features}
    assert model.predict(row)[0] in ("no", "yes")


def test_a_schema_of_other_columns_is_refused(settings: Settings) -> None:
    features = {f"volts{j}": fb.Numeric(0, 5) for j in range(DECLARATIONS[0].dim)}
    target = fb.Categorical(("no", "yes"))
    schema = fb.Schema(features=features, label="alarm", target=target)
    with pytest.raises(fb.InvalidInputError, match="the schema gives rows of"):
        run_server(replace(settings, schema=schema))


def test_the_status_is_served_before_the_first_device_connects(
    settings: Settings,
) -> None:
    held, statuses = HeldPort(), []

    class Late(Connected):
        def start(self) -> "Connected":
            statuses.append(read_status(f"http://127.0.0.1:{held.number}/status"))
            return self

    run_server(replace(settings, status_port=held.number), channel=Late())
    waiting = {"state": "waiting", "name": "run", "devices": [], "declared": []}
    assert statuses == [waiting | {"awaited": 4}]


def test_a_completed_run_is_returned_and_not_repeated(
    settings: Settings,
) -> None:
    # As after a kill between the last round and the end of the process.
    first = run_server(settings)
    status = (settings.out / "status.json").read_text()
    again = run_server(settings)
    assert (settings.out / "status.json").read_text() == status
    assert json.loads(status)["rounds_closed"] == len(first.rounds)
    assert again.theta.tolist() == first.theta.tolist()
    assert plain(again.rounds) == plain(first.rounds)
    assert CONNECTIONS[-1].orders == [] and CONNECTIONS[-1].retained == {}


def test_too_few_devices_are_an_error(settings: Settings) -> None:
    with pytest.raises(fb.TrainingError, match=r"4 devices have declared .* of the 9"):
        run_server(replace(settings, devices=9))


def plan_for(declarations: list[Declaration], **options: Any) -> fb.Plan:
    plan, selected = plan_fleet(declarations, **options)
    assert selected == declarations
    return plan


def three(**changes: Any) -> list[Declaration]:
    return [declaration(device=name, **changes) for name in "abc"]


def test_every_device_is_planned_within_its_own_budget() -> None:
    declarations = [
        declaration(device="a", num_samples=500, epsilon=1.0, cost=700.0),
        declaration(device="b", num_samples=900, communication_price=150.0),
        declaration(device="c", num_samples=200, delta=1e-6),
    ]
    plan = plan_for(declarations)
    assert plan.num_samples.tolist() == [500, 900, 200]
    assert (plan.epsilon <= [1.0, 4.0, 4.0]).all()
    assert (plan.cost <= [700.0, 1000.0, 1000.0]).all()
    assert plan.delta.tolist() == [1e-4, 1e-4, 1e-6]
    plan.check_promise()


def test_owners_who_demand_more_noise_get_it() -> None:
    usual = plan_for(three())
    most = float(usual.noise_multiplier.max())
    plan = plan_for(three(least_noise_multiplier=3 * most))
    assert (plan.noise_multiplier >= 3 * most).all()
    plan.check_promise()


def test_a_strict_ledger_makes_a_strict_plan() -> None:
    assert plan_for(three()).accountant == "gdp"
    mixed = [*three()[:2], declaration(device="c", accountant="zcdp")]
    assert plan_for(mixed).accountant == "zcdp"


def hear(roster: Roster, device: str, payload: bytes) -> None:
    message = Message(topic=topics.declare(device), payload=payload, receiver="c")
    assert roster.take(message)


def test_a_device_of_an_older_release_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = declaration(device="old", wire=None, software=None, ledger=None)
    roster, connection = Roster(), Scripted()
    _, selected = plan_fleet([*devices(3), old], roster=roster)
    assert [d.device for d in selected] == [d.device for d in devices(3)]
    roster.send_notices(connection, SIGNER)
    reason = connection.notices.pop("old")
    assert "wire 1" in reason and f"release {fb.__version__}, wire 2" in reason
    assert f"device old is left out: {reason}" in caplog.messages
    assert connection.notices == {}


def test_a_declaration_that_cannot_be_read_gets_a_notice_once() -> None:
    roster, connection = Roster(), Scripted()
    later = declaration(device="new").to_bytes().replace(b"av\x01", b"av\x07")
    for _ in range(3):
        with pytest.raises(MessageError, match="version 7 is not supported"):
            hear(roster, "new", later)
    with pytest.raises(MessageError):
        hear(roster, "not a name", later)
    roster.send_notices(connection, SIGNER)
    assert list(connection.notices) == ["new"]
    assert "version 7 is not supported, only 1" in connection.notices.pop("new")
    with pytest.raises(MessageError):
        hear(roster, "new", later)
    roster.send_notices(connection, SIGNER)
    assert connection.notices == {}


def test_devices_of_another_kind_are_left_out() -> None:
    selection = compatible([*three(), declaration(device="odd", dim=9)])
    assert [d.device for d in selection.declarations] == ["a", "b", "c"]
    assert "9 columns" in selection.left_out["odd"]


def devices(count: int, **changes: Any) -> list[Declaration]:
    return [declaration(device=f"d{m}", **changes) for m in range(count)]


@pytest.mark.parametrize("planner", ["joint", "bound", "paper"])
def test_one_demand_for_noise_does_not_dominate_the_average(planner: str) -> None:
    usual = plan_for(devices(8), planner=planner)
    most = 5 * float(usual.noise_multiplier.max())
    cautious = declaration(device="d7", least_noise_multiplier=most)
    plan, _ = plan_fleet([*devices(7), cautious], planner=planner)
    assert (plan.noise_multiplier[7], plan.noise_multiplier[0]) == pytest.approx(
        (most, most / 5)
    )
    # Its share of the averaged noise is that of any other device.
    share = plan.weights * plan.noise_std
    assert share[7] == pytest.approx(share[0])
    assert plan.weights.sum() == pytest.approx(1)
    plan.check_promise()


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("least", [1e5, 1e9, 1e12])
def test_a_device_with_an_excessive_demand_is_left_out_by_name(
    count: int, least: float, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = declaration(device="z", least_noise_multiplier=least)
    plan, selected = plan_fleet([*devices(count - 1), hostile])
    assert [d.device for d in selected] == [f"d{m}" for m in range(count - 1)]
    usual = plan_for(devices(count - 1))
    assert plan.weights.tolist() == usual.weights.tolist()
    assert plan.noise_std.tolist() == usual.noise_std.tolist()
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith(
        f"device z is left out: its least noise multiplier {least:g}"
    )


def test_a_device_with_a_large_epsilon_may_demand_the_noise_of_others() -> None:
    # Much more noise than its own epsilon needs, and no more than the others have.
    median = float(plan_for(devices(8)).noise_multiplier[0])
    open_ = declaration(device="d7", epsilon=1e6, least_noise_multiplier=median)
    plan, selected = plan_fleet([*devices(7), open_])
    assert len(selected) == 8
    assert plan.weights[7] >= plan.weights[0]


def test_noise_falls_only_if_it_ends_above_what_owners_demand() -> None:
    usual = {"cost": 20_000.0, "num_samples": 5000, "epsilon": 2.0}
    falling, _ = plan_fleet(devices(8, **usual))
    assert falling.noise_decay < 1
    last = falling.noise_std_of(falling.rounds) * falling.batch_size[0]
    least = float(last[0] / falling.lipschitz)
    same, _ = plan_fleet(devices(8, **usual, least_noise_multiplier=0.99 * least))
    assert same.noise_decay == falling.noise_decay
    constant, _ = plan_fleet(devices(8, **usual, least_noise_multiplier=1.01 * least))
    assert constant.noise_decay == 1.0
    assert (constant.noise_multiplier >= 1.01 * least).all()
    assert not any("noise falls" in reason for reason in constant.reasons)


def test_when_all_demand_it_the_noise_is_raised_for_all() -> None:
    plan, selected = plan_fleet(devices(4, least_noise_multiplier=1e4))
    assert len(selected) == 4 and (plan.noise_multiplier >= 1e4).all()
    assert plan.weights.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    "absurd, words",
    [
        ({"communication_price": 1e12}, "cost budget 1000 does not pay for one round"),
        ({"cost": 0.0}, "cost budget 0 does not pay for one round"),
        ({"epsilon": 0.0}, "epsilon 0 is below 1e-06"),
        ({"epsilon": 1e-300, "accountant": "zcdp"}, "epsilon 1e-300 is below 1e-06"),
        ({"dim": 9}, "9 columns"),
    ],
)
def test_a_device_that_cannot_take_part_is_left_out_by_name(
    absurd: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan, selected = plan_fleet([*devices(3), declaration(device="z", **absurd)])
    assert [d.device for d in selected] == ["d0", "d1", "d2"]
    assert plan.num_devices == 3
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("device z is left out: ") and words in line


@pytest.mark.parametrize(
    "extreme",
    [
        {"epsilon": 1e12},
        {"epsilon": 1e12, "accountant": "zcdp"},
        {"epsilon": 1e-6, "delta": 1e-100, "accountant": "zcdp"},
        {"delta": 0.5},
        {"cost": 1e12},
        {"communication_price": 0.0, "computation_price": 0.0},
        {"num_samples": 1 << 40, "epsilon": 1e12},
        {"num_samples": 1},
    ],
)
def test_an_extreme_declaration_does_not_stop_the_plan_for_others(
    extreme: dict[str, Any],
) -> None:
    plan, selected = plan_fleet([*devices(3), declaration(device="z", **extreme)])
    assert [d.device for d in selected][:3] == ["d0", "d1", "d2"]
    assert (plan.device_rounds[:3] > 0).all()
    plan.check_promise()


def test_without_any_device_that_can_pay_there_is_no_plan() -> None:
    with pytest.raises(fb.InfeasibleBudgetError, match="none of the 3 devices"):
        plan_fleet(devices(3, cost=1.0))
