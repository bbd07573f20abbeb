"""A RabbitMQ cluster under a fleet: `python benchmarks/fleet/rabbitmq.py [devices]`.

Three nodes on loopback by deploy/rabbitmq/cluster.sh, real guards in threads of this
process, a coordinator, mutual TLS. In the middle of the run one node is killed as by a
power cut: that of the coordinator and of every third device (`--kill 1`, the default),
or another one. Printed are complete rounds, the longest stall and answers per second,
before the kill and from then on. Exits with 1 if a round is incomplete.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fedbudget as fb
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import (
    COORDINATOR,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.training import Order

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.contract_devices import LARGE, plan_for, rows_of
from tests.fleet.mqtt_fleet import MqttFleet

SCRIPT = Path(__file__).parents[2] / "deploy" / "rabbitmq" / "cluster.sh"
PORT = 28883  # of the first node
ROUNDS = 60
PRICES = fb.Prices(communication=100, computation=1)
DEADLINE = 120.0  # seconds for a round


def cluster(action: str, folder: Path, *arguments: str) -> None:
    """Start or stop nodes."""
    command = ["bash", str(SCRIPT), action, str(folder), *arguments]
    subprocess.run(command, check=True, timeout=900, stdin=subprocess.DEVNULL)


def nodes_of(name: str) -> str:
    """Return the nodes of a client in the order of its attempts."""
    first = 0 if name == COORDINATOR else int(name.rsplit("-", 1)[1])
    return ",".join(f"127.0.0.1:{PORT + (first + more) % 3}" for more in range(3))


@dataclass
class ClusterFleet(MqttFleet):
    """A fleet whose clients are spread over the nodes."""

    def address(self, name: str, direct: BrokerAddress) -> BrokerAddress:
        """Return the nodes of a client."""
        return BrokerAddress(host=nodes_of(name), identity=direct.identity)


def run(folder: Path, count: int, killed: str) -> list[tuple[float, bool]]:
    """Return the seconds of every round, and whether all devices answered."""
    certs, data = folder / "certs", rows_of([30] * count)
    make_certificates(certs, list(data.device_names))
    plan = plan_for(data, rounds=ROUNDS, noise_std=np.full(count, 0.1))
    fleet, rounds = ClusterFleet(folder / "fleet", certs, port=PORT), []
    try:
        cluster("up", folder / "nodes", str(certs), str(PORT))
        begin_session(certs)
        fleet.start(data, LARGE, PRICES)
        devices = fleet.coordinate(count, deadline=DEADLINE)
        devices.begin(plan)
        theta = np.zeros(plan.dim)
        for number in range(1, ROUNDS + 1):
            if number == ROUNDS // 2:
                cluster("kill", folder / "nodes", killed)
            began = time.monotonic()
            replies = devices.run_round(Order(number=number, theta=theta, plan=plan))
            rounds.append((time.monotonic() - began, bool(replies.answered.all())))
    finally:
        fleet.end()
        cluster("down", folder / "nodes")
    return rounds


def begin_session(certs: Path) -> None:
    """Begin the coordinator's session, which collects the declarations of devices.

    RabbitMQ 3.10 delivers no retained message to a wildcard.
    """
    identity = identity_of(certs, COORDINATOR)
    address = BrokerAddress(host=nodes_of(COORDINATOR), identity=identity)
    reads = topics.coordinator_reads()
    with Connection(address, name=COORDINATOR, topics=reads) as connection:
        connection.wait_connected(60)
        connection.flush(30)
    time.sleep(3)  # until the subscription has reached all nodes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devices", type=int, nargs="?", default=12)
    parser.add_argument("--kill", choices=("1", "2", "3"), default="1")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="fedbudget-rabbitmq-") as folder:
        rounds = run(Path(folder), options.devices, options.kill)
    middle = ROUNDS // 2 - 1
    parts = {"before": rounds[:middle], f"node {options.kill} killed": rounds[middle:]}
    print(f"{options.devices} devices, three nodes")
    for name, part in parts.items():
        seconds = [second for second, _ in part]
        complete = sum(is_complete for _, is_complete in part)
        rate = options.devices * len(part) / sum(seconds)
        print(
            f"{name:14} {complete} of {len(part)} rounds complete, median "
            f"{np.median(seconds):.2f} s, longest {max(seconds):.1f} s, "
            f"{rate:.0f} answers per second"
        )
    return 0 if all(is_complete for _, is_complete in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
