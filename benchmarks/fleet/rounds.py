"""How long rounds take, and how many bytes: `python benchmarks/fleet/rounds.py`.

Sixteen devices with Adult's rows by education (102 parameters), a coordinator and
mosquitto (or the embedded broker, if that is not installed), each a process of its own,
over mutual TLS on loopback. Seconds are the coordinator's, from sending an order until
its average is on disk. Bytes are counted on the wire of one device, TLS and
acknowledgements included, by a relay between it and the broker. Memory is a device's
resident set while it holds its rows.

Devices write their ledgers to disk before and after every step, and here sixteen of
them share one disk, which no real fleet does: so the same is measured once more with
all files in memory. `--trust sum` measures rounds of secure sums. With another number
of `--devices`, Adult's rows are shared out at random.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.fleet.demo import Terms

sys.path.insert(0, str(Path(__file__).parents[2]))  # of a clone: for its tests
from tests.fleet.brokers import FLEETS, USUAL
from tests.fleet.relay import Relay

TERMS = Terms(epsilon=4, delta=1e-4, cost=1000, communication=10, computation=1)


def resident_bytes(pid: int) -> int:
    """Return a process's resident set (Linux)."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert match is not None
    return 1024 * int(match[1])


def fsync_seconds(folder: Path) -> float:
    """Return how long it takes to have a page on disk, the median of many."""
    seconds = []
    with open(folder / "page", "wb") as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run of a fleet; seconds and bytes are of a round, bytes of one device."""

    plan: fb.Plan
    fsync: float
    seconds: Array
    received: float
    sent: float
    memory: int  # of the device with most rows, bytes

    def cells(self) -> dict[str, str]:
        """Return the lines of the table, by their names."""
        plan = self.plan
        model = plan.model.num_params(plan.dim) * 4  # single precision
        ends = np.percentile(self.seconds, [5, 95])
        return {
            "broker": USUAL,
            "devices": f"{plan.num_devices}",
            "rounds, local steps in each": f"{plan.rounds}, {plan.tau}",
            "one fsync, seconds": f"{self.fsync:.4f}",
            "seconds per round, median": f"{np.median(self.seconds):.3f}",
            "5 to 95 %": f"{ends[0]:.3f} to {ends[1]:.3f}",
            "bytes of the model": f"{model}",
            "bytes to a device per round": f"{self.received:.0f}",
            "bytes from a device per round": f"{self.sent:.0f}",
            "goal: at most, each way": f"{1.1 * model + 300:.0f}",
            "memory of the largest device": f"{self.memory / 1e6:.1f} MB",
        }


def measure(base: str | None, trust: str, devices: int) -> Measured:
    """Run a fleet whose files are below `base`, and return what was measured."""
    # Fewer rounds of more devices, which take turns on the cores of one machine.
    terms = replace(TERMS, cost=TERMS.cost * min(1.0, 16 / devices))
    if trust == "sum":
        terms = replace(terms, trust="sum", least_answers=3 * devices // 4)
    data = fb.load("adult", split="by-education", seed=0)
    if devices != data.num_devices:
        data = fb.load("adult", split="iid", num_devices=devices, seed=0)
        names = tuple(f"{m:04}" for m in range(devices))  # sorted, as a fleet has them
        data = replace(data, device_names=names)
    marks: list[tuple[int, int, int]] = []  # round, and bytes so far
    sizes: list[int] = []
    with tempfile.TemporaryDirectory(prefix="fedbudget-rounds-", dir=base) as folder:
        fleet = FLEETS[USUAL](Path(folder), data, terms)
        relay = Relay(fleet.port)
        watched = int(np.argmax(data.num_samples))
        policy = Path(fleet.devices[watched].arguments[-1])
        text = policy.read_text()
        policy.write_text(text.replace(f"port = {fleet.port}", f"port = {relay.port}"))

        def mark(status: dict[str, object]) -> None:
            done = status.get("rounds_closed")
            if isinstance(done, int) and done > 0:
                marks.append((done, relay.sent, relay.received))
            pid = fleet.devices[watched].pid
            if pid is not None:
                sizes.append(resident_bytes(pid))

        with ExitStack() as stack:
            fleet.start(stack)
            fleet.wait(mark)
        seconds, plan = np.array(fleet.round_seconds()), fleet.plan()
        sync = fsync_seconds(Path(folder))
    (first, sent0, received0), (last, sent1, received1) = marks[0], marks[-1]
    rounds = max(1, last - first)
    return Measured(
        plan=plan,
        fsync=sync,
        seconds=seconds,
        received=(received1 - received0) / rounds,
        sent=(sent1 - sent0) / rounds,
        memory=max(sizes),
    )


def main() -> int:
    """Measure with all ledgers on one disk, and with each on storage that is free."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trust", choices=("uploads", "sum"), default="uploads")
    parser.add_argument("--devices", type=int, default=16)
    options = parser.parse_args()
    sizes = (options.trust, options.devices)
    columns = {"one disk for all": measure(None, *sizes).cells()}
    if Path("/dev/shm").is_dir():
        columns["in memory"] = measure("/dev/shm", *sizes).cells()
    print(f"{'ledgers':30}" + "".join(f" {name:>18}" for name in columns))
    for name in columns["one disk for all"]:
        cells = (f" {column[name]:>18}" for column in columns.values())
        print(f"{name:30}" + "".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
