"""A coordinator's status, over a real socket."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.coordinator.status import StatusServer
from fedbudget.fleet.demo import HeldPort
from fedbudget.ui.fleet import (
    device_rows,
    read_status,
    round_rows,
    shown_epsilon,
)

RUNNING = {
    "name": "alarms",
    "round": 3,
    "rounds_closed": 2,
    "rounds": 9,
    "last_round_seconds": 0.42,
    "round_seconds": [[1, 0.5], [2, 0.42]],
    "devices": [
        {
            "name": "roof",
            "online": True,
            "this_round": "late",
            "answered": 2,
            "late": 1,
            "refused": 0,
            "dropped": 0,
            "epsilon": 1.5,
            "cost": 220.0,
        }
    ],
}


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Serve a text; the fixture returns its address."""
    servers: list[HTTPServer] = []

    def serve(text: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the library's name
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/status"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_status_is_read(answering: Callable[[bytes], str]) -> None:
    status = {"name": "run", "devices": []}
    assert read_status(answering(json.dumps(status).encode())) == status


def test_the_coordinators_own_status_fills_the_page() -> None:
    server = StatusServer(lambda: RUNNING, port=0)
    try:
        status = read_status(f"http://127.0.0.1:{server.port}/status")
    finally:
        server.close()
    assert status is not None
    (row,) = device_rows(status)
    assert (row["device"], row["this round"], row["epsilon"]) == ("roof", "late", 1.5)


def test_an_epsilon_in_a_table_is_rounded_up() -> None:
    assert shown_epsilon(1.23401) == 1.235
    assert shown_epsilon(None) is None


def test_every_round_that_the_coordinator_reports_has_a_bar() -> None:
    rows = round_rows(RUNNING)
    assert rows == [{"round": 1, "seconds": 0.5}, {"round": 2, "seconds": 0.42}]
    charts = pytest.importorskip("fedbudget.ui.charts", exc_type=ImportError)
    drawn = charts.seconds_chart(rows).to_dict()
    assert drawn["encoding"]["x"]["scale"]["domain"] == [0.5, 10.5]
    assert drawn["encoding"]["y2"] == {"datum": 0}  # bars start at the axis
    assert round_rows({"devices": []}) == []


def test_nobody_there_is_not_an_error() -> None:
    held = HeldPort()  # no process listens, and none can
    assert read_status(f"http://127.0.0.1:{held.number}/status") is None


@pytest.mark.parametrize("text", [b"<html>", b"[1]", b"", b'{"round": 1}'])
def test_something_else_is_refused(
    answering: Callable[[bytes], str], text: bytes
) -> None:
    with pytest.raises(InvalidInputError, match="is not a coordinator"):
        read_status(answering(text))


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "file:///etc/passwd", "ftp://x/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="is not an address"):
        read_status(url)
