"""When a device works: pause, hours, mains power."""

import datetime
from pathlib import Path

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.availability import (
    ALWAYS,
    Availability,
    hours_text,
    on_mains,
    parse_hours,
)
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.process import Device
from fedbudget.fleet.wire import topics
from tests.cli.running import run
from tests.fleet.devices import SIGNER, write_device
from tests.fleet.examples import offer


def at(hour: int, minute: int = 0) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, hour, minute)


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("1-5", [at(1), at(4, 59)], [at(0, 59), at(5), at(13)]),
        ("22:30-05:00", [at(22, 30), at(0), at(4, 59)], [at(5), at(22, 29)]),
        ("20-24", [at(23, 59)], [at(0), at(19)]),
    ],
)
def test_hours(
    hours: str, inside: list[datetime.datetime], outside: list[datetime.datetime]
) -> None:
    window = Availability(hours=parse_hours(hours))
    assert all(window.obstacle(now) == "" for now in inside)
    assert all("outside the hours" in window.obstacle(now) for now in outside)
    assert parse_hours(hours_text(parse_hours(hours))) == parse_hours(hours)


@pytest.mark.parametrize("text", ["", "5", "1-1", "25-3", "1-5-6", "a-b", "24:30-1"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="such as 01:00-05:00"):
        parse_hours(text)


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(f"{text}\n")


def test_mains(tmp_path: Path) -> None:
    assert on_mains(tmp_path / "none")  # a machine without a battery
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert not on_mains(tmp_path)
    assert Availability(on_mains=True).obstacle(supplies=tmp_path) == "on battery"
    supply(tmp_path, "AC", type="Mains", online="1")
    assert on_mains(tmp_path)
    (tmp_path / "AC" / "online").write_text("0\n")
    (tmp_path / "BAT0" / "status").write_text("Charging\n")
    assert on_mains(tmp_path)
    supply(tmp_path / "mouse", "hid", type="Battery", scope="Device", status="Unknown")
    assert on_mains(tmp_path / "mouse")


def test_a_policy_has_all_three(tmp_path: Path) -> None:
    path = write_device(tmp_path)
    assert read_policy(path).availability.obstacle() == ALWAYS.obstacle() == ""
    text = path.read_text()
    path.write_text(f'{text}\n[availability]\nhours = "1-5"\non_mains = true\n')
    wanted = Availability(
        hours=(60, 300), on_mains=True, pause_file=tmp_path / "paused"
    )
    assert read_policy(path).availability == wanted
    path.write_text(f'{text}\n[availability]\nhours = "always"\n')
    with pytest.raises(InvalidInputError, match=r"availability\.hours must be a time"):
        read_policy(path)


def test_a_paused_device_answers_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_device(tmp_path)
    device = Device(read_policy(path))
    topic, payload = topics.offer("sensor-1"), SIGNER.sign(offer())
    assert run(capsys, "device", "pause", str(path)).out.startswith("paused: ")
    assert device.handle(topic, payload) == []
    assert device.hello()[1].payload == topics.OFFLINE  # also if it connects again
    assert run(capsys, "device", "resume", str(path)).code == 0
    assert len(device.handle(topic, payload)) == 1
    assert device.hello()[1].payload == topics.ONLINE
    device.close()
