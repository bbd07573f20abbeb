"""The coordinator's whole life: wait for devices, plan, run the rounds, release.

    OUT/coordinator.sqlite   the checkpoints; see `checkpoints`
    OUT/run/                 the run folder, as of any training; see `record`

Started again with the same folder, it goes on with the same round of the same plan.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import choice, whole, within
from fedbudget.errors import InvalidInputError
from fedbudget.fleet import topics
from fedbudget.fleet.certificates import COORDINATOR
from fedbudget.fleet.channel import Channel
from fedbudget.fleet.checkpoints import Checkpoints
from fedbudget.fleet.coordinator import FleetDevices
from fedbudget.fleet.messages import PRECISIONS, Declaration
from fedbudget.fleet.mqtt import Broker, Connection
from fedbudget.fleet.roster import Roster, alike, gather
from fedbudget.fleet.signing import Signer
from fedbudget.fleet.status import Source, StatusServer
from fedbudget.planning import PLANNERS, Plan, plan
from fedbudget.problem import Problem
from fedbudget.record import Record, read_rounds
from fedbudget.training import Run, train

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a coordinator is to run; what is planned, devices declare themselves."""

    out: Path
    signing_key: Path
    broker: Broker = field(default_factory=Broker)  # unless a channel is given
    name: str = "run"
    devices: int | None = None  # to wait for; none: all that come in time
    wait: float = 60.0  # seconds for them
    deadline: float = 60.0
    minimum: int = 1
    patience: int = 10
    precision: str = "float32"
    dissimilarity: str | float = "mild"
    planner: str = "joint"
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
        choice("precision", self.precision, tuple(PRECISIONS))
        choice("planner", self.planner, tuple(PLANNERS))
        Problem(num_samples=[1], dim=1, dissimilarity=self.dissimilarity)


def run_server(
    settings: Settings,
    *,
    channel: Channel | None = None,
    on_begin: Callable[[Plan, tuple[str, ...], int | None], None] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Run the whole of it and return what was released.

    Args:
        settings: Where, and how patiently.
        channel: To the devices, if it is not the broker of the settings.
        on_begin: Called with the plan, the devices and the port of the status page.
        on_round: Called with the row of every round.
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
    with np.load(folder / "model.npz") as file:
        return Run(theta=file["theta"], rounds=read_rounds(folder), plan=chosen)


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
    declared, left_out = alike(found)
    for device, reason in left_out.items():
        _log.warning("device %s is left out: %s", device, reason)
    return (
        plan_for(
            declared, dissimilarity=settings.dissimilarity, planner=settings.planner
        ),
        declared,
    )


def plan_for(
    declared: Sequence[Declaration],
    *,
    dissimilarity: str | float = "mild",
    planner: str = "joint",
) -> Plan:
    """Plan for what devices declare: sizes, prices and budgets of their own.

    Raises:
        InfeasibleBudgetError: A device's budget does not pay for a single round.
    """
    first = declared[0]
    problem = Problem(
        num_samples=[told.num_samples for told in declared],
        dim=first.dim,
        loss=first.loss,
        num_classes=first.num_classes if first.loss == "softmax" else None,
        dissimilarity=dissimilarity,
    )
    for told in declared:
        if not (told.epsilon > 0 and told.cost > 0 and told.delta < 1):
            raise InvalidInputError(
                f"device {told.device} declares epsilon {told.epsilon:g}, delta "
                f"{told.delta:g}, cost {told.cost:g}: it has nothing to spend"
            )
    budget = Budget(
        epsilon=[told.epsilon for told in declared],
        delta=[told.delta for told in declared],
        cost=[told.cost for told in declared],
    )
    prices = Prices(
        communication=[told.communication_price for told in declared],
        computation=[told.computation_price for told in declared],
    )
    # What zCDP allows, the exact count allows too; not the other way round.
    strict = any(told.accountant == "zcdp" for told in declared)
    chosen = plan(
        problem,
        budget,
        prices,
        planner=planner,
        accountant="zcdp" if strict else "gdp",
    )
    return _as_noisy_as_demanded(chosen, declared)


def _as_noisy_as_demanded(chosen: Plan, declared: Sequence[Declaration]) -> Plan:
    """Raise the noise to what owners demand at least; that spends less privacy."""
    least = np.array([told.least_noise_multiplier for told in declared])
    # A device divides again, and may round the other way.
    demanded = least * chosen.lipschitz / chosen.batch_size * (1 + 1e-12)
    if (chosen.noise_std >= demanded).all():
        return chosen
    return replace(chosen, noise_std=np.maximum(chosen.noise_std, demanded))
