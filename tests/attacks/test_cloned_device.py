"""Two processes with one certificate: each has a ledger, neither knows the other's.

An owner who restores a backup on a second machine, or a thief with a copy of the key,
makes two devices of one. Both answer, each within the budget, and together they spend
it twice. The broker lets them in by turns: the certificate is valid.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbudget.fleet.coordinator.roster import Roster, plan_fleet
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Declaration
from tests.fleet.devices import write_device
from tests.fleet.examples import declaration
from tests.fleet.scripted import NAMES, SIGNER, Scripted, Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.stop()


def declared(folder: Path) -> Declaration:
    guard = Guard(read_policy(write_device(folder)))
    declaration = guard.declaration
    guard.close()
    return declaration


def hear(roster: Roster, declaration: Declaration) -> None:
    topic = topics.declare(declaration.device)
    message = Message(topic=topic, payload=declaration.to_bytes(), receiver="c")
    assert roster.take(message)


def test_two_ledgers_of_one_device_are_seen_before_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = declared(tmp_path / "one"), declared(tmp_path / "two")
    assert first.device == second.device and first.ledger != second.ledger
    roster = Roster()
    others = [declaration(device=name) for name in NAMES]
    for heard in (*others, first, first, second, first):
        hear(roster, heard)
    with caplog.at_level(logging.WARNING):
        _, selected = plan_fleet(list(roster.declarations.values()), roster=roster)
    assert [d.device for d in selected] == [*NAMES]
    reason = roster.clones["sensor-1"]
    assert first.ledger is not None and second.ledger is not None
    assert first.ledger[:12] in reason and second.ledger[:12] in reason
    connection = Scripted()
    roster.send_notices(connection, SIGNER)
    assert connection.notices == {"sensor-1": reason}


def test_a_device_keeps_its_ledger_over_restarts(tmp_path: Path) -> None:
    first, second = declared(tmp_path), declared(tmp_path)
    assert first == second


def test_a_ledger_that_was_replaced_during_a_run_is_seen_after_a_restart() -> None:
    # The coordinator was restarted meanwhile: the run's declarations are on disk.
    roster = Roster([declaration(ledger="0" * 32)])
    hear(roster, declaration(ledger="0" * 32))
    assert roster.clones == {}
    hear(roster, declaration(ledger="1" * 32))
    assert list(roster.clones) == ["sensor-1"]
