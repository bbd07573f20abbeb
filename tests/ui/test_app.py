"""The server of the page: local only, without usage statistics."""

import socket
from pathlib import Path

import pytest

from fedbudget.ui.app import server_command
from tests.cli.running import assert_one_line, run


def test_streamlit_serves_this_machine_only() -> None:
    pytest.importorskip("streamlit")
    command = server_command(port=8501, runs=Path("runs"), fleet="http://x")
    assert "--server.address=127.0.0.1" in command
    assert "--browser.gatherUsageStats=false" in command
    assert "--logger.hideWelcomeMessage=true" in command
    assert command[-4:] == [
        "--runs",
        str(Path("runs").absolute()),
        "--fleet",
        "http://x",
    ]


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("streamlit")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(capsys, "ui", "--port", str(port))
    assert_one_line(result, code=1, says=(f"127.0.0.1:{port}", "another --port"))


def test_a_port_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "ui", "--port", "70000")
    assert_one_line(result, code=2, says=("--port 70000", "1024"))


def test_a_missing_package_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbudget.ui.app.find_spec", lambda name: None)
    result = run(capsys, "ui")
    assert_one_line(result, code=1, says=("streamlit", "pip install '.[ui]'"))
