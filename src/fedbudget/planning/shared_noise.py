"""A schedule, completed into a plan whose noise the devices share in a sum.

See `privacy.uploads` for the mechanism. The schedule is given: nothing is optimised but
the weights, which have a closed form.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import Budget, Prices, check_devices
from fedbudget.checks import Array, floats, per_device, whole, within
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning.plans import Plan, schema_of
from fedbudget.privacy import (
    GDP,
    Accountant,
    LocalSteps,
    NoisyUploads,
    Unit,
    accountant_named,
    noise_for_budget,
)
from fedbudget.privacy.uploads import check_answers
from fedbudget.problem import Problem

# A device that needs this many times the noise of the median one is named.
_DEMANDING = 2.0
# Shares are raised by this much: their rounded sum is not below what is needed.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class SumSchedule:
    """The rounds of a run whose server sees only sums of uploads."""

    tau: int  # local steps per round
    rounds: int  # uploads of every device
    learning_rate: float  # at most 2 over the loss's smoothness
    momentum: float = 0.0  # of the server
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
    check_devices(budget, prices, problem.num_devices)
    _, delta, cost = budget.per_device(problem.num_devices)
    method = accountant_named(accountant)
    run, need = _calibrated(problem, budget, schedule, method)
    sizes = np.asarray(run.steps.batch_size)
    paid = prices.run_cost(rounds=run.rounds, tau=schedule.tau, batch_size=sizes)
    _check_cost(np.broadcast_to(paid, cost.shape), cost)
    return Plan(
        tau=schedule.tau,
        rounds=schedule.rounds,
        learning_rate=schedule.learning_rate,
        momentum=schedule.momentum,
        sampling="full" if np.array_equal(sizes, problem.num_samples) else "cyclic",
        num_samples=problem.num_samples,
        batch_size=sizes,
        noise_std=np.full(problem.num_devices, run.noise_std),
        weights=floats(run.weights),
        epsilon=method.epsilon(run, delta=delta, prior_mu=problem.prior_mu),
        delta=delta,
        prior_mu=problem.prior_mu,
        prior_releases=tuple(sorted(problem.prior_releases)),
        cost=np.broadcast_to(paid, cost.shape),
        loss=problem.model.name,
        num_classes=problem.model.num_outputs,
        l2=problem.model.l2,
        dim=problem.dim,
        lipschitz=problem["lipschitz"],
        schema=schema_of(problem),
        planner="schedule",
        accountant=accountant,
        predicted_loss=0.0,
        epsilon_price=0.0,
        cost_price=0.0,
        binding=(),
        reasons=("the schedule was given", *_demanding(need)),
        trust="sum",
        unit=schedule.unit,
        least_answers=run.least_answers,
        colluders=run.colluders,
        clip=schedule.clip,
    )


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


def _calibrated(
    problem: Problem, budget: Budget, schedule: SumSchedule, accountant: Accountant
) -> tuple[NoisyUploads, Array]:
    """Return the run with the noise of the device that needs most, and all needs."""
    epsilon, delta, _ = budget.per_device(problem.num_devices)
    weights = _weights(schedule, problem, budget)
    taking_part = int((weights > 0).sum())
    least = schedule.least_answers
    least = taking_part if least is None else whole("least_answers", least)
    check_answers(least, schedule.colluders, taking_part)
    rounds = np.where(weights > 0, whole("rounds", schedule.rounds), 0)
    steps = _local_steps(problem, schedule)
    need = noise_for_budget(
        steps,
        accountant=accountant,
        weights=weights,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        prior_mu=problem.prior_mu,
    )
    if np.isinf(need).any():
        m = int(np.argmax(need))
        raise InfeasibleBudgetError(
            f"the privacy budget of device {m} was spent before the run: raise its "
            "epsilon, or set its weight to 0"
        )
    share = float(need.max()) / float(np.sqrt(least - schedule.colluders))
    run = NoisyUploads(
        steps=steps,
        weights=weights,
        rounds=rounds,
        noise_std=share * (1 + _ROUNDING),
        least_answers=least,
        colluders=schedule.colluders,
    )
    return run, need


def _local_steps(problem: Problem, schedule: SumSchedule) -> LocalSteps:
    sizes = problem.num_samples
    if schedule.batch_size is not None:
        given = within("batch_size", schedule.batch_size, least=1)
        each = per_device("batch_size", given, problem.num_devices)
        sizes = np.minimum(each, sizes).astype(np.int64)
    return LocalSteps(
        lipschitz=problem["lipschitz"],
        curvature=problem.model.curvature,
        l2=problem.model.l2,
        learning_rate=schedule.learning_rate,
        tau=schedule.tau,
        batch_size=sizes,
        blocks=problem.num_samples // sizes,
        unit=schedule.unit,
        clip=schedule.clip,
    )


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


def _check_cost(paid: Array, cost: Array) -> None:
    if (paid > cost).any():
        m = int(np.argmax(paid - cost))
        raise InfeasibleBudgetError(
            f"the schedule costs device {m} {paid[m]:g}, above its budget of "
            f"{cost[m]:g}: lower rounds or tau, or raise the budget"
        )


def _demanding(need: Array) -> tuple[str, ...]:
    """Name the device that needs most noise, if it needs far more than the others."""
    m, median = int(np.argmax(need)), float(np.median(need[need > 0]))
    if need[m] <= _DEMANDING * median:
        return ()
    return (
        f"device {m} needs {need[m] / median:.3g} times the noise of the median "
        "device, and all carry it: lower its weight, or raise its epsilon",
    )
