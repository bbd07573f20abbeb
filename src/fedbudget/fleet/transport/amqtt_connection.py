"""A client's connection to the embedded broker, without amqtt's losses.

amqtt's own connections lose messages, and clients:

- It acknowledges a publish before anybody has looked at it. If the connection ends in
  that moment, the message is gone and its sender believes it delivered.
- It forgets what it has sent once the connection ends or five seconds have passed,
  acknowledged or not; MQTT demands that it is sent again.
- What was kept for a client comes after newer messages, if these arrive while it
  connects.
- A connection that ends while it begins is never noticed, and the end of a keep-alive
  is ignored: the client counts as connected, and its last will is never sent.

Fleets send with QoS 1 alone, and so does this broker; publishes of QoS 0 and 2 are left
to amqtt.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from amqtt.adapters import ReaderAdapter, StreamWriterAdapter
from amqtt.mqtt.constants import QOS_1
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.puback import PubackPacket
from amqtt.session import OUTGOING, OutgoingApplicationMessage, Session

# Takes a published message in; false if the connection must end because of it.
Deliver: TypeAlias = Callable[["FleetHandler", Any], Awaitable[bool]]


class CuttableWriter(StreamWriterAdapter):  # type: ignore[misc]  # untyped
    """Writes to a client, and need not wait for one that does not read."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self._transport = writer.transport

    def cut(self) -> None:
        """End the connection at once; whoever waits to write or read goes on."""
        self.is_closed = True  # amqtt would wait for the client's goodbye
        self._transport.abort()


class _PatientReader(ReaderAdapter):  # type: ignore[misc]  # untyped
    """Reads from a client, and tells of the end only when all before it is done.

    amqtt cancels what it has begun as soon as it sees the end: publishes, and a
    DISCONNECT, without which the last will is sent.
    """

    def __init__(self, reader: Any, all_done: Callable[[], Awaitable[None]]) -> None:
        self._reader, self._all_done = reader, all_done

    async def read(self, n: int = -1) -> bytes:
        try:
            data: bytes = await self._reader.read(n)
        except (asyncio.IncompleteReadError, OSError):
            await self._all_done()
            raise
        return data

    def feed_eof(self) -> None:
        self._reader.feed_eof()


class FleetHandler(BrokerProtocolHandler):  # type: ignore[misc]  # untyped
    """The broker's end of one connection.

    Attributes:
        superseded: A newer connection of the same client has taken its session over.
        ended: Set when nothing of this connection touches the session any more.
    """

    def __init__(
        self, plugins_manager: Any, writer: CuttableWriter, deliver: Deliver
    ) -> None:
        super().__init__(plugins_manager)
        self.superseded, self.ended = False, asyncio.Event()
        self._cut, self._deliver = writer.cut, deliver
        # There from the beginning, unlike amqtt's; its result is the DISCONNECT, if
        # there was one.
        self._end: asyncio.Future[DisconnectPacket | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._in_order = asyncio.Lock()  # who waits for it gets it in turn
        self._backlog_sent = False

    async def supersede(self) -> None:
        """Give way to a newer connection of the client; return when that is done."""
        self.superseded = True
        self.cut()
        await self.ended.wait()

    def cut(self) -> None:
        """End the connection at once."""
        self._cut()
        self._note_end(None)

    def attach(self, session: Session, reader: Any, writer: Any) -> None:
        """Serve a session; what was kept for it while it was away goes out first."""
        super().attach(session, _PatientReader(reader, self._all_done), writer)
        while not session.retained_messages.empty():
            kept = session.retained_messages.get_nowait()
            number = session.next_packet_id
            session.inflight_out[number] = OutgoingApplicationMessage(
                number, kept.topic, QOS_1, kept.data, False
            )

    async def _retry_deliveries(self) -> None:
        """Send what the client has not acknowledged, before anything newer."""
        in_flight, sent = self.session.inflight_out, set()
        while backlog := [m for number, m in in_flight.items() if number not in sent]:
            for message in backlog:
                sent.add(message.packet_id)
                await self._send(message)
        self._backlog_sent = True

    async def _handle_qos1_message_flow(self, app_message: Any) -> None:
        if app_message.direction == OUTGOING:
            # It stays in flight until it is acknowledged, over this connection or a
            # later one. Nothing waits for that: a client may take its time.
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
        """Take a publish in, and acknowledge it only then."""
        async with self._in_order:
            taken = False
            try:
                taken = await self._deliver(self, message)
            finally:
                if not taken:
                    self.cut()
        # Outside of the order: if the client is gone, amqtt notes the end from here.
        if taken:
            await self._send_packet(PubackPacket.build(message.packet_id))

    async def handle_puback(self, puback: PubackPacket) -> None:
        """Forget a message that the client has acknowledged."""
        self.session.inflight_out.pop(puback.variable_header.packet_id, None)

    async def _all_done(self) -> None:
        """Wait for all that was read so far."""
        await asyncio.sleep(0)  # amqtt makes tasks of it: they get in line here
        async with self._in_order:
            pass

    async def handle_disconnect(self, disconnect: DisconnectPacket | None) -> None:
        """Note the client's goodbye, or (none) that the connection is lost."""
        async with self._in_order:  # behind what was published before it
            self._note_end(disconnect)

    async def handle_connect(self, connect: Any) -> None:
        """End the connection: a client may introduce itself only once."""
        self.cut()

    def handle_read_timeout(self) -> None:
        """End the connection: the client was silent beyond its keep-alive."""
        self.cut()

    async def wait_disconnect(self) -> DisconnectPacket | None:
        """Return how the connection ended, when it has."""
        return await asyncio.shield(self._end)  # amqtt cancels who waits

    def _note_end(self, disconnect: DisconnectPacket | None) -> None:
        if not self._end.done():  # a goodbye comes before the end of the connection
            self._end.set_result(disconnect)
