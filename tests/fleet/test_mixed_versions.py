"""A coordinator and devices of different releases, as processes over a real broker.

Both sides say what does not fit, nobody waits in silence, and nothing is charged.
"""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import fedbudget as fb
from fedbudget.fleet.demo import Child, Terms, wait_until, write_site
from fedbudget.fleet.device.statement import read_statement
from tests.fleet.brokers import BrokerProcess
from tests.fleet.devices import rows

V = fb.__version__
NAMES = ("device-0", "device-1")
# Another release: its numbers are set before anything reads them.
OTHER = (
    "from fedbudget.fleet.wire import messages; messages.{0}; "
    "from fedbudget.cli import main; main()"
)


@pytest.mark.parametrize(
    ("change", "wait", "coordinator_says", "device_says"),
    [
        (
            "WIRE = 3",
            300,  # seconds at most: it ends when both devices have declared themselves
            f"is left out: its release {V}, wire 2, does not read the orders of the "
            f"coordinator's release {V}, wire 3: install the same release",
            f"the coordinator leaves this device out: its release {V}, wire 2",
        ),
        (
            "VERSION = 2",
            20,  # seconds, always: no declaration can be read
            "dropped: version 1 is not supported, only 2",
            "a notice is ignored: version 2 is not supported, only 1",
        ),
    ],
    ids=["wire", "schema of messages"],
)
def test_a_newer_coordinator(
    embedded: BrokerProcess,
    certs: Path,
    tmp_path: Path,
    change: str,
    wait: int,
    coordinator_says: str,
    device_says: str,
) -> None:
    terms = Terms(epsilon=4.0, delta=1e-4, cost=1000.0)
    with ExitStack() as stack:
        devices = []
        for name in NAMES:
            policy = write_site(
                tmp_path / name, name, rows(), terms, certs=certs, port=embedded.port
            )
            device = Child(("device", str(policy)), tmp_path / f"{name}.log")
            device.start()
            stack.callback(device.stop)
            devices.append(device)
        for device in devices:
            wait_until(
                lambda d=device: "is connected" in d.log.read_text(),  # type: ignore[misc]
                "a device",
                child=device,
            )
        command = [sys.executable, "-c", OTHER.format(change)]
        server = ("server", str(tmp_path / "out"), "--devices", "2")
        done = subprocess.run(
            [
                *(*command, *server, "--wait", str(wait)),
                *("--certs", str(certs), "--port", str(embedded.port)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        for device in devices:
            wait_until(
                lambda d=device: device_says in d.log.read_text(),  # type: ignore[misc]
                "the reason",
                child=device,
            )
    assert done.returncode == 1 and coordinator_says in done.stderr
    for name in NAMES:
        statement = read_statement(tmp_path / name / "ledger.sqlite")
        assert (statement.epsilon, statement.cost, statement.runs) == (0, 0, [])
    assert not list((tmp_path / "out").glob("run/*"))
