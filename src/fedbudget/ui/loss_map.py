"""The content of the Explore page: a plan, and the losses of other budgets."""

import json
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    TRUST,
    UNIT,
    Budget,
    Prices,
    planned_delta,
)
from fedbudget.checks import Array
from fedbudget.data import Schema, from_table
from fedbudget.data.schema import schema_from_config
from fedbudget.errors import (
    DataError,
    FedbudgetError,
    InfeasibleBudgetError,
    NotPrivateWarning,
)
from fedbudget.planning import Plan, compare_trust, plan
from fedbudget.planning.frontier import predicted_losses
from fedbudget.privacy import Trust, Unit
from fedbudget.problem import USUAL_DISSIMILARITY, Problem

EPSILONS = (0.25, 16.0)  # the ends of the map, and of the slider
COSTS = (50.0, 5000.0)
_POINTS = (31, 9)  # of the map; epsilons are cheap


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Devices and prices: all inputs of the map."""

    num_devices: int = 16
    samples: int = 1628  # of the median device
    spread: float = 1.0  # samples of the largest device over those of the smallest
    dim: int = 102
    dissimilarity: str | float = USUAL_DISSIMILARITY
    loss: str = "logistic"
    num_classes: int | None = None  # of softmax
    communication: float = float(COMMUNICATION_PRICE)
    computation: float = float(COMPUTATION_PRICE)
    trust: Trust = TRUST
    unit: Unit = UNIT
    counts: tuple[int, ...] = ()  # samples of each device, if they are known

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of every device, in geometric steps around the median.

        >>> Fleet(num_devices=3, samples=100, spread=4).sizes.tolist()
        [50, 100, 200]
        """
        if self.counts:
            return np.array(self.counts, dtype=np.int64)
        if self.num_devices == 1:
            return np.array([self.samples])
        half = np.sqrt(self.spread)
        factors = np.geomspace(1 / half, half, self.num_devices)
        sizes = np.maximum(1, np.rint(self.samples * factors))
        return np.asarray(sizes, dtype=np.int64)

    @property
    def problem(self) -> Problem:
        """The planning problem of these devices."""
        return Problem(
            num_samples=self.sizes,
            dim=self.dim,
            loss=self.loss,
            num_classes=self.num_classes,
            dissimilarity=self.dissimilarity,
        )

    @property
    def prices(self) -> Prices:
        """The prices of every device."""
        return Prices(communication=self.communication, computation=self.computation)

    @property
    def cheapest(self) -> float:
        """The price of one round with one step."""
        return self.communication + self.computation


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a plan needs of data: it holds no row."""

    counts: tuple[int, ...]  # samples of each device
    dim: int
    dissimilarity: str | float = USUAL_DISSIMILARITY
    loss: str = "logistic"
    num_classes: int | None = None  # of softmax


def shape_of(path: str, *, label: str = "", device: str = "") -> Shape:
    """Return the shape of the data that a file describes; no row is kept.

    A JSON file has num_samples and dim, as plan.json has. A `fedbudget.toml` is read
    with its table. Any other file is a table, of which the columns to predict and of
    the devices are named.

    Raises:
        DataError: It cannot be read, or holds no shape.
    """
    try:
        if path.endswith(".json"):
            return _stated(json.loads(Path(path).read_text(encoding="utf-8")))
        values: Mapping[str, Any] = {"data": {"device": device}, "plan": {}}
        table, schema = Path(path), None
        if path.endswith(".toml"):
            values = tomllib.loads(table.read_text(encoding="utf-8"))
            label, schema = values["label"]["name"], schema_from_config(values)
            table = table.parent / values["data"]["table"]
        return _of_table(table, label, schema, values["data"], values.get("plan", {}))
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FedbudgetError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"file {path!r} holds no shape ({reason}): name a fedbudget.toml, a table, "
            "or a JSON file with num_samples and dim, such as plan.json of a run"
        ) from None


def _of_table(
    path: Path,
    label: str,
    schema: Schema | None,
    data: Mapping[str, Any],
    plan: Mapping[str, Any],
) -> Shape:
    """Return the shape of a table; `data` and `plan` are sections of a config."""
    with warnings.catch_warnings():  # `plan` and `train` warn of bounds from rows
        warnings.simplefilter("ignore", NotPrivateWarning)
        rows = from_table(
            path,
            label=label,
            device=data.get("device"),
            partition=data.get("partition"),
            missing=data.get("missing", "error"),
            order=data.get("order"),
            schema=schema,
            features=None if plan.get("features") == "auto" else plan.get("features"),
        )
    stated = plan.get("dissimilarity", "measure")  # by the devices, in a run
    dissimilarity = rows.dissimilarity if stated == "measure" else stated
    problem = rows.problem(loss=plan.get("loss"), dissimilarity=dissimilarity)
    loss = problem.model.name
    return Shape(
        counts=tuple(problem.num_samples.tolist()),
        dim=problem.dim,
        dissimilarity=dissimilarity,
        loss=loss,
        num_classes=rows.num_classes if loss == "softmax" else None,
    )


def _stated(plain: Mapping[str, Any]) -> Shape:
    """Return the shape that a JSON file states."""
    loss = plain.get("loss", "logistic")
    classes = plain.get("num_classes") if loss == "softmax" else None
    sizes, dim = plain["num_samples"], plain["dim"]
    problem = Problem(num_samples=sizes, dim=dim, loss=loss, num_classes=classes)
    counts = tuple(problem.num_samples.tolist())
    return Shape(counts=counts, dim=problem.dim, loss=loss, num_classes=classes)


def best_plan(fleet: Fleet, *, epsilon: float, cost: float) -> Plan:
    """Return the plan for one pair of budgets."""
    budget = Budget(epsilon=epsilon, cost=cost, trust=fleet.trust, unit=fleet.unit)
    return plan(fleet.problem, budget, fleet.prices)


@dataclass(frozen=True, kw_only=True)
class WhatTrustBuys:
    """The predicted losses of both kinds of trust for one pair of budgets."""

    uploads: float
    sums: float
    equal_epsilon: float  # at which sums have the loss of uploads; inf: at none


def what_trust_buys(fleet: Fleet, *, epsilon: float, cost: float) -> WhatTrustBuys:
    """Compare both kinds of trust for one pair of budgets.

    Raises:
        InfeasibleBudgetError: The cost does not pay for one round.
    """
    both = compare_trust(
        fleet.problem,
        fleet.prices,
        epsilons=[epsilon],
        costs=[cost],
        unit=fleet.unit,
    )
    if both.uploads.plans[0][0] is None or both.sums.plans[0][0] is None:
        raise InfeasibleBudgetError(
            f"cost {cost:g} does not pay for one round with one step, "
            f"{fleet.cheapest:g}: raise it, or lower the prices"
        )
    return WhatTrustBuys(
        uploads=float(both.uploads.predicted_loss[0, 0]),
        sums=float(both.sums.predicted_loss[0, 0]),
        equal_epsilon=float(both.equal_epsilon[0, 0]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LossMap:
    """Predicted loss over both budgets; rows are epsilons, columns are costs."""

    epsilons: Array
    costs: Array
    loss: Array

    def finer(self, factor: int = 5) -> "LossMap":
        """Return the map with interpolated costs.

        Between neighbours the logarithm of the loss is a straight line in the
        logarithm of the cost.
        """
        count = len(self.costs)
        at = np.linspace(0, count - 1, factor * (count - 1) + 1)
        loss = np.array([_between(at, line) for line in np.log(self.loss)])
        costs = _between(at, np.log(self.costs))
        return LossMap(epsilons=self.epsilons, costs=np.exp(costs), loss=np.exp(loss))

    def cells(self) -> list[dict[str, float]]:
        """Return one rectangle per point, with its ends and its loss."""
        eps, costs = _edges(self.epsilons), _edges(self.costs)
        return [
            {
                "epsilon": float(self.epsilons[i]),
                "epsilon_from": float(eps[i]),
                "epsilon_to": float(eps[i + 1]),
                "cost": float(self.costs[j]),
                "cost_from": float(costs[j]),
                "cost_to": float(costs[j + 1]),
                "loss": float(self.loss[i, j]),
            }
            for i, j in np.ndindex(*self.loss.shape)
        ]

    def lines(self, count: int = 6) -> list[dict[str, float]]:
        """Return points on lines of equal loss.

        A larger budget never raises the loss: a line has one epsilon for each cost.
        """
        points = []
        for level in self.levels(count):
            points += self._ends_at(level, row=-1)
            for cost, column in zip(self.costs, self.loss.T, strict=True):
                if column.min() <= level <= column.max():
                    at = np.interp(
                        -np.log(level), -np.log(column), np.log(self.epsilons)
                    )
                    points.append(_point(cost, np.exp(at), level))
            points += self._ends_at(level, row=0)
        return points

    def _ends_at(self, level: float, *, row: int) -> list[dict[str, float]]:
        """Return the point where a line meets the lowest or highest epsilon, if any."""
        edge = self.loss[row]
        if not edge.max() > level > edge.min():
            return []
        at = np.interp(-np.log(level), -np.log(edge), np.log(self.costs))
        return [_point(np.exp(at), self.epsilons[row], level)]

    def levels(self, count: int) -> list[float]:
        """Return losses between the largest and the smallest, in equal ratios."""
        ends = np.log(self.loss.max()), np.log(self.loss.min())
        return [float(level) for level in np.exp(np.linspace(*ends, count + 2)[1:-1])]


def _point(cost: float, epsilon: float, loss: float) -> dict[str, float]:
    return {"cost": float(cost), "epsilon": float(epsilon), "loss": loss}


def loss_map(fleet: Fleet) -> LossMap:
    """Return the map of a fleet, from a coarse grid of plans for speed.

    Raises:
        InfeasibleBudgetError: No cost on the map pays for one round.
    """
    low = max(COSTS[0], fleet.cheapest)
    if low >= COSTS[1]:
        raise InfeasibleBudgetError(
            f"one round with one step costs {low:g}, more than any cost up to "
            f"{COSTS[1]:g}: lower the prices"
        )
    epsilons = np.geomspace(*EPSILONS, _POINTS[0])
    costs = np.geomspace(low, COSTS[1], _POINTS[1])
    loss = predicted_losses(
        fleet.problem,
        fleet.prices,
        epsilons=epsilons,
        costs=costs,
        delta=planned_delta(fleet.sizes),
        trust=fleet.trust,
        unit=fleet.unit,
    )
    return LossMap(epsilons=epsilons, costs=costs, loss=loss)


def savings_per_unit(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the loss saved per unit of each budget, and whether it binds."""
    prices = {"privacy": plan.epsilon_price, "cost": plan.cost_price}
    return {
        name: {
            "saved": price,
            "share": price / plan.predicted_loss,
            "binds": name in plan.binding,
        }
        for name, price in prices.items()
    }


def _between(at: Array, values: Array) -> Array:
    return np.asarray(np.interp(at, np.arange(len(values)), values))


def _edges(centres: Array) -> Array:
    """Return the geometric means between points, and one edge beyond either end."""
    log = np.log(centres)
    middles = (log[1:] + log[:-1]) / 2
    ends = 2 * log[0] - middles[0], 2 * log[-1] - middles[-1]
    return np.asarray(np.exp(np.array([ends[0], *middles, ends[1]])))
