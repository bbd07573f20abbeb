"""Planning again with what is left: devices drop out, prices drift, a run goes on.

What a device has spent so far counts as spent before the new run: its noise is for what
is left. That is valid although the new plan was chosen after seeing answers: Gaussian
mechanisms compose by adding mu^2 also when each is chosen after the answers of those
before, as long as the sum stays within what was fixed beforehand (fully adaptive
composition: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). The devices'
own ledgers add up all runs, and refuse what would overdraw them, whatever is planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, PerDevice, whole
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.planning import Plan, plan
from fedbudget.planning.plans import NOT_PRIVATE
from fedbudget.planning.spectral import Schedule, Spectrum, respond
from fedbudget.privacy import GDP
from fedbudget.problem import Constant, Problem
from fedbudget.record import Round
from fedbudget.training import Devices, Run, train

# A model is never so good that nothing is left to learn: the least share of the gap.
_LEAST_LEFT = 0.02


def replan(
    run: Run,
    problem: Problem,
    budget: Budget,
    prices: Prices,
    *,
    gone: Sequence[int] = (),
    **how: Any,
) -> Plan:
    """Plan the rest of a run from what its devices have left of their budgets.

    Args:
        run: What happened so far; go on with ``train(plan, devices, after=run)``.
        problem: As it was planned with.
        budget: As it was at the start: for all of it, what is spent included.
        prices: As they are now.
        gone: Devices that are not there any more; they are asked nothing.
        how: Of `plan`: planner, weights, learning_rate; not the accountant.

    Returns:
        A plan for all devices; those that are gone, or cannot pay for one more round,
        have weight zero. Its `epsilon` is for everything, what was spent included; its
        `cost` is for the rest.

    Raises:
        InfeasibleBudgetError: No device is left that can pay for a round.
    """
    _check_can_go_on(run.plan, problem, how)
    num_devices = problem.num_devices
    left = [whole("gone", m, least=0, most=num_devices - 1) for m in gone]
    spent_mu, spent_cost = _spent(run, num_devices)
    epsilon, delta, cost = budget.per_device(num_devices)
    here = _who_can_pay(run.plan, prices, cost - spent_cost)
    here &= GDP.mu_from_epsilon(epsilon, delta) * (1 - 1e-6) > spent_mu
    here[left] = False
    if not here.any():
        raise InfeasibleBudgetError(
            "no device is left that can pay for one more round: the run ends here, or "
            "raise the budgets"
        )
    rest = plan(
        _rest(problem, run, spent_mu, here),
        Budget(
            epsilon=epsilon[here], delta=delta[here], cost=(cost - spent_cost)[here]
        ),
        _only(prices, here),
        **how,
    )
    return _for_all(rest, run.plan, problem, here, spent_mu, delta)


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
    _check_can_go_on(start, problem, {})  # now, not after the first rounds are paid for
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
                break  # what was spent on silent devices is spent: the run ends here
    return runs


def _check_can_go_on(before: Plan, problem: Problem, how: Mapping[str, Any]) -> None:
    if {"accountant", "batch_size"} & set(how) or before.sampling == "poisson":
        raise InvalidInputError(
            "replan adds up Gaussian steps on all rows: it takes no accountant and no "
            "batch_size, and cannot go on from Poisson-sampled batches"
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
    """Says when a device has been silent for too long."""

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
    """Return what each device has spent, as mu and as cost; exact or too high."""
    if not run.rounds:
        return run.plan.prior_mu, np.zeros(num_devices)
    epsilon, cost = run.rounds[-1].epsilon, run.rounds[-1].cost
    if not np.isfinite(epsilon).all():
        raise InvalidInputError(
            "the run was without privacy: there is no budget left to plan with"
        )
    # The largest mu that an epsilon allows: never less than what was spent.
    # A round's epsilons are at its plan's delta.
    mu = GDP.mu_from_epsilon(np.maximum(epsilon, 1e-12), run.plan.delta) * (1 + 1e-9)
    return np.maximum(mu, run.plan.prior_mu), cost


def _who_can_pay(before: Plan, prices: Prices, left: Array) -> NDArray[np.bool_]:
    one = prices.run_cost(rounds=1, tau=1, batch_size=before.batch_size)
    return np.broadcast_to(one, left.shape) <= left


def _rest(
    problem: Problem, run: Run, spent_mu: Array, here: NDArray[np.bool_]
) -> Problem:
    """Return what is left to learn, by the devices that are still here."""
    spectrum, before = Spectrum.of(problem), run.plan
    schedule = Schedule(
        tau=np.array([float(before.tau)]),
        rounds=np.array([float(max(len(run.rounds), 1))]),
        learning_rate=np.array([before.learning_rate]),
        momentum=np.array([before.momentum]),
    )
    remaining = float(respond(spectrum, schedule, variance=1.0).remaining[0])
    left = np.clip(remaining / np.sum(spectrum.count * spectrum.gap), _LEAST_LEFT, 1)
    constants = {
        # What measuring them cost is part of what was spent.
        name: Constant(value=constant.value, source="assumed", note="measured before")
        if constant.source == "measured privately"
        else constant
        for name, constant in problem.overrides.items()
    }
    constants["learnable_share"] = Constant(
        value=problem["learnable_share"] * float(left),
        source="assumed",
        note=f"what {len(run.rounds)} rounds have left of it",
    )
    return Problem(
        num_samples=problem.num_samples[here],
        dim=problem.dim,
        loss=problem.model,
        dissimilarity=problem.dissimilarity,
        overrides=constants,
        spent_mu=spent_mu[here],
    )


def _only(prices: Prices, here: NDArray[np.bool_]) -> Prices:
    def some(value: PerDevice) -> PerDevice:
        return value[here] if isinstance(value, np.ndarray) else value

    return Prices(
        communication=some(prices.communication),
        computation=some(prices.computation),
        computation_per_sample=some(prices.computation_per_sample),
    )


def _for_all(
    rest: Plan,
    before: Plan,
    problem: Problem,
    here: NDArray[np.bool_],
    spent_mu: Array,
    delta: Array,
) -> Plan:
    """Return the plan of those still here as one for all devices."""

    def spread(values: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
        full = np.array(np.broadcast_to(others, here.shape), dtype=values.dtype)
        full[here] = values
        return full

    last = None
    if rest.last_round is not None:
        last = spread(rest.last_round, np.zeros(1, dtype=np.int64))
    spent = GDP.epsilon_from_mu(spent_mu, delta)
    return replace(
        rest,
        num_samples=problem.num_samples,
        batch_size=spread(rest.batch_size, before.batch_size),
        noise_std=spread(rest.noise_std, before.noise_std),
        weights=spread(rest.weights, np.zeros(1)),
        epsilon=spread(rest.epsilon, spent),
        delta=delta,
        # Ledgers have counted the rounds so far themselves: told again, they would
        # count them twice. Only what came before any run is told.
        prior_mu=problem.prior_mu,
        prior_releases=tuple(sorted(problem.prior_releases)),
        cost=spread(rest.cost, np.zeros(1)),
        last_round=last,
    )
