"""Bounds from a charged query in three parts: where the values of every number lie.

Public bounds that are too wide ruin a model: all rows look alike. With
`scale="private"`, every device answers a query before the run; its answer narrows the
bounds, which are then a public part of the schema. The query has three parts, with a
third of its privacy each: every part cuts the range that the one before left.

*A part.* The range of each number (of a sample's features, and the label of a
regression) is cut into bins, and every device sends the noisy share of its training
samples in every bin: `histograms` has the statement and its proof. All parts, of mu
each, with a run of mu' are sqrt(3 mu^2 + mu'^2) Gaussian DP: the bounds are
post-processing, and for *any* bounds each sample is encoded on its own into the unit
ball, so the sensitivity of every later step is what the account assumes (adaptive
composition: Dong, Roth and Su 2022).

*Bounds.* The shares of all devices are averaged with the weights of their rows.
`narrowed` keeps the interval of bins whose shares exceed the noise most; there are as
many bins as the noise, which is public, allows. What is beyond the bounds is clipped,
as values beyond public bounds are. Labels of test rows are not clipped: errors are
those of the true numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number, within
from fedbudget.data import Dataset, Numeric, Part, Schema
from fedbudget.data.fourier import FeatureStep
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning import Plan, plan
from fedbudget.privacy import GDP
from fedbudget.problem import Counts, Problem
from fedbudget.simulation.dissimilarity import (
    GradientRelease,
    check_query_unit,
    plan_ahead,
)
from fedbudget.simulation.histograms import DISTANCE, Bins

# A bin is kept if its share is above so many deviations of the noise, in each part.
DEVIATIONS = (1.5, 1.5, 1.0)
PARTS = len(DEVIATIONS)
BINS = (32, 16, 8, 4)
# Of a bin's share, in units of 1 / bins: with more, samples that are spread over all
# bins would look like noise.
LARGEST_NOISE = 0.4
_ROWS = 1024  # that are encoded again at a time
SHARE = 0.2  # of each device's privacy budget (mu squared) that the query spends


class HistogramDevices(Protocol):
    """Devices that answer the query, each within its own budget."""

    data: Dataset

    def noisy_histograms(
        self, bins: Bins, count: int, noise_std: Array, *, cost: Array
    ) -> GradientRelease:
        """Charge every device, then return its noisy shares; shape (M, D count)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateBounds:
    """Narrower bounds of numbers, and what the query for them has spent."""

    bounds: dict[str, Numeric]
    mu: Array  # of the whole query, per device
    cost: Array
    releases: tuple[str, ...]  # the names of its parts: ledgers count each once

    def spent(self, problem: Problem) -> Problem:
        """Return the problem after the query: plans for it spend what is left."""
        for name in self.releases:
            problem = problem.with_spending(
                self.mu / np.sqrt(PARTS), name, self.cost / PARTS
            )
        return problem

    def plan(
        self, problem: Problem, budget: Budget, prices: Prices, **options: Any
    ) -> Plan:
        """Plan with the rest of the budgets; the plan's costs include the query's."""
        if not set(self.releases) <= problem.prior_releases:
            problem = self.spent(problem)
        return plan(problem, budget, prices, **options)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateScale(PrivateBounds):
    """Data under narrower bounds."""

    data: Dataset  # encoded again
    features: FeatureStep = None  # that followed the query

    def problem(self, **options: Any) -> Problem:
        """Return the shape of the data; plans for it spend what is left."""
        return self.spent(self.data.problem(**options))

    def encoded(self, data: Dataset) -> Dataset:
        """Return other devices' rows, which had the same schema, under these bounds."""
        schema = _narrowed_schema(_rescalable(data), self.bounds, self.features)
        return encoded_by(data, schema, trains=False)


def scale_privately(
    devices: HistogramDevices,
    budget: Budget,
    prices: Prices,
    *,
    share: float = SHARE,
    features: FeatureStep = None,
) -> PrivateScale:
    """Ask the devices where their numbers lie, and encode their rows by the answer.

    Run the plan on devices of the new data: their ledgers count the query's privacy and
    cost, by its name, when the run begins. Weights of rows come after:
    `weight_rows(scaled.data, ...)`.

    Args:
        devices: Devices of the data under public bounds, which are charged. With
            windows, the numbers are the statistics of a window.
        budget: The budget of every device, for the query and the run together.
        prices: The prices that devices pay: a part costs one step and one upload.
        share: Share of each device's privacy budget (mu squared) that the query spends.
        features: The feature step of the new data, as for `Schema.with_features`; the
            query needs the columns themselves.

    Raises:
        InfeasibleBudgetError: A budget does not pay for the query and one round, or a
            device has already spent what the query asks for.
        InvalidInputError: The rows cannot be encoded again: they have no schema, no
            intercept, or Fourier features already.
    """
    data = devices.data
    schema = _rescalable(data)
    _narrowed_schema(schema, _numbers(schema), features)  # refuses a wrong step
    answer = private_bounds(
        devices, _values(data), _numbers(schema), budget, prices, share=share
    )
    narrowed_schema = _narrowed_schema(schema, answer.bounds, features)
    return PrivateScale(
        **vars(answer),
        data=encoded_by(data, narrowed_schema, trains=True),
        features=features,
    )


def private_bounds(
    devices: HistogramDevices,
    values: Mapping[str, Array],
    bounds: Mapping[str, Numeric],
    budget: Budget,
    prices: Prices,
    *,
    share: float = SHARE,
) -> PrivateBounds:
    """Ask the devices where numbers lie, within public bounds.

    Args:
        devices: They are charged.
        values: Of each number, the values of the training rows in the devices' order.
        bounds: The public bounds of each number.
        budget: The budget of every device, for the query and the run together.
        prices: The prices that devices pay: a part costs one step and one upload.
        share: Share of each device's privacy budget (mu squared) that the query spends.
    """
    sizes = devices.data.num_samples
    mu, query_cost = _query_spending(sizes, budget, prices, share)
    _check_cost(sizes, query_cost, budget, prices)
    std = DISTANCE / (sizes * (mu / np.sqrt(PARTS)))
    weights = sizes / sizes.sum()
    noise = float(np.sqrt(len(bounds) * np.sum((weights * std) ** 2)))
    count, releases = _bin_count(noise, len(bounds)), []
    for deviations in DEVIATIONS:
        bins = [_bins(values[name], kind, count) for name, kind in bounds.items()]
        release = devices.noisy_histograms(
            np.stack(bins, axis=1), count, std, cost=query_cost / PARTS
        )
        shares = (weights @ release.gradients).reshape(len(bounds), count)
        bounds = {
            name: narrowed(kind, shares[i], noise, deviations)
            for i, (name, kind) in enumerate(bounds.items())
        }
        releases.append(release.name)
    return PrivateBounds(
        bounds=dict(bounds),
        mu=mu,
        cost=query_cost,
        releases=tuple(releases),
    )


def plan_before(
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    share: float = SHARE,
    **options: Any,
) -> Plan:
    """Return a plan for public bounds as if the query had been answered.

    What it refuses, it refuses before the query is charged: see `plan_ahead`.
    """
    sizes = problem.num_samples
    mu, cost = _query_spending(sizes, budget, prices, share)
    return plan_ahead(problem, budget, prices, mu=mu, cost=cost, **options)


def _query_spending(
    sizes: Counts, budget: Budget, prices: Prices, share: float
) -> tuple[Array, Array]:
    """Return mu and the cost of the whole query, for each device."""
    number("share", share, above=0, below=1)
    check_query_unit(budget, "narrower bounds")
    epsilon, delta, _ = budget.for_rows(sizes).per_device(len(sizes))
    mu = np.sqrt(share) * GDP.mu_from_epsilon(epsilon, delta)
    within("mu of the query", mu, above=0, remedy="raise epsilon")
    part = prices.run_cost(rounds=1, tau=1, batch_size=sizes)
    return mu, PARTS * np.broadcast_to(part, sizes.shape)


def _check_cost(
    sizes: Counts, query_cost: Array, budget: Budget, prices: Prices
) -> None:
    """Raise unless every device can pay for all parts, and then for one round."""
    _, _, cost = budget.for_rows(sizes).per_device(len(sizes))
    paid = prices.for_trust(budget.trust)
    one = paid.run_cost(rounds=1, tau=1, batch_size=np.ones_like(sizes))
    short = cost - query_cost - one
    if (short < 0).any():
        m = int(np.argmin(short))
        raise InfeasibleBudgetError(
            f"cost budget {cost[m]:g} of device {m} does not pay for the query of "
            f"scale 'private', {query_cost[m]:g}, and one round: raise it to "
            f"{cost[m] - short[m]:g}, or leave scale out"
        )


def _bin_count(noise: float, numbers: int) -> int:
    """Return the bins of a histogram, for this noise of a bin's share.

    Raises:
        InvalidInputError: Even the fewest bins would show nothing but noise.
    """
    for count in BINS:
        if count * noise <= LARGEST_NOISE:
            return count
    raise InvalidInputError(
        f"scale 'private' would learn nothing about {numbers} numbers: the noise of a "
        f"histogram's bin is {noise:.2g} of all samples, above "
        f"{LARGEST_NOISE / BINS[-1]:g}; leave it out and state narrow public bounds, "
        "or raise epsilon, take fewer columns, or more devices or rows",
        argument="scale",
    )


def _bins(values: Array, kind: Numeric, count: int) -> Bins:
    """Return the bin of each value; those beyond the bounds are in the last ones."""
    position = np.floor(count * (values - kind.low) / (kind.high - kind.low))
    return np.asarray(np.clip(position, 0, count - 1), dtype=np.int64)


def narrowed(kind: Numeric, shares: Array, noise: float, deviations: float) -> Numeric:
    """Return the bounds of the interval of bins whose shares exceed the noise most.

    Every bin counts as its share less so many deviations of the noise; of all intervals
    of bins, the one with the largest sum is kept. So a bin at the end of the interval
    has to hold more than noise does, and a gap inside needs enough samples beyond it.

    >>> shares = np.zeros(32)
    >>> shares[:2] = 0.5
    >>> narrowed(Numeric(0, 320), shares, 1e-3, 2.0)
    Numeric(low=0.0, high=20.0, missing=None, unit='')
    """
    sums = np.concatenate([[0.0], np.cumsum(shares - deviations * noise)])
    gains = sums[None, 1:] - sums[:-1, None]  # [first, last]: of the bins between
    gains = np.where(np.tri(len(shares), k=-1, dtype=bool), -np.inf, gains)
    first, last = np.unravel_index(np.argmax(gains), gains.shape)
    if gains[first, last] <= 0:  # nothing but noise
        return kind
    edges = np.linspace(kind.low, kind.high, len(shares) + 1)
    low, high = float(edges[first]), float(edges[last + 1])
    if kind.missing is not None:
        low, high = min(low, kind.missing), max(high, kind.missing)
    return replace(kind, low=low, high=high)


def _rescalable(data: Dataset) -> Schema:
    """Return the schema of rows that can be encoded again."""
    schema = data.schema
    reason = ""
    if schema is None:
        reason = "rows have no schema: leave it out, and state narrow public bounds"
    elif schema.expansion is not None:
        reason = (
            "rows have Fourier features already, which no longer show the numbers: "
            "make the data with features='linear', and give features= to the query"
        )
    elif not schema.intercept:
        reason = (
            "rows have no intercept, so that their scale is lost: set intercept = "
            "true, or leave it out and state narrow public bounds"
        )
    elif not _numbers(schema):
        reason = "columns have no number: leave it out"
    elif not _columns(data.train.x, [-1]).all():  # only weights make rows of zeros
        reason = (
            "rows were weighted already, which left zeros: weights come after the "
            "query, weight_rows(scaled.data, ...)"
        )
    if schema is None or reason:
        raise InvalidInputError(
            f"scale 'private' does not go with {data.name}, whose {reason}",
            argument="scale",
        )
    return schema


def _numbers(schema: Schema) -> dict[str, Numeric]:
    """Return the numbers among the features, and the label if it is one."""
    kinds = {**schema.sample_columns, schema.label: schema.target}
    # Of time stamps, sines and cosines need no bounds.
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Numeric)}


def _positions(data: Dataset) -> dict[str, int]:
    return {name: j for j, name in enumerate(data.feature_names)}


def _values(data: Dataset) -> dict[str, Array]:
    """Return the values of every number, of the training rows in their order.

    Rows were divided by their norm. The intercept was 1 before, so it is the divisor;
    float32 keeps 7 digits.
    """
    schema, positions = _rescalable(data), _positions(data)
    kinds, x = _numbers(schema), data.train.x
    names = [name for name in kinds if name != schema.label]
    z = _columns(x, [positions[name] for name in names]) / _columns(x, [-1])
    values = {name: kinds[name].decode(z[:, j]) for j, name in enumerate(names)}
    if schema.label in kinds:
        labels = np.asarray(data.train.y, dtype=np.float64)
        values[schema.label] = kinds[schema.label].decode(labels)
    return values


def _columns(x: Any, positions: Sequence[int]) -> Array:
    """Return some columns of rows, dense or sparse, as dense ones."""
    part = x[:, [j % x.shape[1] for j in positions]]
    return np.asarray(part if isinstance(x, np.ndarray) else part.toarray(), float)


def _narrowed_schema(
    schema: Schema, bounds: Mapping[str, Numeric], features: FeatureStep
) -> Schema:
    """Return the schema with narrower bounds, and the feature step after them."""
    kinds = {name: bounds.get(name, kind) for name, kind in schema.features.items()}
    windows = schema.windows
    if windows is not None:
        channels = {name: schema.features[name] for name in windows.columns}
        own = {n: (b.low, b.high) for n, b in bounds.items() if n not in kinds}
        own.pop(schema.label, None)
        kinds, windows = {**kinds, **channels}, replace(windows, bounds=own)
    target = bounds.get(schema.label, schema.target)
    new = replace(schema, features=kinds, target=target, windows=windows)
    return new if features is None else new.with_features(features)


def encoded_by(data: Dataset, schema: Schema, *, trains: bool) -> Dataset:
    """Return the data encoded by a schema that has narrower bounds than theirs.

    Args:
        data: Rows under the public bounds.
        schema: Of the same columns; a feature step may follow.
        trains: Whether the labels of the training rows are clipped.
    """
    old, kind = _rescalable(data).target, schema.target

    def again(part: Part) -> Part:
        y = part.y
        if isinstance(old, Numeric) and isinstance(kind, Numeric):
            middle, top = kind.decode(np.array([0.0, 1.0]))
            y = (old.decode(np.asarray(part.y)) - middle) / (top - middle)
            y = np.clip(y, -1.0, 1.0) if trains and part is data.train else y
        x = _rows_again(part.x, data, schema)
        return Part(x=x, y=y, offsets=part.offsets, owned=True)

    return replace(
        data,
        train=again(data.train),
        validation=again(data.validation),
        test=again(data.test),
        feature_names=schema.feature_names,
        schema=schema,
    )


def _rows_again(x: Any, data: Dataset, schema: Schema) -> Any:
    """Return rows encoded again, block by block; rows that were sparse stay so."""
    old, new, positions = _rescalable(data), _numbers(schema), _positions(data)
    kinds = {n: kind for n, kind in _numbers(old).items() if n != old.label}
    sparse = not isinstance(x, np.ndarray) and schema.expansion is None
    blocks: list[Any] = []
    for start in range(0, max(1, x.shape[0]), _ROWS):
        block = x[start : start + _ROWS]
        z = _columns(block, range(block.shape[1] - 1)) / _columns(block, [-1])
        for name, kind in kinds.items():
            column = z[:, positions[name]]
            column[:] = new[name].encode(name, kind.decode(column))
        rows = schema.unit_rows(z)
        blocks.append(type(x)(rows) if sparse else rows)
    if not sparse:
        return np.concatenate(blocks)
    import scipy.sparse

    stack: Any = scipy.sparse.vstack  # its overloads know no unions
    return stack(blocks, format="csr")
