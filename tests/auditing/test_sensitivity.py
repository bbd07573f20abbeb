"""Part (a): crafted pairs, exact sums, and mechanisms that break the bound."""

import numpy as np
import pytest

from fedbudget.auditing.canaries import crafted_pairs, opposite_pair
from fedbudget.auditing.mechanisms import DevicePath
from fedbudget.auditing.sensitivity import measure_sensitivity
from tests.auditing.examples import LOSSES, FloatSums, SmallGrid, claim


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_sums_keep_the_bound(loss: str) -> None:
    result = measure_sensitivity(DevicePath(), claim(loss=loss))
    assert result.holds and result.pairs >= 10
    # The canaries come as close as rows of 23 bits can.
    assert 1 - 2.0**-22 < result.largest <= 1
    assert 0.999 < result.on_grid <= 1


@pytest.mark.parametrize("loss", LOSSES)
def test_tables_of_a_pair_differ_in_one_row_of_the_unit_ball(loss: str) -> None:
    for pair in crafted_pairs(claim(loss=loss).model, dim=6):
        first, second = pair.tables
        changed = (first.x != second.x).any(axis=1) | (first.y != second.y)
        assert changed.sum() == 1, pair.name
        for table in pair.tables:
            assert np.linalg.norm(table.x, axis=1).max() <= 1 + 2.0**-22


def test_canaries_keep_their_gradients_wherever_the_model_moves() -> None:
    item = claim()
    pair = opposite_pair(item.model, rows=30, dim=4)
    path, rng = DevicePath(), np.random.default_rng(3)
    for table in pair.tables:
        start = path.exact_sum(item, pair.theta, table).numbers
        for size in (1.0, 1e3, 1e6):
            moved = pair.theta + rng.normal(size=4) * size
            again = path.exact_sum(item, moved, table).numbers
            assert np.array_equal(start, again)


def test_float32_sums_are_caught_at_the_power_of_two() -> None:
    result = measure_sensitivity(FloatSums(), claim())
    assert not result.holds
    assert result.largest > 10 and "straddle of 2^15" in result.worst
    assert "BROKEN" in str(result)


def test_a_grid_with_too_little_noise_is_caught_without_a_trial() -> None:
    result = measure_sensitivity(SmallGrid(), claim())
    assert result.largest <= 1
    assert not result.holds and result.on_grid == pytest.approx(2, rel=1e-3)
