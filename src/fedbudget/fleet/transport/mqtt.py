"""A connection to an MQTT 3.1.1 broker that survives network and broker failures.

Both sides of a fleet use it. It has a persistent session, subscribes again at every
connection (a broker may have lost its state) and sends with QoS 1. It acknowledges a
message only after its receiver has processed it: a message that a killed process had
not finished is delivered again.
"""

import logging
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.transport.address import BrokerAddress, node_text
from fedbudget.fleet.transport.certificates import (
    Identity,
    certified_key,
    refuse_revoked,
)
from fedbudget.fleet.transport.channel import Message
from fedbudget.fleet.transport.packets import (
    PacketSocket,
    acknowledgements,
    client_class,
)
from fedbudget.fleet.transport.tls_reasons import in_words, probe

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

_log = logging.getLogger(__name__)

# Seconds. A client notices a dead connection after two to three of these, a broker
# after 1.5: a connection whose other end is gone costs less than ten seconds.
_KEEP_ALIVE = 3
_SHORT, _MOST_SHORT = 5.0, 3  # seconds; so many such connections in a row are odd
# Seconds in which a broker delivers the messages it has stored, or the next of them: it
# sends so many, and more when these are acknowledged; and at most for all of them.
_SETTLING, _MOST_SETTLING = 0.3, 10.0
_FLUSH = 5.0  # seconds to send what is pending before a new connection
_NUMBERS = 1 << 16  # of the messages of one connection
_QOS = 1  # at least once: receivers recognise duplicates by their round
_IN_FLIGHT = 200  # messages sent and not acknowledged; the client scans all of them


class Connection:
    """One client of a broker.

    Args:
        broker: Where to connect.
        name: Client identifier; with a certificate, its common name.
        topics: Subscriptions, renewed at every connection.
        will: Topic and payload that the broker publishes, retained, if this client
            dies.
        inbox: Where messages go; several connections may share one.
        newest_only: Skip a message if a newer one on the same topic has arrived: a
            device that was asleep carries out the last order only.
        on_connect: Called at every connection, before any message arrives; it may
            publish, and must not block.
        keeps_session: Whether the broker stores messages while this client is away.
    """

    def __init__(
        self,
        broker: BrokerAddress,
        *,
        name: str,
        topics: Sequence[str],
        will: tuple[str, bytes] | None = None,
        inbox: "SimpleQueue[Message] | None" = None,
        newest_only: bool = False,
        on_connect: Callable[[], None] | None = None,
        keeps_session: bool = True,
    ) -> None:
        self.broker, self.name = broker, name
        self.inbox: SimpleQueue[Message] = SimpleQueue() if inbox is None else inbox
        self._topics, self._on_connect = tuple(topics), on_connect
        self._newest_only, self._settled_at = newest_only, 0.0
        self._waiting: dict[str, Message] = {}  # by topic
        self._state = threading.Condition()  # guards the next six attributes
        self._connected, self._failures = False, 0
        self._connections = 0  # since the start: messages belong to one
        self._unsent: list[tuple[str, bytes, bool]] = []  # until there is a connection
        self._published, self._subscribed = 0, 0  # not acknowledged yet
        self._nodes = deque(broker.nodes)  # the first one is in use
        self.retained: dict[str, bytes] = {}  # retained, to be published again
        self._problem, self._stopping = "", False
        self._connected_at, self._num_short = 0.0, 0  # connections lost soon, in a row
        self._clears = ""  # the topic of the last will, if it removes a message
        self._keeps_session = keeps_session
        self._context: ssl.SSLContext | None = None
        self._client = self._new_client(will, keeps_session=keeps_session)

    def start(self) -> "Connection":
        """Connect in the background, and again whenever the connection is lost."""
        self._client.connect_async(*self._nodes[0], keepalive=_KEEP_ALIVE)
        self._client.loop_start()
        return self

    def stop(self) -> None:
        """Disconnect; the broker keeps the session and does not send the will."""
        client, failures = self._client, self._failures
        # A broker that has not answered a new connection yet may find it closed before
        # it reads that this is meant, and send the will.
        if client.socket() is not None:
            with self._state:
                self._state.wait_for(
                    lambda: self._connected or self._failures > failures, _FLUSH
                )
        self._stopping = True
        client.disconnect()
        client.loop_stop()
        client.on_connect = client.on_connect_fail = client.on_disconnect = None
        client.on_message = client.on_publish = client.on_subscribe = None
        client.on_socket_open = None
        end = time.monotonic() + _FLUSH
        while client.socket() is not None:  # it has connected since
            if client.is_connected() or time.monotonic() > end or client.loop(0.1):
                client.disconnect()
                break
        # The client closes its last sockets when nothing refers to it.

    def __enter__(self) -> "Connection":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._on_connect = None  # it may refer to this connection: see stop

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connected

    @property
    def trouble(self) -> str:
        """Why no message can arrive, as text; empty if connected."""
        return "" if self.connected else f"no broker at {self.broker}"

    @property
    def problem(self) -> str:
        """The last connection's problem, as text; empty if there was none."""
        return self._problem

    def wait_connected(self, seconds: float) -> bool:
        """Wait for a connection, and return whether there is one."""
        with self._state:
            return self._state.wait_for(lambda: self._connected, seconds)

    def wait_tried(self, seconds: float) -> bool:
        """Wait until connected or until all nodes failed; return whether connected."""
        nodes = len(self.broker.nodes)
        with self._state:
            self._state.wait_for(
                lambda: self._connected or self._failures >= nodes, seconds
            )
            return self._connected

    def subscribe(self, *topics: str) -> None:
        """Subscribe for this connection only; retained messages come again."""
        self._count(subscribed=1)
        self._client.subscribe([(topic, _QOS) for topic in topics])

    def unsubscribe(self, *topics: str) -> None:
        """End subscriptions."""
        self._client.unsubscribe(list(topics))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send at least once, now or when there is a connection again."""
        self._count(published=1)
        with self._state:
            if not self._connected:
                # The client would send it while it connects, which is a protocol error.
                self._unsent.append((topic, payload, retain))
                return
        self._client.publish(topic, payload, qos=_QOS, retain=retain)

    def keep(self, topic: str, payload: bytes) -> None:
        """Publish a retained message, and again whenever the broker may lack it."""
        self.retained[topic] = payload
        self.publish(topic, payload, retain=True)

    def withdraw(self, topic: str) -> None:
        """Remove a retained message."""
        self.retained.pop(topic, None)
        self.publish(topic, b"", retain=True)

    def clear_at_death(self, topic: str) -> None:
        """Let the broker remove a retained message if this client dies.

        A last will belongs to a connection: this one ends, and a new one is made.
        """
        if self._clears == topic:
            return
        self.flush(_FLUSH)  # retained messages are published again, others are not
        self.stop()
        self._clears, self._stopping, self._connected = topic, False, False
        self._published = len(self._unsent)
        self._client = self._new_client((topic, b""), keeps_session=self._keeps_session)
        self.start()

    def reconnect(self) -> None:
        """End the connection; the next one subscribes and publishes all again."""
        link = self._client.socket()
        if isinstance(link, socket.socket):
            # Not the TLS socket's own method: it drops the encryption first, and
            # another thread may be about to send.
            with suppress(OSError):
                socket.socket.shutdown(link, socket.SHUT_RDWR)

    def flush(self, seconds: float) -> bool:
        """Wait until the broker has acknowledged all publishes and subscriptions."""
        with self._state:
            return self._state.wait_for(
                lambda: not self._published and not self._subscribed, seconds
            )

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message; none if there is none in time."""
        try:
            if not self._waiting:
                message = self.inbox.get(block=seconds != 0, timeout=seconds)
                if not self._newest_only:
                    return message
                self._waiting[message.topic] = message
                # Stored messages arrive in the first moments of a connection.
                time.sleep(max(0.0, self._settled_at - time.monotonic()))
        except Empty:
            return None
        self._take_newer()
        return self._waiting.pop(next(iter(self._waiting)))

    def _take_newer(self) -> None:
        """Replace the messages that wait by newer ones on the same topic."""
        end, seconds = time.monotonic() + _MOST_SETTLING, 0.0
        with suppress(Empty):
            while time.monotonic() < end:
                newer = self.inbox.get(timeout=seconds)
                older = self._waiting.pop(newer.topic, None)
                self._waiting[newer.topic] = newer
                if older is not None:
                    self.acknowledge(older)
                    seconds = _SETTLING  # where there is one, there may be another

    def acknowledge(self, *messages: Message) -> None:
        """Confirm messages to the broker: they are not delivered again."""
        if not self._connected:
            return
        handles = [divmod(message.handle, _NUMBERS) for message in messages]
        # The broker delivers again what an earlier connection did not acknowledge.
        current = self._connections
        numbers = [number for made, number in handles if number and made == current]
        if not numbers:
            return
        link: object = self._client.socket()
        if isinstance(link, PacketSocket):
            *others, last = numbers
            link.waiting.append(acknowledgements(others))
            numbers = [last]  # the client sends the others with it
        for number in numbers:
            self._client.ack(number, _QOS)

    def _new_client(
        self, will: tuple[str, bytes] | None, *, keeps_session: bool
    ) -> "Client":
        # Imported late: a device has read its rows by now, and the import reuses the
        # memory that reading has freed. This saves a megabyte.
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        client = client_class()(
            CallbackAPIVersion.VERSION2,
            client_id=self.name,
            clean_session=not keeps_session,
            protocol=MQTTProtocolVersion.MQTTv311,
            manual_ack=True,
        )
        client.reconnect_delay_set(min_delay=1, max_delay=8)
        client.max_queued_messages_set(0)  # without limit: nothing is dropped silently
        client.max_inflight_messages_set(_IN_FLIGHT)
        if self.broker.identity is not None:
            self._context = _tls(self.broker.identity)
            client.tls_set_context(self._context)
        if will is not None:
            client.will_set(will[0], will[1], qos=_QOS, retain=True)
        client.on_socket_open = _send_at_once
        client.on_connect = self._connect
        client.on_connect_fail = self._connect_fail
        client.on_disconnect = self._disconnect
        client.on_message = self._message
        client.on_publish = lambda *_: self._count(published=-1)
        client.on_subscribe = lambda *_: self._count(subscribed=-1)
        return client

    def _connect(
        self,
        client: "Client",
        userdata: object,
        flags: "ConnectFlags",
        reason: "ReasonCode",
        properties: "Properties | None",
    ) -> None:
        if reason.is_failure:
            self._failed(f"the broker refuses the connection: {reason}")
            return
        self._problem, self._connected_at = "", time.monotonic()
        self._settled_at = self._connected_at + _SETTLING
        _log.info("%s is connected to %s", self.name, self._node)
        with self._state:
            self._connections += 1
            self._subscribed = 0  # without a connection, none was sent
        if self._topics:
            self.subscribe(*self._topics)
        for topic, payload in list(self.retained.items()):
            self.publish(topic, payload, retain=True)
        if self._on_connect is not None:
            self._on_connect()
        while not self._connected:
            with self._state:
                unsent, self._unsent = self._unsent, []
                if not unsent:
                    self._connected = True
                    self._state.notify_all()
            for topic, payload, retain in unsent:
                client.publish(topic, payload, qos=_QOS, retain=retain)

    def _connect_fail(self, client: "Client", userdata: object) -> None:
        # The client calls this while it handles the error.
        self._failed(_problem("no connection", in_words(sys.exc_info()[1])))
        self._read_certificate()
        if len(self._nodes) > 1:
            self._nodes.rotate(-1)
            client.connect_async(*self._nodes[0], keepalive=_KEEP_ALIVE)

    def _disconnect(self, client: "Client", userdata: object, *details: Any) -> None:
        with self._state:
            was_connected = self._connected
            self._connected, self._subscribed = False, 0  # subscriptions end with it
        if self._stopping:
            return
        is_short = was_connected and time.monotonic() < self._connected_at + _SHORT
        self._num_short = self._num_short + 1 if is_short else 0
        reason = ""
        if self._num_short >= _MOST_SHORT:  # a broker ends the older of two
            reason = "once more: does another process use this certificate or name?"
        if self._context is not None and not was_connected:
            # A broker that refuses a certificate says so after the handshake, or not.
            reason = self._own_problem() or probe(self._nodes[0], self._context)
        self._failed(_problem("connection lost", reason))
        self._read_certificate()

    def _own_problem(self) -> str:
        """Return what is wrong with this client's own certificate; usually nothing."""
        identity = self.broker.identity
        assert identity is not None  # there is a context
        try:
            ca, whose = Path(identity.ca), "this certificate"
            certified_key(identity.der(), self.name, ca, whose=whose)
        except (InvalidInputError, OSError, ValueError) as error:
            return str(error)
        return ""

    def _read_certificate(self) -> None:
        """Read all files again: they may have been renewed since."""
        identity = self.broker.identity
        if identity is None or self._context is None:
            return
        try:
            _load(self._context, identity)
        except (OSError, ssl.SSLError) as error:
            _log.warning("%s: certificates are not read again: %s", self.name, error)

    def _message(
        self, client: "Client", userdata: object, message: "MQTTMessage"
    ) -> None:
        handle = self._connections * _NUMBERS + message.mid if message.qos else 0
        self.inbox.put(
            Message(
                topic=message.topic,
                payload=bytes(message.payload),
                receiver=self.name,
                handle=handle,
            )
        )

    def _count(self, *, published: int = 0, subscribed: int = 0) -> None:
        # Never hold the lock during a call of the client: it waits for its callbacks,
        # which take the lock here.
        with self._state:
            self._published += published
            self._subscribed += subscribed
            self._state.notify_all()

    def _failed(self, problem: str) -> None:
        """Record a problem; log it once, not at every attempt."""
        if problem != self._problem:
            _log.warning("%s, broker %s: %s", self.name, self._node, problem)
        with self._state:
            self._problem = problem
            self._failures += 1
            self._state.notify_all()

    @property
    def _node(self) -> str:
        return node_text(self._nodes[0])


def _send_at_once(client: "Client", userdata: object, channel: Any) -> None:
    """Send small packets at once: Nagle's algorithm would delay a reply by 40 ms."""
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _problem(event: str, reason: str) -> str:
    return f"{event}{f' ({reason})' if reason else ''}; trying again"


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    """Load the files of an identity; a renewed authority is added to the old one."""
    context.load_verify_locations(cafile=identity.ca)
    refuse_revoked(context, identity.crl)
    context.load_cert_chain(identity.certificate, identity.key)


def _tls(identity: Identity) -> ssl.SSLContext:
    """Return a context for mutual TLS that trusts the fleet's authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = PacketSocket
    try:
        _load(context, identity)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInputError(
            f"certificate {identity.certificate} cannot be used ({error}): "
            "create new ones with fedbudget certs"
        ) from None
    return context
