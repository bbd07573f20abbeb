"""A fleet on one machine, for `fedbudget fleet demo`, tests and benchmarks.

Broker, coordinator and devices are separate processes, connected over mutual TLS. Each
device has its own rows, its own ledger and its owner's policy.
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
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    Budget,
    Prices,
    planned_delta,
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
from fedbudget.privacy import Trust
from fedbudget.simulation.measuring import measure
from fedbudget.training import train

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# Without a proxy: the coordinator is on loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The budgets, prices and limits in the policy of a demo's device."""

    epsilon: float
    delta: float | None = None  # None: planned from the rows of all devices
    cost: float
    communication: float = COMMUNICATION_PRICE
    computation: float = COMPUTATION_PRICE
    least_noise_multiplier: float = 1.0
    loss: str = "logistic"
    trust: Trust = "uploads"  # sum: devices take part in secure sums only
    least_answers: int | None = None  # of a sum
    colluders: int = 0  # in a sum

    def __post_init__(self) -> None:
        # Fail before any process is started, not in a device's own process.
        self.budget  # noqa: B018  # checks its values
        Prices(communication=self.communication, computation=self.computation)

    @property
    def budget(self) -> Budget:
        """The budget of a device."""
        return Budget(
            epsilon=self.epsilon,
            delta=self.delta,
            cost=self.cost,
            trust=self.trust,
            least_answers=self.least_answers,
            colluders=self.colluders,
        )


@dataclass
class Child:
    """A child process; by default, a command of this package."""

    arguments: Sequence[str]
    log: Path
    command: Sequence[str] = (sys.executable, "-m", "fedbudget")
    environment: Mapping[str, str] = field(default_factory=dict)  # additions to ours
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self) -> "Child":
        """Start the process, also again after its end."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # One thread each: many processes share this machine.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*self.command, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | threads | dict(self.environment),
            )
        return self

    @property
    def pid(self) -> int | None:
        """The process identifier, once it was started."""
        return None if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def last_line(self) -> str:
        """The last line of its log, or its exit code if the log is empty."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"nothing (exit code {self.code})"

    def wait(self, seconds: float) -> int | None:
        """Wait for its end and return the exit code; None if it still runs."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill it without warning, like a power failure."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Terminate it; kill it if it does not end in time."""
        self._end(signal.SIGTERM)

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


class HeldPort:
    """A reserved port on loopback, also while no server listens on it.

    The port is bound here without listening. On Linux, a server that sets SO_REUSEADDR
    can then listen on it, also again after a kill, and the system assigns it to no
    other program. Other systems do not allow that: there the port is released at once,
    and another program may take it.

    Args:
        number: Of the port; 0: the system selects one.

    Raises:
        OSError: Another program uses the port.
    """

    def __init__(self, number: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", number))
        self.number = int(self._socket.getsockname()[1])
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Release the port, for a server that cannot share it."""
        self._socket.close()

    def __del__(self) -> None:
        self.release()


@dataclass
class TrialFleet:
    """The processes of a fleet: broker, coordinator, and one for each device."""

    folder: Path
    data: Dataset
    terms: Terms
    deadline: float = 30.0
    minimum: int | None = None  # answers per round; None: of all devices
    held_ports: tuple[HeldPort, HeldPort] = field(
        default_factory=lambda: (HeldPort(), HeldPort())
    )

    def __post_init__(self) -> None:
        self.certs = self.folder / "certs"
        if self.terms.delta is None:
            delta = planned_delta(self.data.num_samples)
            self.terms = replace(self.terms, delta=delta)
        # The coordinator sorts devices by name, and the data must have the same order.
        self.names = [check_name(name) for name in self.data.device_names]
        if self.names != sorted(self.names):
            raise InvalidInputError("the data's devices must be sorted by their names")
        make_certificates(self.certs, self.names)
        self.broker = self._broker()
        self.devices = [self._device(m) for m in range(self.data.num_devices)]
        self.server = self._server()

    @property
    def port(self) -> int:
        """The port of the broker."""
        return self.held_ports[0].number

    @property
    def status_port(self) -> int:
        """The port of the coordinator's status."""
        return self.held_ports[1].number

    @property
    def status_url(self) -> str:
        """The address of the coordinator's status, for the page."""
        return f"http://127.0.0.1:{self.status_port}/status"

    def log_of(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.folder / "logs" / f"{name}.log"

    def _broker(self) -> Child:
        options = ("--certs", str(self.certs), "--port", str(self.port))
        return Child(("fleet", "broker", *options), self.log_of("broker"))

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
        schema: tuple[str, ...] = ()
        if self.data.schema is not None:
            path = self.folder / "schema.json"
            path.write_text(self.data.schema.to_json())
            schema = ("--schema", str(path))
        arguments = (
            *("server", str(self.folder / "out"), "--certs", str(self.certs)),
            *("--port", str(self.port), "--devices", count, "--wait", "300"),
            *("--deadline", str(self.deadline)),
            *("--minimum", count if self.minimum is None else str(self.minimum)),
            *("--status-port", str(self.status_port), "--name", "demo"),
            *("--dissimilarity", str(self.data.dissimilarity), *schema),
            *self._sum_options(),
        )
        return Child(arguments, self.log_of("coordinator"))

    def _sum_options(self) -> tuple[str, ...]:
        terms = self.terms
        if terms.trust == "uploads":
            return ()
        answers = terms.least_answers or self.data.num_devices
        numbers = ("--least-answers", answers, "--colluders", terms.colluders)
        return ("--trust", terms.trust, *map(str, numbers))

    def start(self, stack: ExitStack) -> None:
        """Start all processes; the stack stops them."""
        stack.callback(self.broker.start().stop)
        wait_until(lambda: listens(self.port), "the broker", child=self.broker)
        for device in self.devices:
            stack.callback(device.start().stop)
        stack.callback(self.server.start().stop)

    def status(self) -> dict[str, Any]:
        """Return the coordinator's status; empty while it serves none."""
        try:
            with _opener.open(self.status_url, timeout=5) as response:
                status: dict[str, Any] = json.load(response)
                return status
        except (OSError, HTTPException):  # also if it ends in the middle of an answer
            return {}

    def wait(self, on_status: Callable[[dict[str, Any]], None]) -> None:
        """Wait for the coordinator's end, and pass on its status until then.

        Raises:
            TrainingError: Another process has ended early, or the coordinator failed.
        """
        others = {"the broker": self.broker}
        for name, device in zip(self.names, self.devices, strict=True):
            others[f"device {name}"] = device
        while self.server.code is None:
            for name, other in others.items():
                if other.code is not None:
                    raise TrainingError(f"{name} has ended: {other.last_line}")
            status = self.status()
            if status.get("devices"):
                on_status(status)
            self.server.wait(0.2)
        if self.server.code != 0:
            raise TrainingError(f"the coordinator has failed: {self.server.last_line}")

    def final_status(self) -> dict[str, Any]:
        """Return the status after the last round; spending is from devices' ledgers."""
        checkpoints = Checkpoints(self.folder / "out" / "coordinator.sqlite")
        try:
            plan, stored = self.plan(), checkpoints.run()
            assert stored is not None
            tally = Tally(plan, stored.declarations, checkpoints)
            tally.begin(plan.rounds, checkpoints.replies(plan.rounds))
            status = tally.summary({})
        finally:
            checkpoints.close()
        for row in status["devices"]:
            ledger = read_statement(self.folder / row["name"] / "ledger.sqlite")
            row |= {"epsilon": ledger.epsilon, "cost": ledger.cost}
        return status

    def plan(self) -> Plan:
        """Return the coordinator's plan."""
        path = self.folder / "out" / "run" / "plan.json"
        return Plan.from_dict(json.loads(path.read_text()))

    def model(self) -> Any:
        """Return the released model."""
        with np.load(self.folder / "out" / "run" / "model.npz") as file:
            return file["theta"]

    def round_seconds(self) -> list[float]:
        """Return the duration of each round, measured by the coordinator."""
        checkpoints = Checkpoints(self.folder / "out" / "coordinator.sqlite")
        try:
            return checkpoints.round_seconds()
        finally:
            checkpoints.close()


class MosquittoFleet(TrialFleet):
    """The processes of a fleet whose broker is mosquitto, which must be installed."""

    def _broker(self) -> Child:
        shipped = shipped_mosquitto()
        assert shipped is not None
        return mosquitto(
            shipped=shipped,
            certs=self.certs,
            folder=self.folder / "broker",
            port=self.port,
        )


def usual_fleet() -> type[TrialFleet]:
    """Return a fleet over mosquitto if it is installed, or the embedded broker."""
    installed = MOSQUITTO is not None and shipped_mosquitto() is not None
    return MosquittoFleet if installed else TrialFleet


def shipped_mosquitto() -> Path | None:
    """Return the folder of mosquitto's configuration, in a clone or in the package."""
    package = Path(__file__).parent
    for folder in (package.parents[2] / "deploy" / "mosquitto", package / "mosquitto"):
        if (folder / "fedbudget.conf").is_file():
            return folder
    return None


def compare(fleet: TrialFleet, *, seeds: int = 20) -> dict[str, Any]:
    """Return the fleet's accuracy, and that of simulations of the same plan."""
    from fedbudget.simulation.devices import SimulatedDevices

    plan = fleet.plan()
    trained = _accuracy(measure(fleet.data, plan.model, fleet.model()))
    runs = [
        _accuracy(train(plan, SimulatedDevices(fleet.data, seed=seed)).measured)
        for seed in range(seeds)
    ]
    accuracies = [run["accuracy"] for run in runs]
    return {
        "fleet": trained,
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
    """Write a device's rows and its owner's policy; return the path of the policy.

    Orders come over a broker on a loopback port, or over a Unix socket.
    """
    folder.mkdir(parents=True, exist_ok=True)
    x, y = rows
    dense = np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float32)
    np.savez(folder / "rows.npz", x=dense, y=np.asarray(y, int))
    files = vars(identity_of(certs, name))
    tls: dict[str, object] = {k: str(path.resolve()) for k, path in files.items()}
    sections: dict[str, dict[str, object]] = {
        "socket": {"file": str(socket)},
        "sums": {
            "trust": "sum",
            "least_answers": terms.least_answers or 2,
            "colluders": terms.colluders,
            **{"peers" if key == "ca" else key: file for key, file in tls.items()},
        },
    }
    if socket is None:
        del sections["socket"]
        sections["broker"] = {"host": "127.0.0.1", "port": port, **tls}
    if terms.trust != "sum":
        del sections["sums"]
    trusted = (certs / "coordinator.pub").read_text().strip()
    path = folder / "policy.toml"
    path.write_text(_policy(name, terms, trusted, sections))
    return path


def _policy(
    name: str,
    terms: Terms,
    trusted: str,
    more: Mapping[str, Mapping[str, object]],
) -> str:
    sections: dict[str, Mapping[str, object]] = {
        "data": {"file": "rows.npz", "loss": terms.loss, "lineage": name},
        "budget": {
            "epsilon": terms.epsilon,
            "delta": terms.budget.delta_or_raise(),
            "cost": terms.cost,
        },
        "prices": {
            "communication": terms.communication,
            "computation": terms.computation,
        },
        "orders": {
            "trusted": [trusted],
            "least_noise_multiplier": terms.least_noise_multiplier,
        },
        **more,
    }
    lines = [f"device = {json.dumps(name)}"]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        # JSON's strings, numbers and lists are valid TOML.
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def mosquitto(*, shipped: Path, certs: Path, folder: Path, port: int) -> Child:
    """Return mosquitto, which must be installed, with the shipped configuration.

    Args:
        shipped: The folder `deploy/mosquitto` of a clone.
        certs: The output folder of `fedbudget certs`.
        folder: For its files.
        port: To listen on, on loopback.
    """
    assert MOSQUITTO is not None
    folder.mkdir(parents=True, exist_ok=True)
    text = (shipped / "fedbudget.conf").read_text()
    for shipped_text, replacement in (
        ("/etc/mosquitto/certs", certs.resolve()),
        ("/etc/mosquitto/fedbudget.acl", shipped.resolve() / "fedbudget.acl"),
        ("/var/lib/mosquitto/", f"{folder.resolve()}/"),
        ("listener 8883", f"listener {port} 127.0.0.1"),
    ):
        text = text.replace(shipped_text, str(replacement))
    # Started by root, it would switch to a user who cannot read the keys.
    config = folder / "mosquitto.conf"
    config.write_text(f"user {getpass.getuser()}\n{text}")
    return Child(("-c", str(config)), folder / "broker.log", command=(MOSQUITTO,))


def wait_until(
    condition: Callable[[], bool], name: str, *, child: Child, seconds: float = 60.0
) -> None:
    """Wait until a condition holds that a child process brings about.

    Raises:
        TrainingError: The child has ended, or the time is over.
    """
    end = time.monotonic() + seconds
    while not condition():
        if child.code is not None or time.monotonic() > end:
            raise TrainingError(
                f"{name} is not ready: the last line of {child.log} is "
                f"{child.last_line!r}"
            )
        time.sleep(0.05)


def listens(port: int) -> bool:
    """Return whether a server listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
