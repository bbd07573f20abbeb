"""The page: its navigation, and the Streamlit server on this machine."""

import argparse
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from fedbudget.errors import InvalidInputError, MissingExtraError, RecordError
from fedbudget.fleet.coordinator.defaults import STATUS_PORT

ADDRESS, PORT = "127.0.0.1", 8501
# Status of a coordinator on this machine, for the Fleet page.
STATUS_URL = f"http://{ADDRESS}:{STATUS_PORT}/status"

# No usage statistics, no network, no reloading, no developer menu.
_SETTINGS = {
    "server.address": ADDRESS,
    "server.showEmailPrompt": "false",
    "server.fileWatcherType": "none",
    "server.maxUploadSize": "1",  # MB; the page accepts no files
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "type",
    "logger.level": "warning",
    # Fields keep their values while another page is shown: explore_page.keep_fields.
    "global.disableWidgetStateDuplicationWarning": "true",
    "logger.hideWelcomeMessage": "true",  # hides the offers on the page, too
    "theme.light.primaryColor": "#0b6e75",
    "theme.dark.primaryColor": "#1a8a93",
    "theme.font": "sans-serif",
    "theme.baseRadius": "0.4rem",
}


_STYLE = """
<style>
  .block-container, .stMainBlockContainer {padding-top: 4.2rem; max-width: 1320px;}
  [data-testid="stMetricValue"] {font-size: 1.6rem;}
  [data-testid="stMetricLabel"] p {white-space: normal; overflow: visible;}
  [class*="st-key-cards"] {
    display: grid; gap: .7rem; align-items: stretch;
    grid-template-columns: repeat(auto-fit, minmax(145px, 1fr));
  }
  [class*="st-key-cards"] > div {width: auto !important;}
  [class*="st-key-cards"] [data-testid="stMetric"] {height: 100%;}
  h3 {font-size: 1.15rem !important; padding: .3rem 0 !important;}
  h1 {font-size: 1.9rem !important; padding: 0 0 .2rem 0 !important;}
  @media (max-width: 640px) {
    .block-container, .stMainBlockContainer {padding-left: 1rem; padding-right: 1rem;}
    h1 {font-size: 1.5rem !important;}
  }
</style>
"""


def check_port(port: int) -> None:
    """Raise unless the page can be served on this port."""
    if not 1 <= port <= 65535:
        raise InvalidInputError(f"--port {port} is not a port: choose 1024 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise RecordError(
                f"cannot serve on {ADDRESS}:{port}: {error.strerror}: choose another "
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
    options = ["--runs", str(runs.absolute()), "--fleet", fleet]
    return [
        *(sys.executable, "-m", "streamlit", "run", __file__),
        *(*flags, "--", *options),
    ]


def serve(command: list[str]) -> None:
    """Replace this process by the server, with its signals and exit codes."""
    sys.stdout.flush()
    os.execv(command[0], command)


def main() -> None:
    """Show the page that the URL names; Streamlit runs this function."""
    # Imported here: the command line loads this module without Streamlit, too.
    import streamlit as st

    from fedbudget.ui.explore_page import explore_page, keep_fields
    from fedbudget.ui.fleet import fleet_page
    from fedbudget.ui.results_page import results_page
    from fedbudget.ui.run import run_page

    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--fleet", default="")
    options = parser.parse_args(sys.argv[1:])
    st.set_page_config(
        page_title="fedbudget",
        page_icon=str(Path(__file__).with_name("icon.svg")),
        layout="wide",
    )
    st.html(_STYLE)
    keep_fields()
    run = st.Page(lambda: run_page(options.runs), title="Run", url_path="run")
    page = st.navigation(
        [
            st.Page(
                lambda: explore_page(run),
                title="Explore",
                url_path="explore",
                default=True,
            ),
            run,
            st.Page(lambda: fleet_page(options.fleet), title="Fleet", url_path="fleet"),
            st.Page(
                lambda: results_page(options.runs), title="Results", url_path="results"
            ),
        ],
        position="top",
    )
    page.run()


if __name__ == "__main__":
    main()
