"""The contract of the `Devices` seam, over a real broker and real guards."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.fleet import topics
from fedbudget.fleet.certificates import COORDINATOR, identity_of
from fedbudget.fleet.checkpoints import Checkpoints
from fedbudget.fleet.coordinator import FleetDevices
from fedbudget.fleet.device import Device, broker_of, serve
from fedbudget.fleet.mqtt import Broker, Connection
from fedbudget.fleet.policy import Policy, read_policy
from fedbudget.fleet.roster import Roster, gather
from fedbudget.fleet.signing import Signer
from fedbudget.fleet.trial import Terms, write_site
from fedbudget.training import Devices
from tests.contract_devices import DevicesContract, Make
from tests.fleet.brokers import BrokerProcess


@dataclass
class Fleet:
    """Guards in threads of this process, and a coordinator that may be replaced."""

    folder: Path
    broker: BrokerProcess
    names: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    connection: Connection | None = None
    checkpoints: Checkpoints | None = None

    def start(self, data: Dataset, budget: fb.Budget, prices: fb.Prices) -> None:
        count = data.num_devices
        limits = zip(*budget.per_device(count), strict=True)
        for m, (epsilon, delta, cost) in enumerate(limits):
            terms = Terms(
                epsilon=float(epsilon),
                delta=float(delta),
                cost=float(cost),
                communication=float(np.broadcast_to(prices.communication, count)[m]),
                computation=float(np.broadcast_to(prices.computation, count)[m]),
                least_noise_multiplier=1e-9,
            )
            name = data.device_names[m]
            policy = read_policy(
                write_site(
                    self.folder / name,
                    name,
                    data.train.device(m),
                    terms,
                    certs=self.broker.certs,
                    port=self.broker.port,
                )
            )
            thread = threading.Thread(target=self._live, args=(policy,), daemon=True)
            thread.start()
            self.names.append(name)
            self.threads.append(thread)

    def _live(self, policy: Policy) -> None:
        device = Device(policy)
        assert policy.broker is not None
        serve(device, broker_of(policy.broker), self.stop)
        device.close()

    def coordinate(self, count: int) -> FleetDevices:
        """Return a coordinator's side; one that was there before has died."""
        self.end_coordinator()
        certs = self.broker.certs
        self.connection = Connection(
            Broker(port=self.broker.port, identity=identity_of(certs, COORDINATOR)),
            name=COORDINATOR,
            topics=topics.coordinator_reads(),
        ).start()
        roster = Roster()
        declared = gather(self.connection, roster, count=count, seconds=20)
        self.checkpoints = Checkpoints(self.folder / "coordinator.sqlite")
        return FleetDevices(
            self.connection,
            declared,
            signer=Signer.read(certs / "coordinator.sign"),
            checkpoints=self.checkpoints,
            deadline=20,
            precision="float64",
            roster=roster,
        )

    def end_coordinator(self) -> None:
        if self.connection is not None and self.checkpoints is not None:
            self.connection.stop()
            self.checkpoints.close()

    def end(self) -> None:
        self.stop.set()  # guards notice when their offers are withdrawn
        if self.connection is not None:
            for topic in list(self.connection.kept):
                self.connection.withdraw(topic)
            for name in self.names:
                self.connection.withdraw(topics.declare(name))
            self.connection.flush(5)
        self.end_coordinator()
        for thread in self.threads:
            thread.join(10)


class TestMqttDevices(DevicesContract):
    """The same contract that simulated devices fulfil."""

    @pytest.fixture
    def make(self, any_broker: BrokerProcess, tmp_path: Path) -> Iterator[Make]:
        fleets: list[Fleet] = []

        def new(
            data: Dataset,
            *,
            budget: fb.Budget,
            prices: fb.Prices,
            after: Devices | None = None,
        ) -> Devices:
            if after is not None:
                return fleets[-1].coordinate(data.num_devices)
            if fleets:
                fleets.pop().end()
            fleets.append(
                Fleet(tmp_path / str(len(list(tmp_path.iterdir()))), any_broker)
            )
            fleets[-1].start(data, budget, prices)
            return fleets[-1].coordinate(data.num_devices)

        yield new
        for fleet in fleets:
            fleet.end()
