"""The contract of the `Devices` seam, over a real broker and real guards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract_devices import DevicesContract, Make
from tests.fleet.brokers import BrokerProcess
from tests.fleet.devices import fleets
from tests.fleet.mqtt_fleet import MqttFleet


class TestMqttDevices(DevicesContract):
    """The same contract that simulated devices fulfil."""

    @pytest.fixture
    def make(self, broker: BrokerProcess, tmp_path: Path) -> Iterator[Make]:
        def new(folder: Path) -> MqttFleet:
            return MqttFleet(folder, broker.certs, port=broker.port)

        yield from fleets(new, tmp_path)
