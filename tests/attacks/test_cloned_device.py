"""Two processes with one certificate: each has a ledger, neither knows the other's.

An owner who restores a backup on a second machine, or a thief with a copy of the key,
makes two devices of one. Both answer, each within the budget, and together they spend
it twice. The broker lets them in by turns: the certificate is valid.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbudget.fleet.coordinator.roster import Roster, gather, plan_fleet
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Declaration, RoundOrder
from tests.fleet.devices import write_device
from tests.fleet.examples import declaration
from tests.fleet.scripted import (
    NAMES,
    ROUND_COST,
    SIGNER,
    Script,
    Scripted,
    Site,
    mean_of,
    moved,
    ordered,
    reply_to,
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.stop()


def answering(order: RoundOrder, **changes: Any) -> list[Any]:
    return [reply_to(order, "b", **changes)] if order.selects(1) else []


def refused_in_round_3(site: Site, script: Script) -> str:
    """Run three rounds; return why b was refused after the second."""
    devices, connection = site.start({"b": script}, deadline=6000)
    mean_of(devices.run_round(ordered(1)), *NAMES)
    devices.run_round(ordered(2))
    replies = devices.run_round(ordered(3))
    mean_of(replies, "a", "c", "d")
    # Its round 3 was not ordered, and so it cannot have been charged.
    assert replies.cost.tolist() == [3 * ROUND_COST, 2 * ROUND_COST] + (
        [3 * ROUND_COST] * 2
    )
    assert connection.notices == dict(devices.roster.clones)
    return connection.notices["b"]


def test_a_copy_that_answers_later_rounds_is_seen_by_its_ledger(site: Site) -> None:
    # A copy of the folder, made before round 1, has the same identity.
    def script(order: RoundOrder) -> list[Any]:
        return answering(order, previous=0)

    reason = refused_in_round_3(site, script)
    assert "has round 0 as the last one before round 2" in reason
    assert "it has answered round 1" in reason


def test_a_copy_is_seen_after_a_restart_of_the_coordinator(site: Site) -> None:
    def script(order: RoundOrder) -> list[Any]:
        return answering(order, previous=0)

    devices, _ = site.start({"b": script})
    devices.run_round(ordered(1))
    again, _ = site.start({"b": script})
    mean_of(again.run_round(ordered(2)), "a", "c", "d")
    assert list(again.roster.clones) == ["b"]


def test_two_answers_to_one_round_are_seen(site: Site) -> None:
    def script(order: RoundOrder) -> list[Any]:
        other = answering(order, theta=moved(order, 0.3))
        return answering(order) + (other if order.round == 2 else [])

    assert "answered this round before" in refused_in_round_3(site, script)


def test_a_device_that_lost_rounds_is_not_taken_for_a_copy(site: Site) -> None:
    # Charged and never received, or missed: its ledger has more than was received.
    previous = {1: 0, 2: 1, 3: 2, 4: 2}

    def script(order: RoundOrder) -> list[Any]:
        known = answering(order, previous=previous[order.round])
        # As after a broker's restart, the last answer comes again.
        return known + known

    devices, _ = site.start({"b": script}, deadline=6000)
    for number in (1, 2, 4):
        mean_of(devices.run_round(ordered(number)), *NAMES)
    assert devices.roster.clones == {}


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


def test_a_device_that_was_set_up_anew_before_the_run_is_no_clone(
    tmp_path: Path,
) -> None:
    # A broker delivers what was declared before, too, while nobody read it.
    old, new = declared(tmp_path / "one"), declared(tmp_path / "two")
    roster = Roster()
    channel = Scripted()
    for heard in (old, new):
        topic, data = topics.declare(heard.device), heard.to_bytes()
        channel.inbox.put(Message(topic=topic, payload=data, receiver="coordinator"))
    assert gather(channel, roster, count=1, seconds=30) == [new]
    assert roster.clones == {}
    roster.begin([new])
    hear(roster, new)
    assert roster.clones == {}
    hear(roster, old)
    assert list(roster.clones) == ["sensor-1"]


def test_ledgers_without_end_are_refused() -> None:
    roster = Roster()
    for number in range(20):
        hear(roster, declaration(ledger=f"{number:032x}"))
    assert list(roster.clones) == ["sensor-1"]


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
