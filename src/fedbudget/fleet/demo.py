"""A whole fleet on this machine, on the Adult data: for the eyes, and for benchmarks.

Broker, coordinator and devices are processes of their own, over mutual TLS. Each device
holds the rows of its own level of education, its own ledger and its owner's policy.
"""

import json
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.data import Dataset
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.transport.certificates import check_name, make_certificates
from fedbudget.fleet.trial import (
    Child,
    HeldPort,
    Terms,
    listens,
    wait_until,
    write_site,
)
from fedbudget.planning import Plan
from fedbudget.simulation.measuring import measure
from fedbudget.training import train

# Straight to the coordinator: a proxy has no business with loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class TrialFleet:
    """The processes of a fleet on this machine."""

    folder: Path
    data: Dataset
    terms: Terms
    deadline: float = 30.0
    minimum: int | None = None  # of answers; none: of all devices
    held_ports: tuple[HeldPort, HeldPort] = field(
        default_factory=lambda: (HeldPort(), HeldPort())
    )

    def __post_init__(self) -> None:
        self.certs = self.folder / "certs"
        # The coordinator takes devices by name: they must come in the data's order.
        self.names = [check_name(name) for name in self.data.device_names]
        if self.names != sorted(self.names):
            raise InvalidInputError("the data's devices must be sorted by their names")
        make_certificates(self.certs, self.names)
        self.broker = self._broker()
        self.devices = [self._device(m) for m in range(self.data.num_devices)]
        self.server = self._server()

    @property
    def port(self) -> int:
        """Of the broker."""
        return self.held_ports[0].number

    @property
    def status_port(self) -> int:
        """Of the coordinator's status."""
        return self.held_ports[1].number

    def log_of(self, name: str) -> Path:
        """Return where a process writes what it has to say."""
        return self.folder / "logs" / f"{name}.log"

    def _broker(self) -> Child:
        where = ("--certs", str(self.certs), "--port", str(self.port))
        return Child(("fleet", "broker", *where), self.log_of("broker"))

    def _device(self, m: int) -> Child:
        name = self.names[m]
        policy = write_site(
            self.folder / name,
            name,
            self.data.train.device(m),
            self.terms,
            certs=self.certs,
            port=self.port,
        )
        return Child(("device", str(policy)), self.log_of(name))

    def _server(self) -> Child:
        count = str(self.data.num_devices)
        arguments = (
            *("server", str(self.folder / "out"), "--certs", str(self.certs)),
            *("--port", str(self.port), "--devices", count, "--wait", "300"),
            *("--deadline", str(self.deadline)),
            *("--minimum", count if self.minimum is None else str(self.minimum)),
            *("--status-port", str(self.status_port), "--name", "demo"),
            *("--dissimilarity", str(self.data.dissimilarity)),
        )
        return Child(arguments, self.log_of("coordinator"))

    def start(self, stack: ExitStack) -> None:
        """Start everything; the stack ends it."""
        stack.callback(self.broker.start().stop)
        wait_until(lambda: listens(self.port), "the broker", child=self.broker)
        for device in self.devices:
            stack.callback(device.start().stop)
        stack.callback(self.server.start().stop)

    def status(self) -> dict[str, Any]:
        """Return what the coordinator says of itself; empty while it says nothing."""
        try:
            where = f"http://127.0.0.1:{self.status_port}/status"
            with _opener.open(where, timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return {}

    def wait(self, on_status: Callable[[dict[str, Any]], None]) -> None:
        """Wait for the coordinator's end, showing what it does meanwhile.

        Raises:
            TrainingError: A process of the fleet has ended before its time.
        """
        named = dict(zip(self.names, self.devices, strict=True))
        others = {"the broker": self.broker}
        others |= {f"device {name}": device for name, device in named.items()}
        while self.server.code is None:
            for name, other in others.items():
                if other.code is not None:
                    raise TrainingError(f"{name} has ended: {other.last_words}")
            found = self.status()
            if found.get("devices"):
                on_status(found)
            self.server.wait(0.2)
        if self.server.code != 0:
            raise TrainingError(f"the coordinator has failed: {self.server.last_words}")

    def final_status(self) -> dict[str, Any]:
        """Return how the run ended, with what each device's own ledger says."""
        checkpoints = Checkpoints(self.folder / "out" / "coordinator.sqlite")
        try:
            plan, stored = self.plan(), checkpoints.run()
            assert stored is not None
            tally = Tally(plan, stored.declared, checkpoints)
            tally.begin(plan.rounds, checkpoints.replies(plan.rounds))
            found = tally.summary({})
        finally:
            checkpoints.close()
        for told in found["devices"]:
            ledger = read_statement(self.folder / told["name"] / "ledger.sqlite")
            told |= {"epsilon": ledger.epsilon, "cost": ledger.cost}
        return found

    def plan(self) -> Plan:
        """Return the plan that the coordinator made."""
        path = self.folder / "out" / "run" / "plan.json"
        return Plan.from_dict(json.loads(path.read_text()))

    def model(self) -> Any:
        """Return the model that was released."""
        with np.load(self.folder / "out" / "run" / "model.npz") as file:
            return file["theta"]

    def round_seconds(self) -> list[float]:
        """Return how long each round took, by the coordinator's own clock."""
        checkpoints = Checkpoints(self.folder / "out" / "coordinator.sqlite")
        try:
            return checkpoints.round_seconds()
        finally:
            checkpoints.close()


def compare(fleet: TrialFleet, *, seeds: int = 20) -> dict[str, Any]:
    """Return the fleet's accuracy next to that of simulations of the same plan."""
    from fedbudget.simulation.devices import SimulatedDevices

    plan = fleet.plan()
    ours = _accuracy(measure(fleet.data, plan.model, fleet.model()))
    runs = [
        _accuracy(train(plan, SimulatedDevices(fleet.data, seed=seed)).measured)
        for seed in range(seeds)
    ]
    accuracies = [run["accuracy"] for run in runs]
    return {
        "fleet": ours,
        "simulated": {
            "accuracy": float(np.mean(accuracies)),
            "spread": float(np.std(accuracies, ddof=1)) if seeds > 1 else 0.0,
            "loss": float(np.mean([run["loss"] for run in runs])),
            "seeds": seeds,
        },
        "median_round_seconds": float(np.median(fleet.round_seconds())),
        "folder": str(fleet.folder),
    }


def _accuracy(measured: Mapping[str, float]) -> dict[str, float]:
    return {"accuracy": measured["test_accuracy"], "loss": measured["test_loss"]}
