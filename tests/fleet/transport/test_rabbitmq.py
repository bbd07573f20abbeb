"""A RabbitMQ cluster of three nodes with the fleet's rules, by the shipped script.

It takes minutes to start, and runs only if FEDBUDGET_RABBITMQ=1 is set.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedbudget.fleet.demo import HeldPort
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import (
    COORDINATOR,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from tests.fleet.transport.test_brokers import RUN, payloads, received

SCRIPT = Path(__file__).parents[3] / "deploy" / "rabbitmq" / "cluster.sh"
INSTALLED = Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists()

pytestmark = [
    pytest.mark.skipif(
        not INSTALLED,
        reason="RabbitMQ is not installed: apt-get install rabbitmq-server",
    ),
    pytest.mark.skipif(
        not os.environ.get("FEDBUDGET_RABBITMQ"),
        reason="a RabbitMQ cluster takes minutes: set FEDBUDGET_RABBITMQ=1 to run it",
    ),
]


def held_ports() -> list[HeldPort]:
    """Return three ports that follow each other."""
    while True:
        first = HeldPort()
        try:
            return [first, *(HeldPort(first.number + more) for more in (1, 2))]
        except (OSError, OverflowError):  # somebody else's, or beyond the last one
            continue


class Cluster:
    """Three nodes, on three consecutive ports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certs, self._held = folder, folder / "certs", held_ports()
        self.port = self._held[0].number
        make_certificates(self.certs, ["device-0", "device-1"])

    def do(self, action: str, *arguments: str) -> None:
        command = [str(SCRIPT), action, str(self.folder / "nodes"), *arguments]
        subprocess.run(
            command,
            check=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )

    def connect(self, stack: ExitStack, name: str, *nodes: int) -> Connection:
        reads = topics.device_reads(name)
        if name == COORDINATOR:
            reads = topics.coordinator_reads()
        hosts = ",".join(f"127.0.0.1:{self.port + node - 1}" for node in nodes)
        address = BrokerAddress(host=hosts, identity=identity_of(self.certs, name))
        connection = stack.enter_context(Connection(address, name=name, topics=reads))
        assert connection.wait_connected(30)
        return connection


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    nodes = Cluster(tmp_path)
    nodes.do("up", str(nodes.certs), str(nodes.port))
    yield nodes
    nodes.do("down")


def test_a_cluster_carries_a_fleet_and_survives_a_node(cluster: Cluster) -> None:
    with ExitStack() as stack:
        server = cluster.connect(stack, COORDINATOR, 1)
        one = cluster.connect(stack, "device-0", 2)
        two = cluster.connect(stack, "device-1", 3, 2)
        time.sleep(3)  # until a subscription has reached all nodes
        server.publish(topics.order(RUN), b"order", retain=True)
        server.publish(topics.offer("device-0"), b"offer", retain=True)
        assert sorted(payloads(received(one, 2))) == [b"offer", b"order"]
        assert payloads(received(two, 2, seconds=2)) == [b"order"]
        two.publish(topics.reply("device-1"), b"answer")
        assert payloads(received(server, 1)) == [b"answer"]
        one.publish(topics.reply("device-1"), b"forged")
        assert payloads(received(server, 1, seconds=2)) == []
        cluster.do("kill", "3")
        server.publish(topics.order(RUN), b"second order", retain=True)
        two.publish(topics.reply("device-1"), b"over another node")
        assert payloads(received(server, 1, seconds=30)) == [b"over another node"]
