"""The coordinator's time per answer: `python benchmarks/fleet/answers.py [devices]`.

Three rounds of answers that are in memory already, without a broker: what is measured
is reading, checking and storing them, in seconds of the processor. Run it with 1000 and
with 10000 devices to see that it grows with their number, and not faster.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.codec import decode
from fedbudget.fleet.wire.messages import Reply, RoundOrder
from fedbudget.fleet.wire.signing import Signer
from fedbudget.training import Order

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.examples import declaration

DIM, ROUNDS = 102, 3


class Answering(Connection):
    """A connection to devices that have answered as soon as they are asked."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(BrokerAddress(), name="coordinator", topics=())
        self.names, self.preparing = names, 0.0

    def model(self, name: str, theta: bytes) -> bytes:
        """Return a device's model: the order's."""
        return theta

    def clear_at_death(self, topic: str) -> None:
        """Do nothing: there is no broker."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Have an answer of every device ready when an order is sent."""
        if topics.parse(topic)[0] != "order" or not payload:
            return
        began = time.process_time()
        order = RoundOrder.from_bytes(decode(payload)[0])
        for name in self.names:
            reply = Reply(
                device=name,
                run=order.run,
                round=order.round,
                code="answered",
                theta=self.model(name, order.theta),
                previous=order.round - 1,
            )
            topic, data = topics.reply(name), reply.to_bytes()
            self.inbox.put(Message(topic=topic, payload=data, receiver=self.name))
        self.preparing += time.process_time() - began


def plan_for(count: int) -> fb.Plan:
    """Return a plan for equal devices that is made at once, however many they are."""
    return fb.plan(
        fb.Problem(num_samples=[100] * count, dim=DIM),
        fb.Budget(epsilon=4, delta=1e-4, cost=1000),
        fb.Prices(communication=100, computation=1),
        planner="bound",
        weights="uniform",
    )


class Round(NamedTuple):
    """What a round gave, and what it cost the coordinator."""

    theta: Array
    seconds: float  # of its processor
    file_bytes: int


def run_rounds(connection: Answering, rounds: int) -> list[Round]:
    """Run rounds of a connection's devices with a coordinator of their own."""
    plan, closed = plan_for(len(connection.names)), []
    with tempfile.TemporaryDirectory(prefix="fedbudget-answers-") as folder:
        checkpoints = Checkpoints(Path(folder) / "coordinator.sqlite")
        devices = FleetDevices(
            connection,
            [declaration(device=name, dim=DIM) for name in connection.names],
            signer=Signer.generate(),
            checkpoints=checkpoints,
        )
        devices.begin(plan)
        for number in range(1, rounds + 1):
            connection.preparing, began = 0.0, time.process_time()
            order = Order(number=number, theta=np.zeros(DIM), plan=plan)
            replies = devices.run_round(order)
            seconds = time.process_time() - began - connection.preparing
            assert replies.answered.all()
            size = checkpoints.path.stat().st_size
            closed.append(Round(replies.theta, seconds, size))
        checkpoints.close()
    return closed


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    connection = Answering([f"device-{number:06d}" for number in range(count)])
    closed = run_rounds(connection, ROUNDS)
    milliseconds = 1e3 * np.median([r.seconds for r in closed]) / count
    growth = (closed[-1].file_bytes - closed[-2].file_bytes) / 1e6
    print(f"{'devices':34} {count}")
    print(f"{'milliseconds per answer, median':34} {milliseconds:.3f}")
    print(f"{'last growth of its file, MB':34} {growth:.3f}")


if __name__ == "__main__":
    main()
