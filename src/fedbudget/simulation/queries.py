"""From data to a plan, with one charged query in between if one is wanted.

Bounds change the rows, so they are measured on devices that are then built again from
the new rows; the dissimilarity and the threshold are measured on the devices of the
run. Every query is charged to the ledgers, and the plan spends the rest.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from fedbudget.budget import Budget, Prices
from fedbudget.data import Dataset
from fedbudget.data.fourier import FeatureStep
from fedbudget.errors import InvalidInputError, NotPrivateWarning
from fedbudget.planning import Plan, plan
from fedbudget.problem import Problem
from fedbudget.simulation.dissimilarity import QueriedDevices, plan_with_query
from fedbudget.simulation.scaling import (
    HistogramDevices,
    plan_before,
    scale_privately,
)
from fedbudget.simulation.thresholds import ClassShareDevices, plan_with_threshold

Query = Literal["bounds", "dissimilarity", "threshold"]


class AnsweringDevices(HistogramDevices, QueriedDevices, ClassShareDevices, Protocol):
    """Devices that answer every query, each within its own budget."""


D = TypeVar("D", bound=AnsweringDevices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared(Generic[D]):
    """A plan, and the devices to run it on: `train(prepared.plan, prepared.devices)`.

    With measured bounds, `devices.data` has the new rows and their schema.
    """

    devices: D
    problem: Problem
    plan: Plan


def prepare(
    data: Dataset,
    devices_of: Callable[..., D],
    problem_of: Callable[[Dataset], Problem],
    budget: Budget,
    prices: Prices,
    *,
    query: Query | None = None,
    threshold: float | None = None,
    features: FeatureStep = None,
    weighted: Callable[[Dataset], Dataset] = lambda data: data,
    new_devices: Dataset | None = None,
    **options: Any,
) -> Prepared[D]:
    """Ask the query, if there is one, and plan with the rest of the budgets.

    Args:
        data: The rows of every device.
        devices_of: Builds devices of these rows, simulated or of a release; it takes
            `new_devices` where there are some.
        problem_of: Returns the shape of these rows to plan for.
        budget: The budget of every device, for the query and the run together.
        prices: The prices that devices pay.
        query: What the devices measure with noise before the run.
        threshold: A stated decision threshold; not with a query that measures it.
        features: The feature step that follows measured bounds: see `scale_privately`.
        weighted: Returns the rows with their weights; it follows measured bounds.
        new_devices: Rows of devices that do not train, in the encoding of `data`.
        options: Further options of `plan`.

    Raises:
        InfeasibleBudgetError: The budgets do not pay for the query and one round.
        InvalidInputError: The query does not go with the data, or an option is wrong.

    What follows from public values is refused before anything is charged.
    """
    if query == "threshold" and threshold is not None:
        raise InvalidInputError(
            f"threshold is {threshold:g}, and query 'threshold' would measure it: "
            "leave out one of them",
            argument="threshold",
        )
    limits, scale = (budget, prices), None
    kept_out = {} if new_devices is None else {"new_devices": new_devices}
    if query == "bounds":
        ahead = plan_before(problem_of(weighted(data)), *limits, **options)
        _with_threshold(ahead, threshold)
        scale = scale_privately(devices_of(data), *limits, features=features)
        data = scale.data
        kept_out = {name: scale.encoded(rows) for name, rows in kept_out.items()}
    data = weighted(data)
    devices = devices_of(data, **kept_out)
    with warnings.catch_warnings():
        if scale is not None:
            warnings.simplefilter("ignore", NotPrivateWarning)  # shown already
        problem = problem_of(data)
    if scale is not None:
        problem = scale.spent(problem)
        planned = plan(problem, *limits, **options)
    elif query == "dissimilarity":
        if threshold is not None:
            _with_threshold(plan(problem, *limits, **options), threshold)
        problem, planned = plan_with_query(devices, problem, *limits, **options)
    elif query == "threshold":
        problem, planned = plan_with_threshold(devices, problem, *limits, **options)
    else:
        planned = plan(problem, *limits, **options)
    planned = _with_threshold(planned, threshold)
    return Prepared(devices=devices, problem=problem, plan=planned)


def _with_threshold(planned: Plan, threshold: float | None) -> Plan:
    """Return the plan with the stated threshold, if there is one."""
    if threshold is None:
        return planned
    return replace(planned, threshold=threshold)
