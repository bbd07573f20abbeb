"""The demo fails with one line as soon as one of its processes has ended."""

import socket
import threading
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet import demo
from fedbudget.fleet.demo import Child, Terms, TrialFleet
from tests.contract_devices import rows_of

ROOT = Path(__file__).parents[2]
TERMS = Terms(epsilon=8, cost=200, communication=4, computation=1)


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", -1), ("delta", 2), ("cost", 0), ("computation", -1)]
)
def test_invalid_terms_fail_before_any_process_starts(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name):
        replace(TERMS, **{name: value})


def test_a_device_that_ends_ends_the_demonstration(tmp_path: Path) -> None:
    fleet = TrialFleet(tmp_path, rows_of([30, 30]), TERMS)
    fleet.devices[1] = Child(("device", "no-policy.toml"), fleet.log_of("lost"))
    with ExitStack() as stack:
        fleet.start(stack)
        with pytest.raises(
            TrainingError, match=r"device \S+ has ended: error: .*no-pol"
        ):
            fleet.wait(lambda status: None)
    assert fleet.server.code is not None  # nothing is left running
    assert fleet.broker.code is not None


def test_a_coordinator_that_ends_in_the_middle_of_its_status_has_none(
    tmp_path: Path,
) -> None:
    fleet = TrialFleet(tmp_path, rows_of([30, 30]), TERMS)
    listener = socket.create_server(("127.0.0.1", fleet.status_port))

    def answer_half() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(
                b'HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{"devices"'
            )

    server = threading.Thread(target=answer_half)
    server.start()
    with listener:
        assert fleet.status() == {}
        server.join()


def test_the_demo_prefers_mosquitto_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "MOSQUITTO", "/usr/sbin/mosquitto")
    assert demo.usual_fleet() is demo.MosquittoFleet
    monkeypatch.setattr(demo, "MOSQUITTO", None)
    assert demo.usual_fleet() is TrialFleet


def test_mosquittos_configuration_is_in_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    folder = demo.shipped_mosquitto()
    assert folder is not None
    for source, target in wheel["force-include"].items():
        assert (ROOT / source).parent == folder
        assert target == f"fedbudget/fleet/mosquitto/{Path(source).name}"
