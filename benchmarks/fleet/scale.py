"""A thousand devices on one broker: `python benchmarks/fleet/scale.py [devices]`.

Every device is a client of its own on mosquitto, over mutual TLS with its own
certificate, but all of them live in one process and answer with the order's own model:
what is measured is the broker, the connections and the coordinator.
"""

import resource
import selectors
import ssl
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import numpy as np

import fedbudget as fb
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.coordinator.roster import Roster, gather
from fedbudget.fleet.demo import (
    MOSQUITTO,
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
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import WIRE, Declaration, Reply, RoundOrder
from fedbudget.fleet.wire.signing import Signer
from fedbudget.training import Order

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.brokers import SHIPPED

DIM, ROUNDS = 102, 5


def declaration(name: str) -> Declaration:
    return Declaration(
        device=name,
        num_samples=100,
        dim=DIM,
        loss="logistic",
        num_classes=1,
        epsilon=4.0,
        delta=1e-4,
        cost=1000.0,
        communication_price=100.0,
        computation_price=1.0,
        accountant="gdp",
        least_noise_multiplier=1.0,
        wire=WIRE,
    )


class Clients:
    """Many devices in one process, driven by one thread.

    A `Connection` has a thread of its own, which waits with select() and so cannot
    serve more than a few hundred in one process; here epoll does.
    """

    def __init__(self, certs: Path, port: int, names: list[str]) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self.connections: dict[str, Connection] = {}
        for name in names:
            self.connections[name] = Connection(
                BrokerAddress(port=port, identity=identity_of(certs, name)),
                name=name,
                topics=topics.device_reads(name),
                will=(topics.status(name), topics.OFFLINE),
                inbox=self.inbox,
            )
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def start(self) -> None:
        """Connect all devices one by one, and wait until all are connected."""
        for name, connection in self.connections.items():
            connection.keep(topics.declare(name), declaration(name).to_bytes())
            client = connection._client
            client.connect("127.0.0.1", connection.broker.port, keepalive=600)
            link = client.socket()
            assert isinstance(link, ssl.SSLSocket)
            self._selector.register(link, selectors.EVENT_READ, (client, link))
        self._thread.start()
        for connection in self.connections.values():
            if not connection.wait_connected(60):
                raise SystemExit(f"{connection.name} has no connection")

    def stop(self) -> None:
        """Leave them to the end of the process."""
        self._stopping.set()
        self._thread.join()

    def _drive(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select(0.2):
                client, link = key.data
                client.loop_read()
                while link.pending():  # decrypted already: no more events
                    client.loop_read()
            while not self.inbox.empty():
                self._answer(self.inbox.get())
            for connection in self.connections.values():
                if connection._client.want_write():
                    connection._client.loop_write()

    def _answer(self, message: Message) -> None:
        connection = self.connections[message.receiver]
        if topics.parse(message.topic)[0] == "order" and message.payload:
            order = RoundOrder.from_bytes(decode(message.payload)[0])
            reply = Reply(
                device=connection.name,
                run=order.run,
                round=order.round,
                code="answered",
                theta=order.theta,
            )
            connection.publish(topics.reply(connection.name), reply.to_bytes())
        connection.acknowledge(message)


def main() -> int:
    if MOSQUITTO is None:
        print("mosquitto is not installed: apt-get install mosquitto")
        return 1
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    names = [f"device-{number:05d}" for number in range(count)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(7)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="fedbudget-scale-") as home:
        folder, certs, held = Path(home), Path(home) / "certs", HeldPort()
        port = held.number
        make_certificates(certs, names)
        broker = mosquitto(
            shipped=SHIPPED, certs=certs, folder=folder / "broker", port=port
        )
        with ExitStack() as stack:
            stack.callback(broker.start().stop)
            wait_until(lambda: listens(port), "mosquitto", child=broker)
            # Before the others: its thread waits with select(), which counts to 1023.
            connection = Connection(
                BrokerAddress(port=port, identity=identity_of(certs, COORDINATOR)),
                name=COORDINATOR,
                topics=topics.coordinator_reads(),
            )
            stack.callback(connection.start().stop)
            connection.wait_connected(30)
            began = time.monotonic()
            clients = Clients(certs, port, names)
            stack.callback(clients.stop)
            clients.start()
            connected = time.monotonic() - began
            seconds, answers = run_rounds(connection, folder, certs, count)
    print(f"{'devices, one mosquitto':34} {count}, mutual TLS, loopback")
    print(f"{'seconds to connect all of them':34} {connected:.1f}")
    print(f"{'answers per round':34} {min(answers)} to {max(answers)}")
    print(f"{'seconds per round, median':34} {np.median(seconds):.2f}")
    print(f"{'seconds per round, slowest':34} {max(seconds):.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'memory of all clients':34} {peak:.0f} MB")
    return 0 if min(answers) == count else 1


def run_rounds(
    connection: Connection, folder: Path, certs: Path, count: int
) -> tuple[list[float], list[int]]:
    roster = Roster()
    declared = gather(connection, roster, count=count, seconds=300)
    plan = fb.plan(
        fb.Problem(num_samples=[100] * count, dim=DIM),
        fb.Budget(epsilon=4, delta=1e-4, cost=1000),
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
    answers, theta = [], np.zeros(DIM)
    for number in range(1, ROUNDS + 1):
        replies = devices.run_round(Order(number=number, theta=theta, plan=plan))
        answers.append(int(replies.answered.sum()))
    seconds = checkpoints.round_seconds()
    checkpoints.close()
    return seconds, answers


if __name__ == "__main__":
    sys.exit(main())
