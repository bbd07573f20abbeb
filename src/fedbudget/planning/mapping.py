"""The predicted loss over many budgets at once: for a map, not for a plan.

How a schedule responds depends on neither budget: it is followed once for each cost,
and serves all epsilons. Rates and momenta are a coarse grid that no search refines, so
that the map is a little above what the joint planner finds.
"""

import numpy as np

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array
from fedbudget.planning.affordable import affordable_pairs, longest_tau, max_rounds
from fedbudget.planning.scoring import (
    candidates_of,
    combinations,
    predicted_parts,
    stable_rate,
)
from fedbudget.planning.settings import Setting, unit_multiplier
from fedbudget.planning.spectral import Spectrum, respond
from fedbudget.privacy import accountant_named
from fedbudget.problem import Counts, Problem

_RATES = np.geomspace(0.04, 1, 6)  # shares of the largest stable one
_MOMENTA = np.array([0.0, 0.4, 0.6, 0.75, 0.82, 0.9])


def predicted_losses(
    problem: Problem, prices: Prices, *, epsilons: Array, costs: Array, delta: float
) -> Array:
    """Return the predicted loss of the best full-batch plan; shape (E, C).

    Raises:
        InfeasibleBudgetError: A cost does not pay for a single round.

    >>> found = predicted_losses(
    ...     Problem(num_samples=[1628] * 16, dim=102),
    ...     Prices(communication=100, computation=1),
    ...     epsilons=np.array([1.0, 4.0]), costs=np.array([200.0, 1000.0]), delta=1e-4)
    >>> bool((np.diff(found, axis=0) < 0).all() and (np.diff(found, axis=1) < 0).all())
    True
    """
    accountant, spectrum = accountant_named("gdp"), Spectrum.of(problem)
    batch = problem.num_samples
    settings = [
        Setting(
            problem=problem,
            budget=(budget := Budget(epsilon=epsilon, delta=delta, cost=costs[0])),
            prices=prices,
            accountant=accountant,
            unit_multiplier=unit_multiplier(problem, budget, accountant),
        )
        for epsilon in epsilons
    ]
    options = [candidates_of(setting, batch) for setting in settings]
    rates = _RATES * stable_rate(settings[0], spectrum)
    loss = np.empty((len(epsilons), len(costs)))
    for j, cost in enumerate(costs):
        budget = Budget(epsilon=epsilons[0], delta=delta, cost=cost)
        schedule = combinations(_pairs(budget, prices, batch), rates, _MOMENTA)
        response = respond(spectrum, schedule, variance=problem["gradient_variance"])
        for i, option in enumerate(options):
            parts, _ = predicted_parts(settings[i], schedule, response, option)
            loss[i, j] = np.nanmin(np.sum(list(parts.values()), axis=0))
    # A larger budget allows all that a smaller one does, but the pairs tried differ.
    return np.minimum.accumulate(np.minimum.accumulate(loss, axis=0), axis=1)


def _pairs(budget: Budget, prices: Prices, batch: Counts) -> list[tuple[int, int]]:
    """Return the pairs of a search's first pass, and more on the budget's edge."""
    first = affordable_pairs(budget, prices, batch_size=batch)
    most = max_rounds(budget, prices, tau=1, batch_size=batch)
    counts = np.unique(
        np.geomspace(1, most, num=1 + int(np.log(most) / 0.1)).astype(int)
    )
    edge = {
        (longest_tau(budget, prices, rounds=count, batch_size=batch), count)
        for count in counts.tolist()
    }
    return sorted(edge | set(first))
