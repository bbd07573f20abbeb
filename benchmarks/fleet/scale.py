"""A thousand devices on one broker: `python benchmarks/fleet/scale.py [devices]`.

Every device is a client of its own on mosquitto, over mutual TLS with its own
certificate; all of them are in another process and answer with the order's own model
(clients.py): what is measured is the broker, the connections and the coordinator.
"""

import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import fedbudget as fb
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.coordinator.roster import Roster, gather
from fedbudget.fleet.demo import (
    MOSQUITTO,
    Child,
    HeldPort,
    listens,
    mosquitto,
    wait_until,
)
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import (
    COORDINATOR,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.signing import Signer
from fedbudget.training import Order

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from clients import DIM, READY, name_of
from tests.fleet.brokers import SHIPPED

ROUNDS = 30


def main() -> int:
    if MOSQUITTO is None:
        print("mosquitto is not installed: apt-get install mosquitto")
        return 1
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with tempfile.TemporaryDirectory(prefix="fedbudget-scale-") as home:
        folder, certs, held = Path(home), Path(home) / "certs", HeldPort()
        port = held.number
        make_certificates(certs, [name_of(number) for number in range(count)])
        broker = mosquitto(
            shipped=SHIPPED, certs=certs, folder=folder / "broker", port=port
        )
        with ExitStack() as stack:
            stack.callback(broker.start().stop)
            wait_until(lambda: listens(port), "mosquitto", child=broker)
            connection = Connection(
                BrokerAddress(port=port, identity=identity_of(certs, COORDINATOR)),
                name=COORDINATOR,
                topics=topics.coordinator_reads(),
            )
            stack.callback(connection.start().stop)
            connection.wait_connected(30)
            began = time.monotonic()
            clients = Child(
                (str(certs), str(port), "0", str(count)),
                folder / "clients.log",
                command=(sys.executable, str(Path(__file__).with_name("clients.py"))),
            )
            stack.callback(clients.start().stop)
            wait_until(
                lambda: READY in clients.log.read_text(),
                "the clients",
                child=clients,
                seconds=600,
            )
            connected = time.monotonic() - began
            seconds, answers, used = run_rounds(connection, folder, certs, count)
    print(f"{'devices, one mosquitto':40} {count}, mutual TLS, loopback")
    print(f"{'seconds to connect all of them':40} {connected:.1f}")
    print(f"{'answers per round':40} {min(answers)} to {max(answers)}")
    print(f"{'rounds per second':40} {len(seconds) / sum(seconds):.2f}")
    print(f"{'seconds per round, median':40} {np.median(seconds):.3f}")
    print(f"{'seconds per round, slowest':40} {max(seconds):.3f}")
    per_answer = 1e3 * used / (count * len(seconds))
    print(f"{'coordinator, processor ms per answer':40} {per_answer:.3f}")
    return 0 if min(answers) == count else 1


def run_rounds(
    connection: Connection, folder: Path, certs: Path, count: int
) -> tuple[list[float], list[int], float]:
    """Return the seconds and the answers of each round, and seconds of processor."""
    roster = Roster()
    declared = gather(connection, roster, count=count, seconds=300)
    plan = fb.plan(
        fb.Problem(num_samples=[100] * count, dim=DIM),
        fb.Budget(epsilon=4, delta=1e-4, cost=200.0 * ROUNDS),
        fb.Prices(communication=100, computation=1),
        weights="uniform",
    )
    checkpoints = Checkpoints(folder / "coordinator.sqlite")
    devices = FleetDevices(
        connection,
        declared,
        signer=Signer.read(certs / "coordinator.sign"),
        checkpoints=checkpoints,
        deadline=120,
        minimum=count,
        roster=roster,
    )
    devices.begin(plan)
    answers, seconds, theta = [], [], np.zeros(DIM)
    used = 0.0
    for number in range(1, min(ROUNDS, plan.rounds) + 1):
        began, processor = time.monotonic(), time.process_time()
        replies = devices.run_round(Order(number=number, theta=theta, plan=plan))
        seconds.append(time.monotonic() - began)
        used += time.process_time() - processor
        answers.append(int(replies.answered.sum()))
    checkpoints.close()
    return seconds, answers, used


if __name__ == "__main__":
    sys.exit(main())
