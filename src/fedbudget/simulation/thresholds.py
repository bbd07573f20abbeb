"""A decision threshold from one charged query: the share of the second class.

Every device sends the mean, over its training rows, of 1/2 - y with Gaussian noise:
the gradient of the logistic loss at theta = 0 on a single column of ones. It is charged
as any gradient, with sensitivity 2 G / N for G = 1. That is twice the true one, 1 / N:
the claim is too high, never too low. The weighted mean over the devices gives the
share of the second class, which is the threshold that balances both kinds of errors:
`data.row_weights.balanced_threshold`.
"""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number
from fedbudget.data import Dataset
from fedbudget.errors import InvalidInputError
from fedbudget.planning import Plan, plan
from fedbudget.problem import Problem
from fedbudget.simulation.dissimilarity import (
    SHARE,
    GradientRelease,
    check_query_unit,
    plan_ahead,
    query_cost,
    query_mu,
)

_LEAST, _MOST = 0.001, 0.999  # noise may carry an estimate outside


class ClassShareDevices(Protocol):
    """Devices that answer the query, each within its own budget."""

    data: Dataset

    def noisy_class_shares(self, noise_std: Array, *, cost: Array) -> GradientRelease:
        """Charge every device, then return 1/2 minus its share, with noise."""


def measure_threshold(
    devices: ClassShareDevices,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    share: float = SHARE,
) -> tuple[Problem, float]:
    """Return the problem with the query's privacy spent, and the threshold.

    Args:
        devices: The devices to ask.
        problem: The problem to plan for.
        budget: The budget of every device.
        prices: The prices that devices pay: the query costs one step and one upload.
        share: Share of each device's privacy budget (mu squared) that the query spends.

    Raises:
        InfeasibleBudgetError: A device has already spent what the query asks for.
        InvalidInputError: There are not two classes with probabilities.
    """
    number("share", share, above=0, below=1)
    check_query_unit(budget, "the threshold")
    if devices.data.num_classes != 2 or problem.model.name not in (
        "logistic",
        "softmax",
    ):
        raise InvalidInputError(
            f"a threshold is for two classes with probabilities, not for loss "
            f"{problem.model.name!r} with {devices.data.num_classes} classes: leave it "
            "out",
            argument="threshold",
        )
    sizes = problem.num_samples
    mu = query_mu(problem, budget, share)
    std = 2 / (sizes * mu)
    cost = query_cost(problem, prices)
    release = devices.noisy_class_shares(std, cost=cost)
    # The share over all rows: devices count by their rows, not by their noise.
    second = 0.5 - float(np.average(release.gradients[:, 0], weights=sizes))
    return (
        problem.with_spending(mu, release.name, cost),
        float(np.clip(second, _LEAST, _MOST)),
    )


def plan_with_threshold(
    devices: ClassShareDevices,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    **options: Any,
) -> tuple[Problem, Plan]:
    """Let the devices measure the threshold, and plan with the rest of the budgets.

    The plan's costs include the query's, as its epsilons do. Run it on the same
    devices: their ledgers have been charged for the query.
    """
    budget = budget.for_rows(problem.num_samples)
    check_query_unit(budget, "the threshold")
    mu, cost = query_mu(problem, budget, SHARE), query_cost(problem, prices)
    plan_ahead(problem, budget, prices, mu=mu, cost=cost, **options)
    problem, threshold = measure_threshold(devices, problem, budget, prices)
    return problem, replace(
        plan(problem, budget, prices, **options), threshold=threshold
    )
