"""Noise that falls from round to round, and what it costs."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from fedbudget.budget import Budget, Prices
from fedbudget.errors import InvalidInputError
from fedbudget.planning import Plan, plan
from fedbudget.planning.plans import is_same_plan
from fedbudget.privacy import first_factor, noise_factors
from fedbudget.problem import Problem

CONSTANT = plan(
    Problem(num_samples=[300, 500], dim=20, loss="logistic"),
    Budget(epsilon=2.0, delta=1e-5, cost=2000),
    Prices(communication=100, computation=1),
    noise_schedule=False,
)


def falling(decay: float = 0.9, rounds: int = 12, **changes: Any) -> Plan:
    """Return a plan of this many rounds, with the epsilon of the constant one."""
    noise = CONSTANT.noise_std * np.sqrt(rounds / CONSTANT.rounds)
    return replace(
        CONSTANT, rounds=rounds, noise_std=noise, noise_decay=decay, **changes
    )


def test_the_factors_of_two_rounds_by_hand() -> None:
    # 1 / f^2 = 2/5 and 8/5: their sum is 2
    assert noise_factors(0.5, 2) == pytest.approx([2.5**0.5, 2.5**0.5 / 2])


@pytest.mark.parametrize(
    ("decay", "rounds"),
    [(1e-5, 2), (0.3, 1), (0.3, 7), (0.9, 2), (0.95, 200), (1 - 1e-12, 200), (1.0, 7)],
)
def test_falling_noise_costs_as_much_as_constant_noise(
    decay: float, rounds: int
) -> None:
    costs = [1 / Fraction(f) ** 2 for f in noise_factors(decay, rounds).tolist()]
    total = sum(costs)
    # Exact arithmetic: never more than constant noise, and less by rounding only.
    assert total <= rounds
    assert float(total) == pytest.approx(rounds, rel=1e-11)
    for stop in range(1, rounds + 1):  # a device that stops early
        assert sum(costs[:stop]) <= stop


def test_the_factors_fall_by_the_decay() -> None:
    factors = falling(0.8, 6).noise_factors
    assert factors[1:] / factors[:-1] == pytest.approx([0.8] * 5)
    assert factors[0] == first_factor(0.8, 6)
    with pytest.raises(ValueError, match="read-only"):
        factors[0] = 0.0


def test_constant_noise_is_unchanged_to_the_last_bit() -> None:
    assert (CONSTANT.noise_factors == 1.0).all()
    assert all(CONSTANT.noise_std_of(r) is CONSTANT.noise_std for r in (1, 2))


def test_google_composes_the_rounds_to_the_plans_epsilon() -> None:
    example = falling()
    events = [
        dp_accounting.GaussianDpEvent(float(z))
        # Google's sensitivity is 1; replacing a row moves a sum by 2 G.
        for number in range(1, example.rounds + 1)
        for z in example.noise_std_of(number)[:1] * example.batch_size[0] / 2
    ]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for event in events:
        accountant.compose(event, example.tau)
    google = accountant.get_epsilon(float(example.delta[0]))
    assert google == pytest.approx(float(example.epsilon[0]), rel=2e-3)
    assert example.epsilon[0] <= google * (1 + 1e-9)  # ours is exact, Google's rounds


def test_the_plans_promise_holds_with_falling_noise() -> None:
    falling().check_promise()
    weaker = falling()
    weak = replace(weaker, noise_std=weaker.noise_std * 0.999)
    with pytest.raises(InvalidInputError, match="would spend epsilon"):
        weak.check_promise()


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.0001, np.nan, np.inf, "0.9", None])
def test_a_decay_outside_0_to_1_is_refused(decay: Any) -> None:
    with pytest.raises(InvalidInputError, match="noise_decay"):
        replace(CONSTANT, noise_decay=decay)


def test_noise_that_falls_too_far_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fall below 1e-06 of the first"):
        falling(0.5, 30)


@pytest.mark.parametrize("sampling", ["cyclic", "poisson"])
def test_falling_noise_is_refused_where_it_is_not_accounted_for(sampling: str) -> None:
    sizes = CONSTANT.num_samples // 4
    with pytest.raises(InvalidInputError, match="accounted for with constant noise"):
        falling(sampling=sampling, batch_size=sizes)


def test_a_plan_of_an_earlier_version_has_constant_noise() -> None:
    plain = CONSTANT.to_dict()
    old = {name: value for name, value in plain.items() if name != "noise_decay"}
    assert Plan.from_dict(old).noise_decay == 1.0
    assert is_same_plan(old, plain)
    other = falling().to_dict()
    assert not is_same_plan(other, {**other, "noise_decay": 0.91})
    assert Plan.from_dict(other).noise_decay == 0.9
