"""Budgets and prices."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedbudget.budget import Budget, Prices, planned_delta
from fedbudget.errors import InvalidInputError
from fedbudget.privacy.runs import weak_guarantees


@pytest.mark.parametrize("field", ["epsilon", "delta", "cost"])
@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, "four", None, [1, [2]], []])
def test_invalid_budgets_are_refused(field: str, value: object) -> None:
    good: dict[str, object] = {"epsilon": 1.0, "delta": 1e-4, "cost": 100.0}
    if (field, value) == ("delta", None):
        return  # to be planned
    with pytest.raises(InvalidInputError, match=field):
        Budget(**{**good, field: value})  # type: ignore[arg-type]


def test_delta_must_be_below_one() -> None:
    with pytest.raises(InvalidInputError, match="below 1 and finite, got 1: use less"):
        Budget(epsilon=1.0, delta=1.0, cost=1.0)


def test_an_error_names_the_device() -> None:
    with pytest.raises(InvalidInputError, match="got -2 for device 1"):
        Budget(epsilon=[1.0, -2.0], cost=1.0)


def test_lists_must_have_one_length() -> None:
    with pytest.raises(InvalidInputError, match="2 and 3 entries"):
        Budget(epsilon=[1.0, 2.0], cost=[1.0, 2.0, 3.0])


def test_one_number_stands_for_all_devices() -> None:
    epsilon, delta, cost = Budget(epsilon=[1, 2], delta=1e-4, cost=5).per_device(2)
    assert epsilon.tolist() == [1, 2]
    assert delta.tolist() == [1e-4, 1e-4]
    assert cost.tolist() == [5, 5]
    with pytest.raises(InvalidInputError, match="2 values but there are 3 devices"):
        Budget(epsilon=[1, 2], cost=5).for_rows(9).per_device(3)


@pytest.mark.parametrize(
    ("num_samples", "delta"),
    [
        (1, 1e-4),
        ([51, 1000], 1e-4),  # 1 / (10 n) itself
        (1001, 9e-5),
        ([51, 1628], 6e-5),
        (8400, 1e-5),
        (10_000, 1e-5),
        (10_001, 9e-6),
        (2**53, 1e-17),
    ],
)
def test_a_delta_that_is_not_given_is_planned(num_samples: Any, delta: float) -> None:
    budget = Budget(epsilon=4, cost=5)
    assert budget.for_rows(num_samples).delta == delta
    given = Budget(epsilon=4, delta=[0.1, 0.2], cost=5)
    assert given.for_rows(num_samples) is given


@given(st.integers(1, 2**53))
def test_a_planned_delta_is_a_tenth_of_one_over_the_rows(rows: int) -> None:
    exact = Fraction(str(planned_delta(rows)))
    assert exact <= Fraction(1, 10 * rows)
    # Rounded down to one digit, which loses at most half of it.
    assert 2 * exact > min(Fraction(1, 10 * rows), Fraction(1, 10**4))
    weak = weak_guarantees(
        np.ones(1), np.array([planned_delta(rows)]), np.array([rows])
    )
    assert list(weak) == []


def test_a_delta_without_rows_to_plan_it_from_is_asked_for() -> None:
    with pytest.raises(InvalidInputError, match=r"delta is not given, .*for_rows"):
        Budget(epsilon=4, cost=5).per_device(2)


@pytest.mark.parametrize("value", [-1, np.nan, np.inf, "x"])
def test_prices_are_zero_or_more(value: object) -> None:
    with pytest.raises(InvalidInputError, match="communication"):
        Prices(communication=value, computation=1)  # type: ignore[arg-type]


def test_cost_is_the_papers() -> None:
    # By hand: C = c1 K / tau + c2 K = 100 * 60 / 10 + 1 * 60
    prices = Prices(communication=100, computation=1)
    assert float(prices.run_cost(rounds=6, tau=10, batch_size=1)) == 660


def test_samples_can_have_a_price() -> None:
    prices = Prices(
        communication=[10, 20],
        computation=1,
        computation_per_sample=0.5,
    )
    cost = prices.run_cost(rounds=2, tau=3, batch_size=np.array([4, 8]))
    assert cost.tolist() == [2 * (10 + 3 * 3), 2 * (20 + 3 * 5)]


@given(
    cost=st.floats(1e-3, 1e9),
    communication=st.floats(0, 1e3),
    computation=st.floats(1e-3, 1e3),
    tau=st.integers(1, 1000),
)
def test_max_rounds_is_the_largest_affordable(
    cost: float, communication: float, computation: float, tau: int
) -> None:
    prices = Prices(communication=communication, computation=computation)
    rounds = prices.max_rounds(cost, tau=tau, batch_size=1)
    assert prices.run_cost(rounds=rounds, tau=tau, batch_size=1) <= cost
    assert prices.run_cost(rounds=rounds + 1, tau=tau, batch_size=1) > cost * (1 - 1e-9)


def test_free_rounds_have_no_limit() -> None:
    prices = Prices(communication=0, computation=0)
    assert prices.max_rounds(1.0, tau=1, batch_size=1) == np.inf


@pytest.mark.parametrize("epsilon", ["5", ["5", "6"], [None, "5"], True, b"5"])
def test_text_and_booleans_are_not_numbers(epsilon: Any) -> None:
    with pytest.raises(InvalidInputError, match="epsilon must be a number"):
        Budget(epsilon=epsilon, cost=1000)
