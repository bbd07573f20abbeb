"""The process of a device: a guard, and its messages.

`Device` has no network: it takes a topic and a payload, and returns the messages to
publish. `serve` connects it to a broker.
"""

import ctypes
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

from fedbudget.errors import InvalidInputError, LedgerError, MessageError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import Policy, read_policy
from fedbudget.fleet.logs import start_logging
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.transport.reply_signatures import ReplySigner
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import Joiner, Outgoing, split
from fedbudget.fleet.wire.messages import Declaration

_log = logging.getLogger(__name__)

_SENDERS = 4  # topics with incomplete messages at a time
_OVERHEAD = 4096  # bytes of the largest message besides the model
_PEER = 1536  # bytes of a peer in a list: its certificate, keys and signature


def guard_of(policy: Policy) -> Guard:
    """Return the guard of a device, which takes part in sums if its owner says so."""
    if policy.sums is None:
        return Guard(policy)
    # Imported late: other devices save the memory.
    from fedbudget.fleet.device.sum_guard import SumGuard

    return SumGuard(policy)


class Device:
    """One device of a fleet, without a network."""

    REFRESH = 60.0  # seconds between two checks of the data file

    def __init__(self, policy: Policy) -> None:
        self.name, self.availability = policy.device, policy.availability
        self._guard = guard_of(policy)
        self._identity = policy.identity  # None: replies are not signed
        self._signer = None if self._identity is None else ReplySigner(self._identity)
        largest = 8 * self._guard.num_params + _OVERHEAD
        if policy.sums is not None:
            from fedbudget.fleet.wire.secure_messages import MOST_PEERS

            largest += MOST_PEERS * _PEER
        self._joiner = Joiner(max_bytes=largest, max_senders=_SENDERS)
        self.most_bytes = 2 * largest  # of a parcel: an offer and an order
        self.is_offline = False  # for its coordinator, as last published

    def close(self) -> None:
        """Release the ledger."""
        self._guard.close()

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscriptions of the device."""
        return topics.device_reads(self.name)

    @property
    def will(self) -> tuple[str, bytes]:
        """The last will: the broker publishes it, retained, if the device dies."""
        return topics.status(self.name), topics.OFFLINE

    def hello(self) -> list[Outgoing]:
        """Return the messages to publish at every connection."""
        self._read_certificate()
        # A paused device connects, too; for its coordinator it is offline.
        self.is_offline = self.availability.obstacle() != ""
        state = topics.OFFLINE if self.is_offline else topics.ONLINE
        return [
            Outgoing(topics.declare(self.name), self._declaration.to_bytes(), True),
            Outgoing(topics.status(self.name), state, True),
        ]

    @property
    def _declaration(self) -> Declaration:
        if self._signer is None:
            return self._guard.declaration
        return replace(self._guard.declaration, certificate=self._signer.certificate)

    def handle(self, topic: str, payload: bytes) -> list[Outgoing]:
        """Return the replies to any message."""
        try:
            kind, owner = topics.parse(topic)
            if not payload:  # a retained message was cleared
                return []
            content = topics.content(topic)
            whole = self._joiner.add(f"{kind}/{owner}/{content}", payload)
        except MessageError as error:
            _log.warning("a message is ignored: %s", error)
            return []
        if whole is None:
            return []
        is_own = kind == "order" or (kind == "offer" and owner == self.name)
        if not is_own:
            _log.warning("a message is ignored: %s is not for this device", topic[:100])
            return []
        if content != "notice" and (obstacle := self.availability.obstacle()) != "":
            _log.info("an order is not answered: %s", obstacle)
            return []
        answer = {
            "offer": self._guard.answer_offer,
            "order": self._guard.answer_order,
            "notice": self._guard.take_notice,
        }[content]
        return [
            Outgoing(reply_topic, data, False)
            for reply in answer(whole)
            for reply_topic, data in split(
                topics.reply(self.name), self._signed(reply.to_bytes())
            )
        ]

    def _read_certificate(self) -> None:
        """Read the certificate and its key again: both may have been renewed."""
        if self._identity is None:
            return
        try:
            self._signer = ReplySigner(self._identity)
        except InvalidInputError as error:
            _log.warning("replies are signed as before: %s", error)

    def _signed(self, reply: bytes) -> bytes:
        return reply if self._signer is None else self._signer.sign(reply)

    def refresh(self) -> list[Outgoing]:
        """Check the data file and the certificate; return a changed declaration.

        A declaration for every change of the file would reveal that rows were added.
        """
        before = self._declaration
        try:
            self._guard.refresh()
        except (InvalidInputError, LedgerError) as error:
            _log.error("the new data are not used: %s", error)
        self._read_certificate()
        return [] if self._declaration == before else self.hello()[:1]


def serve(device: Device, broker: BrokerAddress, stop: threading.Event) -> None:
    """Answer orders until `stop` is set; reconnect to a lost broker."""

    def publish(outgoing: list[Outgoing]) -> None:
        for topic, payload, retain in outgoing:
            connection.publish(topic, payload, retain=retain)

    connection = Connection(
        broker,
        name=device.name,
        topics=device.topics,
        will=device.will,
        newest_only=True,  # missed orders are not worth their cost
        on_connect=lambda: publish(device.hello()),
    )
    with connection:
        waited = 0.0
        while not stop.is_set():
            if device.availability.obstacle():
                _wait_available(device, publish, stop)
                continue
            if device.is_offline:  # it connected during a pause that has ended
                publish(device.hello())
            message = connection.receive(1.0)
            if message is None:
                waited += 1.0
                if waited >= device.REFRESH:
                    publish(device.refresh())
                    # A broker may have lost the subscriptions, and nobody would know.
                    connection.subscribe(*device.topics)
                    waited = 0.0
                continue
            publish(device.handle(message.topic, message.payload))
            # Acknowledge last: an unfinished order is delivered again after a kill.
            connection.acknowledge(message)
        connection.publish(*device.will, retain=True)
        connection.flush(2.0)


def _wait_available(
    device: Device, publish: Callable[[list[Outgoing]], None], stop: threading.Event
) -> None:
    """Be offline while the owner does not want the device to work.

    Orders that arrive meanwhile wait, unacknowledged; then the newest is carried out.
    """
    _log.info("offline: %s", device.availability.obstacle())
    publish([Outgoing(*device.will, True)])
    while device.availability.obstacle() and not stop.wait(1.0):
        pass
    if not stop.is_set():
        _log.info("online again")
        publish(device.hello())


def check_certificate(policy: Policy) -> None:
    """Raise unless the files exist and the certificate is this device's.

    A broker knows a device by that name, and drops what it sends under another one.
    """
    identity = policy.identity
    if identity is None:
        return
    name = identity.check().name
    if name != policy.device:
        raise InvalidInputError(
            f"device {policy.device!r} is not the name in its certificate "
            f"{str(identity.certificate)!r}, {name!r}: correct the policy, or create "
            "another certificate with fedbudget certs"
        )


def run_device(policy_path: str) -> None:
    """Run a device until SIGTERM or SIGINT.

    Raises:
        FedbudgetError: The policy, the data, the ledger or a certificate is invalid.
    """
    policy = read_policy(policy_path)
    check_certificate(policy)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    start_logging()
    device = Device(policy)
    _trim_memory()
    try:
        if policy.broker is not None:
            serve(device, policy.broker, stop)
        elif policy.socket is not None:
            from fedbudget.fleet.device.unix_socket import serve_socket

            serve_socket(device, policy.socket, stop)
    finally:
        device.close()


def _trim_memory() -> None:
    """Return freed memory to the system, which glibc would keep after reading."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)
