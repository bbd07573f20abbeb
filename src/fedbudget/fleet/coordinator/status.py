"""The state of a run over HTTP, on loopback: JSON and the Prometheus text format.

    GET /status    the state of the run and of every device, as JSON
    GET /metrics   the same for Prometheus

All numbers follow from public declarations and orders; none of them is private.
"""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from fedbudget.errors import RecordError

Source: TypeAlias = Callable[[], dict[str, Any]]

_PER_DEVICE = (
    ("answered", "counter", "Rounds that a device answered in time."),
    ("late", "counter", "Rounds that a device answered too late; it was charged."),
    ("refused", "counter", "Rounds that a device refused."),
    ("dropped", "counter", "Dropped messages of a device."),
    ("epsilon", "gauge", "Upper bound on the privacy that a device has spent."),
    ("cost", "gauge", "Upper bound on the cost of a device, in its own unit."),
)


_HOSTS = ("127.0.0.1", "localhost", "::1")
_STATES = ("waiting", "running", "finished", "failed", "stopped", "cancelled")


class StatusServer:
    """Serves the status until it is closed; port 0 selects a free one."""

    def __init__(self, source: Source, *, port: int) -> None:
        class Handler(_Handler):
            status = staticmethod(source)

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise RecordError(
                f"status port {port} cannot be used ({error.strerror}): choose another "
                "port"
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    status: Source
    server_version, sys_version = "fedbudget", ""
    timeout = 10.0  # seconds for a request; a silent client ends its own thread

    def do_GET(self) -> None:
        # A web page whose name resolves to this machine must not read the status.
        host = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]").lower()
        if host not in _HOSTS:
            self.send_error(403, f"Host must be one of {', '.join(_HOSTS)}")
        elif self.path in ("/", "/status"):
            self._send("application/json", json.dumps(self.status()) + "\n")
        elif self.path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            self._send(kind, "".join(f"{line}\n" for line in metrics(self.status())))
        else:
            self.send_error(404, "try /status or /metrics")

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests for the status are no events of the run."""


def metrics(status: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of Prometheus' text format for a status."""
    for name, key, help_text in (
        ("rounds_closed", "rounds_closed", "Closed rounds."),
        ("rounds_planned", "rounds", "Rounds of the plan."),
        ("last_round_seconds", "last_round_seconds", "Duration of the last round."),
    ):
        if status.get(key) is not None:
            yield from _head(name, "gauge", help_text)
            yield f"fedbudget_{name} {status[key]}"
    yield from _head("run_state", "gauge", "1 for the state of the run, else 0.")
    for state in _STATES:
        flag = int(status.get("state") == state)
        yield f'fedbudget_run_state{{state="{state}"}} {flag}'
    yield from _head("devices_declared", "gauge", "Devices that have declared.")
    declared = status.get("declared") or status.get("devices", [])
    yield f"fedbudget_devices_declared {len(declared)}"
    devices = status.get("devices", [])
    yield from _head("device_online", "gauge", "Whether a device is connected.")
    for device in devices:
        yield f"fedbudget_device_online{_label(device)} {int(bool(device['online']))}"
    for key, kind, help_text in _PER_DEVICE:
        name = f"device_{key}{'_total' if kind == 'counter' else ''}"
        yield from _head(name, kind, help_text)
        for device in devices:
            value = "+Inf" if device[key] is None else device[key]
            yield f"fedbudget_{name}{_label(device)} {value}"


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP fedbudget_{name} {help_text}"
    yield f"# TYPE fedbudget_{name} {kind}"


def _label(device: dict[str, Any]) -> str:
    return f'{{device="{device["name"]}"}}'  # names have no quotes: messages check that
