"""Guards in threads of this process and their coordinator, over a real broker."""

from dataclasses import dataclass
from typing import Any

from fedbudget.fleet.device.policy import Policy
from fedbudget.fleet.device.process import Device, serve
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from tests.fleet.devices import Fleet


@dataclass
class MqttFleet(Fleet):
    """Guards and their coordinator as clients of one broker."""

    port: int = 0
    connection: Connection | None = None

    def transport(self, name: str) -> dict[str, Any]:
        return {"port": self.port}

    def address(self, name: str, direct: BrokerAddress) -> BrokerAddress:
        """Return where a client connects to; tests break its connection there."""
        return direct

    def serve(self, device: Device, policy: Policy) -> None:
        assert policy.broker is not None
        serve(device, self.address(device.name, policy.broker), self.stop)

    def channel(self) -> Channel:
        identity = identity_of(self.certs, COORDINATOR)
        direct = BrokerAddress(port=self.port, identity=identity)
        self.connection = Connection(
            self.address(COORDINATOR, direct),
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
