"""Attack: orders of a run that has ended are replayed, and devices pay for nothing.

Somebody recorded the signed offer and the orders of a run. After its end, or after it
was cancelled, he sends them to a device again: to one that was part of the run, and to
one that was away. Each round would be charged, and nobody would use the answer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbudget.fleet.device.process import Device
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Reply
from fedbudget.fleet.wire.signing import Signer
from fedbudget.fleet.wire.withdrawals import RunEnd
from tests.fleet.devices import SIGNER, Site, new_site
from tests.fleet.examples import RUN, offer, order
from tests.fleet.sums import Hostile

END = SIGNER.sign(RunEnd(run=RUN, reason="cancelled"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = new_site(tmp_path)
    yield site
    site.guard.close()


def test_an_ended_run_is_not_charged_again(site: Site) -> None:
    site.offer()
    first = site.order()
    spent = site.spent
    assert site.guard.answer_order(END) == []
    for _ in range(2):
        replayed = site.order(round=2)
        assert (replayed.code, replayed.reason) == ("policy", "this run has ended")
        assert site.order().to_bytes() == first.to_bytes()  # paid for already
        assert site.spent == spent
        site.restart()  # the ledger remembers


def test_a_device_that_was_away_does_not_join_either(site: Site) -> None:
    assert site.guard.answer_order(END) == []
    assert site.offer().code == "policy"
    assert site.guard.answer_order(SIGNER.sign(order())) == []  # not joined
    assert site.spent == (0.0, 0.0)


def test_an_order_that_waits_for_its_offer_is_not_carried_out(site: Site) -> None:
    assert site.guard.answer_order(SIGNER.sign(order())) == []
    site.guard.answer_order(END)
    (reply,) = site.guard.answer_offer(SIGNER.sign(offer()))
    assert reply.code == "policy" and site.spent == (0.0, 0.0)


def test_only_its_own_coordinator_ends_a_run(site: Site) -> None:
    """Another trusted coordinator must not end a run of this one, nor must anybody."""
    other = Signer.generate()
    path = site.folder / "policy.toml"
    both = f'["{SIGNER.public_key}", "{other.public_key}"]'
    path.write_text(path.read_text().replace(f'["{SIGNER.public_key}"]', both))
    site.restart()
    site.offer()
    for signer in (other, Signer.generate()):
        site.guard.answer_order(signer.sign(RunEnd(run=RUN, reason="no")))
        assert site.order(round=1).code == "answered"


def test_a_false_end_before_the_offer_does_not_hold(site: Site) -> None:
    """Another coordinator ends a run before the device has seen its offer."""
    other = Signer.generate()
    path = site.folder / "policy.toml"
    both = f'["{SIGNER.public_key}", "{other.public_key}"]'
    path.write_text(path.read_text().replace(f'["{SIGNER.public_key}"]', both))
    site.restart()
    site.guard.answer_order(other.sign(RunEnd(run=RUN, reason="no")))
    assert site.offer().code == "accepted"
    assert site.order().code == "answered"


def test_an_order_that_was_repeated_while_a_device_was_away(site: Site) -> None:
    """It waits at the broker on a topic of its own; the end comes on the same one."""
    site.guard.close()
    device = Device(site.policy)
    again = topics.order_again("sensor-1")
    assert device.handle(again, END) == []
    assert device.handle(topics.offer("sensor-1"), SIGNER.sign(offer())) != []
    assert device.handle(again, SIGNER.sign(order())) == []
    device.close()
    assert site.spent == (0.0, 0.0)


def test_orders_of_an_ended_run_of_sums_are_not_charged(inside: Hostile) -> None:
    keys = inside.keys(inside.fleet.names)
    roster = inside.roster(keys)
    end = RunEnd(run=inside.run_id, reason="cancelled")
    assert inside.order("device-0", end) is None
    for replayed in (roster, inside.attempt(), inside.peer_list()):
        reply = inside.order("device-0", replayed)
        assert isinstance(reply, Reply)
        assert (reply.code, reply.reason) == ("policy", "this run has ended")
    assert inside.fleet.entries("device-0", "charge") == []
