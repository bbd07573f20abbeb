"""The coordinator's process: wait for devices, plan, run the rounds, release the model.

    OUT/coordinator.sqlite   the checkpoints; see `checkpoints`
    OUT/run/                 the run folder, as of any training; see `record`
    OUT/status.json          the last status, also after the end; see `lifecycle`

Started again with the same folder, it resumes the same round of the same plan.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbudget.budget import Budget
from fedbudget.checks import number, one_of, whole, within
from fedbudget.data.schema import Schema
from fedbudget.errors import InvalidInputError, RecordError
from fedbudget.files import refusing
from fedbudget.fleet.coordinator.checkpoints import Checkpoints
from fedbudget.fleet.coordinator.defaults import (
    DEADLINE,
    MINIMUM,
    NAME,
    PARTICIPATION,
    PATIENCE,
    PRECISION,
    QUORUM,
    WAIT,
)
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.fleet.coordinator.evaluation import with_reserve
from fedbudget.fleet.coordinator.lifecycle import (
    CHECKPOINTS,
    CancelledError,
    State,
    check_cancelled,
    watched,
    withdraw,
    write_status,
)
from fedbudget.fleet.coordinator.roster import Roster, gather, plan_fleet
from fedbudget.fleet.coordinator.status import Source, StatusServer
from fedbudget.fleet.coordinator.sum_devices import SumDevices
from fedbudget.fleet.transport.address import BrokerAddress
from fedbudget.fleet.transport.certificates import COORDINATOR, private_folder
from fedbudget.fleet.transport.channel import Channel
from fedbudget.fleet.transport.mqtt import Connection
from fedbudget.fleet.wire import topics
from fedbudget.fleet.wire.messages import PRECISIONS, Declaration
from fedbudget.fleet.wire.signing import Signer
from fedbudget.planning import PLANNERS, Plan
from fedbudget.planning.settings import PLANNER
from fedbudget.privacy import Trust, Unit
from fedbudget.problem import USUAL_DISSIMILARITY, Problem
from fedbudget.record import Record, Round, read_run
from fedbudget.training import Run, train

_log = logging.getLogger(__name__)
_STATUS_SECONDS = 2.0  # between two writes of the status file
_FLUSH = 5.0  # seconds for notices to be sent, if no device can take part


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a coordinator; sizes, budgets and prices come from the devices."""

    out: Path
    signing_key: Path
    # Not used if run_server is given a channel.
    broker: BrokerAddress = field(default_factory=BrokerAddress)
    name: str = NAME
    devices: int | None = None  # to wait for; None: all that declare in time
    wait: float = WAIT  # seconds for devices to declare themselves
    deadline: float = DEADLINE
    minimum: int = MINIMUM
    patience: int = PATIENCE
    quorum: float = QUORUM
    participation: float = PARTICIPATION
    precision: str = PRECISION
    dissimilarity: str | float = USUAL_DISSIMILARITY
    planner: str = PLANNER
    schema: Schema | None = None  # of the devices' tables, for users of the model
    status_port: int | None = None  # None: no status page
    # What the coordinator sees: uploads, or only sums of uploads (secure aggregation).
    trust: Trust = "uploads"
    unit: Unit = "sample"  # what epsilon protects, in sums: a sample or a device
    least_answers: int | None = None  # t; None: all devices of the plan
    colluders: int = 0  # c
    # Of the certificates that devices introduce themselves with; None: the broker's.
    authority: Path | None = None
    evaluation: float = 0.0  # epsilon that plans leave for an evaluation; 0: none

    def __post_init__(self) -> None:
        """Check now what would otherwise fail after the wait."""
        within("wait", self.wait, least=0)
        within("evaluation", self.evaluation, least=0)
        within("deadline", self.deadline, above=0)
        whole("minimum", self.minimum)
        for name in ("quorum", "participation"):
            number(name, getattr(self, name), above=0, most=1)
        if self.trust == "sum" and self.participation != 1:
            raise InvalidInputError(
                f"participation {self.participation:g} is not for sums, which ask all "
                "devices in every round: leave it out"
            )
        if self.devices is not None:
            whole("devices", self.devices, least=self.minimum)
        if self.status_port is not None:
            whole("status_port", self.status_port, least=0, most=65535)
        one_of("precision", self.precision, tuple(PRECISIONS))
        one_of("planner", self.planner, tuple(PLANNERS))
        self.promise  # noqa: B018  # checks its values
        Problem(num_samples=[1], dim=1, dissimilarity=self.dissimilarity)

    @property
    def promise(self) -> dict[str, Any]:
        """What epsilon promises, as arguments of a budget."""
        promise = {
            "trust": self.trust,
            "unit": self.unit,
            "least_answers": self.least_answers,
            "colluders": self.colluders,
        }
        Budget(epsilon=1.0, cost=1.0, **promise)  # type: ignore[arg-type]
        return promise


def run_server(
    settings: Settings,
    *,
    channel: Channel | None = None,
    on_begin: Callable[[Plan, tuple[str, ...], int | None], None] | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Run:
    """Plan, run all rounds, and return the released run.

    Args:
        settings: Of the coordinator.
        channel: To the devices; by default, a connection to the settings' broker.
        on_begin: Called with the plan, the devices and the port of the status page.
        on_round: Called after each round.
    """
    signer = Signer.read(settings.signing_key)
    check_cancelled(settings.out)
    checkpoints = Checkpoints(settings.out / CHECKPOINTS)
    if channel is None:
        channel = Connection(
            settings.broker, name=COORDINATOR, topics=topics.coordinator_reads()
        )
    channel = watched(channel, settings.out)
    stored = checkpoints.run()
    roster = Roster(() if stored is None else stored.declarations)
    devices: FleetDevices | None = None  # until the plan is made

    def status() -> dict[str, Any]:
        facts = (
            waiting_status(settings, roster) if devices is None else devices.status()
        )
        return {"state": State.WAITING if devices is None else State.RUNNING} | facts

    folder = settings.out / "run"
    is_finished = (folder / "model.npz").exists()
    try:
        with (
            _served(settings, status) as port,
            # A run that has ended keeps its last status.
            nullcontext() if is_finished else _kept(settings.out, status),
            channel,
            _withdrawn(settings.out, channel, checkpoints, signer),
        ):
            plan, declarations = _make_plan(
                settings, checkpoints, channel, roster, signer
            )
            if settings.schema is not None:
                plan = replace(plan, schema=settings.schema)
            kind = SumDevices if plan.trust == "sum" else FleetDevices
            devices = kind(
                channel,
                declarations,
                signer=signer,
                checkpoints=checkpoints,
                name=settings.name,
                deadline=settings.deadline,
                minimum=settings.minimum,
                patience=settings.patience,
                quorum=settings.quorum,
                participation=plan.participation,
                precision=settings.precision,
                roster=roster,
                authority=_authority(settings),
            )
            if is_finished:
                return _finished(folder, plan)
            if on_begin is not None:
                on_begin(plan, devices.names, port)
            about = {"fleet": settings.name, "devices": list(devices.names)}
            with refusing(folder, "choose another folder"):
                private_folder(folder)
            record = Record(folder, about=about)
            return train(plan, devices, record=record, on_round=on_round)
    finally:
        checkpoints.close()


def waiting_status(settings: Settings, roster: Roster) -> dict[str, Any]:
    """Return the status before there is a plan: who has declared."""
    declared = sorted(roster.declarations)
    return {
        "name": settings.name,
        "devices": [],
        "declared": [{"name": n, "online": roster.online.get(n)} for n in declared],
        "awaited": settings.devices,
    }


@contextmanager
def _withdrawn(
    out: Path, channel: Channel, checkpoints: Checkpoints, signer: Signer
) -> Iterator[None]:
    """At any end, leave no offer and no order behind; tell devices if it is for good.

    A run that failed or was stopped may resume: then it publishes them again.
    """
    try:
        yield
    except CancelledError as error:
        withdraw(channel, checkpoints, signer=signer, reason=str(error)[:200])
        raise
    except BaseException:
        withdraw(channel, checkpoints)
        raise
    withdraw(channel, checkpoints, signer=signer)


@contextmanager
def _kept(out: Path, source: Source) -> Iterator[None]:
    """Keep the status in a file, which stays after the end."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(_STATUS_SECONDS):
            with suppress(RecordError):  # a full disk; the run itself reports that
                write_status(out, source())

    writer = threading.Thread(target=write, daemon=True)
    write_status(out, source())
    writer.start()
    state, reason = State.FINISHED, ""
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        state = State.STOPPED if stopped else State.FAILED
        state = State.CANCELLED if isinstance(error, CancelledError) else state
        reason = str(error)
        raise
    finally:
        stop.set()
        writer.join()
        with suppress(RecordError):
            write_status(out, source() | {"state": state, "reason": reason})


@contextmanager
def _served(settings: Settings, source: Source) -> Iterator[int | None]:
    """Serve the status if required, from before the first device connects."""
    if settings.status_port is None:
        yield None
        return
    status = StatusServer(source, port=settings.status_port)
    try:
        yield status.port
    finally:
        status.close()


def _finished(folder: Path, plan: Plan) -> Run:
    """Return a completed run; its offers are withdrawn, if a kill prevented that."""
    _log.info("the run in %s is complete already", folder)
    run = read_run(folder)
    assert run.theta is not None  # model.npz exists
    return Run(theta=run.theta, rounds=run.rounds, plan=plan, kind=FleetDevices.kind)


def _make_plan(
    settings: Settings,
    checkpoints: Checkpoints,
    channel: Channel,
    roster: Roster,
    signer: Signer,
) -> tuple[Plan, Sequence[Declaration]]:
    """Return the plan of an interrupted run, or a new one for the declared devices."""
    stored = checkpoints.run()
    if stored is not None:
        closed = checkpoints.rounds_closed()
        _log.info("run %s resumes after round %d", stored.name, closed)
        return Plan.from_dict(stored.plan), stored.declarations
    declarations = gather(
        channel, roster, count=settings.devices, seconds=settings.wait, signer=signer
    )
    by_name = {declaration.device: declaration for declaration in declarations}
    if settings.evaluation > 0:
        trust = str(settings.promise["trust"])
        declarations = [
            with_reserve(d, settings.evaluation, trust=trust) for d in declarations
        ]
    try:
        plan, selected = plan_fleet(
            declarations,
            dissimilarity=settings.dissimilarity,
            planner=settings.planner,
            roster=roster,
            promise=settings.promise,
            participation=settings.participation,
            authority=_authority(settings),
            schema=None if settings.schema is None else settings.schema.digest,
        )
        return plan, [by_name[declaration.device] for declaration in selected]
    finally:
        roster.send_notices(channel, signer)
        channel.flush(_FLUSH)


def _authority(settings: Settings) -> Path | None:
    """Return the authority of the certificates that devices must sign with, if any.

    All devices of a broker have one. Without a broker, those of sums have one.
    """
    if settings.authority is not None and settings.trust == "sum":
        return settings.authority
    identity = settings.broker.identity
    return None if identity is None else Path(identity.ca)
