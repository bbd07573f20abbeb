"""The process on a device: a guard, and what goes in and out of it.

`Device` is without a network: it takes a topic and a payload and returns what to
publish. `serve` puts it on a connection.
"""

import ctypes
import logging
import signal
import threading

from fedbudget.errors import InvalidInputError, LedgerError, MessageError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import Policy, read_policy
from fedbudget.fleet.device.unix_socket import serve_socket
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import Joiner, Outgoing, split

_log = logging.getLogger(__name__)

_SENDERS = 4  # topics whose chunks are kept until all are there
_AROUND_THE_MODEL = 4096  # bytes of the largest message that are not the model


class Device:
    """One device of a fleet, without a network."""

    REFRESH = 60.0  # seconds between two looks at the data file

    def __init__(self, policy: Policy) -> None:
        self.name = policy.device
        self._guard = Guard(policy)
        largest = 8 * self._guard.num_params + _AROUND_THE_MODEL
        self._joiner = Joiner(max_bytes=largest, max_senders=_SENDERS)
        self.most_bytes = 2 * largest  # of a parcel: an offer and an order

    def close(self) -> None:
        """Give the ledger free."""
        self._guard.close()

    @property
    def topics(self) -> tuple[str, ...]:
        """What to subscribe to."""
        return topics.device_reads(self.name)

    @property
    def will(self) -> tuple[str, bytes]:
        """What the broker is to publish, retained, when the device dies."""
        return topics.status(self.name), topics.OFFLINE

    def hello(self) -> list[Outgoing]:
        """Return what to publish at every connection."""
        return [
            Outgoing(
                topics.declare(self.name), self._guard.declaration.to_bytes(), True
            ),
            Outgoing(topics.status(self.name), topics.ONLINE, True),
        ]

    def handle(self, topic: str, payload: bytes) -> list[Outgoing]:
        """Return what to publish in answer to a message, whatever it is."""
        try:
            kind, who = topics.parse(topic)
            if not payload:  # a retained message was cleared
                return []
            whole = self._joiner.add(f"{kind}/{who}", payload)
        except MessageError as error:
            _log.warning("a message is ignored: %s", error)
            return []
        if whole is None:
            return []
        if kind == "offer" and who == self.name:
            replies = self._guard.answer_offer(whole)
        elif kind == "order":
            replies = self._guard.answer_order(whole)
        else:
            _log.warning("a message is ignored: %s is not for us", topic[:100])
            return []
        return [
            Outgoing(where, data, False)
            for reply in replies
            for where, data in split(topics.reply(self.name), reply.to_bytes())
        ]

    def refresh(self) -> list[Outgoing]:
        """Look at the data file, and return a new declaration if it has changed."""
        try:
            return self.hello()[:1] if self._guard.refresh() else []
        except (InvalidInputError, LedgerError) as error:
            _log.error("the new data are not used: %s", error)
            return []


def serve(device: Device, broker: BrokerAddress, stop: threading.Event) -> None:
    """Answer orders until told to stop; a lost broker is waited for."""

    def publish(outgoing: list[Outgoing]) -> None:
        for topic, payload, retain in outgoing:
            connection.publish(topic, payload, retain=retain)

    connection = Connection(
        broker,
        name=device.name,
        topics=device.topics,
        will=device.will,
        newest_only=True,  # orders that were slept through are not worth their price
        on_connect=lambda: publish(device.hello()),
    )
    with connection:
        waited = 0.0
        while not stop.is_set():
            message = connection.receive(1.0)
            if message is None:
                waited += 1.0
                if waited >= device.REFRESH:
                    publish(device.refresh())
                    waited = 0.0
                continue
            publish(device.handle(message.topic, message.payload))
            # Only now: what a killed device had not finished is delivered again.
            connection.acknowledge(message)
        connection.publish(*device.will, retain=True)
        connection.flush(2.0)


def run(policy_path: str) -> None:
    """Guard a device until the process is told to stop (SIGTERM, SIGINT).

    Raises:
        FedbudgetError: The policy, the data, the ledger or a certificate is wrong.
    """
    policy = read_policy(policy_path)
    broker = policy.broker
    if broker is not None and broker.identity is not None:
        broker.identity.check()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    device = Device(policy)
    _give_memory_back()
    try:
        if broker is not None:
            serve(device, broker, stop)
        elif policy.socket is not None:
            serve_socket(device, policy.socket, stop)
    finally:
        device.close()


def _give_memory_back() -> None:
    """Return what reading the file has left behind; only the GNU C library keeps it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)
