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


def rounds_each(
    budget: Budget, prices: Prices, *, tau: int, batch_size: ArrayLike
) -> NDArray[np.int64]:
    """Return how many rounds of tau steps each device can pay for.

    One entry per device, or a single one where all are alike.

    >>> budget = Budget(epsilon=4, cost=[1000, 250, 90])
    >>> prices = Prices(communication=100, computation=1)
    >>> rounds_each(budget, prices, tau=10, batch_size=256).tolist()
    [9, 2, 0]
    """
    price = prices.run_cost(rounds=1, tau=tau, batch_size=batch_size)
    price, cost = np.broadcast_arrays(np.atleast_1d(price), floats(budget.cost))
    most = MAX_STEPS // tau
    with np.errstate(divide="ignore", over="ignore"):
        rounds = np.minimum(np.floor(cost / price), most)
    # The division may have rounded up to a whole number that does not fit.
    return np.asarray(rounds - (rounds * price > cost), dtype=np.int64)


def longest_tau(
    budget: Budget, prices: Prices, *, rounds: int, batch_size: ArrayLike
) -> int:
    """Return the largest tau of which every device can pay for so many rounds.

    Zero where they cannot pay for one step each.

    >>> budget = Budget(epsilon=4, cost=1000)
    >>> prices = Prices(communication=100, computation=1)
    >>> longest_tau(budget, prices, rounds=9, batch_size=256)
    11
    """
    left = floats(budget.cost) / rounds - floats(prices.communication)
    step = prices.step_cost(batch_size=batch_size)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(step > 0, left / step, np.where(left >= 0, np.inf, -1))
    most = MAX_STEPS // rounds
    tau = int(np.clip(ratio.min(), 0, most))
    # The division may have rounded across a whole number, up or down.
    for candidate in range(min(tau + 1, most), max(tau - 2, 0), -1):
        if max_rounds(budget, prices, tau=candidate, batch_size=batch_size) >= rounds:
            return candidate
    return 0


def affordable_pairs(
    budget: Budget, prices: Prices, *, batch_size: ArrayLike
) -> list[tuple[int, int]]:
    """Return pairs (tau, rounds) to try: all on the edge of the budget, some within.

    Raises:
        InfeasibleBudgetError: A device cannot pay for a single round of one step.
    """
    check_one_round(budget, prices, batch_size=batch_size)
    most = max_rounds(budget, prices, tau=1, batch_size=batch_size)
    spaced = np.geomspace(1, most, num=1 + int(np.log(most) / np.log(1.6)))
    pairs = []
    for rounds in sorted({*range(1, min(most, 10) + 1), *map(int, spaced), most}):
        tau = longest_tau(budget, prices, rounds=rounds, batch_size=batch_size)
        while tau >= 1:
            pairs.append((tau, rounds))
            tau = min(tau - 1, int(0.6 * tau))
    return pairs


def pairs_near(
    budget: Budget, prices: Prices, *, tau: int, rounds: int, batch_size: ArrayLike
) -> list[tuple[int, int]]:
    """Return affordable pairs around one, among them those on the budget's edge."""
    counts = {rounds + change for change in (-2, -1, 0, 1, 2)}
    counts |= {int(rounds * factor) for factor in (0.7, 0.8, 0.9, 1.1, 1.25, 1.4)}
    pairs = set()
    for count in sorted(counts):
        if count > 0:
            longest = longest_tau(budget, prices, rounds=count, batch_size=batch_size)
            taus = {longest, *np.rint(tau * np.linspace(0.7, 1.4, 9)).astype(int)}
            pairs |= {(int(near), count) for near in taus if 0 < near <= longest}
    return sorted(pairs)


def check_one_round(budget: Budget, prices: Prices, *, batch_size: ArrayLike) -> None:
    """Raise unless every device can pay for one round of one step."""
    price = prices.run_cost(rounds=1, tau=1, batch_size=batch_size)
    price, cost = np.broadcast_arrays(price, floats(budget.cost))
    short = np.atleast_1d(price > cost)
    if short.any():
        device = int(np.argmax(short))
        whose = f" of device {device}" if short.size > 1 else ""
        remedy = f", or leave out the {int(short.sum())} device(s) that cannot pay"
        raise InfeasibleBudgetError(
            f"cost budget {cost.flat[device]:g}{whose} is below the price of one round "
            f"with one step, {price.flat[device]:g}: raise the budget or lower the "
            f"prices{remedy if 0 < short.sum() < short.size else ''}"
        )
