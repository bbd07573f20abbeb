"""The coordinator's whole life: wait for devices, plan, run the rounds, release.

    OUT/coordinator.sqlite   the checkpoints; see `checkpoints`
    OUT/run/                 the run folder, as of any training; see `record`

Started again with the same folder, it goes on with the same round of the same plan.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbudget.checks import one_of, whole, within
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.defaults import (
    DEADLINE,
    MINIMUM,
    NAME,
    PATIENCE,
    PRECISION,
    WAIT,
)
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.coordinator.roster import Roster, gather, plan_fleet
from fedbudget.fleet.coordinator.status import Source, StatusServer
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import COORDINATOR
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import PRECISIONS, Declaration
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning import PLANNERS, Plan
from fedbudget.planning.settings import PLANNER
from fedbudget.problem import USUAL_DISSIMILARITY, Problem
from fedbudget.record import Record, Round, read_run
from fedbudget.training import Run, train

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a coordinator is to run; what is planned, devices declare themselves."""

    out: Path
    signing_key: Path
    # Unless a channel is given.
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    name: str = NAME
    devices: int | None = None  # to wait for; none: all that come in time
    wait: float = WAIT  # seconds for them
    deadline: float = DEADLINE
    minimum: int = MINIMUM
    patience: int = PATIENCE
    precision: str = PRECISION
    dissimilarity: str | float = USUAL_DISSIMILARITY
    planner: str = PLANNER
    status_port: int | None = None  # none: no status page

    def __post_init__(self) -> None:
        """Refuse at once what would be refused after the wait."""
        within("wait", self.wait, least=0)
        within("deadline", self.deadline, above=0)
        whole("minimum", self.minimum)
        if self.devices is not None:
            whole("devices", self.devices, least=self.minimum)
        if self.status_port is not None:
            whole("status_port", self.status_port, least=0, most=65535)
        one_of("precision", self.precision, tuple(PRECISIONS))
        one_of("planner", self.planner, tuple(PLANNERS))
        Problem(num_samples=[1], dim=1, dissimilarity=self.dissimilarity)


def run_server(
    settings: Settings,
    *,
    channel: Channel | None = None,
    on_begin: Callable[[Plan, tuple[str, ...], int | None], None] | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Run:
    """Run the whole of it and return what was released.

    Args:
        settings: Where, and how patiently.
        channel: To the devices, if it is not the broker of the settings.
        on_begin: Called with the plan, the devices and the port of the status page.
        on_round: Called with every round.
    """
    signer = Signer.read(settings.signing_key)
    checkpoints = Checkpoints(settings.out / "coordinator.sqlite")
    if channel is None:
        channel = Connection(
            settings.broker, name=COORDINATOR, topics=topics.coordinator_reads()
        )
    roster = Roster()
    known: list[FleetDevices] = []  # nobody, as long as devices are waited for

    def status() -> dict[str, Any]:
        return known[0].status() if known else {"name": settings.name, "devices": []}

    try:
        with _served(settings, status) as port, channel:
            chosen, declared = _planned(settings, checkpoints, channel, roster)
            devices = FleetDevices(
                channel,
                declared,
                signer=signer,
                checkpoints=checkpoints,
                name=settings.name,
                deadline=settings.deadline,
                minimum=settings.minimum,
                patience=settings.patience,
                precision=settings.precision,
                roster=roster,
            )
            known.append(devices)
            folder = settings.out / "run"
            if (folder / "model.npz").exists():
                return _finished(folder, chosen, devices)
            if on_begin is not None:
                on_begin(chosen, devices.names, port)
            about = {"fleet": settings.name, "devices": list(devices.names)}
            record = Record(folder, about=about)
            run = train(chosen, devices, record=record, on_round=on_round)
            devices.finish()
            return run
    finally:
        checkpoints.close()


@contextmanager
def _served(settings: Settings, source: Source) -> Iterator[int | None]:
    """Serve the status, if that is asked for, from before the first device comes."""
    if settings.status_port is None:
        yield None
        return
    status = StatusServer(source, port=settings.status_port)
    try:
        yield status.port
    finally:
        status.close()


def _finished(folder: Path, chosen: Plan, devices: FleetDevices) -> Run:
    """Return a run that had ended, and do what a kill may have left undone."""
    _log.info("the run in %s has ended before", folder)
    devices.finish()
    run = read_run(folder)
    assert run.theta is not None  # the file was there
    return Run(theta=run.theta, rounds=run.rounds, plan=chosen)


def _planned(
    settings: Settings,
    checkpoints: Checkpoints,
    channel: Channel,
    roster: Roster,
) -> tuple[Plan, Sequence[Declaration]]:
    """Return the plan of an interrupted run, or a new one for who is there."""
    stored = checkpoints.run()
    if stored is not None:
        done = checkpoints.rounds_closed()
        _log.info("run %s goes on after round %d", stored.name, done)
        return Plan.from_dict(stored.plan), stored.declared
    found = gather(channel, roster, count=settings.devices, seconds=settings.wait)
    return plan_fleet(
        found, dissimilarity=settings.dissimilarity, planner=settings.planner
    )
