"""The fleet's rules in amqtt's words: who may connect, publish and read."""

import ssl
from collections.abc import Iterator
from typing import Any

from amqtt.broker import Action, Broker
from amqtt.contexts import ListenerConfig
from amqtt.errors import AMQTTError
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from fedbudget.fleet.broker import may_publish, may_read

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
        """Know a client by the certificate of this connection, not of an old one."""
        handler, session = await super()._initialize_client_session(
            reader, writer, *where
        )
        session.username = common_name(writer.get_ssl_info())
        will = session.will_topic if session.will_flag else None
        if session.client_id != session.username or (
            will is not None and not may_publish(session.username, will)
        ):
            await self._delete_session(session.client_id)
            await writer.close()
            raise AMQTTError(f"{session.username} connects as {session.client_id}")
        return handler, session

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Send what was retained; amqtt sends it for others' subscriptions too."""
        if session.username and may_read(session.username, subscription[0]):
            await super()._publish_retained_messages_for_subscription(
                subscription, session
            )
