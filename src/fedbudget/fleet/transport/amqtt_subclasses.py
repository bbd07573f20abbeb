"""Subclasses of amqtt's broker and connection that enforce the fleet's access rules.

This module imports amqtt, which is optional: only `amqtt_broker` imports it, lazily.

Besides the access rules, the subclasses fix how amqtt's connections lose messages and
clients:

- amqtt acknowledges a publish before it processes it. If the connection ends at that
  moment, the message is lost and its sender believes it was delivered.
- It forgets the messages it has sent when the connection ends or after five seconds,
  acknowledged or not. MQTT demands that they are sent again.
- Messages stored for a client are sent after newer ones, if these arrive while the
  client connects; and all at once, so that a connection which breaks early brings none
  of them forward.
- A connection that ends during its handshake is never noticed, and a keep-alive that
  expires is ignored: the client counts as connected, and its last will is never sent.

Fleets send with QoS 1 only, and so does this broker; amqtt itself handles publishes of
QoS 0 and 2.
"""

import asyncio
import inspect
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import amqtt
from amqtt.adapters import (
    BufferReader,
    ReaderAdapter,
    StreamReaderAdapter,
    StreamWriterAdapter,
)
from amqtt.broker import Action, Broker
from amqtt.contexts import ListenerConfig
from amqtt.errors import (
    AMQTTError,
    CodecError,
    MQTTError,
    NoDataError,
    PluginError,
    PluginLoadError,
)
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.constants import QOS_1
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.puback import PubackPacket
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import OUTGOING, OutgoingApplicationMessage, Session

from fedbudget.errors import TrainingError
from fedbudget.fleet.transport.amqtt_broker import (
    SUPPORTED_AMQTT,
    may_publish,
    may_read,
)
from fedbudget.fleet.transport.certificates import refuse_revoked
from fedbudget.fleet.wire import topics

_FIRST_RELEASE, _END_RELEASE = (0, 12, 1), (0, 13)  # SUPPORTED_AMQTT as numbers

PLUGINS = ("CertificateRule", "TopicRule")
_LISTENER = "default"
_WINDOW = 20  # messages of a backlog before their acknowledgements, as mosquitto's
_WINDOW_SECONDS = 1.0  # for a client that acknowledges nothing
_KEEP_ALIVE_FACTOR = 1.5  # MQTT ends a connection after this many silent keep-alives

# Methods that the subclasses override or call, with their parameters. amqtt does not
# promise to keep them. A release that renames one, or calls it differently, would run
# without the rule, and nobody would notice: so the broker checks them when it starts.
REQUIRED_METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    Broker: {
        "start": ("self",),
        "stream_connected": ("self", "reader", "writer", "listener_name"),
        "add_subscription": ("self", "subscription", "session"),
        "_create_ssl_context": ("listener",),
        "_client_connected": ("self", "listener_name", "reader", "writer"),
        "_initialize_client_session": (
            *("self", "reader", "writer"),
            *("remote_address", "remote_port"),
        ),
        "_handle_client_session": (
            *("self", "reader", "writer", "client_session", "handler"),
            *("server", "listener_name"),
        ),
        "_handle_disconnect": (
            *("self", "client_session", "handler", "disconnect_waiter"),
        ),
        "_handle_message_delivery": (
            *("self", "client_session", "handler", "wait_deliver"),
        ),
        "_publish_retained_messages_for_subscription": (
            *("self", "subscription", "session"),
        ),
        "_topic_filtering": ("self", "session", "topic", "action"),
    },
    BrokerProtocolHandler: {
        "attach": ("self", "session", "reader", "writer"),
        "handle_connect": ("self", "connect"),
        "handle_disconnect": ("self", "disconnect"),
        "handle_puback": ("self", "puback"),
        "handle_read_timeout": ("self",),
        "wait_disconnect": ("self",),
        "_handle_qos1_message_flow": ("self", "app_message"),
        "_retry_deliveries": ("self",),
        "_send_packet": ("self", "packet"),
    },
}


def _unsupported(reason: str) -> TrainingError:
    """Return the error for an amqtt with which the broker does not start."""
    return TrainingError(
        f"amqtt {amqtt.__version__} {reason}, without which the embedded broker cannot "
        f"enforce its rules: pip install 'amqtt{SUPPORTED_AMQTT}', or run mosquitto "
        "(deploy/mosquitto)"
    )


def _check_amqtt() -> None:
    """Refuse an amqtt whose internals are not the supported ones.

    Raises:
        TrainingError: It is another release, or a method has changed.
    """
    for owner, methods in REQUIRED_METHODS.items():
        for name, parameters in methods.items():
            method = getattr(owner, name, None)
            if method is None or _parameters(method) != parameters:
                signature = f"{owner.__name__}.{name}({', '.join(parameters)})"
                raise _unsupported(f"has no {signature}")
    release = tuple(int(part) for part in re.findall(r"\d+", amqtt.__version__)[:3])
    if not _FIRST_RELEASE <= release < _END_RELEASE:
        raise _unsupported("may not call the methods that we override")


def _parameters(method: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)


def _common_name(connection: ssl.SSLObject | None) -> str:
    """Return the common name of the peer's certificate; "" if there is none."""
    certificate = connection.getpeercert() if connection is not None else None
    subject: Any = (certificate or {}).get("subject", ())
    for part in subject:
        for name, value in part:
            if name == "commonName":
                return str(value)
    return ""


class CertificateRule(BaseAuthPlugin):  # type: ignore[misc]  # untyped
    """Accept a client only under the name in its certificate."""

    async def authenticate(self, *, session: Session) -> bool | None:
        """Return whether the client's identifier is its certificate's name."""
        return bool(session.client_id) and session.client_id == session.username


class TopicRule(BaseTopicPlugin):  # type: ignore[misc]  # untyped
    """Let a device publish only under its own name, and read only orders."""

    async def topic_filtering(
        self,
        *,
        session: Session | None = None,
        topic: str | None = None,
        action: Action | None = None,
    ) -> bool | None:
        """Return whether a session may publish to a topic, or read it."""
        if session is None or session.username is None or topic is None:
            return False
        rule = may_publish if action is Action.PUBLISH else may_read
        return rule(session.username, topic)


# Takes a published message in; false if the connection must end because of it.
Deliver: TypeAlias = Callable[["FleetHandler", Any], Awaitable[bool]]


class _AbortableWriter(StreamWriterAdapter):  # type: ignore[misc]  # untyped
    """Writes to a client; can close without waiting for one that does not read."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self._transport = writer.transport

    def abort(self) -> None:
        """End the connection at once; pending reads and writes return."""
        self.is_closed = True  # amqtt would wait for the client to close
        self._transport.abort()


class _DrainingReader(ReaderAdapter):  # type: ignore[misc]  # untyped
    """Reads from a client; reports the end only after earlier packets are processed.

    amqtt cancels its running tasks as soon as it reads the end: publishes, and a
    DISCONNECT, without which the last will is sent.
    """

    def __init__(self, reader: Any, drained: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._drained = reader, drained

    async def read(self, n: int = -1) -> bytes:
        try:
            data: bytes = await self._reader.read(n)
        except (asyncio.IncompleteReadError, OSError):
            await self._drained()
            raise
        return data

    def feed_eof(self) -> None:
        self._reader.feed_eof()


class FleetHandler(BrokerProtocolHandler):  # type: ignore[misc]  # untyped
    """The broker's end of one connection.

    Attributes:
        superseded: A newer connection of the same client has taken its session over.
        ended: Set when this connection does not use the session any more.
    """

    def __init__(
        self, plugins_manager: Any, writer: _AbortableWriter, deliver: Deliver
    ) -> None:
        super().__init__(plugins_manager)
        self.superseded, self.ended = False, asyncio.Event()
        self._abort_writer, self._deliver = writer.abort, deliver
        # Exists from the beginning, unlike amqtt's. Its result is the DISCONNECT, if
        # there was one.
        self._end: asyncio.Future[DisconnectPacket | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._in_order = asyncio.Lock()  # granted in the order of the requests
        self._backlog_sent = False
        self._acknowledged, self._unacknowledged = asyncio.Event(), 0  # of a backlog

    async def supersede(self) -> None:
        """Give the session to a newer connection; return when this one has ended."""
        self.superseded = True
        self.abort()
        await self.ended.wait()

    def abort(self) -> None:
        """End the connection at once."""
        self._abort_writer()
        self._set_end(None)

    def attach(self, session: Session, reader: Any, writer: Any) -> None:
        """Serve a session; messages stored while the client was away go out first."""
        super().attach(session, _DrainingReader(reader, self._drained), writer)
        while not session.retained_messages.empty():
            stored = session.retained_messages.get_nowait()
            number = session.next_packet_id
            session.inflight_out[number] = OutgoingApplicationMessage(
                number, stored.topic, QOS_1, stored.data, False
            )

    async def _retry_deliveries(self) -> None:
        """Send what the client has not acknowledged, before anything newer."""
        in_flight, sent = self.session.inflight_out, set()
        while backlog := [m for number, m in in_flight.items() if number not in sent]:
            for message in backlog:
                await self._wait_acknowledged()
                sent.add(message.packet_id)
                await self._send(message)
        self._backlog_sent = True

    async def _wait_acknowledged(self) -> None:
        """Let the client acknowledge some of a long backlog, before more is sent.

        A connection that breaks early would else bring nothing forward: all would be
        sent again over the next one, and more.
        """
        self._unacknowledged += 1
        if self._unacknowledged <= _WINDOW or self._end.done():
            return
        self._acknowledged.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._acknowledged.wait(), _WINDOW_SECONDS)

    async def _handle_qos1_message_flow(self, app_message: Any) -> None:
        if app_message.direction == OUTGOING:
            # It stays in flight until it is acknowledged, over this connection or a
            # later one. Nothing waits for that: a client may be slow.
            self.session.inflight_out[app_message.packet_id] = app_message
            if self._backlog_sent:
                await self._send(app_message)
        else:
            await self._take(app_message)

    async def _send(self, message: OutgoingApplicationMessage) -> None:
        again = message.publish_packet is not None
        message.publish_packet = message.build_publish_packet(dup=again)
        await self._send_packet(message.publish_packet)

    async def _take(self, message: Any) -> None:
        """Process a publish, and acknowledge it only afterwards."""
        async with self._in_order:
            taken = False
            try:
                taken = await self._deliver(self, message)
            finally:
                if not taken:
                    self.abort()
        # Outside of the lock: if the client is gone, amqtt calls handle_disconnect from
        # here, which takes the lock.
        if taken:
            await self._send_packet(PubackPacket.build(message.packet_id))

    async def handle_puback(self, puback: PubackPacket) -> None:
        """Forget a message that the client has acknowledged."""
        self.session.inflight_out.pop(puback.variable_header.packet_id, None)
        self._unacknowledged -= 1
        self._acknowledged.set()

    async def _drained(self) -> None:
        """Wait until every packet that was read so far is processed."""
        await asyncio.sleep(0)  # amqtt makes tasks of packets: they request the lock
        async with self._in_order:
            pass

    async def handle_disconnect(self, disconnect: DisconnectPacket | None) -> None:
        """Record the client's DISCONNECT, or (none) that the connection is lost."""
        async with self._in_order:  # after what was published before it
            self._set_end(disconnect)

    async def handle_connect(self, connect: Any) -> None:
        """End the connection: a client may send CONNECT only once."""
        self.abort()

    def handle_read_timeout(self) -> None:
        """End the connection: the client was silent beyond its keep-alive."""
        self.abort()

    async def wait_disconnect(self) -> DisconnectPacket | None:
        """Return how the connection ended, once it has."""
        return await asyncio.shield(self._end)  # amqtt cancels the waiting task

    def _set_end(self, disconnect: DisconnectPacket | None) -> None:
        if not self._end.done():  # a DISCONNECT comes before the connection ends
            self._end.set_result(disconnect)
        self._acknowledged.set()


class _StableSubscriptions(dict[str, list[Any]]):
    """Subscriptions that may change while amqtt iterates over them.

    amqtt awaits in the middle of that iteration. A client that subscribes meanwhile
    would end it with an error, and the message would be lost.
    """

    def items(self) -> Any:
        return [(name, list(holders)) for name, holders in super().items()]

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().keys()))


class _RecordingReader:
    """Reads from a connection, and records what it has read."""

    def __init__(self, reader: Any) -> None:
        self._reader, self.data = reader, bytearray()

    async def read(self, n: int = -1) -> bytes:
        data: bytes = await self._reader.read(n)
        self.data += data
        return data


def _check_connect(packet: ConnectPacket, name: str) -> None:
    """Raise unless the client and its last will go under the certificate's name."""
    if not name or packet.client_id != name:
        raise AMQTTError(f"its client identifier is {packet.client_id}")
    if packet.will_flag and not may_publish(name, packet.will_topic or ""):
        raise AMQTTError(f"its last will is for {packet.will_topic}")


class FleetBroker(Broker):  # type: ignore[misc]  # untyped
    """amqtt's broker with fixes for certificates and sessions.

    Args:
        listener: Where it listens, with the files of its certificate.

    Raises:
        TrainingError: This amqtt cannot enforce the rules.
    """

    def __init__(self, listener: dict[str, Any]) -> None:
        _check_amqtt()
        plugins: dict[str, Any] = {f"{__name__}.{name}": {} for name in PLUGINS}
        try:
            super().__init__({"listeners": {_LISTENER: listener}, "plugins": plugins})
        except (PluginError, PluginLoadError) as error:
            raise _unsupported(f"does not load the plugins ({error})") from None
        self._subscriptions = _StableSubscriptions()
        self._newest: dict[str, FleetHandler] = {}  # connection of each client

    async def start(self) -> None:
        """Listen, if the rules are in force.

        Raises:
            TrainingError: They are not.
        """
        loaded = {type(plugin).__name__ for plugin in self.plugins_manager.plugins}
        for name in PLUGINS:
            if name not in loaded:
                raise _unsupported(f"has not loaded the plugin {name}")
        topic = topics.order(bytes(16))
        if await self._topic_filtering(Session(), topic, Action.PUBLISH):
            raise _unsupported("does not call the plugin TopicRule")
        await super().start()

    @property
    def port(self) -> int:
        """The port it listens on, once it does."""
        return int(self._servers[_LISTENER].instance.sockets[0].getsockname()[1])

    @staticmethod
    def _create_ssl_context(listener: ListenerConfig) -> ssl.SSLContext:
        context: ssl.SSLContext = Broker._create_ssl_context(listener)
        context.verify_mode = ssl.CERT_REQUIRED  # to amqtt, it is optional
        refuse_revoked(context, Path(listener.cafile).with_name("crl.pem"))
        return context

    async def stream_connected(
        self, reader: Any, writer: Any, listener_name: str
    ) -> None:
        """Serve a new connection, which can be aborted."""
        ends = StreamReaderAdapter(reader), _AbortableWriter(writer)
        await self._client_connected(listener_name, *ends)

    async def _initialize_client_session(
        self, reader: Any, writer: Any, *address: Any
    ) -> Any:
        """Identify a client by the certificate of this connection, not of an old one.

        amqtt applies the last will of a new client to the session of that name, or
        ends that session, before it authenticates the client. So the packet is read
        here first. amqtt gets it only if its client identifier and its last will are
        the certificate holder's, and after any older connection has left the session.
        """
        name, recorder = _common_name(writer.get_ssl_info()), _RecordingReader(reader)
        try:
            packet = await ConnectPacket.from_stream(recorder)
            _check_connect(packet, name)
        except (AMQTTError, CodecError, MQTTError, NoDataError) as error:
            await writer.close()
            raise AMQTTError(f"{name or 'nobody'} may not connect: {error}") from None
        handler = FleetHandler(self.plugins_manager, writer, self._deliver)
        try:
            await self._take_over(name, handler)
            _, session = await super()._initialize_client_session(
                BufferReader(bytes(recorder.data)), writer, *address
            )
        except BaseException:
            self._forget(name, handler)
            raise
        session.username = name
        # amqtt does not copy these into a session that existed before.
        session.clean_session = packet.clean_session_flag
        session.will_retain = packet.will_retain_flag
        session.keep_alive = _KEEP_ALIVE_FACTOR * packet.keep_alive
        return handler, session

    async def _take_over(self, name: str, handler: FleetHandler) -> None:
        """End the client's older connection, and wait for its end.

        amqtt lets both use the session; when the older one ends, it marks the session
        as not connected, and the client never receives anything again.
        """
        older = self._newest.get(name)
        self._newest[name] = handler
        if older is not None:
            await older.supersede()
        if handler.superseded:  # meanwhile
            raise AMQTTError(f"{name} has connected once more")

    def _forget(self, name: str, handler: FleetHandler) -> None:
        """End a connection and remove it."""
        handler.abort()
        handler.ended.set()
        if self._newest.get(name) is handler:
            del self._newest[name]

    async def _handle_client_session(
        self, reader: Any, writer: Any, session: Session, handler: Any, *listener: Any
    ) -> None:
        """Serve a connection, and clean up when it ends.

        After an error, or a publish to a forbidden topic, amqtt stops reading from the
        client, but leaves the connection open and the session connected.
        """
        try:
            await super()._handle_client_session(
                reader, writer, session, handler, *listener
            )
        finally:
            try:
                if session.transitions.is_connected():
                    await self._handle_disconnect(session, handler, _completed(None))
            finally:
                session.transitions.disconnect()
                self._forget(session.username, handler)

    async def _handle_disconnect(
        self, session: Session, handler: Any, disconnect_waiter: Any
    ) -> None:
        if handler.superseded:
            session.will_flag = False  # the client has a newer connection
        await super()._handle_disconnect(session, handler, disconnect_waiter)

    async def _deliver(self, handler: FleetHandler, message: Any) -> bool:
        """Process a published message; return false if its sender must be cut off."""
        taken: bool = await self._handle_message_delivery(
            handler.session, handler, _completed(message)
        )
        return taken

    async def add_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> int:
        """Subscribe with QoS 1 at most, which MQTT lets a broker do."""
        topic, qos = subscription
        granted: int = await super().add_subscription((topic, min(qos, QOS_1)), session)
        return granted

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Send retained messages, for the client's own subscriptions only.

        amqtt sends them to a new client for the subscriptions of all clients.
        """
        holders = self._subscriptions.get(subscription[0], [])
        own = any(holder is session for holder, _ in holders)
        if own and session.username and may_read(session.username, subscription[0]):
            await super()._publish_retained_messages_for_subscription(
                subscription, session
            )


def _completed(value: Any) -> "asyncio.Future[Any]":
    """Return a future with this result, for methods of amqtt that expect one."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
