"""Measure privately how heterogeneous (unlike) the devices are: one charged query.

Every device sends its mean gradient at theta = 0 with Gaussian noise: one noisy step,
with sensitivity 2 G / N as in training. Along every mode of the loss a gradient is
proportional to the distance to the optimum. So the spread of the devices' gradients,
divided by the length of their mean, estimates how much their own optima differ from
the common one: the `dissimilarity` that planners use. The known contribution of the
noise is subtracted from both.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from fedbudget.algorithm import data_gradient
from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, number, within
from fedbudget.data import Dataset, Part
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Loss
from fedbudget.planning import Plan, plan
from fedbudget.privacy import GDP
from fedbudget.problem import Constant, Problem

SHARE = 0.05  # of each device's privacy budget (mu squared) that the query spends

# Estimates are clipped to the range that planners can use.
_MINIMUM, _MAXIMUM = 0.02, 1.0


class GradientRelease(NamedTuple):
    """One noisy gradient of every device, and the name that ledgers know it by."""

    name: str
    gradients: Array  # shape (M, d)


class QueriedDevices(Protocol):
    """Devices that answer the query, each within its own budget."""

    data: Dataset

    def noisy_gradients(
        self, loss: Loss, noise_std: Array, *, cost: Array
    ) -> GradientRelease:
        """Charge every device, then return its mean gradient at theta = 0 with noise.

        An implementation

        1.  gives the release a name that no other release has, before it reads a row;
        2.  charges it by that name (`Ledger.charge_release`) to every device: one step
            on all N rows with noise multiplier noise_std N / G, and the cost, at its
            own prices if it has some; if a device cannot pay, it raises, and reads no
            row;
        3.  returns mean gradients over all training rows plus independent Gaussian
            noise of this standard deviation per coordinate, which is used nowhere else.
            Simulated devices draw it from their seed. A release computes one step of
            its exact path (tau = 1, all rows, learning rate 1 from theta = 0, and no
            L2 term): the gradient is minus the answer.

        Args:
            loss: The loss of the problem.
            noise_std: Per coordinate of a mean gradient; shape (M,).
            cost: Of the query, for devices without prices; shape (M,).

        Raises:
            InfeasibleBudgetError: A device cannot pay.
        """


def measure_dissimilarity(
    devices: QueriedDevices,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    share: float = SHARE,
) -> Problem:
    """Return the problem with a dissimilarity that the devices measure privately.

    Every device charges the query to its ledger, privacy and cost, before it reads a
    row, and refuses if that would overdraw its budget. The new problem records the
    privacy and the cost spent (`Problem.prior_mu`, `Problem.prior_cost`): a plan for it
    spends the rest, and ledgers that were charged already count the release once, by
    its name. To measure again, start from the returned problem: a plan
    includes only the measurements of its own problem, and ledgers add up those of all.

    Args:
        devices: The devices to ask.
        problem: The problem to plan for.
        budget: The budget of every device.
        prices: The prices that devices pay: the query costs one step and one upload.
        share: Share of each device's privacy budget (mu squared) that the query spends.

    Raises:
        InfeasibleBudgetError: A device has already spent what the query asks for.
        InvalidInputError: The problem is for other data, or epsilon for whole devices.
    """
    number("share", share, above=0, below=1)
    check_query_unit(budget, "the dissimilarity")
    _check_fit(devices.data, problem)
    sizes = problem.num_samples
    mu = query_mu(problem, budget, share)
    std = 2 * problem["lipschitz"] / (sizes * mu)
    cost = query_cost(problem, prices)
    release = devices.noisy_gradients(problem.model, std, cost=cost)
    constant = Constant(
        value=estimate(release.gradients, std),
        source="measured privately",
        note=f"one noisy gradient per device, {share:.0%} of its budget",
        mu=mu,
        release=release.name,
    )
    measured = problem.with_constants(dissimilarity=constant)
    return measured.with_spending(0.0, release.name, cost)


def check_query_unit(budget: Budget | None, value: str = "the value") -> None:
    """Raise if epsilon is for whole devices: a query's noise protects one sample."""
    if budget is not None and budget.unit == "device":
        raise InvalidInputError(
            "a measurement protects one sample, and epsilon is for unit 'device': "
            f"state {value} instead of measuring it",
            argument="unit",
        )


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


def query_mu(problem: Problem, budget: Budget, share: float) -> Array:
    """Return the mu of a query: this share of the mu squared that is left."""
    budget = budget.for_rows(problem.num_samples)
    epsilon, delta, _ = budget.per_device(problem.num_devices)
    remaining = GDP.mu_from_epsilon(epsilon, delta) ** 2 - problem.prior_mu**2
    mu = np.sqrt(share * np.maximum(remaining, 0))
    within("mu left to measure with", mu, above=0, remedy="raise epsilon")
    return np.asarray(mu)


def plan_ahead(
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    mu: Array,
    cost: Array,
    **options: Any,
) -> Plan:
    """Return a plan as if a query of this mu and cost had been answered.

    Whatever `plan` refuses after the query, it refuses here, before anything is
    charged: that follows from public values, not from the answer.
    """
    spent = problem.with_spending(mu, "the query to come", cost)
    return plan(spent, budget, prices, **options)


def plan_with_query(
    devices: QueriedDevices,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    **options: Any,
) -> tuple[Problem, Plan]:
    """Let the devices measure the dissimilarity, and plan with the rest of the budgets.

    The plan's costs include the query's, as its epsilons do. Run it on the same
    devices: their ledgers have been charged for the query.

    Args:
        devices: The devices to ask.
        problem: The problem to plan for.
        budget: The budget of every device, for the query and the plan together.
        prices: The prices that devices pay.
        options: Further options of `plan`.

    Returns:
        The problem with the measured dissimilarity, and the plan.

    Raises:
        InfeasibleBudgetError: The budgets do not pay for the query and one round;
            nothing is charged. The same holds for options that `plan` refuses.
    """
    budget = budget.for_rows(problem.num_samples)
    check_query_unit(budget, "the dissimilarity")
    mu, cost = query_mu(problem, budget, SHARE), query_cost(problem, prices)
    plan_ahead(problem, budget, prices, mu=mu, cost=cost, **options)
    problem = measure_dissimilarity(devices, problem, budget, prices)
    return problem, plan(problem, budget, prices, **options)


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


def device_gradient(part: Part, loss: Loss, m: int) -> Array:
    """Return the mean gradient of device m's rows at theta = 0, without noise."""
    x, y = part.device(m)
    theta = np.zeros(loss.num_params(x.shape[1]))
    gradient = data_gradient(loss, theta, x, y, divisor=len(y))
    return np.asarray(gradient, dtype=np.float64)
