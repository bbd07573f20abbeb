"""The contract of the `Devices` seam, over a real broker and real guards."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedbudget.fleet.device.policy import Policy
from fedbudget.fleet.device.process import Device, serve
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from tests.contract_devices import DevicesContract, Make
from tests.fleet.brokers import BrokerProcess
from tests.fleet.devices import Fleet, fleets


@dataclass
class MqttFleet(Fleet):
    """Guards and their coordinator as clients of one broker."""

    port: int = 0
    connection: Connection | None = None

    def transport(self, name: str) -> dict[str, Any]:
        return {"port": self.port}

    def serve(self, device: Device, policy: Policy) -> None:
        assert policy.broker is not None
        serve(device, policy.broker, self.stop)

    def channel(self) -> Channel:
        self.connection = Connection(
            BrokerAddress(
                port=self.port, identity=identity_of(self.certs, COORDINATOR)
            ),
            name=COORDINATOR,
            topics=topics.coordinator_reads(),
        ).start()
        return self.connection

    def wake(self) -> None:
        """Withdraw all retained messages: a withdrawn offer wakes its guard."""
        if self.connection is not None:
            for topic in list(self.connection.retained):
                self.connection.withdraw(topic)
            for name in self.names:
                self.connection.withdraw(topics.declare(name))
            self.connection.flush(5)

    def end_coordinator(self) -> None:
        if self.connection is not None:
            self.connection.stop()
        super().end_coordinator()


class TestMqttDevices(DevicesContract):
    """The same contract that simulated devices fulfil."""

    @pytest.fixture
    def make(self, broker: BrokerProcess, tmp_path: Path) -> Iterator[Make]:
        def new(folder: Path) -> MqttFleet:
            return MqttFleet(folder, broker.certs, port=broker.port)

        yield from fleets(new, tmp_path)
