"""Which pairs of tau and rounds every device can pay for, before any is scored."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.budget import Budget, Prices
from fedbudget.checks import floats
from fedbudget.errors import InfeasibleBudgetError

# Where a step or a round is free, a search still has to end. Progress and noise depend
# on learning rate times steps: beyond this many steps nothing more is gained.
MAX_STEPS = 20_000


def max_rounds(
    budget: Budget, prices: Prices, *, tau: int, batch_size: ArrayLike
) -> int:
    """Return how many rounds of tau steps every device can pay for.

    >>> budget = Budget(epsilon=4, cost=1000)
    >>> prices = Prices(communication=100, computation=1)
    >>> max_rounds(budget, prices, tau=10, batch_size=256)
    9
    """
    rounds = prices.max_rounds(budget.cost, tau=tau, batch_size=batch_size)
    return int(min(rounds, MAX_STEPS // tau))


def tau_grid(budget: Budget, prices: Prices, *, batch_size: ArrayLike) -> list[int]:
    """Return values of tau to try: small ones, then a quarter apart.

    Raises:
        InfeasibleBudgetError: A device cannot pay for a single round of one step.
    """
    check_one_round(budget, prices, batch_size=batch_size)
    longest = _longest_tau(budget, prices, batch_size=batch_size)
    spaced = np.geomspace(1, longest, num=2 + int(np.log(longest) / np.log(1.25)))
    return sorted({*map(int, spaced), longest})


def _longest_tau(budget: Budget, prices: Prices, *, batch_size: ArrayLike) -> int:
    """Return the largest tau that leaves every device one round."""
    left = floats(budget.cost) - floats(prices.communication)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = left / prices.step_cost(batch_size=batch_size)
    longest = int(np.nanmin(np.minimum(ratio, MAX_STEPS)))
    # The division may have rounded across a whole number, up or down.
    longest += max_rounds(budget, prices, tau=longest + 1, batch_size=batch_size) > 0
    pays = max_rounds(budget, prices, tau=longest, batch_size=batch_size) > 0
    return max(1, min(longest if pays else longest - 1, MAX_STEPS))


def rounds_grid(most: int) -> NDArray[np.int64]:
    """Return numbers of rounds to try, from one up to all that are affordable."""
    shares = np.array([1.0, 0.7, 0.5, 0.25, 0.1, 0.01])
    return np.unique(np.maximum(1, np.floor(most * shares)).astype(np.int64))


def check_one_round(budget: Budget, prices: Prices, *, batch_size: ArrayLike) -> None:
    """Raise unless every device can pay for one round of one step."""
    price = prices.run_cost(rounds=1, tau=1, batch_size=batch_size)
    price, cost = np.broadcast_arrays(np.atleast_1d(price), floats(budget.cost))
    short = price > cost
    if short.any():
        device = int(np.argmax(short))
        raise InfeasibleBudgetError(
            f"cost budget {cost[device]:g} of device {device} is below the price of "
            f"one round with one step, {price[device]:g}: raise the budget, lower the "
            f"prices, or leave out the {int(short.sum())} device(s) that cannot pay"
        )
