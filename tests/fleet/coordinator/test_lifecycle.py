"""The life of a run, with real processes over real brokers: its end leaves no order."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.errors import RecordError, TrainingError
from fedbudget.fleet.coordinator.lifecycle import (
    CancelledError,
    State,
    cancel,
    check_cancelled,
    read_summary,
    request_cancel,
)
from fedbudget.fleet.demo import Terms, TrialFleet, wait_until
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.signing import Signer
from tests.cli.running import run
from tests.fleet.brokers import FLEETS
from tests.fleet.conftest import need_broker


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fb.load("adult", split="iid", num_devices=3, seed=0)


@pytest.fixture(params=sorted(FLEETS))
def fleet(
    request: pytest.FixtureRequest, data: Dataset, tmp_path: Path
) -> Iterator[TrialFleet]:
    """Three devices, one of which is paused: every round waits for it."""
    need_broker(request.param)
    terms = Terms(epsilon=4.0, cost=1000.0)
    fleet = FLEETS[request.param](tmp_path, data, terms, deadline=600.0)
    (tmp_path / fleet.names[2] / "paused").touch()  # it declares itself, and no more
    with ExitStack() as stack:
        fleet.start(stack)
        yield fleet


def retained_orders(fleet: TrialFleet, *, seconds: float = 2.0) -> list[str]:
    """Return the topics of orders that the broker has for new subscribers.

    Messages are received until none comes for some seconds, or an order has come.
    """
    identity = identity_of(fleet.certs, fleet.names[0])
    broker = BrokerAddress(host="localhost", port=fleet.port, identity=identity)
    fleet.devices[0].stop()  # its name is needed
    names: tuple[str, ...] = tuple(topics.device_reads(fleet.names[0]))
    orders: set[str] = set()
    # First end the session of the device, with the messages that wait for it.
    for topics_read in ((), names):
        with Connection(
            broker, name=fleet.names[0], topics=topics_read, keeps_session=False
        ) as reader:
            assert reader.wait_connected(60) and reader.flush(60)
            wait = seconds if topics_read else 2.0
            while not orders and (message := reader.receive(wait)) is not None:
                if message.payload and topics.content(message.topic) == "order":
                    orders.add(message.topic)
    return sorted(orders)


def charges(fleet: TrialFleet) -> list[int]:
    ledgers = [fleet.folder / name / "ledger.sqlite" for name in fleet.names]
    return [sum(run.charged for run in read_statement(path).runs) for path in ledgers]


def command(fleet: TrialFleet, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    folder = str(fleet.folder / "out")
    return run(capsys, "server", words[0], folder, *words[1:])


def wait_for_round(fleet: TrialFleet) -> None:
    """Wait until two devices have answered a round that waits for the third."""

    def two_have_answered() -> bool:
        states = [row["this_round"] for row in fleet.status().get("devices", [])]
        return states.count("answered") == 2

    wait_until(two_have_answered, "a round", child=fleet.server, seconds=300)


def unpause(fleet: TrialFleet) -> None:
    (fleet.folder / fleet.names[2] / "paused").unlink()


def test_a_cancelled_run_is_over_for_ever(
    fleet: TrialFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_for_round(fleet)
    is_shown = lambda: "demo: running" in command(fleet, capsys, "show").words  # noqa: E731
    wait_until(is_shown, "the status file", child=fleet.server)
    assert retained_orders(fleet, seconds=60) != []
    fleet.devices[0].start()
    before = charges(fleet)
    certs = ("--certs", str(fleet.certs), "--port", str(fleet.port))
    words = ("--wait", "300", "--reason", "moved")
    done = command(fleet, capsys, "cancel", *certs, *words)
    assert (done.code, done.err) == (0, "")
    assert fleet.server.wait(300) == 1  # it has noticed, and ended
    assert "cancelled" in fleet.server.last_line
    listed = run(capsys, "server", "list", str(fleet.folder))
    assert "cancelled" in listed.words and "demo" in listed.words
    unpause(fleet)  # it was away, and must not pay for a dead run
    assert fleet.server.start().wait(300) == 1  # it does not resume
    assert retained_orders(fleet) == []
    ended = lambda: "has ended" in fleet.devices[2].log.read_text()  # noqa: E731
    wait_until(ended, "the third device", child=fleet.devices[2], seconds=300)
    assert charges(fleet) == before
    status = json.loads((fleet.folder / "out" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("cancelled", "moved")


def test_a_killed_coordinator_leaves_no_order(
    fleet: TrialFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_for_round(fleet)
    fleet.server.kill()  # without warning: the broker publishes its last will
    assert retained_orders(fleet) == []
    assert "stopped" in command(fleet, capsys, "show").words
    fleet.devices[0].start()
    unpause(fleet)
    assert fleet.server.start().wait(300) == 0  # resumed, to its end
    assert read_summary(fleet.folder / "out").state == State.FINISHED
    assert retained_orders(fleet) == []
    certs = ("--certs", str(fleet.certs), "--port", str(fleet.port))
    refused = command(fleet, capsys, "cancel", *certs)
    assert refused.code == 1 and "nothing to cancel" in refused.err


def test_a_stopped_coordinator_withdraws_its_order(fleet: TrialFleet) -> None:
    wait_for_round(fleet)
    assert fleet.server.pid is not None
    os.kill(fleet.server.pid, signal.SIGTERM)  # as a service is stopped
    assert fleet.server.wait(300) == 130
    assert read_summary(fleet.folder / "out").state == State.STOPPED
    assert retained_orders(fleet) == []


def test_what_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RecordError, match="name the folder of fedbudget server"):
        read_summary(tmp_path)
    listed = run(capsys, "server", "list", str(tmp_path), "--json")
    assert json.loads(listed.out) == {"runs": []}
    assert "no run below" in run(capsys, "server", "list", str(tmp_path)).words


def test_a_request_is_kept_if_the_broker_is_away(
    tmp_path: Path, certs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.fleet.scripted import Site

    site = Site(tmp_path)
    site.start()
    site.stop()
    broker = BrokerAddress(
        host="127.0.0.1", port=1, identity=identity_of(certs, COORDINATOR)
    )
    with pytest.raises(TrainingError, match="run the same command again"):
        cancel(
            tmp_path,
            "moved",
            signer=Signer.generate(),
            connect=lambda: Connection(broker, name=COORDINATOR, topics=()),
            seconds=5,
        )
    with pytest.raises(CancelledError, match=r"was cancelled \(moved\)"):
        check_cancelled(tmp_path)
    request_cancel(tmp_path, "again")
    (tmp_path / "cancelled.json").write_text("{")
    with pytest.raises(RecordError, match="cannot be read"):
        check_cancelled(tmp_path)
