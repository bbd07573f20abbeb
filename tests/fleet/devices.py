"""Devices for tests: one on disk, and fleets of guards."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.coordinator.roster import Roster, gather
from fedbudget.fleet.demo import Terms, write_site
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.ledger_file import LedgerFile, StoredAnswer
from fedbudget.fleet.device.policy import Policy, read_policy
from fedbudget.fleet.device.process import Device
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.wire.messages import RoundOrder, RunOffer
from fedbudget.fleet.wire.signing import Signer
from fedbudget.training import Devices
from tests.contract_devices import Make
from tests.fleet.examples import offer, order

SIGNER = Signer.generate()
NUM_ROWS, DIM = 100, 4

POLICY = """
device = "sensor-1"

[data]
file = "rows.npz"
loss = "logistic"
lineage = "roof"

[budget]
epsilon = {epsilon}
delta = 1e-4
cost = {cost}

[prices]
communication = 100
computation = 1

[orders]
trusted = ["{key}"]
runs = ["alarms*"]
least_noise_multiplier = 5.0
most_tau = 50
most_rounds = 100
most_learning_rate = 20.0
most_l2 = 0.1

[broker]
host = "localhost"
port = {port}
"""


def rows(count: int = NUM_ROWS, dim: int = DIM) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, dim))
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32), (x[:, 0] > 0).astype(np.int64)


def write_device(
    folder: Path, *, epsilon: float = 4.0, cost: float = 1000.0, port: int = 8883
) -> Path:
    """Write rows and a policy; return the policy's path."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = rows()
    np.savez(folder / "rows.npz", x=x, y=y)
    path = folder / "policy.toml"
    path.write_text(
        POLICY.format(epsilon=epsilon, cost=cost, key=SIGNER.public_key, port=port)
    )
    return path


@dataclass
class Site:
    """A device's folder and its guard."""

    folder: Path
    policy: Policy
    guard: Guard

    def restart(self) -> None:
        self.guard.close()
        self.policy = read_policy(self.folder / "policy.toml")
        self.guard = Guard(self.policy)

    def declare(self, num_samples: int) -> None:
        """Let the owner state the public number of rows, and restart the guard."""
        path = self.folder / "policy.toml"
        text = path.read_text().split("\n[public]")[0]
        path.write_text(f"{text}\n[public]\nnum_samples = {num_samples}\n")
        self.restart()

    def offer(self, **changes: Any) -> Any:
        """Send an offer; return the reply's code."""
        (reply, *_) = self.guard.answer_offer(SIGNER.sign(offer(**changes)))
        return reply

    def order(self, **changes: Any) -> Any:
        (reply,) = self.guard.answer_order(SIGNER.sign(order(**changes)))
        return reply

    @property
    def spent(self) -> tuple[float, float]:
        statement = read_statement(self.policy.ledger)
        return statement.epsilon, statement.cost

    def last_answer(self, run: bytes) -> StoredAnswer | None:
        """Return the last answer of a run with its drift state; restarts the guard."""
        self.guard.close()
        data = self.policy.data
        ledger = LedgerFile(
            self.policy.ledger, self.policy.budget, lineage=data.lineage
        )
        answer = ledger.last_answer(run)
        ledger.close()
        self.guard = Guard(self.policy)
        return answer


def new_site(folder: Path, **budget: float) -> Site:
    policy = read_policy(write_device(folder, **budget))  # type: ignore[arg-type]
    return Site(folder=folder, policy=policy, guard=Guard(policy))


@dataclass
class Fleet:
    """Guards in threads of this process, and a coordinator that may be replaced.

    Derived classes implement what depends on the transport.
    """

    folder: Path
    certs: Path
    names: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    checkpoints: Checkpoints | None = None

    def transport(self, name: str) -> dict[str, Any]:
        """Return the arguments of `write_site` for the transport of orders."""
        raise NotImplementedError

    def serve(self, device: Device, policy: Policy) -> None:
        """Answer orders until the fleet stops."""
        raise NotImplementedError

    def channel(self) -> Channel:
        """Return a new coordinator's channel to the devices."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make guards notice that they must stop."""

    def start(self, data: Dataset, budget: fb.Budget, prices: fb.Prices) -> None:
        count = data.num_devices
        limits = zip(*budget.for_rows(data.num_samples).per_device(count), strict=True)
        for m, (epsilon, delta, cost) in enumerate(limits):
            terms = Terms(
                epsilon=float(epsilon),
                delta=float(delta),
                cost=float(cost),
                communication=float(np.broadcast_to(prices.communication, count)[m]),
                computation=float(np.broadcast_to(prices.computation, count)[m]),
                least_noise_multiplier=1e-9,
            )
            name, rows = data.device_names[m], data.train.device(m)
            folder, transport = self.folder / name, self.transport(name)
            path = write_site(folder, name, rows, terms, certs=self.certs, **transport)
            policy = read_policy(path)
            thread = threading.Thread(target=self._live, args=(policy,), daemon=True)
            thread.start()
            self.names.append(name)
            self.threads.append(thread)

    def _live(self, policy: Policy) -> None:
        device = Device(policy)
        self.serve(device, policy)
        device.close()

    def coordinate(self, count: int, **settings: Any) -> FleetDevices:
        """Return a new coordinator; the previous one has ended."""
        self.end_coordinator()
        channel, roster = self.channel(), Roster()
        declarations = gather(channel, roster, count=count, seconds=120)
        self.checkpoints = Checkpoints(self.folder / "coordinator.sqlite")
        return FleetDevices(
            channel,
            declarations,
            signer=Signer.read(self.certs / "coordinator.sign"),
            checkpoints=self.checkpoints,
            precision="float64",
            roster=roster,
            **({"deadline": 120} | settings),  # all answer; a busy machine is slow
        )

    def end_coordinator(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.close()

    def end(self) -> None:
        self.stop.set()
        self.wake()
        for thread in self.threads:
            thread.join(60)
        self.wake()  # what a guard declared again when it was connected again
        self.end_coordinator()


def fleets(new: Callable[[Path], Fleet], folder: Path) -> Iterator[Make]:
    """Yield a factory of devices for the contract: one fleet at a time."""
    created: list[Fleet] = []

    def make(
        data: Dataset,
        *,
        budget: fb.Budget,
        prices: fb.Prices,
        after: Devices | None = None,
    ) -> Devices:
        if after is None:
            if created:
                created[-1].end()
            created.append(new(folder / str(len(created))))
            created[-1].start(data, budget, prices)
        return created[-1].coordinate(data.num_devices)

    yield make
    if created:
        created[-1].end()


__all__ = ["SIGNER", "RoundOrder", "RunOffer", "Site", "new_site", "rows"]
