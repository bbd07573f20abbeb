"""Affordable pairs of tau and rounds."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import fedbudget as fb
from fedbudget.planning.settings import (
    MAX_STEPS,
    affordable_pairs,
    longest_tau,
    max_rounds,
)

prices_and_cost = st.tuples(
    st.floats(0, 100), st.floats(0, 10), st.floats(0.1, 5000)
).map(
    lambda drawn: (
        fb.Prices(communication=drawn[0], computation=drawn[1]),
        fb.Budget(epsilon=1, cost=drawn[2]),
    )
)


@given(case=prices_and_cost, rounds=st.integers(1, 50))
def test_the_longest_tau_is_affordable_and_the_next_is_not(
    case: tuple[fb.Prices, fb.Budget], rounds: int
) -> None:
    prices, budget = case
    tau = longest_tau(budget, prices, rounds=rounds, batch_size=1)
    if tau > 0:
        assert prices.run_cost(rounds=rounds, tau=tau, batch_size=1) <= budget.cost
        assert tau * rounds <= MAX_STEPS
    if (tau + 1) * rounds <= MAX_STEPS:
        cost = prices.run_cost(rounds=rounds, tau=tau + 1, batch_size=1)
        assert cost > np.asarray(budget.cost) * (1 - 1e-9)


@given(case=prices_and_cost)
def test_pairs_are_affordable_and_reach_both_ends(
    case: tuple[fb.Prices, fb.Budget],
) -> None:
    prices, budget = case
    try:
        pairs = affordable_pairs(budget, prices, batch_size=1)
    except fb.InfeasibleBudgetError:
        assert prices.run_cost(rounds=1, tau=1, batch_size=1) > budget.cost
        return
    for tau, rounds in pairs:
        assert rounds <= max_rounds(budget, prices, tau=tau, batch_size=1)
    assert (1, max_rounds(budget, prices, tau=1, batch_size=1)) in pairs
    assert (longest_tau(budget, prices, rounds=1, batch_size=1), 1) in pairs


def test_the_smallest_budget_limits_the_rounds() -> None:
    prices = fb.Prices(communication=[100, 200], computation=1)
    budget = fb.Budget(epsilon=1, cost=[1000, 1000])
    assert max_rounds(budget, prices, tau=10, batch_size=1) == 4


def test_an_error_names_a_device_only_where_devices_differ() -> None:
    prices = fb.Prices(communication=100, computation=1)
    with pytest.raises(fb.InfeasibleBudgetError, match="cost budget 50 is below"):
        affordable_pairs(fb.Budget(epsilon=1, cost=50), prices, batch_size=1)
    with pytest.raises(fb.InfeasibleBudgetError, match=r"of device 1 .* the 1 device"):
        affordable_pairs(fb.Budget(epsilon=1, cost=[500, 50]), prices, batch_size=1)
