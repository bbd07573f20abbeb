"""The round loop: the same for simulated devices and for a real fleet.

The four algorithms of the paper are settings of this loop: a plan with tau = 1 is
DP-SGD, any other DP-PASGD; without noise (`Plan.without_privacy`) they are distributed
SGD and PASGD. The server's momentum is post-processing of released models, and costs no
privacy.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedbudget.algorithm import Server, State
from fedbudget.checks import Array, whole
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.ledger import Bools
from fedbudget.metrics import cautions
from fedbudget.planning import Plan
from fedbudget.planning.advice import advice_of
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.privacy import GDP, Kind, PrivacyStatement
from fedbudget.record import FEW, Record, Round

# Largest norm of a useful model; above it, a run has diverged. 10,000 of the planner's
# largest stable steps stay below a tenth of it. Rows have norm 1: scores are as large.
MAX_NORM = 1e7


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """The server's order to every device in one round."""

    number: int  # of the round, from 1
    theta: Array  # the model to start from
    plan: Plan  # tau, learning rate, noise, batches, weights
    state: State = field(default_factory=dict)  # from the last replies
    # The server's, before the round. Devices do not need it; a simulator foresees the
    # next orders with it.
    velocity: Array | None = None
    steps_before: int = 0  # local steps of the runs that this one continues

    @property
    def first_step(self) -> int:
        """The number of local steps before this round."""
        return self.steps_before + (self.number - 1) * self.plan.tau


@dataclass(frozen=True, kw_only=True, eq=False)
class Replies:
    """The result of one round."""

    theta: Array  # weighted mean of the answers, by the plan's weights
    answered: Bools  # shape (M,)
    # Spent so far by each device, whether it answered or not. Epsilon is at the plan's
    # delta, even if the device's own budget has another delta.
    epsilon: Array
    cost: Array
    refused: Mapping[int, str] = field(default_factory=dict)  # device -> its reason
    # State of simulated devices between rounds; real devices store their own.
    state: State = field(default_factory=dict)


class Devices(Protocol):
    """The devices of a run, simulated or real: they carry out the loop's orders."""

    @property
    def kind(self) -> Kind:
        """Whether their runs are releases or simulations."""
        ...

    @property
    def num_devices(self) -> int:
        """M."""
        ...

    def begin(self, plan: Plan) -> None:
        """Start a run of this plan, or resume the interrupted one.

        The plan's spending before any run is charged. A fleet's coordinator stores the
        run and offers it to its devices.

        Raises:
            InvalidInputError: The plan does not fit the devices. Nothing has begun.
            RecordError: The interrupted run has another plan or other devices.
        """
        ...

    def run_round(self, order: Order) -> Replies:
        """Carry out one round of the run that has begun."""
        ...


@runtime_checkable
class Measures(Protocol):
    """Simulated devices, whose rows can be evaluated; the results are not private."""

    personal: Array | None  # of `measure_personal`; shape (devices, params)

    def measure(self, theta: Array) -> dict[str, float]:
        """Return losses and accuracies of a model."""
        ...

    def measure_details(self, theta: Array) -> dict[str, float]:
        """Return metrics beyond loss and accuracy, for the last model of a run."""
        ...

    def measure_personal(self, theta: Array) -> dict[str, float]:
        """Return those of the personal models, adapted to each device's rows."""
        ...


@runtime_checkable
class InMemory(Protocol):
    """Devices that live in this process: only the record can restore their state.

    Real devices store their own ledgers, and a fleet's coordinator its own file.
    """

    def identity(self) -> dict[str, Any]:
        """Return values that must be the same to resume a run, such as the seed."""
        ...

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee does not cover, such as counts that depend on rows."""
        ...

    def steps_taken(self, state: State) -> int:
        """Return the local steps of the run that ended with this state; 0 if of others.

        Those of the runs that it continued count, too.
        """
        ...

    def catch_up(self, order: Order, refused: Collection[int]) -> None:
        """Charge the rounds before this order, which the interrupted run has done.

        Rounds that these devices have done themselves are not charged again.

        Args:
            order: The next one.
            refused: Devices that refused one of those rounds.

        Raises:
            InvalidInputError: Another device cannot pay for what it has released.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The model of a run, and its rounds."""

    theta: Array  # the model
    rounds: list[Round]
    plan: Plan
    kind: Kind = "simulation"
    caveats: tuple[str, ...] = ()  # what the guarantee does not cover
    steps: int = 0  # local steps, with those of the runs before
    # For a run that continues this one: the server's momentum, and the state of
    # simulated devices. Both are functions of released models, and cost no privacy.
    velocity: Array | None = None
    state: State = field(default_factory=dict)
    # With `personal=True`, one model per device, shape (devices, params). They are fits
    # without noise: NOT private, and each belongs on its own device alone.
    personal: Array | None = None

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy guarantee of this run, or what a release of it would spend."""
        statement, done = self.plan.privacy, len(self.rounds)
        if self.rounds and self.steps > done * self.plan.tau:  # it continues another
            statement = self.plan.privacy_after(self.rounds[-1].epsilon, done)
        return replace(statement, kind=self.kind, caveats=self.caveats)

    @property
    def measured(self) -> dict[str, float]:
        """Losses and accuracies of the model; not private."""
        return dict(self.rounds[-1].measured)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the measurements warn of, in words; not private."""
        return cautions(self.measured)

    @property
    def advice(self) -> str:
        """One line if federating did not pay, else empty.

        It is based on the measurements of a run with `personal=True`, which are not
        private; without them, it is the plan's advice.
        """
        measured = advice_of(self.measured)
        return self.plan.advice if measured is None else measured


def train(
    plan: Plan,
    devices: Devices,
    *,
    record: Record | str | os.PathLike[str] | None = None,
    personal: bool = False,
    measure_every: int = 1,
    after: Run | None = None,
    stop: Callable[[Round], bool] | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Run:
    """Run a plan to its end and return the model.

    Args:
        plan: The plan to run.
        devices: The devices that run it: simulated, or a fleet.
        record: A folder (or `Record`) for the plan, the rounds and the model. If it
            holds an interrupted run, that run is resumed and ends with the same
            numbers; other devices or another seed are refused.
        personal: Whether every device adapts the model to its own rows at
            the end. The device keeps the result: no message, no charge. The personal
            models are measured too, and `Run.personal` has them; simulated devices
            only, and not private.
        measure_every: Measure the model after every so many rounds, and after the
            last one. The other rounds have no measurements. Simulated devices only.
        after: A run to continue, with its model, its momentum and its drift
            correction, on the same devices. Their budgets are for both runs; devices
            that did not take its steps are refused. See `replan`.
        stop: Called with every new round; the run ends early if it returns True.
        on_round: Called with every new round, to show progress.

    Raises:
        InvalidInputError: The plan does not fit the devices.
        TrainingError: No device answered, or the model diverged; the record keeps the
            rounds so far.
    """
    if devices.num_devices != plan.num_devices:
        raise InvalidInputError(
            f"the plan is for {plan.num_devices} devices, but there are "
            f"{devices.num_devices}: plan again for these"
        )
    if personal and not isinstance(devices, Measures):
        raise InvalidInputError(
            "personal=True measures personal models, which real devices do not send: "
            "leave it out, or simulate the devices"
        )
    measuring = _Measuring(devices, every=measure_every, personal=personal)
    before = _steps_before(after, plan, devices)
    devices.begin(plan)
    folder = record if record is None or isinstance(record, Record) else Record(record)
    server, rounds = _started(plan, devices, folder, after, before)
    ended = server.rounds_done >= plan.rounds
    while not ended:
        replies = _one_round(plan, devices, server, before)
        if after is not None and not isinstance(devices, InMemory):
            replies = _with_spending(replies, plan, after)
        last = server.rounds_done == plan.rounds
        latest = _round(plan, server.rounds_done, replies)
        latest = measuring.measured(latest, server.theta, last=last)
        ended = (stop is not None and stop(latest)) or last
        if ended and not latest.measured:
            latest = measuring.measured(latest, server.theta, stopped=True)
        rounds.append(latest)
        if folder is not None:
            folder.add_round(latest, server.to_arrays())
        if on_round is not None:
            on_round(latest)
    if folder is not None:
        folder.finish(server.theta, rounds[-1])
    own_models = None
    if personal and isinstance(devices, Measures):
        if devices.personal is None:  # the record is of a finished run
            devices.measure_personal(server.theta)
        own_models = devices.personal
    return Run(
        theta=server.theta,
        rounds=rounds,
        plan=plan,
        kind=devices.kind,
        caveats=_caveats(devices),
        steps=before + server.rounds_done * plan.tau,
        velocity=server.velocity,
        state=server.devices,
        personal=own_models,
    )


def _started(
    plan: Plan,
    devices: Devices,
    folder: Record | None,
    after: Run | None,
    before: int,
) -> tuple[Server, list[Round]]:
    """Return the server and the rounds of an interrupted run, or of a new one."""
    if folder is not None:
        in_memory = devices if isinstance(devices, InMemory) else None
        same = {} if in_memory is None else in_memory.identity()
        state, rounds = folder.open(
            plan,
            kind=devices.kind,
            caveats=_caveats(devices),
            same=same | {"steps_before": before},
        )
        if state is not None:
            server = Server.from_arrays(state)
            if in_memory is not None:
                refused = {m for each in rounds for m in each.refused}
                if any(len(each.refused) >= FEW for each in rounds):
                    refused = set(range(plan.num_devices))  # the record names so many
                in_memory.catch_up(_next_order(plan, server, before), refused)
            return server, rounds
    server = Server.start(plan.model.num_params(plan.dim))
    if after is not None:
        _continue(server, plan, devices, after)
    return server, []


def _caveats(devices: Devices) -> tuple[str, ...]:
    """Return what the guarantee does not cover; real devices read their own rows."""
    return devices.caveats if isinstance(devices, InMemory) else ()


def _continue(server: Server, plan: Plan, devices: Devices, after: Run) -> None:
    """Start from the model, the momentum and the drift correction of another run.

    Velocity and shifts are in units of a round's and of a step's progress, which the
    new plan may change: a constant gradient g moves the server by eta tau g / (1 -
    momentum), times its own rate, in a round, and a device by eta g in a step. Shifts
    are centred for the new weights: their weighted mean moves no average.

    Real devices start every run without a shift, and take the first order's velocity
    for zero (`fleet.device.drift`): with drift correction, they get none.
    """
    server.theta = np.array(after.theta)
    old, rate = after.plan, plan.learning_rate / after.plan.learning_rate
    in_memory = isinstance(devices, InMemory)
    if after.velocity is not None and (in_memory or not plan.drift_correction):
        pace = rate * plan.tau / old.tau * (1 - old.momentum) / (1 - plan.momentum)
        pace *= plan.server_rate / old.server_rate
        server.velocity = pace * after.velocity
    shifts = after.state.get("shifts")
    if in_memory and shifts is not None and plan.drift_correction:
        weights = np.where(plan.takes_part(1), plan.weights, 0.0)
        scaled = rate * shifts
        centred = scaled - (weights / weights.sum()) @ scaled
        server.devices = {"shifts": centred.astype(np.float32)}


def _steps_before(after: Run | None, plan: Plan, devices: Devices) -> int:
    """Return the steps of the run to continue; these devices must have taken them.

    A guarantee for both runs together needs one for each, of the same scope.
    """
    if after is None:
        return 0
    if not isinstance(after, Run):
        raise InvalidInputError(
            f"after must be a Run, as train returns it, got a {type(after).__name__}"
        )
    if devices.kind == "release" and after.kind != "release":
        raise InvalidInputError(
            "the run to continue is a simulation, and nothing is promised for its "
            "model: a release cannot start from it; start without after"
        )
    lacks = after.plan.scope.lacks(plan.scope)
    if lacks and NOT_PRIVATE not in (plan.accountant, after.plan.accountant):
        raise InvalidInputError(
            f"the releases of the run to continue {lacks}, as this plan states: plan "
            "with the same unit, trust and colluders"
        )
    if isinstance(devices, InMemory):
        taken = devices.steps_taken(after.state)
        if taken < after.steps:
            raise InvalidInputError(
                f"the run to continue took {after.steps} local steps, but these "
                f"devices have taken only {taken} of it, and their ledgers charged no "
                "more: pass the devices that ran it, or run it on these first"
            )
    return after.steps


def _next_order(plan: Plan, server: Server, before: int) -> Order:
    return Order(
        number=server.rounds_done + 1,
        theta=server.theta,
        plan=plan,
        state=server.devices,
        velocity=server.velocity,
        steps_before=before,
    )


def _one_round(plan: Plan, devices: Devices, server: Server, before: int) -> Replies:
    """Run the next round on the devices, and update the server."""
    order = _next_order(plan, server, before)
    replies = devices.run_round(order)
    # A silent device may answer the next round; one that refuses will refuse again.
    if replies.refused and not replies.answered.any():
        reasons = sorted(set(replies.refused.values()))
        raise TrainingError(
            f"no device answered round {order.number}: {'; '.join(reasons[:3])}"
        )
    server.update(replies.theta, momentum=plan.momentum, rate=plan.server_rate)
    server.devices = replies.state
    _check_divergence(server.theta, plan, order.number)
    return replies


def _with_spending(replies: Replies, plan: Plan, after: Run) -> Replies:
    """Return replies with the spending of the run before: a fleet counts one run.

    Gaussian releases add up their mu^2, also if the second run was planned by the
    answers of the first (`replanning`). What was measured before both counts twice: the
    sum is too high, never too low.
    """
    if not after.rounds:
        return replies
    last = after.rounds[-1]
    mu = np.hypot(_mu(last.epsilon, after.plan), _mu(replies.epsilon, plan))
    finite = np.isfinite(mu) & (mu > 0)
    total = GDP.epsilon_from_mu(np.where(finite, mu, 1.0), plan.delta)
    epsilon = np.where(finite, total, mu)
    return replace(replies, epsilon=epsilon, cost=replies.cost + last.cost)


def _mu(epsilon: Array, plan: Plan) -> Array:
    """Return the largest mu that an epsilon at the plan's delta allows."""
    finite = np.isfinite(epsilon) & (epsilon > 0)
    mu = GDP.mu_from_epsilon(np.where(finite, epsilon, 1.0), plan.delta) * (1 + 1e-9)
    return np.where(finite, mu, epsilon)  # nothing, or without a bound


class _Measuring:
    """Measures the model after some of the rounds, if the devices can be measured."""

    def __init__(self, devices: Devices, *, every: int, personal: bool) -> None:
        self._devices = devices if isinstance(devices, Measures) else None
        self._every = whole("measure_every", every)
        self._personal = personal

    def measured(
        self,
        latest: Round,
        theta: Array,
        *,
        last: bool = False,
        stopped: bool = False,
    ) -> Round:
        """Return the round with its measurements, if it is one to measure."""
        due = last or stopped or latest.number % self._every == 0
        if self._devices is None or not due:
            return latest
        measured = self._devices.measure(theta)
        if last or stopped:
            measured = measured | self._devices.measure_details(theta)
        if last and self._personal:
            measured = measured | self._devices.measure_personal(theta)
        return replace(latest, measured=measured)


def _round(plan: Plan, number: int, replies: Replies) -> Round:
    silent = plan.takes_part(number) & ~replies.answered
    silent[list(replies.refused)] = False
    return Round(
        number=number,
        steps=number * plan.tau,
        answered=int(replies.answered.sum()),
        silent=tuple(np.flatnonzero(silent).tolist()),
        refused=dict(replies.refused),
        epsilon=replies.epsilon,
        cost=replies.cost,
    )


def _check_divergence(theta: Array, plan: Plan, number: int) -> None:
    """Raise if the run diverged; only released values are read, no rows."""
    with np.errstate(over="ignore"):  # then it is infinite
        length = float(np.linalg.norm(theta))
    if length <= MAX_NORM:  # also False for NaN
        return
    finite = f"{length:.3g} long, above {MAX_NORM:g}," if length < np.inf else ""
    raise TrainingError(
        f"the model is {finite or 'no longer finite'} after round {number}: lower "
        f"learning_rate {plan.learning_rate:g} or momentum {plan.momentum:g}"
        + ("" if plan.accountant == NOT_PRIVATE else ", or raise epsilon")
    )
