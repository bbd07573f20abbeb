"""Whether non-linear features pay: a comparison of predicted losses, before any row.

Random Fourier features let the best model fit better, and have many more parameters,
each with its noise. Both sides follow from public numbers: the share of the loss that
can be learned, and the excess loss that the planner predicts.
"""

from collections.abc import Mapping
from typing import Any

from fedbudget.budget import Budget, Prices
from fedbudget.planning.planner import plan
from fedbudget.problem import Problem


def predicted_losses(
    problems: Mapping[str, Problem], budget: Budget, prices: Prices, **method: Any
) -> dict[str, float]:
    """Return the predicted loss of every feature step, best first.

    Args:
        problems: The same rows under several feature steps, by name, as
            ``Dataset.problem(features=...)`` returns them.
        budget: The budgets of the devices.
        prices: Their prices.
        **method: Other arguments of `plan`.
    """
    losses = {}
    for name, problem in problems.items():
        excess = plan(problem, budget, prices, **method).predicted_loss
        best = problem["initial_gap"] * (1 - problem["learnable_share"])
        losses[name] = best + excess
    return dict(sorted(losses.items(), key=lambda item: item[1]))
