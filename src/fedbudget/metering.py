"""Prices of this machine: seconds, bytes and joules of local steps and of rounds.

A step runs a real device's code on random rows. A round sends its messages over a real
connection: it receives an order and sends a reply. A round of a secure sum has four
such exchanges, and the device's cryptography with all its peers. Joules come from the
processor's energy counters (RAPL) if they can be read.

Through a broker, the messages use the fleet's MQTT client with a name and topics that
are reserved for measuring: a running fleet is not affected.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from fedbudget.checks import one_of, whole, within
from fedbudget.errors import InvalidInputError, MeasuringError
from fedbudget.fleet.device.exact_steps import MOST_ROWS, ExactRows, noisy_steps
from fedbudget.fleet.secure.rehearsal import EXCHANGES, SumRound
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import MEASURE
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.framing import split
from fedbudget.fleet.wire.messages import (
    ANSWERED,
    RUN_BYTES,
    Reply,
    RoundOrder,
    theta_to_bytes,
)
from fedbudget.fleet.wire.secure_messages import MOST_PEERS
from fedbudget.losses import Loss

POWERCAP = Path("/sys/class/powercap")
_TIMEOUT = 30.0  # seconds for one message
_ONLY_USER = f"no other fedbudget measure uses {MEASURE}.pem"
TAU = 10  # steps per call: noise for several steps is drawn at once, which is cheaper
_NOISE_MULTIPLIER = 50.0  # times do not depend on it
UNITS = ("seconds", "joules")
_MIN_REPEATS = 5


class Rapl:
    """The energy counters of all processor packages; idle power is included.

    Linux shows them under powercap; by default only root may read them.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        # Packages are intel-rapl:0, :1, ...; intel-rapl:0:0 is a part of the first.
        zones = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
        self._zones = [zone for zone in zones if zone.name.count(":") == 1]

    @property
    def readable(self) -> bool:
        """Whether this process can read a counter."""
        try:
            return bool(self.read())
        except (OSError, ValueError):
            return False

    def read(self) -> list[int]:
        """Return every package's counter, in microjoules."""
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]

    def joules_since(self, before: list[int]) -> float:
        """Return the energy used since an earlier reading; a counter may wrap once."""
        total = 0
        for zone, old, new in zip(self._zones, before, self.read(), strict=True):
            if new < old:
                new += int((zone / "max_energy_range_uj").read_text())
            total += new - old
        return total / 1e6


class Link(Protocol):
    """A connection over which a round's messages are sent."""

    def round(self) -> None:
        """Receive an order and send a reply that is acknowledged."""
        ...


@contextmanager
def loopback(order: bytes, reply: bytes) -> Iterator[Link]:
    """Connect by TCP to a server in this process: measures the machine, no network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(
            target=_serve, args=(server, order, len(reply)), daemon=True
        )
        thread.start()
        with socket.create_connection(server.getsockname(), _TIMEOUT) as device:
            device.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield _TcpLink(device, reply)
        thread.join(_TIMEOUT)


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
        chunk = connection.recv(min(size - len(received), 1 << 16))
        if not chunk:
            raise ConnectionError("the connection was closed")
        received += chunk
    return bytes(received)


@contextmanager
def through_broker(broker: BrokerAddress, order: bytes, reply: bytes) -> Iterator[Link]:
    """Use MQTT as a device does: fetch a retained order, publish a reply.

    Raises:
        InvalidInputError: The certificate is not the one for measuring.
        MeasuringError: The broker cannot be reached, or does not answer.
    """
    _check_name(broker)
    connects: list[str] = []  # one entry per connect
    connection = Connection(
        broker,
        name=MEASURE,
        topics=(),
        # If this process is killed, the broker clears the first retained part.
        will=(split(topics.measure("order"), order)[0][0], b""),
        on_connect=lambda: connects.append(MEASURE),
        keeps_session=False,
    )
    with connection:
        if not connection.wait_tried(_TIMEOUT):
            reason = connection.problem or f"no answer in {_TIMEOUT:g} s"
            raise MeasuringError(
                f"broker {broker} cannot be reached ({reason}): check --broker, and "
                "the files of --ca, --certificate and --key"
            )
        link = _MqttLink(connection, connects, order, reply)
        try:
            link.retain_order()
            yield link
        finally:
            link.withdraw_order()


def _check_name(broker: BrokerAddress) -> None:
    """Raise for a device's certificate: using it would disconnect that device."""
    if broker.identity is None:
        return
    name = broker.identity.check().name
    if name != MEASURE:
        raise InvalidInputError(
            f"certificate {str(broker.identity.certificate)!r} belongs to {name!r}, "
            f"which would be disconnected: use {MEASURE}.pem, which fedbudget certs "
            "makes"
        )


class _MqttLink:
    def __init__(
        self, connection: Connection, connects: list[str], order: bytes, reply: bytes
    ) -> None:
        self._connection, self._connects = connection, connects
        self._order = split(topics.measure("order"), order)
        self._reply = split(topics.measure("reply"), reply)

    def retain_order(self) -> None:
        for topic, part in self._order:
            self._connection.keep(topic, part)
        self._flush()

    def withdraw_order(self) -> None:
        for topic, _ in self._order:
            self._connection.withdraw(topic)
        self._connection.flush(_TIMEOUT if self._connection.connected else 0)

    def round(self) -> None:
        # By name: not every broker sends retained messages to a wildcard.
        parts = [topic for topic, _ in self._order]
        self._check_connection()
        self._connection.subscribe(*parts)
        for _ in parts:
            self._receive()
        self._connection.unsubscribe(*parts)
        for topic, part in self._reply:
            self._connection.publish(topic, part)
        self._flush()
        self._check_connection()

    def _check_connection(self) -> None:
        """Raise if it was lost, even if it is back: the time would be invalid."""
        if len(self._connects) != 1 or not self._connection.connected:
            raise MeasuringError(
                f"broker {self._connection.broker} ended the connection: check that "
                f"{_ONLY_USER}, and measure again"
            )

    def _receive(self) -> None:
        end = time.monotonic() + _TIMEOUT
        while (message := self._connection.receive(1.0)) is None:
            self._check_connection()
            if time.monotonic() > end:
                raise MeasuringError(
                    f"broker {self._connection.broker} sent nothing in {_TIMEOUT:g} "
                    f"s: check that its rules let {MEASURE!r} read and write "
                    f"{topics.measure('#')}, as those in deploy/ do, and that "
                    f"{_ONLY_USER}"
                )
        self._connection.acknowledge(message)

    def _flush(self) -> None:
        if not self._connection.flush(_TIMEOUT):
            raise MeasuringError(
                f"broker {self._connection.broker} did not acknowledge a message in "
                f"{_TIMEOUT:g} s: raise its message size limit, or check the network"
            )


def step_runner(loss: Loss, *, num_samples: int, dim: int) -> Callable[[], None]:
    """Return a function that takes TAU noisy steps over all rows of a device.

    They are the steps of a real device: exact sums, and noise from the operating
    system. The rows are random and dense. No private row is read: the time of a step
    depends only on the number of rows and columns.
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


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Time and energy of one kind of work."""

    seconds: float  # median per repeat
    joules: float | None  # mean per repeat; None: not measured
    repeats: int


@dataclass(frozen=True, kw_only=True)
class SecureRoundMeter:
    """The measured cost of a round of a secure sum, with its cryptography."""

    devices: int  # in the sum
    meter: Meter
    order_bytes: int  # received per round
    reply_bytes: int  # sent per round


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured cost of a step and of a round on this device."""

    tau: int  # steps per call: a step includes its share of the fixed cost
    step: Meter
    round: Meter
    order_bytes: int  # received per round
    reply_bytes: int  # sent per round
    secure: "SecureRoundMeter | None" = None  # None: not measured
    broker: BrokerAddress | None  # None: TCP on this machine
    energy: str  # source of the joules

    @property
    def link(self) -> str:
        """The connection that the rounds used, in words."""
        if self.broker is None:
            return "TCP on this machine, no network"
        return f"MQTT, {self.broker}"

    @property
    def units(self) -> tuple[str, ...]:
        """The units in which prices can be given."""
        return UNITS if self.step.joules is not None else UNITS[:1]

    def prices(self, unit: str) -> tuple[float, float]:
        """Return c1 and c2: of a round, and of a local step.

        Raises:
            InvalidInputError: The unit is joules, and no energy was measured.
        """
        one_of("unit", unit, UNITS)
        if unit not in self.units:
            raise InvalidInputError(
                "unit 'joules' needs a measurement of energy: give --watts, or run on "
                "a machine with readable RAPL counters (on Linux, as root)"
            )
        return getattr(self.round, unit), getattr(self.step, unit)

    def secure_price(self, unit: str) -> float | None:
        """Return the price of a round of a secure sum, if it was measured."""
        self.prices(unit)  # refuses joules that were not measured
        return None if self.secure is None else getattr(self.secure.meter, unit)


def measure(
    loss: Loss,
    *,
    num_samples: int,
    dim: int,
    seconds: float = 1.0,
    watts: float | None = None,
    sum_devices: int | None = None,
    broker: BrokerAddress | None = None,
    rapl: Rapl | None = None,
) -> Measured:
    """Time local steps and rounds on this device.

    Args:
        loss: The loss that the steps minimise.
        num_samples: Rows in a step.
        dim: Columns of a row.
        seconds: How long to repeat each kind of work; at least five times.
        watts: Power of the device under load; by default RAPL is read, if possible.
        sum_devices: Devices in a secure sum, to measure a round of one, too.
        broker: An MQTT broker for the rounds; by default TCP on this machine.
        rapl: The energy counters; by default those of this machine.
    """
    whole("num_samples", num_samples, most=MOST_ROWS)
    whole("dim", dim, most=10**8)
    within("seconds", seconds, above=0, most=3600)
    if watts is not None:
        within("watts", watts, above=0)
    if sum_devices is not None:
        whole("sum_devices", sum_devices, least=3, most=MOST_PEERS)
    counters = Rapl() if rapl is None else rapl
    if watts is not None:
        energy = f"{watts:g} W given, times seconds"
    else:
        readable = counters.readable
        energy = "RAPL, all processes on the processor" if readable else "none"
    order, reply = round_messages(loss.num_params(dim))

    def metered(work: Callable[[], None], at_once: int) -> Meter:
        rapl = counters if watts is None else None
        return _repeat(work, at_once, seconds, watts, rapl)

    step = metered(step_runner(loss, num_samples=num_samples, dim=dim), TAU)
    connect = loopback if broker is None else partial(through_broker, broker)
    with connect(order, reply) as link:
        round_ = metered(link.round, 1)
    secure = None
    if sum_devices is not None:
        sum_round = SumRound(sum_devices, loss.num_params(dim))
        order_size, reply_size = (-(-size // EXCHANGES) for size in sum_round.sizes)
        with connect(bytes(order_size), bytes(reply_size)) as link:
            secure = SecureRoundMeter(
                devices=sum_devices,
                meter=metered(partial(_secure_round, sum_round, link), 1),
                order_bytes=sum_round.sizes[0],
                reply_bytes=sum_round.sizes[1],
            )
    return Measured(
        tau=TAU,
        step=step,
        round=round_,
        order_bytes=len(order),
        reply_bytes=len(reply),
        secure=secure,
        broker=broker,
        energy=energy,
    )


def round_messages(num_params: int) -> tuple[bytes, bytes]:
    """Return an order and a reply, as the fleet sends them in float32."""
    theta = theta_to_bytes(np.ones(num_params), "float32")
    run = bytes(RUN_BYTES)
    order = RoundOrder(run=run, round=1, theta=theta)
    reply = Reply(device="device-1", run=run, round=1, code=ANSWERED, theta=theta)
    return order.to_bytes(), reply.to_bytes()


def _secure_round(sum_round: SumRound, link: Link) -> None:
    """Do what a device does in a round of a secure sum, and send as many bytes."""
    sum_round.run()
    for _ in range(EXCHANGES):
        link.round()


def _repeat(
    work: Callable[[], None],
    at_once: int,
    seconds: float,
    watts: float | None,
    rapl: Rapl | None,
) -> Meter:
    """Time work of `at_once` units per call; the first call is a warm-up."""
    work()
    times: list[float] = []
    before = rapl.read() if rapl is not None and rapl.readable else None
    started = time.perf_counter()
    while len(times) < _MIN_REPEATS or time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) / at_once)
    repeats, joules = at_once * len(times), None
    if watts is not None:
        joules = watts * median(times)
    elif rapl is not None and before is not None:
        joules = rapl.joules_since(before) / repeats
    return Meter(seconds=median(times), joules=joules, repeats=repeats)
