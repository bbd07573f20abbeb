"""The fleet's rules in amqtt's words: who may connect, publish and read."""

import ssl
from collections.abc import Iterator
from typing import Any

from amqtt.adapters import BufferReader
from amqtt.broker import Action, Broker
from amqtt.contexts import ListenerConfig
from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError
from amqtt.mqtt.connect import ConnectPacket
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from fedbudget.fleet.transport.amqtt_broker import may_publish, may_read

PLUGINS = ("CertificateRule", "TopicRule")


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
    """amqtt's broker, with the gaps closed that concern certificates."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._subscriptions = _Steady()

    @staticmethod
    def _create_ssl_context(listener: ListenerConfig) -> ssl.SSLContext:
        context: ssl.SSLContext = Broker._create_ssl_context(listener)
        context.verify_mode = ssl.CERT_REQUIRED  # amqtt takes it if it comes
        return context

    async def _initialize_client_session(
        self, reader: Any, writer: Any, *where: Any
    ) -> Any:
        """Know a client by the certificate of this connection, not of an old one.

        amqtt gives the last will of whoever connects to the session of that name, or
        ends that session, before it asks who it is. So the packet is read here first,
        and amqtt sees it only if all of it is the certificate's owner's.
        """
        name, kept = common_name(writer.get_ssl_info()), _Kept(reader)
        try:
            packet = await ConnectPacket.from_stream(kept)
            _check_connect(packet, name)
        except (AMQTTError, CodecError, MQTTError, NoDataError) as error:
            await writer.close()
            raise AMQTTError(f"{name or 'nobody'} may not connect: {error}") from None
        handler, session = await super()._initialize_client_session(
            BufferReader(bytes(kept.seen)), writer, *where
        )
        session.username = name
        return handler, session

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Send what was retained; amqtt sends it for others' subscriptions too."""
        if session.username and may_read(session.username, subscription[0]):
            await super()._publish_retained_messages_for_subscription(
                subscription, session
            )
