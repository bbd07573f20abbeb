"""A fleet whose processes are killed at random, and an audit of its files.

Devices, a coordinator and a broker, each a process, train over mutual TLS. At random
moments one of them is killed with SIGKILL and started again a little later, until the
required number of kills is reached and the last run has ended. Then the audit checks:

- a device's ledger has a charge for every answer that the coordinator received;
- no round was charged twice, and the ledgers' hash chains are valid;
- in secure sums, no device has revealed shares of a round twice;
- every round was averaged once, and no device gave two answers to one round;
- accuracy is within the noise of undisturbed simulations of the same plan.
"""

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fedbudget.data import Dataset
from fedbudget.fleet.coordinator.checkpoints import Checkpoints, Outcome
from fedbudget.fleet.demo import Child, Terms, TrialFleet, compare, listens, wait_until
from fedbudget.fleet.device.statement import verified
from tests.fleet.brokers import FLEETS

PAUSE = (0.0, 1.0)  # seconds, uniform: between a kill and the restart
SPACING = 0.6  # seconds between two kills, on average


@dataclass
class Report:
    """The results of a campaign."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    rounds: int = 0
    answers: int = 0  # that the coordinator received, in time or late
    charges: int = 0  # in the devices' ledgers
    unanswered: int = 0  # charges whose answer never arrived
    full_rounds: int = 0  # that all devices answered
    reveals: int = 0  # rounds in which a device revealed shares, in secure sums
    accuracies: list[float] = field(default_factory=list)
    simulated: tuple[float, float] = (0.0, 0.0)  # mean and spread
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)  # violations that the audit found

    @property
    def injections(self) -> int:
        """The number of kills."""
        return self.kills.total()


def campaign(
    folder: Path,
    *,
    broker: str,
    injections: int,
    terms: Terms,
    data: Dataset,
    seed: int,
    most_seconds: float,
    simulations: int = 5,
) -> Report:
    """Run fleets until the number of kills is reached, and audit their files.

    Args:
        folder: For the files of all runs.
        broker: A name in `FLEETS`.
        injections: The number of kills.
        terms: What the owners of the devices decide.
        data: The devices' rows.
        seed: Of the moments and the victims.
        most_seconds: For one run.
        simulations: Undisturbed runs to compare the accuracy with.
    """
    report, rng = Report(), random.Random(seed)
    started = time.monotonic()
    while report.injections < injections:
        run_folder = folder / f"run-{report.runs}"
        fleet = FLEETS[broker](run_folder, data, terms, deadline=10.0, minimum=2)
        disturbed_run(fleet, report, rng, injections, most_seconds)
        if report.broken:
            break
        audit(fleet, report)
        result = compare(fleet, seeds=simulations)
        report.accuracies.append(result["fleet"]["accuracy"])
        simulated = result["simulated"]
        report.simulated = (simulated["accuracy"], simulated["spread"])
        report.runs += 1
    judge_accuracy(report)
    report.seconds = time.monotonic() - started
    return report


def disturbed_run(
    fleet: TrialFleet,
    report: Report,
    rng: random.Random,
    injections: int,
    most_seconds: float,
) -> None:
    """Run one fleet to its end, and kill some of its processes."""
    parts: dict[str, list[Child]] = {
        "broker": [fleet.broker],
        "coordinator": [fleet.server],
        "device": fleet.devices,
    }
    with ExitStack() as stack:
        fleet.start(stack)
        wait_until(
            lambda: bool(fleet.status().get("devices")),
            "the first round",
            child=fleet.server,
            seconds=180,
        )
        end = time.monotonic() + most_seconds
        while fleet.server.code != 0:
            if time.monotonic() > end:
                report.broken.append(
                    f"no end in {most_seconds:g} s: see {fleet.folder}"
                )
                return
            if fleet.server.code is not None:
                fleet.server.start()  # it gave up waiting, and is started again
            if report.injections < injections:
                kind = rng.choice(["broker", "coordinator", "device", "device"])
                victim = rng.choice(parts[kind])
                if victim.code is None:
                    victim.kill()
                    report.kills[kind] += 1
                    time.sleep(rng.uniform(*PAUSE))
                    revive(victim, fleet)
            fleet.server.wait(rng.expovariate(1 / SPACING))


def revive(victim: Child, fleet: TrialFleet) -> None:
    """Start a killed process again, and wait until a broker listens."""
    victim.start()
    if victim is fleet.broker:
        wait_until(lambda: listens(fleet.port), "the broker", child=victim)


def audit(fleet: TrialFleet, report: Report) -> None:
    """Compare the coordinator's file with every device's ledger."""
    checkpoints = Checkpoints(fleet.folder / "out" / "coordinator.sqlite")
    stored = checkpoints.run()
    assert stored is not None
    closed = checkpoints.rounds_closed()
    report.rounds += closed
    received: dict[str, set[int]] = {name: set() for name in fleet.names}
    for number in range(1, closed + 1):
        replies = checkpoints.replies(number)
        for name, reply in replies.items():
            if reply.outcome in (Outcome.ANSWERED, Outcome.LATE):
                received[name].add(number)
        num_answers = sum(r.outcome == Outcome.ANSWERED for r in replies.values())
        report.full_rounds += num_answers == len(fleet.names)
    for name, (times, reason) in checkpoints.dropped().items():
        report.broken.append(f"{times} replies of {name} were dropped: {reason}")
    checkpoints.close()
    rows = (fleet.folder / "out" / "run" / "rounds.jsonl").read_text().splitlines()
    numbers = [json.loads(row)["round"] for row in rows]
    if numbers != list(range(1, closed + 1)):
        report.broken.append(
            f"the record has rounds {numbers}, and {closed} are closed"
        )
    for name in fleet.names:
        entries = verified(fleet.folder / name / "ledger.sqlite")
        of_run = [e for e in entries if e.run == stored.run]
        charged = [e.round for e in of_run if e.kind == "charge"]
        answered = {e.round for e in of_run if e.kind == "answer"}
        report.charges += len(charged)
        report.answers += len(received[name])
        report.unanswered += len(set(charged) - received[name])
        if len(charged) != len(set(charged)):
            report.broken.append(f"{name} was charged twice for a round")
        revealed = [e.round for e in of_run if e.kind == "reveal"]
        report.reveals += len(revealed)
        if len(revealed) != len(set(revealed)) or not set(revealed) <= answered:
            report.broken.append(f"{name} has revealed shares of a round twice")
        if not received[name] <= set(charged):
            report.broken.append(f"{name} has answered rounds that it never charged")
        if not received[name] <= answered:
            report.broken.append(f"{name} has sent answers that it did not store")


def judge_accuracy(report: Report) -> None:
    """Check that accuracy differs from undisturbed runs only by their noise."""
    mean, spread = report.simulated
    for accuracy in report.accuracies:
        # Fewer answers mean a noisier model: allow four spreads, and half a point.
        if accuracy < mean - 4 * spread - 0.005:
            report.broken.append(
                f"accuracy {accuracy:.4f} is below {mean:.4f} +- {spread:.4f}"
            )
