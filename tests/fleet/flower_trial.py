"""A fleet over Flower on this machine, for tests and benchmarks; see `fleet.demo`.

SuperLink, SuperNodes and guards run on loopback, without TLS and as one user: for tests
only. Telemetry and update checks of Flower's programs are off.
"""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbudget.errors import MissingExtraError, TrainingError
from fedbudget.fleet.demo import (
    Child,
    HeldPort,
    TrialFleet,
    listens,
    wait_until,
    write_site,
)

APP = Path(__file__).parents[2] / "deploy" / "flower"


@dataclass
class FlowerTrial(TrialFleet):
    """The processes of a fleet over Flower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._node_ports = [HeldPort() for _ in self.names]
        self.nodes = [
            self._node(name, held.number)
            for name, held in zip(self.names, self._node_ports, strict=True)
        ]

    def start(self, stack: ExitStack) -> None:
        """Start all processes; the stack stops them."""
        home = self.folder / "flwr"
        home.mkdir(parents=True)
        address = f'address = "127.0.0.1:{self.port}"'
        (home / "config.toml").write_text(
            f"[superlink.trial]\n{address}\ninsecure = true\n"
        )
        self.held_ports[0].release()  # a SuperLink cannot share it
        stack.callback(self.broker.start().stop)
        for device, name in zip(self.devices, self.names, strict=True):
            stack.callback(device.start().stop)
            wait_until(self._socket_path(name).exists, f"guard {name}", child=device)
        wait_until(lambda: listens(self.port), "the SuperLink", child=self.broker)
        for node, held in zip(self.nodes, self._node_ports, strict=True):
            held.release()  # as for the SuperLink
            stack.callback(node.start().stop)
        stack.callback(self.server.start().stop)

    def wait(self, on_status: Callable[[dict[str, Any]], None]) -> None:
        """Wait for the run's end, and pass on its status until then."""
        super().wait(on_status)
        if not (self.folder / "out" / "run" / "model.npz").exists():
            raise TrainingError(f"the run has failed: see {self.server.log}")

    def _socket_path(self, name: str) -> Path:
        return self.folder / name / "guard.sock"

    def _broker(self) -> Child:
        return self._flower(
            "superlink",
            *("flower-superlink", "--insecure", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        )

    def _device(self, m: int) -> Child:
        name = self.names[m]
        policy = write_site(
            self.folder / name,
            name,
            self.data.train.device(m),
            self.terms,
            certs=self.certs,
            socket=self._socket_path(name),
        )
        return Child(("device", str(policy)), self.log_of(name))

    def _node(self, name: str, port: int) -> Child:
        return self._flower(
            f"{name}-supernode",
            *("flower-supernode", "--insecure", "--port", str(port)),
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--node-config", f'guard="{self._socket_path(name).resolve()}"'),
        )

    def _server(self) -> Child:
        count = self.data.num_devices
        config = {
            "out": str((self.folder / "out").resolve()),
            "signing-key": str((self.certs / "coordinator.sign").resolve()),
            "devices": count,
            "wait": 300.0,
            "deadline": self.deadline,
            "minimum": count if self.minimum is None else self.minimum,
            "status-port": self.status_port,
            "name": "demo",
            "dissimilarity": self.data.dissimilarity,
            "trust": self.terms.trust,
            "least-answers": self.terms.least_answers or 0,
            "colluders": self.terms.colluders,
            "authority": str((self.certs / "ca.pem").resolve()),
        }
        pairs = [
            f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
            for key, value in config.items()
        ]
        return self._flower(
            "run",
            *("flwr", "run", str(APP), "trial", "--stream"),
            *("--run-config", " ".join(pairs)),
        )

    def _flower(self, log: str, name: str, *arguments: str) -> Child:
        """Return one of Flower's programs, from this Python's environment."""
        return flower_program(self.log_of(log), self.folder / "flwr", name, *arguments)


def flower_program(log: Path, home: Path, name: str, *arguments: str) -> Child:
    """Return one of Flower's programs, from this Python's environment."""
    folder = str(Path(sys.executable).parent)
    program = shutil.which(name, path=folder)
    if program is None:
        raise MissingExtraError("a fleet over Flower", "flwr", "flower")
    environment = {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{folder}:{os.environ.get('PATH', '')}",  # they start each other
    }
    return Child(arguments, log, command=(program,), environment=environment)
