"""Prices measured on this device: energy counters, links, and both as prices."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedbudget.errors import InvalidInputError, MeasuringError
from fedbudget.fleet.device.exact_steps import noisy_steps
from fedbudget.fleet.secure.rehearsal import SumRound
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import (
    COORDINATOR,
    MEASURE,
    identity_of,
    make_certificates,
)
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import Reply, RoundOrder, theta_from_bytes
from fedbudget.losses import LOSSES, loss_named
from fedbudget.metering import (
    Rapl,
    loopback,
    measure,
    round_messages,
    step_runner,
    through_broker,
)
from tests.fleet.brokers import BrokerProcess
from tests.fleet.conftest import new_broker

END = b"end"
LOGISTIC = loss_named("logistic")


def write_counters(root: Path, energies: list[int], *, top: int = 1000) -> Rapl:
    """Write a tree as Linux shows it: packages, and a part of the first."""
    for index, energy in enumerate(energies):
        zone = root / f"intel-rapl:{index}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "energy_uj").write_text(f"{energy}\n")
        (zone / "max_energy_range_uj").write_text(f"{top}\n")
    part = root / "intel-rapl:0:0"
    part.mkdir(exist_ok=True)
    (part / "energy_uj").write_text("999999\n")
    return Rapl(root)


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    rapl = write_counters(tmp_path, [100, 200])
    before = rapl.read()
    assert before == [100, 200]
    write_counters(tmp_path, [150, 300])
    assert rapl.joules_since(before) == pytest.approx(150e-6)


def test_a_counter_that_wraps(tmp_path: Path) -> None:
    rapl = write_counters(tmp_path, [900])
    before = rapl.read()
    write_counters(tmp_path, [100])
    assert rapl.joules_since(before) == pytest.approx(200e-6)


def test_no_counters_no_joules(tmp_path: Path) -> None:
    assert not Rapl(tmp_path / "nowhere").readable
    (tmp_path / "intel-rapl:0").mkdir()
    assert not Rapl(tmp_path).readable  # a zone without a counter


def test_messages_are_those_of_the_fleet() -> None:
    order, reply = round_messages(102)
    request, answer = RoundOrder.from_bytes(order), Reply.from_bytes(reply)
    assert theta_from_bytes(request.theta, "float32", 102).shape == (102,)
    assert answer.theta is not None and not answer.refused


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_can_be_stepped(name: str) -> None:
    loss = loss_named(name, num_classes=3 if name == "softmax" else None)
    step_runner(loss, num_samples=20, dim=4)()


def test_the_steps_are_those_of_a_real_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def recorded(theta: Any, rows: Any, **options: Any) -> None:
        moved = noisy_steps(theta, rows, **options)
        sizes = (len(rows), options["batch_size"], options["tau"])
        calls.append((*sizes, moved is not None))

    monkeypatch.setattr("fedbudget.metering.noisy_steps", recorded)
    measured = measure(LOGISTIC, num_samples=50, dim=5, seconds=0.001)
    assert set(calls) == {(50, 50, measured.tau, True)}
    assert (
        measured.step.repeats == (len(calls) - 1) * measured.tau
    )  # the first warms up


@pytest.mark.parametrize("size", [1, 200_000])
def test_rounds_over_loopback(size: int) -> None:
    with loopback(bytes(size), bytes(size)) as link:
        for _ in range(3):
            link.round()


def test_watts_given_times_seconds() -> None:
    measured = measure(LOGISTIC, num_samples=50, dim=5, seconds=0.01, watts=3.0)
    assert measured.step.joules == pytest.approx(3.0 * measured.step.seconds)
    assert measured.prices("seconds") == (measured.round.seconds, measured.step.seconds)
    assert measured.prices("joules")[0] == pytest.approx(3 * measured.round.seconds)
    assert measured.step.repeats >= 5 and measured.link.startswith("TCP")


def test_joules_from_counters_are_shared_by_the_repeats(tmp_path: Path) -> None:
    class Counting(Rapl):
        def joules_since(self, before: list[int]) -> float:
            return 12.0

    write_counters(tmp_path, [100])
    counting = Counting(tmp_path)
    measured = measure(LOGISTIC, num_samples=50, dim=5, seconds=0.01, rapl=counting)
    assert measured.energy.startswith("RAPL")
    assert measured.step.joules == pytest.approx(12.0 / measured.step.repeats)


def test_without_a_reading_joules_are_refused(tmp_path: Path) -> None:
    nothing = Rapl(tmp_path)
    measured = measure(LOGISTIC, num_samples=5, dim=2, seconds=0.01, rapl=nothing)
    assert (measured.step.joules, measured.units) == (None, ("seconds",))
    with pytest.raises(InvalidInputError, match="give --watts"):
        measured.prices("joules")


@pytest.fixture(scope="module", params=["amqtt", "mosquitto"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker of each kind, under the rules that are shipped."""
    folder = tmp_path_factory.mktemp(request.param)
    make_certificates(folder / "certs", ["oven"])
    with new_broker(request.param, folder / "certs", folder) as running:
        yield running


def address(broker: BrokerProcess, name: str = MEASURE) -> BrokerAddress:
    return BrokerAddress(port=broker.port, identity=identity_of(broker.certs, name))


def until_end(connection: Connection) -> list[str]:
    """Return the topics of what comes before the mark, and acknowledge all of it."""
    topics_before: list[str] = []
    while (message := connection.receive(20)) is not None:
        connection.acknowledge(message)
        if message.payload == END:
            return topics_before
        topics_before.append(message.topic)
    raise AssertionError(f"no mark came, only {topics_before}")


def retained_topics(broker: BrokerProcess) -> list[str]:
    """Return the topics of measuring where something is retained."""
    pattern = (topics.measure("#"),)
    watching = Connection(
        address(broker), name=MEASURE, topics=pattern, keeps_session=False
    )
    with watching:
        assert watching.wait_connected(20)
        watching.publish(topics.measure("mark"), END)
        return until_end(watching)


@pytest.mark.parametrize("dim", [2, 30_000])  # one message, and several chunks
def test_rounds_through_a_real_broker_leave_nothing_behind(
    broker: BrokerProcess, dim: int
) -> None:
    through = address(broker)
    measured = measure(LOGISTIC, num_samples=5, dim=dim, seconds=0.01, broker=through)
    assert measured.link == f"MQTT, 127.0.0.1:{broker.port}"
    assert measured.round.repeats >= 5
    assert retained_topics(broker) == []


@pytest.mark.parametrize(
    "payload, retained", [(b"a", {topics.measure("order")}), (b"", set())]
)
def test_retained_messages_are_detected(
    broker: BrokerProcess, payload: bytes, retained: set[str]
) -> None:
    with Connection(address(broker), name=MEASURE, topics=()) as connection:
        connection.publish(topics.measure("order"), payload, retain=True)
        assert connection.flush(20)
    assert set(retained_topics(broker)) == retained


ONLY_LINUX = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="Linux lists connections, others do not"
)


def until_all_are_gone(broker: BrokerProcess) -> None:
    """Wait until the broker has closed all connections of its clients."""
    end = time.monotonic() + 60
    while open_connections(broker.port):
        assert time.monotonic() < end, "the broker keeps a connection of a dead client"
        time.sleep(0.05)


def open_connections(port: int) -> int:
    """Return how many connections to a port of this machine its server holds open."""
    established, closed_by_the_client = "01", "08"  # as in Linux' tcp_states.h
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    states = [row.split()[3] for row in rows if f":{port:04X}" in row.split()[1]]
    return sum(state in (established, closed_by_the_client) for state in states)


@ONLY_LINUX
def test_open_connections_are_counted(broker: BrokerProcess) -> None:
    until_all_are_gone(broker)
    with Connection(address(broker), name=MEASURE, topics=()) as connection:
        assert connection.wait_connected(20)
        assert open_connections(broker.port) == 1
    until_all_are_gone(broker)


@ONLY_LINUX
def test_a_killed_measurement_leaves_no_retained_messages(
    broker: BrokerProcess,
) -> None:
    code = f"""
import sys
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import identity_of
from fedbudget.metering import through_broker
identity = identity_of({str(broker.certs)!r}, "measure")
broker = BrokerAddress(port={broker.port}, identity=identity)
with through_broker(broker, b"order", b"reply") as link:
    link.round()
    print("measured", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "measured\n"
        process.kill()
    # A client of the same name that came earlier would take the session over, and the
    # broker would not send the will.
    until_all_are_gone(broker)
    assert retained_topics(broker) == []


@contextmanager
def running_fleet(broker: BrokerProcess) -> Iterator[Callable[[], list[str]]]:
    """Connect a coordinator and a device; yield a function: the topics they got."""
    coordinator = Connection(
        address(broker, COORDINATOR),
        name=COORDINATOR,
        topics=topics.coordinator_reads(),
    )
    reads = topics.device_reads("oven")
    will = (topics.status("oven"), topics.OFFLINE)
    oven = Connection(address(broker, "oven"), name="oven", topics=reads, will=will)

    def heard() -> list[str]:
        assert not coordinator.problem and not oven.problem
        oven.publish(topics.reply("oven"), END)
        coordinator.publish(topics.offer("oven"), END)
        return until_end(coordinator) + until_end(oven)

    with coordinator, oven:
        for connection in (coordinator, oven):
            assert connection.wait_connected(20) and connection.flush(20)
        heard()  # discard messages of other tests
        yield heard


def test_a_running_fleet_notices_nothing(broker: BrokerProcess) -> None:
    with running_fleet(broker) as heard:
        measure(LOGISTIC, num_samples=5, dim=2, seconds=0.01, broker=address(broker))
        assert heard() == []


def test_a_device_cannot_publish_to_the_topics_of_measuring(
    broker: BrokerProcess,
) -> None:
    with Connection(address(broker, "oven"), name="oven", topics=()) as oven:
        assert oven.wait_connected(20)
        oven.publish(topics.measure("order"), b"forged", retain=True)
        oven.flush(5)
    assert retained_topics(broker) == []


@pytest.mark.parametrize("name", ["oven", MEASURE])  # nor is there a device `measure`
def test_measuring_cannot_publish_to_the_topics_of_the_fleet(
    broker: BrokerProcess, name: str
) -> None:
    kinds = (topics.declare, topics.status, topics.reply, topics.offer)
    forged = [topics.order(bytes(16)), *(kind(name) for kind in kinds)]
    with running_fleet(broker) as heard:
        with Connection(address(broker), name=MEASURE, topics=()) as measuring:
            assert measuring.wait_connected(20)
            for topic in forged:
                measuring.publish(topic, b"forged")
            measuring.flush(5)
        assert heard() == []


def test_a_certificate_of_a_device_is_refused_before_it_connects(
    broker: BrokerProcess,
) -> None:
    with Connection(address(broker, "oven"), name="oven", topics=()) as oven:
        assert oven.wait_connected(20)
        with pytest.raises(InvalidInputError, match=r"'oven'.*measure\.pem"):
            with through_broker(address(broker, "oven"), b"a", b"b"):
                pass
        oven.publish(topics.status("oven"), topics.ONLINE)
        assert oven.flush(20) and not oven.problem


def test_two_measurements_at_a_time_are_an_error(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbudget.metering._TIMEOUT", 2.0)
    with through_broker(address(broker), b"a", b"b") as first:
        first.round()
        with through_broker(address(broker), b"a", b"b"):
            with pytest.raises(MeasuringError, match="no other fedbudget measure"):
                while True:
                    first.round()


def test_an_error_names_a_brokers_rules_that_forbid_measuring(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "measure", lambda kind: f"fedbudget/1/secret/{kind}")
    monkeypatch.setattr("fedbudget.metering._TIMEOUT", 2.0)
    with pytest.raises(MeasuringError, match=r"check (that its rules|--broker)"):
        with through_broker(address(broker), b"a", b"b") as link:
            link.round()


def test_a_broker_that_cannot_be_reached() -> None:
    with pytest.raises(MeasuringError, match=r"127\.0\.0\.1:1 cannot be reached"):
        with through_broker(BrokerAddress(port=1), b"a", b"b"):
            pass


def test_a_round_of_a_secure_sum_costs_more_than_an_open_one() -> None:
    measured = measure(LOGISTIC, num_samples=20, dim=5, seconds=0.01, sum_devices=6)
    secure = measured.secure
    assert secure is not None and secure.devices == 6
    assert secure.meter.seconds == measured.secure_price("seconds")
    assert secure.meter.seconds > 0
    assert secure.order_bytes > 4 * measured.order_bytes
    assert secure.reply_bytes > measured.reply_bytes
    with pytest.raises(InvalidInputError, match="joules"):
        measured.secure_price("joules")


def test_the_bytes_of_a_secure_round_are_those_of_its_messages() -> None:
    """By hand, for 6 devices and 5 parameters: records, keys and signatures."""
    down, up = SumRound(6, 5).sizes
    quorum, sealed = 4, 2 * 32 + 16
    records = 6 * (4 + 32 + 32 + 64) + 6 * 4 + quorum * (4 + 64) + 5 * (4 + sealed)
    assert 0 < down - (records + 4 * 5) < 4 * 250  # names of fields, and signatures
    records = 32 + 32 + 64 + 5 * (4 + sealed) + 4 * 5 + 64 + 5 * (4 + 32)
    assert 0 < up - records < 4 * 150


@pytest.mark.parametrize("sum_devices", [2, 1001, 2.5])
def test_a_secure_sum_of_too_few_or_too_many_is_refused(sum_devices: Any) -> None:
    with pytest.raises(InvalidInputError, match="sum_devices must be"):
        measure(LOGISTIC, num_samples=20, dim=5, sum_devices=sum_devices)
