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
from fedbudget.record import Record, to_row

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

    def check(self, plan: Plan) -> None:
        """Raise unless the devices can carry out the plan."""
        ...

    def run_round(self, order: Order) -> Replies:
        """Carry out one round."""
        ...

    def catch_up(self, order: Order) -> None:
        """Account for the rounds before this order, which an interrupted run did."""
        ...

    def measure(self, theta: Array) -> dict[str, float]:
        """Return losses and accuracies for the reader of a simulation.

        They are read off private rows: a real fleet returns nothing.
        """
        ...


@runtime_checkable
class MeasuresPersonal(Protocol):
    """Devices that tell what adapting a model to their own rows would bring."""

    def measure_personal(self, theta: Array) -> dict[str, float]:
        """Return losses and accuracies for the reader of a simulation; not private."""
        ...


@runtime_checkable
class KnowsItself(Protocol):
    """Devices that say what a run on them depends on, and how far they have come."""

    @property
    def identity(self) -> dict[str, Any]:
        """What has to be the same for an interrupted run to go on: the seed, say."""
        ...

    @property
    def steps_taken(self) -> int:
        """Local steps of the longest run so far, with those that it went on from."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What a run released, and what it cost."""

    theta: Array  # the released model
    rounds: list[dict[str, Any]]  # one row per round
    plan: Plan
    steps: int = 0  # local steps so far, with those of the runs before
    # Spent so far by each device, as `Replies` tells; None: only the rows are known,
    # which above 100 devices hold no more than a range.
    spent_epsilon: Array | None = None
    spent_cost: Array | None = None

    @property
    def measured(self) -> dict[str, float]:
        """Losses and accuracies of the released model; not private."""
        return dict(self.rounds[-1]["not_private"])

    @property
    def advice(self) -> str:
        """One line where federating did not pay; without measurements, the plan's.

        What a run measured with `personal=True` speaks; it is not private.
        """
        found = advice_of(self.measured)
        return self.plan.advice if found is None else found


def train(
    plan: Plan,
    devices: Devices,
    *,
    record: Record | str | os.PathLike[str] | None = None,
    personal: bool = False,
    after: Run | None = None,
    stop: Callable[[dict[str, Any]], bool] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
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
        stop: Called with every new row; the run ends early once it says so.
        on_round: Called with every new row, to show progress.

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
    devices.check(plan)
    if personal and not isinstance(devices, MeasuresPersonal):
        raise InvalidInputError(
            "personal=True measures personal models, and these devices keep theirs to "
            "themselves: leave it out, or simulate the devices"
        )
    before = _steps_before(after, devices)
    server = Server.start(plan.model.num_params(plan.dim))
    if after is not None:
        server.theta = np.array(after.theta)
    rows: list[dict[str, Any]] = []
    folder = record if record is None or isinstance(record, Record) else Record(record)
    if folder is not None:
        known = devices.identity if isinstance(devices, KnowsItself) else {}
        same = known | {"steps_before": before}
        saved, rows = folder.open(plan.to_dict(), same=same)
        if saved is not None:
            server = Server.from_arrays(saved)
            devices.catch_up(_next_order(plan, server, before))
    while server.rounds_done < plan.rounds:
        row = _one_round(plan, devices, server, before)
        last = server.rounds_done == plan.rounds
        if personal and last and isinstance(devices, MeasuresPersonal):
            row["not_private"] |= devices.measure_personal(server.theta)
        rows.append(row)
        if folder is not None:
            folder.add_round(row, server.to_arrays())
        if on_round is not None:
            on_round(row)
        if stop is not None and stop(row):
            break
    if folder is not None:
        folder.finish(server.theta, epsilon=server.epsilon, cost=server.cost)
    return Run(
        theta=server.theta,
        rounds=rows,
        plan=plan,
        steps=before + server.rounds_done * plan.tau,
        spent_epsilon=server.epsilon,
        spent_cost=server.cost,
    )


def _steps_before(after: Run | None, devices: Devices) -> int:
    """Return the steps of the run to go on from; these devices must have taken them."""
    if after is None:
        return 0
    if not isinstance(after, Run):
        raise InvalidInputError(
            f"after must be a Run, as train returns it, got a {type(after).__name__}"
        )
    if isinstance(devices, KnowsItself) and devices.steps_taken < after.steps:
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


def _one_round(
    plan: Plan, devices: Devices, server: Server, before: int
) -> dict[str, Any]:
    order = _next_order(plan, server, before)
    number = order.number
    replies = devices.run_round(order)
    # Answers that got lost may come next time; devices that refuse, refuse again.
    if replies.refused and not replies.answered.any():
        reasons = sorted(set(replies.refused.values()))
        raise TrainingError(
            f"no device answered round {number}: {'; '.join(reasons[:3])}"
        )
    server.update(replies.theta, momentum=plan.momentum)
    server.devices = replies.state
    server.epsilon, server.cost = replies.epsilon, replies.cost
    _check_use(server.theta, plan, number)
    return {
        "round": number,
        "steps": number * plan.tau,
        "answered": int(replies.answered.sum()),
        "silent": _silent(plan.takes_part(number), replies),
        "refused": {str(m): why for m, why in list(replies.refused.items())[:100]},
        "epsilon": to_row(replies.epsilon),
        "cost": to_row(replies.cost),
        "not_private": devices.measure(server.theta),
    }


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


def _silent(asked: Bools, replies: Replies) -> list[int]:
    """Return the first hundred devices that were asked and said nothing at all."""
    quiet = asked & ~replies.answered
    return [int(m) for m in np.flatnonzero(quiet) if m not in replies.refused][:100]
