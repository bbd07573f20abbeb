"""The fleet's rules in amqtt's words: who may connect, publish and read."""

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

from amqtt.adapters import BufferReader, StreamReaderAdapter
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
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from fedbudget.fleet.transport.amqtt_broker import may_publish, may_read
from fedbudget.fleet.transport.amqtt_connection import CuttableWriter, FleetHandler
from fedbudget.fleet.transport.amqtt_hooks import check_amqtt, refusal
from fedbudget.fleet.wire import topics

PLUGINS = ("CertificateRule", "TopicRule")
_LISTENER = "default"
_PATIENCE = 1.5  # keep-alives without a word, after which MQTT ends a connection


def common_name(connection: ssl.SSLObject | None) -> str:
    """Return whose certificate a connection has shown; "" if none."""
    certificate = connection.getpeercert() if connection is not None else None
    subject: Any = (certificate or {}).get("subject", ())
    for part in subject:
        for name, value in part:
            if name == "commonName":
                return str(value)
    return ""


class CertificateRule(BaseAuthPlugin):  # type: ignore[misc]  # untyped
    """Who connects is who the certificate says."""

    async def authenticate(self, *, session: Session) -> bool | None:
        """Return whether the client's identifier is its certificate's name."""
        return bool(session.client_id) and session.client_id == session.username


class TopicRule(BaseTopicPlugin):  # type: ignore[misc]  # untyped
    """A device publishes only as itself, and reads only orders."""

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


class _Steady(dict[str, list[Any]]):
    """Subscriptions that may change while amqtt walks over them.

    It waits in the middle of that walk; a client that subscribes meanwhile would end it
    with an error, and the message would be lost.
    """

    def items(self) -> Any:
        return [(name, list(found)) for name, found in super().items()]

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().keys()))


class _Kept:
    """Reads from a connection, and keeps what it has read."""

    def __init__(self, reader: Any) -> None:
        self._reader, self.seen = reader, bytearray()

    async def read(self, n: int = -1) -> bytes:
        data: bytes = await self._reader.read(n)
        self.seen += data
        return data


def _check_connect(packet: ConnectPacket, name: str) -> None:
    """Raise unless a client and its last will are the certificate's owner's."""
    if not name or packet.client_id != name:
        raise AMQTTError(f"it calls itself {packet.client_id}")
    if packet.will_flag and not may_publish(name, packet.will_topic or ""):
        raise AMQTTError(f"its last will is for {packet.will_topic}")


class FleetBroker(Broker):  # type: ignore[misc]  # untyped
    """amqtt's broker, with the gaps closed that concern certificates and sessions.

    Args:
        listener: Where it listens, with the files of its certificate.

    Raises:
        TrainingError: This amqtt cannot be held to the rules.
    """

    def __init__(self, listener: dict[str, Any]) -> None:
        check_amqtt()
        plugins: dict[str, Any] = {f"{__name__}.{name}": {} for name in PLUGINS}
        try:
            super().__init__({"listeners": {_LISTENER: listener}, "plugins": plugins})
        except (PluginError, PluginLoadError) as error:
            raise refusal(f"does not load the plugins ({error})") from None
        self._subscriptions = _Steady()
        self._newest: dict[str, FleetHandler] = {}  # connection of each client

    async def start(self) -> None:
        """Listen, if the rules are in force.

        Raises:
            TrainingError: They are not.
        """
        loaded = {type(plugin).__name__ for plugin in self.plugins_manager.plugins}
        for name in PLUGINS:
            if name not in loaded:
                raise refusal(f"has not loaded the plugin {name}")
        topic = topics.order(bytes(16))
        if await self._topic_filtering(Session(), topic, Action.PUBLISH):
            raise refusal("does not ask the plugin TopicRule")
        await super().start()

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return int(self._servers[_LISTENER].instance.sockets[0].getsockname()[1])

    @staticmethod
    def _create_ssl_context(listener: ListenerConfig) -> ssl.SSLContext:
        context: ssl.SSLContext = Broker._create_ssl_context(listener)
        context.verify_mode = ssl.CERT_REQUIRED  # amqtt takes it if it comes
        return context

    async def stream_connected(
        self, reader: Any, writer: Any, listener_name: str
    ) -> None:
        """Serve a new connection, which can be cut."""
        ends = StreamReaderAdapter(reader), CuttableWriter(writer)
        await self._client_connected(listener_name, *ends)

    async def _initialize_client_session(
        self, reader: Any, writer: Any, *where: Any
    ) -> Any:
        """Know a client by the certificate of this connection, not of an old one.

        amqtt gives the last will of whoever connects to the session of that name, or
        ends that session, before it asks who it is. So the packet is read here first,
        and amqtt sees it only if all of it is the certificate's owner's, and if no
        older connection uses the session any more.
        """
        name, kept = common_name(writer.get_ssl_info()), _Kept(reader)
        try:
            packet = await ConnectPacket.from_stream(kept)
            _check_connect(packet, name)
        except (AMQTTError, CodecError, MQTTError, NoDataError) as error:
            await writer.close()
            raise AMQTTError(f"{name or 'nobody'} may not connect: {error}") from None
        handler = FleetHandler(self.plugins_manager, writer, self._deliver)
        try:
            await self._take_over(name, handler)
            _, session = await super()._initialize_client_session(
                BufferReader(bytes(kept.seen)), writer, *where
            )
        except BaseException:
            self._forget(name, handler)
            raise
        session.username = name
        # What amqtt does not give on to a session that was there before:
        session.clean_session = packet.clean_session_flag
        session.will_retain = packet.will_retain_flag
        session.keep_alive = _PATIENCE * packet.keep_alive
        return handler, session

    async def _take_over(self, name: str, handler: FleetHandler) -> None:
        """End the client's older connection, and wait for its end.

        amqtt lets both use the session; the older one's end then marks it as not
        connected, and the client never hears of anything again.
        """
        older = self._newest.get(name)
        self._newest[name] = handler
        if older is not None:
            await older.supersede()
        if handler.superseded:  # meanwhile
            raise AMQTTError(f"{name} has connected once more")

    def _forget(self, name: str, handler: FleetHandler) -> None:
        """Let a connection that is over go."""
        handler.cut()
        handler.ended.set()
        if self._newest.get(name) is handler:
            del self._newest[name]

    async def _handle_client_session(
        self, reader: Any, writer: Any, session: Session, handler: Any, *listener: Any
    ) -> None:
        """Serve a connection, and end it with everything that belongs to that.

        After an error, or a topic that it does not allow, amqtt stops to listen to the
        client, but leaves the connection open and the session connected.
        """
        try:
            await super()._handle_client_session(
                reader, writer, session, handler, *listener
            )
        finally:
            try:
                if session.transitions.is_connected():
                    await self._handle_disconnect(session, handler, _known(None))
            finally:
                session.transitions.disconnect()
                self._forget(session.username, handler)

    async def _handle_disconnect(
        self, session: Session, handler: Any, disconnect_waiter: Any
    ) -> None:
        if handler.superseded:
            session.will_flag = False  # the client lives
        await super()._handle_disconnect(session, handler, disconnect_waiter)

    async def _deliver(self, handler: FleetHandler, message: Any) -> bool:
        """Take a published message in; return false if its sender must be cut off."""
        taken: bool = await self._handle_message_delivery(
            handler.session, handler, _known(message)
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
        """Send what was retained, for the client's own subscriptions.

        To a client that connects, amqtt sends it for everybody's.
        """
        holders = self._subscriptions.get(subscription[0], [])
        own = any(holder is session for holder, _ in holders)
        if own and session.username and may_read(session.username, subscription[0]):
            await super()._publish_retained_messages_for_subscription(
                subscription, session
            )


def _known(value: Any) -> "asyncio.Future[Any]":
    """Return what amqtt wants to see as the result of a wait."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
