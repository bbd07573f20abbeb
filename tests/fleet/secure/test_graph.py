"""Neighbourhoods: the formula for k and T against hypergeometric tails of SciPy."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import hypergeom

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.secure import graph


@given(
    population=st.integers(1, 60),
    marked=st.integers(0, 60),
    draws=st.integers(0, 60),
    most=st.integers(-1, 60),
)
def test_the_tail_is_scipys(
    population: int, marked: int, draws: int, most: int
) -> None:
    marked, draws = min(marked, population), min(draws, population)
    expected = hypergeom.sf(most, population, marked, draws)
    ours = math.exp(graph.log_tail(population, marked, draws, most))
    assert ours == pytest.approx(expected, abs=1e-12)


def test_the_chance_of_a_gap_by_hand() -> None:
    # 6 of 10 lost, k = 4: 10 places, two given devices both lost: 6/10 * 5/9.
    chance = 10 * Fraction(6, 10) * Fraction(5, 9)
    assert math.exp(graph.log_apart(10, 4, lost=6)) == pytest.approx(float(chance))
    assert graph.log_apart(10, 4, lost=1) == -math.inf


@pytest.mark.parametrize("num_devices, colluders, dropouts", [
    (101, 0, 5), (200, 10, 20), (1000, 50, 100), (1000, 0, 300), (5000, 250, 500),
])  # fmt: skip
def test_k_and_t_keep_the_stated_probabilities(
    num_devices: int, colluders: int, dropouts: int
) -> None:
    found = graph.neighbourhood(num_devices, colluders=colluders, dropouts=dropouts)
    k, t = found.degree, found.threshold
    assert k < num_devices - 1 and k % 2 == 0
    exposed = num_devices * hypergeom.sf(2 * t - k - 1, num_devices - 1, colluders, k)
    lost = num_devices * hypergeom.sf(k - t, num_devices - 1, dropouts, k)
    apart = num_devices * math.prod(
        max(0, colluders + dropouts - i) / (num_devices - i) for i in range(k // 2)
    )
    assert exposed + apart <= graph.PRIVACY_FAILURE
    assert lost <= graph.LOST_ROUND


def test_neighbours_grow_like_a_logarithm() -> None:
    degrees = [
        graph.neighbourhood(n, colluders=n // 20, dropouts=n // 20).degree
        for n in (1_000, 10_000, 100_000)
    ]
    assert degrees[2] < 1.5 * degrees[0] < 300


def test_up_to_100_devices_all_are_neighbours() -> None:
    assert graph.neighbourhood(100, colluders=3) == graph.Neighbourhood(
        degree=99, threshold=52
    )


@pytest.mark.parametrize("num_devices, colluders", [(1, 0), (2, 1), (3, 2)])
def test_too_few_devices_are_refused(num_devices: int, colluders: int) -> None:
    with pytest.raises(InvalidInputError, match="take more devices"):
        graph.complete(num_devices, colluders=colluders)


@given(num_devices=st.integers(2, 60), colluders=st.integers(0, 60))
def test_both_secrets_of_a_device_need_more_than_all_honest_neighbours(
    num_devices: int, colluders: int
) -> None:
    """An honest neighbour reveals one share, a colluding one has both."""
    try:
        found = graph.complete(num_devices, colluders=colluders)
    except InvalidInputError:
        return
    assert 2 * (found.threshold - colluders) > found.degree - colluders


@settings(max_examples=30)
@given(num_devices=st.integers(4, 80), half=st.integers(1, 12), seed=st.binary())
def test_the_circle_is_regular_and_symmetric(
    num_devices: int, half: int, seed: bytes
) -> None:
    degree = 2 * half
    around = graph.neighbours(num_devices, degree, seed)
    expected = min(degree, num_devices - 1)
    for index, others in enumerate(around):
        assert index not in others and list(others) == sorted(set(others))
        assert len(others) == expected
        assert all(index in around[other] for other in others)


def test_another_digest_gives_another_circle() -> None:
    assert graph.neighbours(200, 10, b"a") != graph.neighbours(200, 10, b"b")


def test_without_k_half_consecutive_losses_the_circle_stays_connected() -> None:
    around = graph.neighbours(50, 6, b"circle")
    order = sorted(range(50), key=lambda index: graph._rank(b"circle", index))
    lost = {order[i] for i in range(50) if i % 4 in (0, 1)}  # never 3 in a row
    start = next(index for index in range(50) if index not in lost)
    reached, todo = {start}, [start]
    while todo:
        for other in around[todo.pop()]:
            if other not in lost | reached:
                reached.add(other)
                todo.append(other)
    assert len(reached) == 50 - len(lost)
