"""Bounds from a charged query in two parts: where the values of every number lie.

Public bounds that are too wide ruin a model: all rows look alike. With
`scale="private"`, every device answers a query before the run; its answer narrows the
bounds, which are then a public part of the schema. The query has two parts, with half
of its privacy each: the second cuts the range that the first left.

*A part.* The range of each of D numbers (the features, and the label of a regression)
is cut into bins: as many of `BINS` as the noise, which is public, allows. A row becomes
u: for each number 1 / sqrt(D) in the bin of its value, 0 elsewhere. |u| = 1, and u
depends on no other row. A device sends the mean of u over its N training rows with
Gaussian noise: the gradient of the hinge loss at theta = 0 on the rows u with label +1,
negated.

*Statement.* With noise of standard deviation 2 / (N mu) per coordinate, the answer is
mu Gaussian DP for the replacement of one sample; both parts with a run of mu' are
sqrt(2 mu^2 + mu'^2) Gaussian DP.

*Proof.* Replacing a sample moves the mean of u by at most 2 / N in norm (triangle
inequality, |u| <= 1), so it is the Gaussian mechanism with mu (Dong, Roth and Su 2022).
The bounds are post-processing. The second part and the run depend on the rows through
the encoding by these bounds; for *any* bounds each row is encoded on its own into the
unit ball, so the sensitivity of every later step is what the account assumes, and
adaptive composition adds the squares.

*Bounds.* The shares of all devices are averaged with the weights of their rows. From
either end, bins are cut while their sum is within `TAIL` plus `DEVIATIONS` times its
noise: what is beyond is clipped, as values beyond public bounds are. Labels of test
rows are not clipped: errors are those of the true numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number, within
from fedbudget.data import Dataset, Numeric, Part, Schema
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss, loss_named
from fedbudget.planning import Plan, plan
from fedbudget.privacy import GDP
from fedbudget.problem import Problem
from fedbudget.simulation.dissimilarity import GradientRelease, check_query_unit

BINS = (32, 16, 8, 4)
LARGEST_NOISE = 0.12  # in the sum of all bins of a number
TAIL = 0.005  # share of the rows that may be clipped at either end
# Deviations of the noise in a sum of bins that may be nothing but noise, for each part
# of the query. A bound that is too wide by mistake ruins a model after the first part,
# and hardly matters after the second; one that is too narrow clips rows.
DEVIATIONS = (3.0, 2.5)
PARTS = len(DEVIATIONS)
SHARE = 0.2  # of each device's privacy budget (mu squared) that the query spends


class ScaledDevices(Protocol):
    """Devices that answer the query, each within its own budget."""

    data: Dataset

    def noisy_gradients_on(
        self, rows: Dataset, loss: Loss, noise_std: Array, *, cost: Array
    ) -> GradientRelease:
        """Charge every device, then return its mean gradient on these rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateScale:
    """Data under narrower bounds, and what the query has spent."""

    data: Dataset  # encoded again
    mu: Array  # of the whole query, per device
    cost: Array
    releases: tuple[str, ...]  # the names of its parts: ledgers count each once

    def problem(self, **options: Any) -> Problem:
        """Return the shape of the data; plans for it spend what is left."""
        problem = self.data.problem(**options)
        for name in self.releases:
            problem = problem.with_spending(self.mu / np.sqrt(PARTS), name)
        return problem

    def plan(
        self, problem: Problem, budget: Budget, prices: Prices, **options: Any
    ) -> Plan:
        """Plan with the rest of the budgets; the plan's costs include the query's."""
        budget = budget.for_rows(problem.num_samples)
        rest = replace(budget, cost=np.asarray(budget.cost) - self.cost)
        rest_plan = plan(problem, rest, prices, **options)
        return replace(rest_plan, cost=rest_plan.cost + self.cost)


def scale_privately(
    devices: ScaledDevices, budget: Budget, prices: Prices, *, share: float = SHARE
) -> PrivateScale:
    """Ask the devices where their numbers lie, and encode their rows by the answer.

    Run the plan on devices of the new data: their ledgers count the query by its name
    when the run begins.

    Args:
        devices: Devices of the data under public bounds, which are charged.
        budget: The budget of every device, for the query and the run together.
        prices: The prices that devices pay: a part costs one step and one upload.
        share: Share of each device's privacy budget (mu squared) that the query spends.

    Raises:
        InfeasibleBudgetError: A device has already spent what the query asks for.
        InvalidInputError: The rows cannot be encoded again: they have no schema, no
            intercept, or Fourier features.
    """
    number("share", share, above=0, below=1)
    data = devices.data
    _rescalable(data)
    check_query_unit(budget, "narrower bounds")
    sizes = data.num_samples
    epsilon, delta, _ = budget.for_rows(sizes).per_device(data.num_devices)
    mu = np.sqrt(share) * GDP.mu_from_epsilon(epsilon, delta)
    within("mu of the query", mu, above=0, remedy="raise epsilon")
    cost = np.broadcast_to(
        prices.run_cost(rounds=1, tau=1, batch_size=sizes), (data.num_devices,)
    )
    releases = []
    for deviations in DEVIATIONS:
        data, name = _narrow(
            devices, data, mu / np.sqrt(PARTS), np.asarray(cost), deviations
        )
        releases.append(name)
    return PrivateScale(
        data=data, mu=mu, cost=PARTS * np.asarray(cost), releases=tuple(releases)
    )


def _narrow(
    devices: ScaledDevices, data: Dataset, mu: Array, cost: Array, deviations: float
) -> tuple[Dataset, str]:
    """Ask one part of the query; return the data under narrower bounds, and its name.

    Args:
        devices: They are charged, and answer about these rows.
        data: Their rows under the bounds so far.
        mu: What the part spends, per device.
        cost: Likewise.
        deviations: As for `narrowed`.
    """
    schema, sizes, loss = _rescalable(data), data.num_samples, loss_named("hinge")
    std = 2 * loss.lipschitz / (sizes * mu)
    names = _numbers(schema)
    weights = sizes / sizes.sum()
    scale = np.sqrt(len(names)) / LARGEST_NORM
    noise = scale * float(np.sqrt(np.sum((weights * std) ** 2)))
    fine = [bins for bins in BINS if noise * np.sqrt(bins) <= LARGEST_NOISE]
    bins = max(fine, default=BINS[-1])
    rows = _query_rows(data, schema, names, bins)
    release = devices.noisy_gradients_on(rows, loss, std, cost=cost)
    shares = (-scale * (weights @ release.gradients)).reshape(len(names), bins)
    bounds = {
        name: narrowed(kind, shares[i], noise, deviations)
        for i, (name, kind) in enumerate(names.items())
    }
    return _encoded_again(data, schema, bounds), release.name


def narrowed(
    kind: Numeric, shares: Array, noise: float, deviations: float = 3.0
) -> Numeric:
    """Return bounds that leave out bins at both ends that hold nothing but noise.

    >>> shares = np.zeros(32)
    >>> shares[:2] = 0.5
    >>> narrowed(Numeric(0, 320), shares, 1e-3)
    Numeric(low=0.0, high=20.0, missing=None, unit='')
    """
    limit = noise * deviations
    first, last = _cut(shares, limit), len(shares) - _cut(shares[::-1], limit)
    if first >= last:  # nothing but noise
        return kind
    edges = np.linspace(kind.low, kind.high, len(shares) + 1)
    low, high = float(edges[first]), float(edges[last])
    if kind.missing is not None:
        low, high = min(low, kind.missing), max(high, kind.missing)
    return replace(kind, low=low, high=high)


def _cut(shares: Array, limit: float) -> int:
    """Return how many bins at the beginning hold a small part of the rows."""
    limits = TAIL + limit * np.sqrt(np.arange(1, len(shares) + 1))
    above = np.cumsum(shares) > limits
    return int(np.argmax(above)) if above.any() else len(shares)


def _rescalable(data: Dataset) -> Schema:
    """Return the schema of rows that can be encoded again."""
    schema = data.schema
    reason = ""
    if schema is None:
        reason = "no schema"
    elif schema.windows is not None or schema.expansion is not None:
        reason = "windows or Fourier features, whose bounds follow from others"
    elif not schema.intercept:
        reason = "no intercept"
    if schema is None or reason:
        raise InvalidInputError(
            f"scale 'private' does not go with {data.name}, whose rows have {reason}: "
            "leave it out, and state narrow public bounds",
            argument="scale",
        )
    if not _numbers(schema):
        raise InvalidInputError(
            f"scale 'private' does not go with {data.name}, which has no number: leave "
            "it out",
            argument="scale",
        )
    return schema


def _numbers(schema: Schema) -> dict[str, Numeric]:
    """Return the numbers among the features, and the label if it is one."""
    kinds = schema.columns  # of time stamps, sines and cosines need no bounds
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Numeric)}


def _dense(part: Part) -> Array:
    rows: Any = part.x
    return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), float)


def _before_scaling(part: Part) -> Array:
    """Return the encoded columns as they were before rows were divided by their norm.

    The intercept is 1 before, so it is the divisor; float32 keeps 7 digits.
    """
    x = _dense(part)
    return np.asarray(x[:, :-1] / x[:, -1:])


def _query_rows(
    data: Dataset, schema: Schema, names: Mapping[str, Numeric], bins: int
) -> Dataset:
    """Return the rows u of the query, each with label +1."""
    positions = {name: j for j, name in enumerate(data.feature_names)}
    z = _before_scaling(data.train)
    labels = np.asarray(data.train.y, dtype=np.float64)
    u = np.zeros((len(z), len(names) * bins), dtype=np.float32)
    for i, name in enumerate(names):
        values = labels if name == schema.label else z[:, positions[name]]
        bin_of = np.clip(np.floor((values + 1) / 2 * bins), 0, bins - 1).astype(int)
        u[np.arange(len(u)), i * bins + bin_of] = LARGEST_NORM / np.sqrt(len(names))
    empty = Part(
        x=np.zeros((0, u.shape[1]), np.float32),
        y=np.zeros(0, np.int64),
        offsets=np.zeros(data.num_devices + 1, np.int64),
    )
    ones = np.ones(len(u), dtype=np.int64)
    return replace(
        data,
        train=Part(x=u, y=ones, offsets=data.train.offsets),
        validation=empty,
        test=empty,
        feature_names=tuple(map(str, range(u.shape[1]))),
        classes=("absent", "present"),
        schema=None,
    )


def _encoded_again(
    data: Dataset, schema: Schema, bounds: Mapping[str, Numeric]
) -> Dataset:
    """Return the data encoded by narrower bounds; the schema has them."""
    features = {n: bounds.get(n, kind) for n, kind in schema.features.items()}
    target = bounds.get(schema.label, schema.target)
    new = replace(schema, features=features, target=target)

    def again(part: Part) -> Part:
        z = _before_scaling(part)
        for j, name in enumerate(data.feature_names[:-1]):
            if name in bounds:
                old = schema.sample_features[name]
                assert isinstance(old, Numeric)  # bounds has numbers only
                z[:, j] = bounds[name].encode(name, old.decode(z[:, j]))
        rows = np.column_stack([z, np.ones(len(z))])
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        x = (rows * (LARGEST_NORM / np.maximum(norms, 1.0))).astype(np.float32)
        y = part.y
        if isinstance(schema.target, Numeric) and isinstance(target, Numeric):
            raw = schema.target.decode(np.asarray(part.y))
            middle, top = target.decode(np.array([0.0, 1.0]))
            y = (raw - middle) / (top - middle)
            y = np.clip(y, -1.0, 1.0) if part is data.train else y
        return replace(part, x=x, y=y)

    return replace(
        data,
        train=again(data.train),
        validation=again(data.validation),
        test=again(data.test),
        schema=new,
    )
