"""The round loop: the same for simulated devices and for a real fleet.

The four algorithms of the paper are settings of this one loop: a plan with tau = 1 is
DP-SGD, any other DP-PASGD; without noise (`Plan.without_privacy`) they are distributed
SGD and PASGD. The server's momentum is post-processing of what devices released, and
costs no privacy.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedbudget.algorithm import Server, State
from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.ledger import Bools
from fedbudget.planning import Plan
from fedbudget.planning.advice import advice_of
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.record import Record, Round

# A model longer than this is of no use to anyone: the planner's steps, 10,000 of the
# largest stable ones, do not get a tenth as far. A score is off by as much.
FARTHEST = 1e7


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """What the server asks of every device in one round."""

    number: int  # of the round, from 1
    theta: Array  # the model to start from
    plan: Plan  # tau, learning rate, noise, batches, weights
    state: State = field(default_factory=dict)  # what came with the last replies
    steps_before: int = 0  # local steps of the runs that this one goes on from

    @property
    def first_step(self) -> int:
        """Local steps that were taken before this round."""
        return self.steps_before + (self.number - 1) * self.plan.tau


@dataclass(frozen=True, kw_only=True, eq=False)
class Replies:
    """What came back from one round."""

    theta: Array  # weighted mean of the answers, by the plan's weights
    answered: Bools  # shape (M,)
    # Spent so far by each device, also by those that did not answer; at the plan's
    # delta, whatever delta the device's own budget has.
    epsilon: Array
    cost: Array
    refused: Mapping[int, str] = field(default_factory=dict)  # device -> its reason
    # What simulated devices keep between rounds; real ones keep it themselves.
    state: State = field(default_factory=dict)


class Devices(Protocol):
    """The seam between the loop and whatever carries out its orders."""

    @property
    def num_devices(self) -> int:
        """M."""
        ...

    def begin(self, plan: Plan) -> None:
        """Start a run of this plan, or take up again the one that was interrupted.

        What was spent before any run, by the plan, is counted. A fleet's coordinator
        stores the run and offers it to its devices.

        Raises:
            InvalidInputError: The plan does not fit the devices. Nothing has begun.
            RecordError: The interrupted run is of another plan, or of other devices.
        """
        ...

    def run_round(self, order: Order) -> Replies:
        """Carry out one round of the run that has begun."""
        ...


@runtime_checkable
class Measures(Protocol):
    """Devices whose rows the reader of a simulation sees; nothing here is private."""

    def measure(self, theta: Array) -> dict[str, float]:
        """Return losses and accuracies of a model."""
        ...

    def measure_personal(self, theta: Array) -> dict[str, float]:
        """Return those of the models that devices adapt to their own rows."""
        ...


@runtime_checkable
class KeptInMemory(Protocol):
    """Devices that end with their process: the record must tell what they did.

    Real devices keep ledgers of their own, and a fleet's coordinator its file.
    """

    @property
    def identity(self) -> dict[str, Any]:
        """What has to be the same for an interrupted run to go on: the seed, say."""
        ...

    @property
    def steps_taken(self) -> int:
        """Local steps of the longest run so far, with those that it went on from."""
        ...

    def catch_up(self, order: Order) -> None:
        """Charge the rounds before this order, which an interrupted run has done.

        Rounds that these very devices have done are charged already.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What a run released, and what it cost."""

    theta: Array  # the released model
    rounds: list[Round]
    plan: Plan
    steps: int = 0  # local steps so far, with those of the runs before

    @property
    def measured(self) -> dict[str, float]:
        """Losses and accuracies of the released model; not private."""
        return dict(self.rounds[-1].measured)

    @property
    def advice(self) -> str:
        """One line where federating did not pay; without measurements, the plan's.

        What a run measured with `personal=True` speaks; it is not private.
        """
        measured = advice_of(self.measured)
        return self.plan.advice if measured is None else measured


def train(
    plan: Plan,
    devices: Devices,
    *,
    record: Record | str | os.PathLike[str] | None = None,
    personal: bool = False,
    after: Run | None = None,
    stop: Callable[[Round], bool] | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Run:
    """Run a plan to its end and return what it released.

    Args:
        plan: What to do.
        devices: Who does it: simulated, or a fleet.
        record: A folder (or `Record`) for the plan, the rounds and the model. An
            interrupted run that is started again with the same folder goes on where it
            stopped, and ends with the same numbers; with other devices or another seed
            it is refused.
        personal: Whether every device is to adapt the released model to its own rows
            at the end. It keeps the result: no message, no charge. What that brings is
            measured beside the global model; simulated devices only, and not private.
        after: A run to go on from, with its model and on the same devices: their
            budgets are for both, and devices that did not take its steps are refused.
            See `replan`.
        stop: Called with every new round; the run ends early once it says so.
        on_round: Called with every new round, to show progress.

    Raises:
        InvalidInputError: The plan does not fit the devices.
        TrainingError: No device answered, or the model is no longer of any use; the
            record keeps the rounds so far.
    """
    if devices.num_devices != plan.num_devices:
        raise InvalidInputError(
            f"the plan is for {plan.num_devices} devices, but there are "
            f"{devices.num_devices}: plan again for these"
        )
    if personal and not isinstance(devices, Measures):
        raise InvalidInputError(
            "personal=True measures personal models, and these devices keep theirs to "
            "themselves: leave it out, or simulate the devices"
        )
    before = _steps_before(after, devices)
    devices.begin(plan)
    folder = record if record is None or isinstance(record, Record) else Record(record)
    server, rounds = _started(plan, devices, folder, after, before)
    while server.rounds_done < plan.rounds:
        replies = _one_round(plan, devices, server, before)
        last = server.rounds_done == plan.rounds
        measured = _measured(devices, server.theta, personal=personal and last)
        latest = _round(plan, server.rounds_done, replies, measured)
        rounds.append(latest)
        if folder is not None:
            folder.add_round(latest, server.to_arrays())
        if on_round is not None:
            on_round(latest)
        if stop is not None and stop(latest):
            break
    if folder is not None:
        folder.finish(server.theta, rounds[-1])
    return Run(
        theta=server.theta,
        rounds=rounds,
        plan=plan,
        steps=before + server.rounds_done * plan.tau,
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
        kept = devices if isinstance(devices, KeptInMemory) else None
        same = {} if kept is None else kept.identity
        state, rounds = folder.open(plan, same=same | {"steps_before": before})
        if state is not None:
            server = Server.from_arrays(state)
            if kept is not None:
                kept.catch_up(_next_order(plan, server, before))
            return server, rounds
    server = Server.start(plan.model.num_params(plan.dim))
    if after is not None:
        server.theta = np.array(after.theta)
    return server, []


def _steps_before(after: Run | None, devices: Devices) -> int:
    """Return the steps of the run to go on from; these devices must have taken them."""
    if after is None:
        return 0
    if not isinstance(after, Run):
        raise InvalidInputError(
            f"after must be a Run, as train returns it, got a {type(after).__name__}"
        )
    if isinstance(devices, KeptInMemory) and devices.steps_taken < after.steps:
        raise InvalidInputError(
            f"the run to go on from took {after.steps} local steps, of which these "
            f"devices have taken {devices.steps_taken}, and their ledgers know of no "
            "more: pass the devices that ran it, or run it on these first"
        )
    return after.steps


def _next_order(plan: Plan, server: Server, before: int) -> Order:
    return Order(
        number=server.rounds_done + 1,
        theta=server.theta,
        plan=plan,
        state=server.devices,
        steps_before=before,
    )


def _one_round(plan: Plan, devices: Devices, server: Server, before: int) -> Replies:
    """Let the devices carry out the next round, and the server take it over."""
    order = _next_order(plan, server, before)
    replies = devices.run_round(order)
    # Answers that got lost may come next time; devices that refuse, refuse again.
    if replies.refused and not replies.answered.any():
        reasons = sorted(set(replies.refused.values()))
        raise TrainingError(
            f"no device answered round {order.number}: {'; '.join(reasons[:3])}"
        )
    server.update(replies.theta, momentum=plan.momentum)
    server.devices = replies.state
    _check_use(server.theta, plan, order.number)
    return replies


def _measured(devices: Devices, theta: Array, *, personal: bool) -> dict[str, float]:
    """Return what the devices let the reader see of a model; a fleet, nothing."""
    if not isinstance(devices, Measures):
        return {}
    measured = devices.measure(theta)
    return measured | (devices.measure_personal(theta) if personal else {})


def _round(
    plan: Plan, number: int, replies: Replies, measured: Mapping[str, float]
) -> Round:
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
        measured=measured,
    )


def _check_use(theta: Array, plan: Plan, number: int) -> None:
    """Stop a run that diverges, by what devices released alone: no row is read."""
    with np.errstate(over="ignore"):  # then it is infinite
        length = float(np.linalg.norm(theta))
    if length <= FARTHEST:  # False for NaN as well
        return
    finite = f"{length:.3g} long, above {FARTHEST:g}," if length < np.inf else ""
    raise TrainingError(
        f"the model is {finite or 'no longer finite'} after round {number}: lower "
        f"learning_rate {plan.learning_rate:g} or momentum {plan.momentum:g}"
        + ("" if plan.accountant == NOT_PRIVATE else ", or raise epsilon")
    )
