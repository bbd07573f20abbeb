"""A whole fleet on this machine, on the Adult data: for the eyes, and for benchmarks.

Broker, coordinator and devices are processes of their own, over mutual TLS. Each device
holds the rows of its own level of education, its own ledger and its owner's policy.
"""

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    DELTA,
    Budget,
    Prices,
)
from fedbudget.data import Dataset
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.spending import Tally
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.transport.certificates import (
    check_name,
    identity_of,
    make_certificates,
)
from fedbudget.losses import Labels, Rows
from fedbudget.planning import Plan
from fedbudget.simulation.measuring import measure
from fedbudget.training import train

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class HeldPort:
    """A port on loopback that stays ours, also while nobody listens on it.

    It is bound here, but nobody listens here. On Linux a server that sets SO_REUSEADDR,
    as they do, may then listen on it, and again after it was killed; the system gives
    it to nobody else. Other systems let only one of us have it: there it is let go at
    once, and another program may be faster.

    Args:
        number: Of the port; 0: the system chooses.

    Raises:
        OSError: The port is somebody else's.
    """

    def __init__(self, number: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", number))
        self.number = int(self._socket.getsockname()[1])
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Let it go, for a server that does not share it even so."""
        self._socket.close()

    def __del__(self) -> None:
        self.release()


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the owner of a device on trial decides."""

    epsilon: float
    delta: float = DELTA
    cost: float
    communication: float = COMMUNICATION_PRICE
    computation: float = COMPUTATION_PRICE
    least_noise_multiplier: float = 1.0
    loss: str = "logistic"

    def __post_init__(self) -> None:
        # What a device's own process would refuse, refused before any is started.
        Budget(epsilon=self.epsilon, delta=self.delta, cost=self.cost)
        Prices(communication=self.communication, computation=self.computation)


def write_site(
    folder: Path,
    name: str,
    rows: tuple[Rows, Labels],
    terms: Terms,
    *,
    certs: Path,
    port: int | None = None,
    socket: Path | None = None,
) -> Path:
    """Write a device's rows and its owner's policy; return the policy's path.

    Orders come over a broker at a port of this machine, or over a socket.
    """
    folder.mkdir(parents=True, exist_ok=True)
    x, y = rows
    dense = np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float32)
    np.savez(folder / "rows.npz", x=dense, y=np.asarray(y, int))
    if socket is None:
        files = vars(identity_of(certs, name))
        tls = {key: str(path.resolve()) for key, path in files.items()}
        way = {"broker": {"host": "127.0.0.1", "port": port} | tls}
    else:
        way = {"socket": {"file": str(socket)}}
    trusted = (certs / "coordinator.pub").read_text().strip()
    path = folder / "policy.toml"
    path.write_text(_policy(name, terms, trusted, way))
    return path


def _policy(
    name: str, terms: Terms, trusted: str, way: Mapping[str, Mapping[str, object]]
) -> str:
    sections: dict[str, Mapping[str, object]] = {
        "data": {"file": "rows.npz", "loss": terms.loss, "lineage": name},
        "budget": {"epsilon": terms.epsilon, "delta": terms.delta, "cost": terms.cost},
        "prices": {
            "communication": terms.communication,
            "computation": terms.computation,
        },
        "orders": {
            "trusted": [trusted],
            "least_noise_multiplier": terms.least_noise_multiplier,
        },
        **way,
    }
    lines = [f"device = {json.dumps(name)}"]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        # JSON's texts, numbers and lists are TOML's too.
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


@dataclass
class Child:
    """A command of this package in a process of its own."""

    arguments: Sequence[str]
    log: Path
    command: Sequence[str] = (sys.executable, "-m", "fedbudget")
    settings: Mapping[str, str] = field(default_factory=dict)  # of its environment
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self) -> "Child":
        """Start it, or start it again."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # One thread each: their rounds are short, and there are many of them.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*self.command, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | threads | dict(self.settings),
            )
        return self

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; none while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line that it has written, or how it ended without one."""
        told = self.log.read_text(errors="replace").strip().splitlines()
        return told[-1] if told else f"nothing (exit code {self.code})"

    def wait(self, seconds: float) -> int | None:
        """Wait for its end and return how it ended; none if it goes on."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and insist."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def wait_until(
    reached: Callable[[], bool], what: str, *, child: Child, seconds: float = 60.0
) -> None:
    """Wait for something that a child brings about.

    Raises:
        TrainingError: It has ended, or it takes too long; its last words are told.
    """
    end = time.monotonic() + seconds
    while not reached():
        if child.code is not None or time.monotonic() > end:
            raise TrainingError(
                f"{what} did not come: its process says {child.last_words!r}"
            )
        time.sleep(0.05)


def listens(port: int) -> bool:
    """Return whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def mosquitto(*, shipped: Path, certs: Path, folder: Path, port: int) -> Child:
    """Return mosquitto, which must be installed, with the configuration we ship.

    Args:
        shipped: The folder `deploy/mosquitto` of a clone.
        certs: What `fedbudget certs` has made.
        folder: For its files.
        port: To listen on, on loopback.
    """
    assert MOSQUITTO is not None
    folder.mkdir(parents=True, exist_ok=True)
    text = (shipped / "fedbudget.conf").read_text()
    for usual, ours in (
        ("/etc/mosquitto/certs", certs.resolve()),
        ("/etc/mosquitto/fedbudget.acl", shipped.resolve() / "fedbudget.acl"),
        ("/var/lib/mosquitto/", f"{folder.resolve()}/"),
        ("listener 8883", f"listener {port} 127.0.0.1"),
    ):
        text = text.replace(usual, str(ours))
    # Started by root it would become a user who cannot read the trial's keys.
    config = folder / "mosquitto.conf"
    config.write_text(f"user {getpass.getuser()}\n{text}")
    return Child(("-c", str(config)), folder / "broker.log", command=(MOSQUITTO,))


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
