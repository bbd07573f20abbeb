"""A thousand devices on one broker: `python benchmarks/fleet/scale.py [devices]`.

Every device is a client of its own on mosquitto, over mutual TLS with its own
certificate; all of them are in another process and answer with the order's own model,
signed (clients.py): what is measured is the broker, the connections and the
coordinator. `--unsigned` leaves the signatures out.

The three processes share this machine's cores, so their processor times are told too: a
round cannot be shorter than their sum over the cores. `--rounds` sets how many are run.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

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


class Timing(NamedTuple):
    """Rounds of a fleet."""

    seconds: list[float]  # of each
    answers: list[int]  # of each
    processor: dict[str, float]  # seconds of all rounds, by process


def processor_seconds(pid: int) -> float:
    """Return what a process has used of the processor so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devices", type=int, nargs="?", default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--unsigned", action="store_true")
    options = parser.parse_args()
    if MOSQUITTO is None:
        print("mosquitto is not installed: apt-get install mosquitto")
        return 1
    count = options.devices
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with tempfile.TemporaryDirectory(prefix="fedbudget-scale-") as home:
        connected, timing = run_fleet(Path(home), options)
    rounds = len(timing.seconds)
    signed = "unsigned" if options.unsigned else "signed"
    print(f"{'devices, one mosquitto':40} {count}, mutual TLS, loopback, {signed}")
    print(f"{'seconds to connect all of them':40} {connected:.1f}")
    print(f"{'answers per round':40} {min(timing.answers)} to {max(timing.answers)}")
    print(f"{'rounds per second':40} {rounds / sum(timing.seconds):.2f}")
    print(f"{'seconds per round, median':40} {np.median(timing.seconds):.3f}")
    print(f"{'seconds per round, slowest':40} {max(timing.seconds):.3f}")
    print("processor milliseconds per answer")
    total = 0.0
    for name, used in timing.processor.items():
        total += 1e3 * used / (count * rounds)
        print(f"  {name:38} {1e3 * used / (count * rounds):.3f}")
    most = 1e3 * (os.cpu_count() or 1) / (count * total)
    print(f"{'rounds per second, cores never idle':40} {most:.2f}")
    return 0 if min(timing.answers) == count else 1


def run_fleet(folder: Path, options: argparse.Namespace) -> tuple[float, Timing]:
    """Start broker, clients and coordinator; return the seconds to connect, and all."""
    certs, held, count = folder / "certs", HeldPort(), options.devices
    port = held.number
    make_certificates(certs, [name_of(number) for number in range(count)])
    broker = mosquitto(
        shipped=SHIPPED, certs=certs, folder=folder / "broker", port=port
    )
    signed = "unsigned" if options.unsigned else "signed"
    clients = Child(
        (str(certs), str(port), "0", str(count), signed),
        folder / "clients.log",
        command=(sys.executable, str(Path(__file__).with_name("clients.py"))),
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
        stack.callback(clients.start().stop)
        wait_until(
            lambda: READY in clients.log.read_text(),
            "the clients",
            child=clients,
            seconds=600,
        )
        connected = time.monotonic() - began
        pids = {"coordinator": os.getpid(), "mosquitto": broker.pid or 0}
        pids["clients, of real devices"] = clients.pid or 0
        return connected, run_rounds(connection, folder, options, pids)


def run_rounds(
    connection: Connection,
    folder: Path,
    options: argparse.Namespace,
    pids: dict[str, int],
) -> Timing:
    """Run the rounds of a fleet that is connected."""
    roster, count = Roster(), options.devices
    declared = gather(connection, roster, count=count, seconds=300)
    plan = fb.plan(
        fb.Problem(num_samples=[100] * count, dim=DIM),
        fb.Budget(epsilon=4, delta=1e-4, cost=200.0 * options.rounds),
        fb.Prices(communication=100, computation=1),
        weights="uniform",
    )
    checkpoints = Checkpoints(folder / "coordinator.sqlite")
    devices = FleetDevices(
        connection,
        declared,
        signer=Signer.read(folder / "certs" / "coordinator.sign"),
        checkpoints=checkpoints,
        deadline=120,
        minimum=count,
        roster=roster,
        authority=None if options.unsigned else folder / "certs" / "ca.pem",
    )
    devices.begin(plan)
    timing, theta = Timing([], [], {}), np.zeros(DIM)
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    for number in range(1, min(options.rounds, plan.rounds) + 1):
        began = time.monotonic()
        replies = devices.run_round(Order(number=number, theta=theta, plan=plan))
        timing.seconds.append(time.monotonic() - began)
        timing.answers.append(int(replies.answered.sum()))
    for name, pid in pids.items():
        timing.processor[name] = processor_seconds(pid) - before[name]
    checkpoints.close()
    return timing


if __name__ == "__main__":
    sys.exit(main())
