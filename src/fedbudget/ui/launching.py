"""How the page is served: by Streamlit, to this machine alone."""

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from fedbudget.errors import InvalidInputError, MissingExtraError, RecordError

ADDRESS = "127.0.0.1"
PAGE = Path(__file__).with_name("app.py")

# Nothing is counted, fetched, reloaded or advertised; no developer's menu.
_SETTINGS = {
    "server.address": ADDRESS,
    "server.showEmailPrompt": "false",
    "server.fileWatcherType": "none",
    "server.maxUploadSize": "1",  # MB; the page takes no files
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "type",
    "logger.level": "warning",
    "logger.hideWelcomeMessage": "true",  # nor its offers, on the page as well
    "theme.light.primaryColor": "#0b6e75",
    "theme.dark.primaryColor": "#1a8a93",
    "theme.font": "sans-serif",
    "theme.baseRadius": "0.4rem",
}


def check_port(port: int) -> None:
    """Raise unless the page can be served there."""
    if not 1 <= port <= 65535:
        raise InvalidInputError(f"--port {port} is not a port: take 1024 .. 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise RecordError(
                f"cannot serve on {ADDRESS}:{port}: {error.strerror}: take another "
                "--port"
            ) from None


def server_command(
    *, port: int, runs: Path, fleet: str, browser: bool = False
) -> list[str]:
    """Return the command that serves the page."""
    if find_spec("streamlit") is None:
        raise MissingExtraError("the page", "streamlit", extra="ui")
    headless = "false" if browser else "true"
    settings = _SETTINGS | {"server.port": str(port), "server.headless": headless}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    asked = ["--runs", str(runs.absolute()), "--fleet", fleet]
    return [
        *(sys.executable, "-m", "streamlit", "run", str(PAGE)),
        *(*flags, "--", *asked),
    ]


def serve(command: list[str]) -> None:
    """Become the server: signals and exit codes are its own from here on."""
    sys.stdout.flush()
    os.execv(command[0], command)
