"""The status over HTTP: JSON and the Prometheus text format."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from fedbudget.fleet.coordinator.status import StatusServer, metrics

STATUS: dict[str, Any] = {
    "name": "demo",
    "round": 3,
    "rounds_closed": 2,
    "rounds": 9,
    "last_round_seconds": 0.25,
    "devices": [
        {
            "name": "oven",
            "online": True,
            "this_round": "answered",
            "answered": 2,
            "late": 1,
            "refused": 0,
            "dropped": 4,
            "epsilon": 1.5,
            "cost": 220.0,
        }
    ],
}


@pytest.fixture
def server() -> Iterator[StatusServer]:
    server = StatusServer(lambda: STATUS, port=0)
    yield server
    server.close()


def get(server: StatusServer, path: str) -> tuple[str, str]:
    url = f"http://127.0.0.1:{server.port}{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return response.headers["Content-Type"], response.read().decode()


def test_status_is_json(server: StatusServer) -> None:
    kind, text = get(server, "/status")
    assert kind == "application/json"
    assert json.loads(text) == STATUS


def test_metrics_are_in_prometheus_text_format(server: StatusServer) -> None:
    kind, text = get(server, "/metrics")
    assert kind.startswith("text/plain; version=0.0.4")
    lines = text.splitlines()
    assert "fedbudget_rounds_closed 2" in lines
    assert 'fedbudget_device_epsilon{device="oven"} 1.5' in lines
    assert 'fedbudget_device_dropped_total{device="oven"} 4' in lines
    # Every sample has a type of the same name.
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    named = {line.split("{")[0].split()[0] for line in lines if line[0] != "#"}
    assert named == typed


def test_nothing_else_is_served(server: StatusServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        get(server, "/etc/passwd")
    error.value.close()


def test_only_local_names_are_served(server: StatusServer) -> None:
    """A page of another site whose name resolves to this machine gets nothing."""
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/status", headers={"Host": host})
        assert connection.getresponse().status == 403
        connection.close()
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80"):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/status", headers={"Host": host})
        assert connection.getresponse().status == 200
        connection.close()


def test_metrics_name_the_state() -> None:
    waiting = {"state": "waiting", "devices": [], "declared": [{"name": "a"}]}
    lines = list(metrics(waiting))
    assert 'fedbudget_run_state{state="waiting"} 1' in lines
    assert 'fedbudget_run_state{state="failed"} 0' in lines
    assert "fedbudget_devices_declared 1" in lines
