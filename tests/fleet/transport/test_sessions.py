"""Sessions across broken connections; real brokers, real clients."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from fedbudget.fleet.transport.certificates import COORDINATOR, identity_of
from fedbudget.fleet.transport.mqtt import _tls
from fedbudget.fleet.wire import topics
from tests.fleet.brokers import BrokerProcess

RUN = bytes(16)
LIMIT = 60.0  # seconds for what must happen; generous, for busy machines
END = b"end"  # arrives last: what has not arrived before it was not delivered


class Client:
    """One connection, without automatic reconnects."""

    def __init__(
        self,
        broker: BrokerProcess,
        name: str,
        *reads: str,
        will: bytes | None = None,
        acknowledges: bool = True,
        keep_alive: int = 60,
    ) -> None:
        self.inbox: SimpleQueue[bytes] = SimpleQueue()
        self.gone, self._subscribed = threading.Event(), threading.Event()
        self._acknowledged = threading.Semaphore(
            0
        )  # publishes that the broker acknowledged
        self.leaves_after = 0  # acknowledgements; 0: it stays
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            clean_session=False,
            reconnect_on_failure=False,
            manual_ack=not acknowledges,
        )
        self._paho.max_inflight_messages_set(1000)
        self._paho.tls_set_context(_tls(identity_of(broker.certs, name)))
        if will is not None:
            self._paho.will_set(topics.status(name), will, qos=1)
        # Sessions outlive a test; the coordinator must not receive its own orders.
        default = topics.reply("nobody") if name == COORDINATOR else topics.order(RUN)
        self._paho.on_connect = lambda client, *_: client.subscribe(
            [(topic, 1) for topic in reads or (default,)]
        )
        self._paho.on_subscribe = lambda *_: self._subscribed.set()
        self._paho.on_message = lambda _, __, message: self.inbox.put(
            bytes(message.payload)
        )
        self._paho.on_disconnect = lambda *_: self.gone.set()
        self._paho.on_publish = self._published
        self._connect = partial(
            self._paho.connect, "127.0.0.1", broker.port, keepalive=keep_alive
        )

    def connect(self) -> None:
        """Begin to connect; do not wait for the broker's answer."""
        self._connect()
        self._paho.loop_start()

    def wait_subscribed(self) -> None:
        assert self._subscribed.wait(LIMIT), "a client is not connected"

    def _published(self, *_: Any) -> None:
        self._acknowledged.release()
        self.leaves_after -= 1
        if self.leaves_after == 0:
            self.pull_cable()

    def publish(self, topic: str, *payloads: bytes, retain: bool = False) -> None:
        for payload in payloads:
            self._paho.publish(topic, payload, qos=1, retain=retain)

    def wait_acknowledged(self, count: int) -> None:
        for _ in range(count):
            assert self._acknowledged.acquire(timeout=LIMIT), (
                "a publish is not acknowledged"
            )

    def next(self) -> bytes:
        try:
            return self.inbox.get(timeout=LIMIT)
        except Empty:
            raise AssertionError("a message did not come") from None

    def until(self, last: bytes) -> list[bytes]:
        """Return the payloads before this one."""
        return list(iter(self.next, last))

    def fall_silent(self) -> None:
        """Keep the connection open, and stop reading and sending."""
        self._paho.loop_stop()

    def pull_cable(self) -> None:
        cable: Any = self._paho.socket()
        if cable is not None:
            with suppress(OSError):  # it may be broken already
                cable.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        client = self._paho
        client.disconnect()
        client.loop_stop()
        self.pull_cable()
        # The client closes its last sockets when nothing refers to it.
        client.on_connect = client.on_disconnect = client.on_message = None
        client.on_publish = client.on_subscribe = None


@contextmanager
def connected(
    broker: BrokerProcess, name: str, *reads: str, **options: Any
) -> Iterator[Client]:
    client = Client(broker, name, *reads, **options)
    try:
        client.connect()
        client.wait_subscribed()
        yield client
    finally:
        client.end()


def test_a_client_that_reconnects_before_the_old_connection_ends_receives_messages(
    broker: BrokerProcess,
) -> None:
    with (
        connected(broker, COORDINATOR, topics.status("device-0")) as server,
        connected(broker, "device-0", will=b"dead") as old,
        connected(broker, "device-0", will=b"dead") as new,
    ):
        assert old.gone.wait(LIMIT)
        # Many: the broker cleans up the old connection in between.
        for number in range(100):
            order = b"%d" % number
            server.publish(topics.order(RUN), order)
            assert new.next() == order
        # A client that lives is not reported as dead.
        new.publish(topics.status("device-0"), END)
        assert server.until(END) == []


def test_a_client_that_connects_many_times_at_once_receives_messages(
    broker: BrokerProcess,
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(connected(broker, COORDINATOR))
        clients = [Client(broker, "device-1") for _ in range(8)]
        for client in clients:
            stack.callback(client.end)
        for client in clients:
            client.connect()
        for client in clients[:-1]:
            assert client.gone.wait(LIMIT)
        last = stack.enter_context(connected(broker, "device-1"))
        server.publish(topics.order(RUN), END)
        last.until(END)


def test_an_acknowledged_message_is_delivered_even_if_its_sender_is_gone(
    broker: BrokerProcess,
) -> None:
    sent = [b"%d" % number for number in range(200)]
    with (
        connected(broker, COORDINATOR, topics.reply("device-2")) as server,
        connected(broker, "device-2") as device,
    ):
        device.leaves_after = len(sent)
        device.publish(topics.reply("device-2"), *sent)
        device.wait_acknowledged(len(sent))
        assert [server.next() for _ in sent] == sent


def test_a_client_that_disconnects_is_not_reported_as_dead(
    broker: BrokerProcess,
) -> None:
    reads = topics.reply("device-3"), topics.status("device-3")
    with connected(broker, COORDINATOR, *reads) as server:
        sent = [b"%d" % number for number in range(50)]
        with connected(broker, "device-3", will=b"dead") as device:
            device.publish(topics.reply("device-3"), *sent)
            device.wait_acknowledged(len(sent))
        with connected(broker, "device-3") as device:
            device.publish(topics.reply("device-3"), END)
            assert server.until(END) == sent


def test_a_new_client_gets_no_retained_message_of_others(
    broker: BrokerProcess,
) -> None:
    offer = topics.offer("device-4")
    with connected(broker, "device-4", f"{offer}/#") as device:
        with connected(broker, COORDINATOR, topics.reply("device-4")) as server:
            server.publish(offer, b"offer", retain=True)
            assert device.next() == b"offer"
        with connected(broker, COORDINATOR, topics.reply("device-4")) as server:
            device.publish(topics.reply("device-4"), END)
            assert server.until(END) == []
            server.publish(offer, b"", retain=True)
            server.wait_acknowledged(1)


def test_a_message_without_acknowledgement_is_delivered_again(
    broker: BrokerProcess,
) -> None:
    with connected(broker, COORDINATOR) as server:
        with connected(broker, "device-5", acknowledges=False) as device:
            server.publish(topics.order(RUN), b"1", b"2")
            assert [device.next(), device.next()] == [b"1", b"2"]
            device.pull_cable()
            assert device.gone.wait(LIMIT)
        with connected(broker, "device-5") as device:
            server.publish(topics.order(RUN), END)
            assert device.until(END) == [b"1", b"2"]
        with connected(broker, "device-5") as device:
            server.publish(topics.order(RUN), END)
            assert device.until(END) == []


def test_stored_messages_come_before_newer_ones(broker: BrokerProcess) -> None:
    with connected(broker, "device-6"):
        pass
    with connected(broker, COORDINATOR) as server:
        sent = [b"%d" % number for number in range(300)]
        server.publish(topics.order(RUN), *sent[:100])
        server.wait_acknowledged(100)
        server.publish(topics.order(RUN), *sent[100:], END)
        with connected(broker, "device-6") as device:
            assert device.until(END) == sent


def test_a_client_that_is_silent_beyond_its_keep_alive_is_reported(
    broker: BrokerProcess,
) -> None:
    with (
        connected(broker, COORDINATOR, topics.status("device-7")) as server,
        # Not less: so long must a busy broker take for no step of a connection.
        connected(broker, "device-7", will=b"dead", keep_alive=4) as device,
    ):
        device.fall_silent()
        assert server.next() == b"dead"


def test_a_client_that_publishes_to_a_forbidden_topic_is_cut_off(
    embedded: BrokerProcess,
) -> None:
    # amqtt stops reading from it, but leaves the connection open.
    with (
        connected(embedded, COORDINATOR, topics.status("device-8")) as server,
        connected(embedded, "device-8", will=b"dead") as device,
    ):
        device.publish("$nobody", b"")
        assert device.gone.wait(LIMIT)
        assert server.next() == b"dead"


def test_a_client_without_a_certificate_cannot_connect(broker: BrokerProcess) -> None:
    tls = ssl.create_default_context(cafile=identity_of(broker.certs, "device-9").ca)
    connect = bytes.fromhex("10 14 0004 4d515454 04 00 003c 0008") + b"device-9"
    with socket.create_connection(("127.0.0.1", broker.port), LIMIT) as plain:
        try:
            # With TLS 1.3 a client learns only later that the broker refuses it.
            with tls.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                wrapped.sendall(connect)
                answer = wrapped.recv(1)
        except (ssl.SSLError, ConnectionError) as error:
            assert not isinstance(
                error, ssl.SSLCertVerificationError
            )  # the client's own check
            answer = b""
    assert answer == b""
