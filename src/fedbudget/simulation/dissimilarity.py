"""How unlike devices are, measured with noise: one small query, charged to each device.

Every device sends its mean gradient at theta = 0 with Gaussian noise: one noisy step,
whose sensitivity is 2 G / N as in training. Along every mode of the loss a gradient is
in proportion to the distance of the optimum, so that the spread of the devices' over
the length of their mean is the share by which their own optima differ from the common
one: the `dissimilarity` that planners ask for. What the noise adds to both is known,
and is taken off.
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

# What is measured stays inside of what planners know how to use.
_LEAST, _MOST = 0.02, 1.0


def measure_dissimilarity(
    data: Dataset,
    problem: Problem,
    budget: Budget,
    *,
    share: float = 0.05,
    seed: int | None = None,
) -> Problem:
    """Return the problem with a dissimilarity measured privately.

    The new problem carries what that cost (`Problem.prior_mu`): a plan for it spends
    the rest, and the devices' ledgers are told. It takes one step and one upload, which
    `query_cost` prices; `plan_with_query` sees to both. To measure again, start from
    what this returned: a plan knows only of the measurements of its own problem, and
    ledgers add up those of all plans.

    Args:
        data: The rows of every device.
        problem: To be planned for.
        budget: Of every device.
        share: Of what each may release (its mu squared) that the query takes.
        seed: Of the noise; without one, drawn afresh. A simulation's only.
    """
    number("share", share, above=0, below=1)
    _check_fit(data, problem)
    num_devices, sizes = data.num_devices, data.num_samples
    epsilon, delta, _ = budget.per_device(num_devices)
    left = GDP.mu_from_epsilon(epsilon, delta) ** 2 - problem.prior_mu**2
    mu = np.sqrt(share * np.maximum(left, 0))
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
        # The same numbers are the same release, and other noise makes others.
        release=sha256(released.tobytes()).hexdigest()[:16],
    )
    return problem.with_constants(dissimilarity=constant)


def _check_fit(data: Dataset, problem: Problem) -> None:
    """Raise unless the problem is one of these data: noise is for their sizes."""
    data.check_loss(problem.model.name)
    told = {
        "devices": (problem.num_devices, data.num_devices),
        "columns": (problem.dim, data.dim),
        "training rows": (problem.num_samples.tolist(), data.num_samples.tolist()),
    }
    for name, (planned, held) in told.items():
        if planned != held:
            raise InvalidInputError(
                f"the problem is for {_few(planned)} {name}, the data have "
                f"{_few(held)}: take data.problem()"
            )


def _few(value: object) -> str:
    """Show a number, or the first of many."""
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(str, value[:5])) + (", ..." if len(value) > 5 else "")


def query_cost(problem: Problem, prices: Prices) -> Array:
    """Return what the query costs each device: one round of one step on all rows."""
    one = prices.run_cost(rounds=1, tau=1, batch_size=problem.num_samples)
    return np.broadcast_to(one, (problem.num_devices,))


def plan_with_query(
    data: Dataset,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    seed: int | None = None,
    **how: Any,
) -> tuple[Problem, Plan]:
    """Measure the dissimilarity, and plan with what that leaves of both budgets.

    As its epsilons do, the plan's costs hold what was spent before. Devices that are to
    carry it out are told of that by `charge_query`.

    Args:
        data: The rows of every device.
        problem: To be planned for.
        budget: Of every device, for the query and the plan.
        prices: What devices pay.
        seed: Of the query's noise; without one, drawn afresh.
        how: For `plan`.

    Returns:
        The problem with what was measured, and the plan.
    """
    query = query_cost(problem, prices)
    rest = replace(budget, cost=np.asarray(budget.cost) - query)
    problem = measure_dissimilarity(data, problem, budget, seed=seed)
    chosen = plan(problem, rest, prices, **how)
    return problem, replace(chosen, cost=chosen.cost + query)


def charge_query(ledger: Ledger, problem: Problem, prices: Prices) -> None:
    """Charge the price of the query; its privacy goes with the plan."""
    cost = query_cost(problem, prices)
    ledger.charge(Charge(steps=1, noise_multiplier=np.inf, cost=cost))


def estimate(gradients: Array, std: Array) -> float:
    """Return the spread of gradients over the length of their mean, less the noise.

    Devices are weighed by what they tell: by one over the variance of their noise.
    """
    w = 1 / std**2
    w = w / w.sum()
    mean = w @ gradients
    dim = gradients.shape[1]
    # E |mean|^2 has sum w^2 std^2 too much per coordinate, and the spread
    # sum w (1 - w) std^2: independent noise.
    length = float(mean @ mean) - dim * float(np.sum(w**2 * std**2))
    spread = float(w @ np.sum((gradients - mean) ** 2, axis=1))
    spread -= dim * float(np.sum(w * (1 - w) * std**2))
    if length <= 0:  # nothing but noise: as unlike as can be told
        return _MOST
    return float(np.clip(np.sqrt(max(spread, 0.0) / length), _LEAST, _MOST))


def device_gradient(data: Dataset, problem: Problem, m: int) -> Array:
    """Return the mean gradient of device m's rows at zero, which the noise hides."""
    x, y = data.train.device(m)
    theta = np.zeros(problem.num_params)
    found = data_gradient(problem.model, theta, x, y, divisor=len(y))
    return np.asarray(found, dtype=np.float64)
