"""Messages that come back to the coordinator are not replies of a device.

A broker, a bridge between brokers or a device may send the coordinator its own offers
and orders. Booked as replies, they would count as invalid messages of devices that did
nothing wrong, and hide those that did.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.wire import topics
from tests.fleet.scripted import NAMES, Scripted, Site, mean_of, ordered


class Echoing(Scripted):
    """A broker that sends the coordinator all that it publishes."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.inbox.put(Message(topic=topic, payload=payload, receiver=self.name))
        super().publish(topic, payload, retain=retain)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, connection=Echoing)
    yield site
    site.stop()


def test_an_echoed_offer_is_not_booked_against_its_device(site: Site) -> None:
    devices, _ = site.start()
    mean_of(devices.run_round(ordered()), *NAMES)
    assert site.checkpoints is not None and site.checkpoints.dropped() == {}
    assert devices.status()["dropped_unknown"] == 0


def test_an_offer_that_a_device_sends_as_its_reply_is_booked(site: Site) -> None:
    def script(order: Any) -> list[Any]:
        return [connection.retained[topics.offer("b")]]

    devices, connection = site.start({"b": script}, deadline=0.3)
    mean_of(devices.run_round(ordered()), "a", "c", "d")
    assert site.checkpoints is not None
    assert list(site.checkpoints.dropped()) == ["b"]
