"""Prices measured on this device: energy counters, links, and both as prices."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedbudget.errors import InvalidInputError, MeasuringError
from fedbudget.fleet.device.exact_steps import noisy_steps
from fedbudget.fleet.wire.messages import Reply, RoundOrder, theta_from_bytes
from fedbudget.losses import LOSSES, loss_named
from fedbudget.metering import (
    Broker,
    Rapl,
    loopback,
    measure,
    parse_broker,
    round_messages,
    step_runner,
    through_broker,
)

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
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
    asked, answered = RoundOrder.from_bytes(order), Reply.from_bytes(reply)
    assert theta_from_bytes(asked.theta, "float32", 102).shape == (102,)
    assert answered.theta is not None and not answered.refused


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_can_be_stepped(name: str) -> None:
    loss = loss_named(name, num_classes=3 if name == "softmax" else None)
    step_runner(loss, num_samples=20, dim=4)()


def test_the_steps_are_those_of_a_real_device(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def noted(theta: Any, rows: Any, **how: Any) -> None:
        moved = noisy_steps(theta, rows, **how)
        taken.append((len(rows), how["batch_size"], how["tau"], moved is not None))

    monkeypatch.setattr("fedbudget.metering.noisy_steps", noted)
    found = measure(LOGISTIC, num_samples=50, dim=5, seconds=0.001)
    assert set(taken) == {(50, 50, found.tau, True)}
    assert found.step.repeats == (len(taken) - 1) * found.tau  # the first warms up


@pytest.mark.parametrize("size", [1, 200_000])
def test_rounds_over_loopback(size: int) -> None:
    with loopback(bytes(size), bytes(size)) as link:
        for _ in range(3):
            link.round()


def test_watts_given_times_seconds() -> None:
    found = measure(LOGISTIC, num_samples=50, dim=5, seconds=0.01, watts=3.0)
    assert found.step.joules == pytest.approx(3.0 * found.step.seconds)
    assert found.prices("seconds") == (found.round.seconds, found.step.seconds)
    assert found.prices("joules")[0] == pytest.approx(3 * found.round.seconds)
    assert found.step.repeats >= 5 and found.link.startswith("TCP")


def test_joules_from_counters_are_shared_by_the_repeats(tmp_path: Path) -> None:
    class Counting(Rapl):
        def joules_since(self, before: list[int]) -> float:
            return 12.0

    write_counters(tmp_path, [100])
    counting = Counting(tmp_path)
    found = measure(LOGISTIC, num_samples=50, dim=5, seconds=0.01, rapl=counting)
    assert found.energy.startswith("RAPL")
    assert found.step.joules == pytest.approx(12.0 / found.step.repeats)


def test_without_a_reading_joules_are_refused(tmp_path: Path) -> None:
    nothing = Rapl(tmp_path)
    found = measure(LOGISTIC, num_samples=5, dim=2, seconds=0.01, rapl=nothing)
    assert (found.step.joules, found.units) == (None, ("seconds",))
    with pytest.raises(InvalidInputError, match="give --watts"):
        found.prices("joules")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Broker]:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed: no round through a real broker")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
    )
    process = subprocess.Popen(
        [MOSQUITTO, "-c", str(conf)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield Broker(host="127.0.0.1", port=port)
    finally:
        process.terminate()
        process.wait(10)


def test_rounds_through_a_real_broker(mosquitto: Broker) -> None:
    order, reply = round_messages(500)
    with through_broker(mosquitto, order, reply) as link:
        for _ in range(3):
            link.round()
    found = measure(LOGISTIC, num_samples=5, dim=2, seconds=0.01, broker=mosquitto)
    assert found.link == f"MQTT, {mosquitto}"
    assert found.round.repeats >= 5


def test_a_broker_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(MeasuringError, match="cannot be reached"):
        with through_broker(Broker(host="127.0.0.1", port=port), b"a", b"b"):
            pass


@pytest.mark.parametrize("text", [":1883", "host:", "host:99999", "host:x"])
def test_brokers_that_are_misspelt(text: str) -> None:
    with pytest.raises(InvalidInputError, match="HOST:PORT"):
        parse_broker(text)
