"""Neighbourhoods: the formula for k and T against hypergeometric tails of SciPy."""

import math

import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom, hypergeom

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


@given(
    trials=st.integers(1, 60),
    chance=st.sampled_from([0.0, 1e-6, 0.01, 0.3, 0.97, 1.0]),
    most=st.integers(-1, 60),
)
def test_the_binomial_tail_is_scipys(trials: int, chance: float, most: int) -> None:
    expected = binom.sf(most, trials, chance)
    ours = math.exp(graph.log_binomial_tail(trials, chance, most))
    assert ours == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_devices, colluders, dropouts", [
    (101, 0, 5), (200, 10, 20), (1000, 50, 100), (1000, 0, 300), (5000, 250, 500),
])  # fmt: skip
def test_k_t_and_w_keep_the_stated_probabilities(
    num_devices: int, colluders: int, dropouts: int
) -> None:
    """The formula of docs/explanation/secure-sums.md, with SciPy's tails."""
    n, size = (
        num_devices,
        graph.neighbourhood(num_devices, colluders=colluders, dropouts=dropouts),
    )
    k, t, w = size.degree, size.threshold, size.least_nearby
    half = k // 2
    assert k < n - 1 and k % 2 == 0
    exposed = n * hypergeom.sf(2 * t - k - 1, n - 1, colluders, k)
    apart = n * hypergeom.sf(w - 1, n, colluders, half)
    lost = n * hypergeom.sf(k - t, n - 1, dropouts, k)
    lost += n * hypergeom.sf(half - w, n, dropouts, half)
    assert exposed + apart <= graph.PRIVACY_FAILURE
    assert lost <= graph.LOST_ROUND
    # No smaller one does.
    for smaller in range(2, k, 2):
        limit = math.log(graph.PRIVACY_FAILURE / 2 / n)
        candidate = graph._smallest(n, smaller, colluders, limit)
        if candidate is not None:
            gap = smaller // 2 - candidate.least_nearby
            chances = (
                hypergeom.sf(smaller - candidate.threshold, n - 1, dropouts, smaller),
                hypergeom.sf(gap, n, dropouts, smaller // 2),
            )
            assert n * max(chances) > graph.LOST_ROUND / 2


@pytest.mark.parametrize("num_devices", [16, 100, 1000])
@pytest.mark.parametrize("chance", [0.0, 0.01, 0.2])
def test_t_and_c_follow_from_probabilities_of_a_device(
    num_devices: int, chance: float
) -> None:
    t = graph.least_answers_for(num_devices, dropout=chance)
    c = graph.colluders_for(num_devices, collusion=chance)
    assert binom.sf(num_devices - t, num_devices, chance) <= graph.LOST_ROUND
    assert binom.sf(c, num_devices, chance) <= graph.UNLIKELY
    if t < num_devices:
        assert binom.sf(num_devices - t - 1, num_devices, chance) > graph.LOST_ROUND
    if c > 0:
        assert binom.sf(c - 1, num_devices, chance) > graph.UNLIKELY


@pytest.mark.parametrize("num_devices, dropout", [(1, 0.01), (100, 1.0)])
def test_devices_that_drop_out_too_often_have_no_t(
    num_devices: int, dropout: float
) -> None:
    with pytest.raises(InvalidInputError, match="take more devices"):
        graph.least_answers_for(num_devices, dropout=dropout)


def test_a_chance_outside_0_to_1_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="dropout"):
        graph.least_answers_for(10, dropout=1.5)
    with pytest.raises(InvalidInputError, match="collusion"):
        graph.colluders_for(10, collusion=-0.1)


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
        candidate = graph.complete(num_devices, colluders=colluders)
    except InvalidInputError:
        return
    assert 2 * (candidate.threshold - colluders) > candidate.degree - colluders


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


def connected(around: list[tuple[int, ...]], members: set[int]) -> bool:
    """Whether masks connect these devices: by a walk, not by the formula."""
    start = min(members)
    reached, todo = {start}, [start]
    while todo:
        for other in around[todo.pop()]:
            if other in members - reached:
                reached.add(other)
                todo.append(other)
    return reached == members


@settings(max_examples=200)
@given(data=st.data(), half=st.integers(1, 4), least=st.integers(1, 3))
def test_spread_answers_stay_connected_without_any_least_minus_one_of_them(
    data: st.DataObject, half: int, least: int
) -> None:
    """Whoever colludes: fewer than w of h consecutive devices cut no part off."""
    num_devices = data.draw(st.integers(2 * half + 2, 20))
    around = graph.neighbours(num_devices, 2 * half, b"circle")
    order = graph.circle(num_devices, b"circle")
    answered = set(data.draw(st.sets(st.integers(0, num_devices - 1), min_size=1)))
    spread = graph.is_spread(order, answered, half=half, least=least)
    windows = [
        {order[(place + i) % num_devices] for i in range(half)}
        for place in range(num_devices)
    ]
    assert spread == all(len(window & answered) >= least for window in windows)
    colluding = set(data.draw(st.sets(st.sampled_from(sorted(answered)))))
    few = all(len(window & colluding) < least for window in windows)
    if spread and few and answered - colluding:
        assert connected(around, answered - colluding)


def test_two_gaps_cut_a_circle() -> None:
    """What is_spread refuses is a real danger: both parts' sums would be seen."""
    order = graph.circle(20, b"circle")
    around = graph.neighbours(20, 4, b"circle")
    answered = set(order) - {order[2], order[3], order[10], order[11]}
    assert not connected(around, answered)
    assert not graph.is_spread(order, answered, half=2, least=1)
