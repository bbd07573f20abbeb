"""Prices of this machine: seconds, bytes and joules of local steps and of rounds.

A step runs a device's own code on rows made up for the purpose. A round sends its
messages over a real connection: an order comes, a reply goes. Joules come from the
processor's own counters (RAPL) where they can be read.
"""

import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedbudget.checks import one_of, whole, within
from fedbudget.errors import InvalidInputError, MeasuringError
from fedbudget.fleet.device.exact_steps import MOST_ROWS, ExactRows, noisy_steps
from fedbudget.fleet.wire.messages import (
    ANSWERED,
    RUN_BYTES,
    Reply,
    RoundOrder,
    theta_to_bytes,
)
from fedbudget.losses import Loss

POWERCAP = Path("/sys/class/powercap")


class Rapl:
    """The energy counters of all processor packages; they count what is idle too.

    Linux gives them under powercap, and by default to root alone.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        # Packages are intel-rapl:0, :1, ...; intel-rapl:0:0 is a part of the first.
        found = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
        self._zones = [zone for zone in found if zone.name.count(":") == 1]

    @property
    def readable(self) -> bool:
        """Whether there is a counter that this process may read."""
        try:
            return bool(self.read())
        except (OSError, ValueError):
            return False

    def read(self) -> list[int]:
        """Return every package's counter, in microjoules."""
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]

    def joules_since(self, before: list[int]) -> float:
        """Return what was used since an earlier reading; a counter may wrap once."""
        total = 0
        for zone, old, new in zip(self._zones, before, self.read(), strict=True):
            if new < old:
                new += int((zone / "max_energy_range_uj").read_text())
            total += new - old
        return total / 1e6


if TYPE_CHECKING:
    import paho.mqtt.client as mqtt

_PATIENCE = 30.0  # seconds for one message


class Link(Protocol):
    """A connection over which a round can be carried out."""

    def round(self) -> None:
        """Receive an order and send a reply that is acknowledged."""
        ...


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Where an MQTT broker is, and how to get in."""

    host: str
    port: int
    ca: str | None = None  # file; with it, the connection is TLS
    certificate: str | None = None  # of the device, for mutual TLS
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_broker(text: str) -> tuple[str, int]:
    """Read HOST or HOST:PORT.

    >>> parse_broker("localhost")
    ('localhost', 1883)
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, 1883
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInputError(
            f"broker {text!r} is not HOST:PORT: write, for one, localhost:1883"
        )
    return host, int(port)


@contextmanager
def loopback(order: bytes, reply: bytes) -> Iterator[Link]:
    """Talk TCP to a server in this process: what the machine adds, and no network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(
            target=_serve, args=(server, order, len(reply)), daemon=True
        )
        thread.start()
        with socket.create_connection(server.getsockname(), _PATIENCE) as device:
            device.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield _TcpLink(device, reply)
        thread.join(_PATIENCE)


class _TcpLink:
    def __init__(self, device: socket.socket, reply: bytes) -> None:
        self._device, self._reply = device, reply

    def round(self) -> None:
        self._device.sendall(b"?")  # ready for an order
        (size,) = struct.unpack("!I", _exactly(self._device, 4))
        _exactly(self._device, size)
        self._device.sendall(self._reply)
        _exactly(self._device, 1)  # acknowledged


def _serve(server: socket.socket, order: bytes, reply_size: int) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1):
            connection.sendall(struct.pack("!I", len(order)) + order)
            _exactly(connection, reply_size)
            connection.sendall(b"!")


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(min(size - len(received), 1 << 16))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)


@contextmanager
def through_broker(broker: Broker, order: bytes, reply: bytes) -> Iterator[Link]:
    """Talk MQTT as a device does: a retained order is fetched, a reply is published.

    Raises:
        MeasuringError: The broker cannot be reached, or does not answer.
    """
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
    arrived: SimpleQueue[str] = SimpleQueue()
    client.on_connect = lambda _c, _u, _f, reason, _p: arrived.put(f"connect {reason}")
    client.on_socket_open = lambda _c, _u, opened: _send_at_once(opened)
    client.on_message = lambda _c, _u, _message: arrived.put("order")
    topic = f"fedbudget/measure/{secrets.token_hex(8)}"
    try:
        if broker.ca is not None:
            client.tls_set(broker.ca, broker.certificate, broker.key)
        client.connect(broker.host, broker.port)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise MeasuringError(
            f"broker {broker} cannot be reached ({error}): check --broker and --ca"
        ) from None
    client.loop_start()
    try:
        link = _MqttLink(client, arrived, broker, topic, reply)
        if (answer := link.next_event()) != "connect Success":
            raise MeasuringError(f"broker {broker} refused: {answer}")
        link.publish(f"{topic}/order", order, retain=True)
        yield link
        link.publish(f"{topic}/order", b"", retain=True)  # leave nothing behind
    finally:
        client.disconnect()
        client.loop_stop()


def _send_at_once(opened: object) -> None:
    """Wait for no more bytes to send along: a device's messages are single ones."""
    if isinstance(opened, socket.socket):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _MqttLink:
    def __init__(
        self,
        client: "mqtt.Client",
        arrived: "SimpleQueue[str]",
        broker: Broker,
        topic: str,
        reply: bytes,
    ) -> None:
        self._client, self._arrived = client, arrived
        self._broker, self._topic, self._reply = broker, topic, reply

    def round(self) -> None:
        self._client.subscribe(f"{self._topic}/order", qos=1)
        self.next_event()
        self._client.unsubscribe(f"{self._topic}/order")
        self.publish(f"{self._topic}/reply", self._reply)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        sent.wait_for_publish(_PATIENCE)
        if not sent.is_published():
            raise MeasuringError(
                f"broker {self._broker} did not acknowledge {len(payload)} bytes in "
                f"{_PATIENCE:g} s: raise its message size limit, or check the network"
            )

    def next_event(self) -> str:
        try:
            return self._arrived.get(timeout=_PATIENCE)
        except Empty:
            raise MeasuringError(
                f"broker {self._broker} sent nothing in {_PATIENCE:g} s: check that "
                "this device may read and write fedbudget/measure/#"
            ) from None


TAU = 10  # steps at a time: noise is drawn for several at once, which costs less each
_NOISE_MULTIPLIER = 50.0  # noise over one row's share; times do not depend on it


def step_runner(loss: Loss, *, num_samples: int, dim: int) -> Callable[[], None]:
    """Return a function that takes TAU noisy steps over all rows of a device.

    They are the steps of a real device: exact sums, and noise from the operating
    system. The rows are random and dense: a device's own are not touched, and a step's
    time depends on their number and width alone.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, dim), dtype=np.float32)
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True) + 1e-6
    y = rng.integers(max(2, loss.num_outputs), size=num_samples)
    rows = ExactRows.rounded(x, y.astype(np.float64) if loss.name == "huber" else y)
    theta = np.zeros(loss.num_params(dim))

    def steps() -> None:
        noisy_steps(
            theta,
            rows,
            loss=loss,
            tau=TAU,
            learning_rate=1.0,
            noise_std=_NOISE_MULTIPLIER * loss.lipschitz / num_samples,
            batch_size=num_samples,
        )

    return steps


UNITS = ("seconds", "joules")
_LEAST_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Meter:
    """What was measured of one kind of work."""

    seconds: float  # of one; a median
    joules: float | None  # of one, a mean; None where nothing tells
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a step and a round cost on this device."""

    tau: int  # steps in a round: each pays for its share of what comes once
    step: Meter
    round: Meter
    order_bytes: int  # down, each round
    reply_bytes: int  # up
    link: str  # over what a round's messages went
    energy: str  # where joules come from

    @property
    def units(self) -> tuple[str, ...]:
        """The units in which prices can be given."""
        return UNITS if self.step.joules is not None else UNITS[:1]

    def prices(self, unit: str) -> tuple[float, float]:
        """Return c1 and c2: of a round, and of a local step.

        Raises:
            InvalidInputError: Nothing tells how many joules were used.
        """
        one_of("unit", unit, UNITS)
        if unit not in self.units:
            raise InvalidInputError(
                "unit 'joules' needs a reading of energy: give --watts, or run where "
                "RAPL counters can be read (on Linux, as root)"
            )
        return getattr(self.round, unit), getattr(self.step, unit)


def measure(
    loss: Loss,
    *,
    num_samples: int,
    dim: int,
    seconds: float = 1.0,
    watts: float | None = None,
    broker: Broker | None = None,
    rapl: Rapl | None = None,
) -> Measured:
    """Time local steps and rounds on this device.

    Args:
        loss: What the steps minimise; they are those of a real device.
        num_samples: Rows in a step.
        dim: Columns of a row.
        seconds: How long to repeat each kind of work; at least five times.
        watts: What the device draws while it works; else RAPL is read, if it can be.
        broker: An MQTT broker for the rounds; without it they stay on this machine.
        rapl: The energy counters; by default those of this machine.
    """
    whole("num_samples", num_samples, most=MOST_ROWS)
    whole("dim", dim, most=10**8)
    within("seconds", seconds, above=0, most=3600)
    if watts is not None:
        within("watts", watts, above=0)
    counters = Rapl() if rapl is None else rapl
    if watts is not None:
        energy = f"{watts:g} W given, times seconds"
    else:
        readable = counters.readable
        energy = "RAPL, the processor and all that it did" if readable else "none"
    order, reply = round_messages(loss.num_params(dim))

    def metered(work: Callable[[], None], at_once: int) -> Meter:
        rapl = counters if watts is None else None
        return _repeat(work, at_once, seconds, watts, rapl)

    step = metered(step_runner(loss, num_samples=num_samples, dim=dim), TAU)
    if broker is None:
        connection, link = loopback(order, reply), "TCP on this machine, no network"
    else:
        connection, link = through_broker(broker, order, reply), f"MQTT, {broker}"
    with connection as connected:
        round_ = metered(connected.round, 1)
    return Measured(
        tau=TAU,
        step=step,
        round=round_,
        order_bytes=len(order),
        reply_bytes=len(reply),
        link=link,
        energy=energy,
    )


def round_messages(num_params: int) -> tuple[bytes, bytes]:
    """Return an order and a reply, as the fleet sends them in float32."""
    theta = theta_to_bytes(np.ones(num_params), "float32")
    run = bytes(RUN_BYTES)
    order = RoundOrder(run=run, round=1, theta=theta)
    reply = Reply(device="device-1", run=run, round=1, code=ANSWERED, theta=theta)
    return order.to_bytes(), reply.to_bytes()


def _repeat(
    work: Callable[[], None],
    at_once: int,
    seconds: float,
    watts: float | None,
    rapl: Rapl | None,
) -> Meter:
    """Repeat work that does `at_once` of a kind; the first time is not counted."""
    work()
    times: list[float] = []
    before = rapl.read() if rapl is not None and rapl.readable else None
    started = time.perf_counter()
    while len(times) < _LEAST_REPEATS or time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) / at_once)
    repeats, joules = at_once * len(times), None
    if watts is not None:
        joules = watts * median(times)
    elif rapl is not None and before is not None:
        joules = rapl.joules_since(before) / repeats
    return Meter(seconds=median(times), joules=joules, repeats=repeats)
