"""Kill processes of a fleet: `python benchmarks/fleet/faults.py [injections]`.

A fleet of four devices, a coordinator and a broker (mosquitto, or the embedded one if
that is not installed or `--broker amqtt` is given), each a process, trains on
Adult's rows. The default is 200 kills. How they are made, and what must hold
after them, is in tests/fleet/faults.py, whose short form `make test` runs.

Exits with 1 if any of it does not hold.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fedbudget as fb
from fedbudget.fleet.demo import Terms

sys.path.insert(0, str(Path(__file__).parents[2]))  # the clone, for its tests
from tests.fleet.brokers import FLEETS, USUAL
from tests.fleet.faults import Report, campaign

NUM_DEVICES = 4
TERMS = Terms(epsilon=4, delta=1e-4, cost=150, communication=2, computation=1)
MOST_SECONDS = 1800  # for one run


def lines(report: Report) -> list[tuple[str, Any]]:
    """Return the report's figures with readable names."""
    kills = ", ".join(f"{name} {count}" for name, count in sorted(report.kills.items()))
    mean, spread = report.simulated
    accuracies = ", ".join(f"{accuracy:.4f}" for accuracy in report.accuracies)
    return [
        ("kills (SIGKILL)", f"{report.injections}: {kills}"),
        ("runs, to their end", report.runs),
        ("rounds", f"{report.rounds}, each averaged once"),
        ("rounds that all answered", report.full_rounds),
        ("answers received", report.answers),
        ("charges in the ledgers", report.charges),
        ("charged, not received", report.unanswered),
        ("received, not charged", 0 if not report.broken else "see below"),
        ("test accuracy", accuracies),
        ("undisturbed, simulated", f"{mean:.4f} +- {spread:.4f}"),
        ("seconds", f"{report.seconds:.0f}"),
    ]


def main() -> int:
    """Run a campaign and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("injections", type=int, nargs="?", default=200)
    parser.add_argument("--broker", choices=sorted(FLEETS), default=USUAL)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedbudget-faults-") as folder:
        report = campaign(
            Path(folder),
            broker=options.broker,
            injections=options.injections,
            terms=TERMS,
            data=fb.load("adult", split="iid", num_devices=NUM_DEVICES, seed=0),
            seed=int(time.time()),
            most_seconds=MOST_SECONDS,
        )
    print(f"{'broker':28} {options.broker}")
    for name, value in lines(report):
        print(f"{name:28} {value}")
    for line in report.broken:
        print(f"BROKEN: {line}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
