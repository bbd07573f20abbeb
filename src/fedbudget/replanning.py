"""Plan the rest of a run again, after devices dropped out or prices changed.

The spending of a device so far counts as spent before the new run: the new noise is for
the remaining budget. This is valid although the new plan depends on earlier answers:
Gaussian mechanisms compose by adding mu^2 even if each is selected adaptively, as long
as the sum stays within a budget that was fixed in advance (fully adaptive composition:
Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). The devices' own ledgers
add up all runs and refuse orders that would overdraw them, whatever is planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices, personal_values
from fedbudget.checks import Array, PerDevice, whole
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning import Plan, plan
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.planning.spectral import Schedule, Spectrum, respond
from fedbudget.privacy import GDP
from fedbudget.problem import Constant, Problem
from fedbudget.record import Round
from fedbudget.training import Devices, Run, train

# Lower limit of the share of the gap that remains to be learned.
_MIN_REMAINING = 0.02


def replan(
    run: Run,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    gone: Sequence[int] = (),
    **options: Any,
) -> Plan:
    """Plan the rest of a run within the devices' remaining budgets.

    Args:
        run: The run so far; continue with ``train(plan, devices, after=run)``.
        problem: The problem that the run was planned with.
        budget: The total budget, including the spending so far.
        prices: The current prices.
        gone: Devices that no longer take part; they are not selected.
        options: Of `plan`: planner, weights, learning_rate; not the accountant.

    Returns:
        A plan for all devices; devices that are gone, or cannot pay for one more round,
        have weight 0. Its `epsilon` includes the spending so far; its `cost` does not.

    Raises:
        InfeasibleBudgetError: No device can pay for another round.
    """
    _check_can_continue(run.plan, problem, budget, options)
    num_devices = problem.num_devices
    excluded = [whole("gone", m, least=0, most=num_devices - 1) for m in gone]
    spent_mu, spent_cost = _spent(run, num_devices)
    budget = budget.for_rows(problem.num_samples)
    epsilon, delta, cost = budget.per_device(num_devices)
    paid = prices.for_trust(run.plan.trust)
    active = _can_pay(run.plan, paid, cost - spent_cost)
    active &= GDP.mu_from_epsilon(epsilon, delta) * (1 - 1e-6) > spent_mu
    active[excluded] = False
    if not active.any():
        raise InfeasibleBudgetError(
            "no device is left that can pay for one more round: end the run, or raise "
            "the budgets"
        )
    if active.sum() < (budget.least_answers or 1):
        raise InfeasibleBudgetError(
            f"{int(active.sum())} devices are left, below least_answers "
            f"{budget.least_answers}: no sum could be seen; end the run, or lower it"
        )
    rest = plan(
        _rest(problem, run, spent_mu, active),
        replace(
            budget,
            epsilon=epsilon[active],
            delta=delta[active],
            cost=(cost - spent_cost)[active],
        ),
        _prices_of(prices, active),
        **options,
    )
    return _for_all(rest, run.plan, problem, active, spent_mu, delta)


def train_replanning(
    start: Plan,
    devices: Devices,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    patience: int = 2,
) -> list[Run]:
    """Train, and plan again whenever a device has been silent for `patience` rounds.

    Returns:
        The runs, one per plan; the last one's model is the released one.
    """
    _check_can_continue(
        start, problem, budget, {}
    )  # before the first rounds are paid for
    runs: list[Run] = []
    gone: set[int] = set()
    current: Plan | None = start
    while current is not None:
        watch = _Watch(patience, gone)
        after = runs[-1] if runs else None
        runs.append(train(current, devices, after=after, stop=watch))
        current = None
        if watch.lost and len(runs[-1].rounds) < runs[-1].plan.rounds:
            gone |= watch.lost
            try:
                current = replan(runs[-1], problem, budget, prices, gone=sorted(gone))
            except InfeasibleBudgetError:
                break  # no device can pay for another round: the run ends
    return runs


def _check_can_continue(
    before: Plan, problem: Problem, budget: Budget, options: Mapping[str, Any]
) -> None:
    if {"accountant", "batch_size"} & set(options) or before.sampling == "poisson":
        raise InvalidInputError(
            "replan adds up Gaussian steps on all rows: it takes no accountant and no "
            "batch_size, and cannot continue from Poisson-sampled batches"
        )
    if (before.trust, before.unit) != (budget.trust, budget.unit):
        raise InvalidInputError(
            f"the run has trust {before.trust!r} and unit {before.unit!r}, the budget "
            f"{budget.trust!r} and {budget.unit!r}: give the budget that the run was "
            "planned with"
        )
    lacks = before.scope.lacks(budget.scope)
    if lacks:
        raise InvalidInputError(
            f"the releases of the run so far {lacks}: give the budget that the run was "
            "planned with",
            argument="colluders",
        )
    if before.accountant == NOT_PRIVATE:
        raise InvalidInputError(
            "the run was without privacy: there is no budget left to plan with"
        )
    same = before.dim == problem.dim and before.model == problem.model
    if not same or not np.array_equal(before.num_samples, problem.num_samples):
        raise InvalidInputError(
            f"the problem is for {problem.num_devices} devices with "
            f"{int(problem.num_samples.sum())} samples of {problem.dim} columns and "
            f"loss {problem.model.name!r}, the plan for {before.num_devices} with "
            f"{int(before.num_samples.sum())} of {before.dim} and {before.loss!r}: "
            "give the problem that the run was planned with"
        )


class _Watch:
    """Stops a run once a device has been silent for `patience` rounds."""

    def __init__(self, patience: int, gone: set[int]) -> None:
        self.patience, self.gone = patience, gone
        self.silence: dict[int, int] = {}
        self.lost: set[int] = set()

    def __call__(self, latest: Round) -> bool:
        now = set(latest.silent) - self.gone
        self.silence = {m: self.silence.get(m, 0) + 1 for m in now}
        self.lost = {m for m, count in self.silence.items() if count >= self.patience}
        return bool(self.lost)


def _spent(run: Run, num_devices: int) -> tuple[Array, Array]:
    """Return the spending of each device, as mu and as cost; exact or too high."""
    if not run.rounds:
        prior = run.plan.prior_cost
        return run.plan.prior_mu, np.zeros(num_devices) if prior is None else prior
    epsilon, cost = run.rounds[-1].epsilon, run.rounds[-1].cost
    if not np.isfinite(epsilon).all():
        raise InvalidInputError(
            "the run was without privacy: there is no budget left to plan with"
        )
    # The largest mu that an epsilon allows: never less than the true mu.
    # A round's epsilons are at its plan's delta.
    mu = GDP.mu_from_epsilon(np.maximum(epsilon, 1e-12), run.plan.delta) * (1 + 1e-9)
    return np.maximum(mu, run.plan.prior_mu), cost


def _can_pay(before: Plan, prices: Prices, remaining: Array) -> NDArray[np.bool_]:
    cost = prices.run_cost(rounds=1, tau=1, batch_size=before.batch_size)
    return np.broadcast_to(cost, remaining.shape) <= remaining


def _rest(
    problem: Problem, run: Run, spent_mu: Array, active: NDArray[np.bool_]
) -> Problem:
    """Return the remaining problem of the active devices."""
    spectrum, before = Spectrum.of(problem), run.plan
    schedule = Schedule(
        tau=np.array([float(before.tau)]),
        rounds=np.array([float(max(len(run.rounds), 1))]),
        learning_rate=np.array([before.learning_rate]),
        momentum=np.array([before.momentum]),
        server_rate=np.array([before.server_rate]),
    )
    remaining = float(respond(spectrum, schedule, variance=1.0).remaining[0])
    share = np.clip(remaining / spectrum.learnable, _MIN_REMAINING, 1)
    constants = {
        # The privacy cost of measuring them is part of spent_mu.
        name: Constant(value=constant.value, source="assumed", note="measured before")
        if constant.source == "measured privately"
        else constant
        for name, constant in problem.overrides.items()
    }
    constants["learnable_share"] = Constant(
        value=problem["learnable_share"] * float(share),
        source="assumed",
        note=f"remaining after {len(run.rounds)} rounds",
    )
    return Problem(
        num_samples=problem.num_samples[active],
        dim=problem.dim,
        loss=problem.model,
        dissimilarity=problem.dissimilarity,
        overrides=constants,
        spent_mu=spent_mu[active],
        modes=problem.modes,
        schema=problem.schema,
    )


def _prices_of(prices: Prices, active: NDArray[np.bool_]) -> Prices:
    def subset(value: PerDevice) -> PerDevice:
        return value[active] if isinstance(value, np.ndarray) else value

    values = personal_values(prices)
    return Prices(**{name: subset(value) for name, value in values.items()})


def _for_all(
    rest: Plan,
    before: Plan,
    problem: Problem,
    active: NDArray[np.bool_],
    spent_mu: Array,
    delta: Array,
) -> Plan:
    """Extend the plan of the active devices to all devices."""

    def spread(values: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
        full = np.array(np.broadcast_to(others, active.shape), dtype=values.dtype)
        full[active] = values
        return full

    is_full, last = rest.sampling == "full", None
    if rest.last_round is not None:
        last = spread(rest.last_round, np.zeros(1, dtype=np.int64))
    spent = GDP.epsilon_from_mu(spent_mu, delta)
    # Every device of a sum has the same share, also one that adds nothing to it.
    others = rest.noise_std[:1] if rest.trust == "sum" else before.noise_std
    return replace(
        rest,
        num_samples=problem.num_samples,
        batch_size=spread(
            rest.batch_size, problem.num_samples if is_full else before.batch_size
        ),
        noise_std=spread(rest.noise_std, others),
        weights=spread(rest.weights, np.zeros(1)),
        epsilon=spread(rest.epsilon, spent),
        delta=delta,
        # The ledgers have already charged the rounds so far. Only the spending before
        # any run is sent, or they would count the rounds twice.
        prior_mu=problem.prior_mu,
        prior_releases=tuple(sorted(problem.prior_releases)),
        prior_cost=problem.prior_cost,
        cost=spread(rest.cost, np.zeros(1)) + problem.prior_cost,
        last_round=last,
    )
