"""Faults of a fleet: `python benchmarks/fleet/faults.py table` and `... kills 220`.

`table`: one fault after the other, of connections and devices, over both brokers; the
rounds that all devices answered, the slowest round, and the goals. The guards are
threads of this process, and every client has a relay to break its connections:
tests/fleet/fault_table.py.

`kills`: a fleet of four devices, a coordinator and a broker (mosquitto, or the embedded
one if that is not installed or `--broker amqtt` is given), each a process, trains on
Adult's rows and is killed at random moments. How, and what must hold after it, is in
tests/fleet/faults.py.

With `--trust sum`, six devices take part in secure sums of at least four.

Exits with 1 if a goal is missed or anything does not hold. `make test` runs short forms
of both.
"""

import argparse
import logging
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedbudget as fb
from fedbudget.fleet.demo import Terms
from fedbudget.fleet.transport.certificates import make_certificates

sys.path.insert(0, str(Path(__file__).parents[2]))  # the clone, for its tests
from tests.fleet.brokers import FLEETS, USUAL, BrokerProcess
from tests.fleet.fault_table import FAULTS, Fault, Result, run_fault
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
        ("shares revealed", f"in {report.reveals} rounds of devices, each once"),
        ("received, not charged", 0 if not report.broken else "see below"),
        ("test accuracy", accuracies),
        ("undisturbed, simulated", f"{mean:.4f} +- {spread:.4f}"),
        ("seconds", f"{report.seconds:.0f}"),
    ]


def kills(injections: int, broker: str, trust: str) -> int:
    """Run a campaign and print its report."""
    terms, devices = TERMS, NUM_DEVICES
    if trust == "sum":
        terms, devices = replace(TERMS, trust="sum", least_answers=4), 6
    with tempfile.TemporaryDirectory(prefix="fedbudget-faults-") as folder:
        report = campaign(
            Path(folder),
            broker=broker,
            injections=injections,
            terms=terms,
            data=fb.load("adult", split="iid", num_devices=devices, seed=0),
            seed=int(time.time()),
            most_seconds=MOST_SECONDS,
        )
    print(f"{'broker':28} {broker}")
    for name, value in lines(report):
        print(f"{name:28} {value}")
    for line in report.broken:
        print(f"BROKEN: {line}")
    return 1 if report.broken else 0


def table(rounds: int, brokers: list[str]) -> int:
    """Run every fault and print what it costs."""
    missed = False
    print(
        f"{'broker':10} {'fault':26} {'complete':>10} {'slowest':>8} {'all':>7}  goal"
    )
    for kind in brokers:
        with tempfile.TemporaryDirectory(prefix="fedbudget-faults-") as name:
            folder = Path(name)
            make_certificates(folder / "certs", [f"device-{m}" for m in range(4)])
            undisturbed = float("inf")
            with BrokerProcess(kind, folder / "certs", folder / "broker") as broker:
                for number, (title, fault) in enumerate(FAULTS.items()):
                    count = rounds if fault.cuts else min(rounds, 20)
                    site = folder / str(number)
                    result = run_fault(fault, site, broker, rounds=count)
                    if title == "none":
                        undisturbed = result.seconds
                    goal, holds = judge(fault, result, undisturbed)
                    missed |= not holds
                    print(
                        f"{kind:10} {title:26} {result.complete:>4} of {count:>3} "
                        f"{result.longest:>6.1f} s {result.seconds:>5.1f} s  {goal}"
                        f"{'' if holds else '  MISSED'}",
                        flush=True,
                    )
    return 1 if missed else 0


def judge(fault: Fault, result: Result, undisturbed: float) -> tuple[str, bool]:
    """Return the goal for a fault in words, and whether it was reached."""
    if fault.quorum < 1:
        most = 2 * undisturbed
        return f"all at most {most:.1f} s", result.seconds <= most
    complete = result.complete == result.rounds
    if fault.most_seconds is None:
        return "all complete", complete
    return (
        f"all complete, slowest at most {fault.most_seconds:g} s",
        complete and result.longest <= fault.most_seconds,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_table = commands.add_parser("table")
    of_table.add_argument("--rounds", type=int, default=95)
    of_table.add_argument("--broker", choices=sorted(FLEETS))
    of_kills = commands.add_parser("kills")
    of_kills.add_argument("injections", type=int, nargs="?", default=200)
    of_kills.add_argument("--broker", choices=sorted(FLEETS), default=USUAL)
    of_kills.add_argument("--trust", choices=("uploads", "sum"), default="uploads")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.command == "kills":
        return kills(options.injections, options.broker, options.trust)
    return table(options.rounds, [options.broker] if options.broker else sorted(FLEETS))


if __name__ == "__main__":
    sys.exit(main())
