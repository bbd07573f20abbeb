"""docs/how-to/devices.md runs as written: broker, device, coordinator, in that order.

Only the ports differ, because those on the page may be in use.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedbudget.fleet.demo import HeldPort
from tests.documents import run_page

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "devices.md"


@contextmanager
def started(command: list[str], folder: Path, log: Path) -> Iterator[None]:
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def port_in(log: Path) -> str:
    """Return the port in a broker's log, once it listens."""
    for _ in range(600):
        match = re.search(r"listening on \S+:(\d+)\n", log.read_text(encoding="utf-8"))
        if match:
            return match[1]
        time.sleep(0.1)
    raise AssertionError(f"no port in: {log.read_text(encoding='utf-8')}")


def test_the_page_leads_to_a_model(tmp_path: Path) -> None:
    pytest.importorskip("amqtt", reason="the broker inside Python is amqtt")
    run_page(PAGE, tmp_path)  # certificates, rows and the policy
    text = PAGE.read_text(encoding="utf-8")
    lines = re.findall(
        r"^`fedbudget ((?:fleet|device|server) .*)`$", text, re.MULTILINE
    )
    assert [line.split()[0] for line in lines] == ["fleet", "device", "server"]
    status = HeldPort()
    policy = (tmp_path / "policy.toml").read_text()
    assert "port = 8883" in policy
    python = (sys.executable, "-m", "fedbudget")
    broker, device, server = (
        [*python, *line.replace("8765", str(status.number)).split()] for line in lines
    )
    log = tmp_path / "broker.log"
    with started([*broker, "--port", "0"], tmp_path, log):
        port = port_in(log)
        (tmp_path / "policy.toml").write_text(policy.replace("8883", port))
        with started(device, tmp_path, tmp_path / "device.log"):
            done = subprocess.run(
                [*server, "--port", port],
                cwd=tmp_path,
                env=os.environ | {"COLUMNS": "200"},
                capture_output=True,
                text=True,
                timeout=300,
            )
    assert done.returncode == 0, done.stderr
    assert "1 device, " in done.stderr and "answers  from 1 device in" in done.stdout
    with np.load(tmp_path / "runs" / "fleet" / "run" / "model.npz") as model:
        assert np.isfinite(model["theta"]).all()
