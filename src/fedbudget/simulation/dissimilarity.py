"""Measure privately how heterogeneous (unlike) the devices are: one charged query.

Every device sends its mean gradient at theta = 0 with Gaussian noise: one noisy step,
with sensitivity 2 G / N as in training. Along every mode of the loss a gradient is
proportional to the distance to the optimum. So the spread of the devices' gradients,
divided by the length of their mean, estimates how much their own optima differ from
the common one: the `dissimilarity` that planners use. The known contribution of the
noise is subtracted from both.
"""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from fedbudget.algorithm import data_gradient
from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number, within
from fedbudget.data import Dataset
from fedbudget.errors import InvalidInputError
from fedbudget.ledger import Charge, Ledger
from fedbudget.planning import Plan, plan
from fedbudget.privacy import GDP
from fedbudget.problem import Constant, Problem

# Estimates are clipped to the range that planners can use.
_MINIMUM, _MAXIMUM = 0.02, 1.0


def measure_dissimilarity(
    data: Dataset,
    problem: Problem,
    budget: Budget,
    *,
    share: float = 0.05,
    seed: int | None = None,
) -> Problem:
    """Return the problem with a dissimilarity measured privately.

    The new problem records the privacy spent (`Problem.prior_mu`): a plan for it spends
    the rest, and the devices' ledgers count both. The query costs one step and one
    upload (`query_cost`); `plan_with_query` accounts for both budgets. To measure
    again, start from the returned problem: a plan includes only the measurements of its
    own problem, and ledgers add up those of all plans.

    Args:
        data: The rows of every device.
        problem: The problem to plan for.
        budget: The budget of every device.
        share: Share of each device's privacy budget (mu squared) that the query spends.
        seed: Seed of the noise; without one, random. For simulations only.
    """
    number("share", share, above=0, below=1)
    _check_fit(data, problem)
    num_devices, sizes = data.num_devices, data.num_samples
    epsilon, delta, _ = budget.per_device(num_devices)
    remaining = GDP.mu_from_epsilon(epsilon, delta) ** 2 - problem.prior_mu**2
    mu = np.sqrt(share * np.maximum(remaining, 0))
    within("mu left to measure with", mu, above=0, remedy="raise epsilon")
    std = 2 * problem["lipschitz"] / (sizes * mu)
    gradients = np.array(
        [device_gradient(data, problem, m) for m in range(num_devices)]
    )
    noise = np.random.default_rng(seed).standard_normal(gradients.shape)
    released = gradients + std[:, None] * noise
    value = estimate(released, std)
    constant = Constant(
        value=value,
        source="measured privately",
        note=f"one noisy gradient per device, {share:.0%} of its budget",
        mu=mu,
        # Identifies the release: other noise gives another digest.
        release=sha256(released.tobytes()).hexdigest()[:16],
    )
    return problem.with_constants(dissimilarity=constant)


def _check_fit(data: Dataset, problem: Problem) -> None:
    """Raise unless the problem is for these data: the noise depends on their sizes."""
    data.check_loss(problem.model.name)
    sizes = {
        "devices": (problem.num_devices, data.num_devices),
        "columns": (problem.dim, data.dim),
        "training rows": (problem.num_samples.tolist(), data.num_samples.tolist()),
    }
    for name, (expected, actual) in sizes.items():
        if expected != actual:
            raise InvalidInputError(
                f"the problem is for {_short(expected)} {name}, the data have "
                f"{_short(actual)}: use data.problem()"
            )


def _short(value: object) -> str:
    """Show a number, or the first five of a list."""
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(str, value[:5])) + (", ..." if len(value) > 5 else "")


def query_cost(problem: Problem, prices: Prices) -> Array:
    """Return the query's cost for each device: one round of one step on all rows."""
    cost = prices.run_cost(rounds=1, tau=1, batch_size=problem.num_samples)
    return np.broadcast_to(cost, (problem.num_devices,))


def plan_with_query(
    data: Dataset,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    seed: int | None = None,
    **options: Any,
) -> tuple[Problem, Plan]:
    """Measure the dissimilarity, and plan with the rest of both budgets.

    The plan's costs include the query's, as its epsilons do. Call `charge_query` on the
    ledger of the devices that will run the plan.

    Args:
        data: The rows of every device.
        problem: The problem to plan for.
        budget: The budget of every device, for the query and the plan together.
        prices: The prices that devices pay.
        seed: Seed of the query's noise; without one, random.
        options: Further options of `plan`.

    Returns:
        The problem with the measured dissimilarity, and the plan.
    """
    query = query_cost(problem, prices)
    rest = replace(budget, cost=np.asarray(budget.cost) - query)
    problem = measure_dissimilarity(data, problem, budget, seed=seed)
    rest_plan = plan(problem, rest, prices, **options)
    return problem, replace(rest_plan, cost=rest_plan.cost + query)


def charge_query(ledger: Ledger, problem: Problem, prices: Prices) -> None:
    """Charge the cost of the query; its privacy is charged with the plan."""
    cost = query_cost(problem, prices)
    ledger.charge(Charge(steps=1, noise_multiplier=np.inf, cost=cost))


def estimate(gradients: Array, std: Array) -> float:
    """Return the spread of gradients over the length of their mean, without the noise.

    Devices are weighted by one over the variance of their noise.
    """
    w = 1 / std**2
    w = w / w.sum()
    mean = w @ gradients
    dim = gradients.shape[1]
    # Independent noise adds sum w^2 std^2 per coordinate to E |mean|^2, and
    # sum w (1 - w) std^2 to the spread.
    length = float(mean @ mean) - dim * float(np.sum(w**2 * std**2))
    spread = float(w @ np.sum((gradients - mean) ** 2, axis=1))
    spread -= dim * float(np.sum(w * (1 - w) * std**2))
    if length <= 0:  # nothing but noise: assume the largest dissimilarity
        return _MAXIMUM
    return float(np.clip(np.sqrt(max(spread, 0.0) / length), _MINIMUM, _MAXIMUM))


def device_gradient(data: Dataset, problem: Problem, m: int) -> Array:
    """Return the mean gradient of device m's rows at theta = 0, without noise."""
    x, y = data.train.device(m)
    theta = np.zeros(problem.num_params)
    gradient = data_gradient(problem.model, theta, x, y, divisor=len(y))
    return np.asarray(gradient, dtype=np.float64)
