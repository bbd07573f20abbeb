"""A schedule, completed into a plan whose noise the devices share in a sum.

See `privacy.uploads` for the mechanism. The schedule is given: nothing is optimised but
the weights, which have a closed form. `plan` chooses the schedule, too.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import Budget, Prices, check_devices
from fedbudget.checks import Array, floats, per_device, whole, within
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning.plans import Plan
from fedbudget.planning.settings import Choice, DualPrices, Setting, complete, rest_of
from fedbudget.privacy import GDP, Unit, accountant_named
from fedbudget.problem import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class SumSchedule:
    """The rounds of a run whose server sees only sums of uploads."""

    tau: int  # local steps per round
    rounds: int  # uploads of every device
    learning_rate: float  # at most 2 over the loss's smoothness
    momentum: float = 0.0  # of the server
    server_rate: float = 1.0  # a factor of a round's averaged move, on the server
    # t: a sum of fewer answers is never seen. None: all devices, which needs the least
    # noise and tolerates no lost answer.
    least_answers: int | None = None
    colluders: int = 0  # c: devices that may be on the server's side
    unit: Unit = "sample"
    weights: ArrayLike | None = None  # None: `least_noise_weights`
    # Rows of disjoint batches that the steps take in turn, at most all of a device.
    # None: all rows in every step.
    batch_size: ArrayLike | None = None
    clip: float | None = None  # largest norm of a device's move in a round


def shared_noise_plan(
    problem: Problem,
    budget: Budget,
    prices: Prices,
    schedule: SumSchedule,
    *,
    accountant: str = "gdp",
) -> Plan:
    """Return the plan of a schedule: the noise that all budgets need, and the costs.

    Raises:
        InfeasibleBudgetError: A budget does not pay for the schedule.
        InvalidInputError: A value is invalid, or the loss is not smooth.
    """
    budget = replace(
        budget.for_rows(problem.num_samples),
        trust="sum",
        unit=schedule.unit,
        least_answers=schedule.least_answers,
        colluders=schedule.colluders,
    )
    check_devices(budget, prices, problem.num_devices)
    budget = rest_of(budget, problem)
    setting = Setting(
        problem=problem,
        budget=budget,
        prices=prices.for_trust("sum"),
        accountant=accountant_named(accountant),
        unit_multiplier=np.ones(1),  # of noise per step: there is none
    )
    choice = Choice(
        tau=whole("tau", schedule.tau),
        rounds=whole("rounds", schedule.rounds),
        learning_rate=schedule.learning_rate,
        momentum=schedule.momentum,
        server_rate=schedule.server_rate,
        batch_size=_batch_size(problem, schedule),
        weights=_weights(schedule, problem, budget),
        predicted_loss=0.0,
        clip=schedule.clip,
    )
    _check_cost(setting, choice)
    given = DualPrices(
        epsilon_price=0.0, cost_price=0.0, binding=(), reason="the schedule was given"
    )
    return complete(setting, choice, given, planner="schedule")


def least_noise_weights(
    num_samples: NDArray[np.int64], mu: ArrayLike, unit: Unit
) -> Array:
    """Return the weights whose sum needs the least noise for the samples it uses.

    The noise is that of the device with the largest p_m s_m / mu_m. With p_m in
    proportion to X_m mu_m (or mu_m, for the device as the unit) all are equal: no
    device's budget is left unspent.
    """
    used = np.ones(len(num_samples)) if unit == "device" else floats(num_samples)
    capacity = floats(mu) * used
    return np.asarray(capacity / capacity.sum())


def _batch_size(problem: Problem, schedule: SumSchedule) -> NDArray[np.int64]:
    sizes = problem.num_samples
    if schedule.batch_size is None:
        return sizes
    given = within("batch_size", schedule.batch_size, least=1)
    each = per_device("batch_size", given, problem.num_devices)
    return np.asarray(np.minimum(each, sizes), dtype=np.int64)


def _weights(schedule: SumSchedule, problem: Problem, budget: Budget) -> Array:
    epsilon, delta, _ = budget.per_device(problem.num_devices)
    if schedule.weights is None:
        total = GDP.mu_from_epsilon(epsilon, delta) ** 2
        mu = np.sqrt(np.maximum(total - problem.prior_mu**2, 0.0))
        if not mu.any():
            raise InfeasibleBudgetError(
                "the privacy budget of every device was spent before the run: raise "
                "epsilon"
            )
        return least_noise_weights(problem.num_samples, mu, schedule.unit)
    checked = within("weights", schedule.weights, least=0)
    weights = per_device("weights", checked, problem.num_devices)
    if not weights.any():
        raise InvalidInputError("weights are all 0: give at least one device a weight")
    return np.asarray(weights / weights.sum())


def _check_cost(setting: Setting, choice: Choice) -> None:
    _, _, cost = setting.budget.per_device(setting.problem.num_devices)
    rounds = np.where(choice.weights > 0, choice.rounds, 0)
    paid = setting.prices.run_cost(
        rounds=rounds, tau=choice.tau, batch_size=choice.batch_size
    )
    if (paid > cost).any():
        m = int(np.argmax(paid - cost))
        raise InfeasibleBudgetError(
            f"the schedule costs device {m} {paid[m]:g}, above its budget of "
            f"{cost[m]:g}: lower rounds or tau, or raise the budget"
        )
