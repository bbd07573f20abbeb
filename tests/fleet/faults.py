"""A fleet whose processes are killed at random, and an audit of what is on disk after.

Devices, a coordinator and a broker, each a process, train over mutual TLS. At random
moments one of them is killed with SIGKILL and started again a little later, until so
many kills have been made and the last run has ended. Then all that is on disk is
compared:

- a device's ledger has a charge for every answer that anybody ever saw;
- no round was charged twice, and ledgers are whole (their chains of digests hold);
- every round was averaged once, and no device gave two answers to one round;
- accuracy is within the noise of simulations of the same plan, that nobody disturbed.
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

PAUSE = (0.0, 1.0)  # seconds, uniform: how long a killed part stays dead
SPACING = 0.6  # seconds between two kills, on average


@dataclass
class Report:
    """What a campaign has found."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    rounds: int = 0
    answers: int = 0  # that the coordinator has seen, in time or late
    charges: int = 0  # in the devices' ledgers
    unanswered: int = 0  # charges whose answer was never seen
    full_rounds: int = 0  # that all devices answered
    accuracies: list[float] = field(default_factory=list)
    simulated: tuple[float, float] = (0.0, 0.0)  # mean and spread
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)  # what does not hold

    @property
    def injections(self) -> int:
        """How many kills there were."""
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
    """Run fleets until there were enough kills, and look at what is on disk.

    Args:
        folder: For the files of all runs.
        broker: A name in `FLEETS`.
        injections: How many kills.
        terms: What the owners of the devices decide.
        data: The devices' rows.
        seed: Of the moments and the victims.
        most_seconds: For one run.
        simulations: Undisturbed runs to compare the accuracy with.
    """
    report, rng = Report(), random.Random(seed)
    began = time.monotonic()
    while report.injections < injections:
        home = folder / f"run-{report.runs}"
        fleet = FLEETS[broker](home, data, terms, deadline=10.0, minimum=2)
        disturbed_run(fleet, report, rng, injections, most_seconds)
        if report.broken:
            break
        audit(fleet, report)
        found = compare(fleet, seeds=simulations)
        report.accuracies.append(found["fleet"]["accuracy"])
        report.simulated = (
            found["simulated"]["accuracy"],
            found["simulated"]["spread"],
        )
        report.runs += 1
    judge_accuracy(report)
    report.seconds = time.monotonic() - began
    return report


def disturbed_run(
    fleet: TrialFleet,
    report: Report,
    rng: random.Random,
    injections: int,
    most_seconds: float,
) -> None:
    """Run one fleet to its end, killing its parts on the way."""
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
                fleet.server.start()  # it gave up waiting: its owner starts it again
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
    """Start a killed part again; a broker's port must be free first."""
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
    seen: dict[str, set[int]] = {name: set() for name in fleet.names}
    for number in range(1, closed + 1):
        replies = checkpoints.replies(number)
        for name, reply in replies.items():
            if reply.outcome in (Outcome.ANSWERED, Outcome.LATE):
                seen[name].add(number)
        everybody = sum(r.outcome == Outcome.ANSWERED for r in replies.values())
        report.full_rounds += everybody == len(fleet.names)
    for name, (times, reason) in checkpoints.dropped().items():
        report.broken.append(f"{times} replies of {name} were dropped: {reason}")
    checkpoints.close()
    rows = (fleet.folder / "out" / "run" / "rounds.jsonl").read_text().splitlines()
    numbers = [json.loads(row)["round"] for row in rows]
    if numbers != list(range(1, closed + 1)):
        report.broken.append(f"the record has rounds {numbers}, and {closed} are over")
    for name in fleet.names:
        entries = verified(fleet.folder / name / "ledger.sqlite")
        mine = [e for e in entries if e.run == stored.run]
        charged = [e.round for e in mine if e.kind == "charge"]
        answered = {e.round for e in mine if e.kind == "answer"}
        report.charges += len(charged)
        report.answers += len(seen[name])
        report.unanswered += len(set(charged) - seen[name])
        if len(charged) != len(set(charged)):
            report.broken.append(f"{name} was charged twice for a round")
        if not seen[name] <= set(charged):
            report.broken.append(f"{name} has answered rounds that it never charged")
        if not seen[name] <= answered:
            report.broken.append(f"{name} has answers out that it did not store")


def judge_accuracy(report: Report) -> None:
    """Accuracy may differ from undisturbed runs by their noise, not by more."""
    mean, spread = report.simulated
    for accuracy in report.accuracies:
        # A model of fewer answers is noisier: four spreads, and half a point.
        if accuracy < mean - 4 * spread - 0.005:
            report.broken.append(
                f"accuracy {accuracy:.4f} is below {mean:.4f} +- {spread:.4f}"
            )
