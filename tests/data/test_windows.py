"""Statistics of windows, by hand, by their bounds and by scipy."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import signal, stats as scipy_stats

from fedbudget.data.features import Numeric
from fedbudget.data.windows import BANDS, statistic_bounds, statistics

AXES = {"a": Numeric(-4, 4), "b": Numeric(0, 10)}


def readings(n: int = 20, length: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.uniform(bounds.low, bounds.high, (n, length))
        for name, bounds in AXES.items()
    }


def test_a_sine_by_hand() -> None:
    """2 + sin at 1/10 of the sampling rate, 0.2 of the highest frequency."""
    time = np.arange(100)
    x = 2 + np.sin(2 * np.pi * time / 10)
    columns = statistics({"x": x[None]}, {"x": Numeric(-4, 4)})
    values = {name: float(value[0]) for name, value in columns.items()}
    assert values["x_mean"] == pytest.approx(2)
    assert values["x_median"] == pytest.approx(2)
    assert values["x_deviation"] ** 2 == pytest.approx(0.5**0.5)
    # All of it is in the second band, whose upper limit is 0.2.
    bands = [values[f"x_band{k}"] ** 2 for k in range(1, len(BANDS))]
    assert bands == pytest.approx([0, 0.5**0.5, 0, 0, 0], abs=1e-7)


def test_statistics_agree_with_scipy_and_numpy() -> None:
    windows = readings()
    columns = statistics(windows, AXES)
    for name, x in windows.items():
        assert columns[f"{name}_iqr"] ** 2 == pytest.approx(scipy_stats.iqr(x, axis=1))
        frequencies, density = signal.periodogram(x, axis=1, scaling="spectrum")
        for k, (low, high) in enumerate(pairwise(BANDS), start=1):
            inside = (frequencies > low / 2 + 1e-9) & (frequencies <= high / 2 + 1e-9)
            power = density[:, inside].sum(axis=1)
            assert columns[f"{name}_band{k}"] ** 4 == pytest.approx(power)
        variance = sum(columns[f"{name}_band{k}"] ** 4 for k in range(1, len(BANDS)))
        assert variance == pytest.approx(x.var(axis=1))
    expected = [
        np.corrcoef(a, b)[0, 1] for a, b in zip(windows["a"], windows["b"], strict=True)
    ]
    assert columns["a_b_correlation"] == pytest.approx(expected)


def test_bounds_have_the_columns_of_the_statistics_in_their_order() -> None:
    columns = statistics(readings(), AXES, magnitude=True)
    assert list(columns) == list(statistic_bounds(AXES, magnitude=True))
    assert len(columns) == 3 * 12 + 1


@given(st.integers(0, 2**32), st.integers(20, 121))
def test_no_statistic_is_below_its_bounds_or_above_four_times(
    seed: int, length: int
) -> None:
    """Square waves at the limits are the worst case, and random ones come near."""
    rng = np.random.default_rng(seed)
    windows = {
        name: np.where(rng.random((3, length)) < 0.5, bounds.low, bounds.high)
        for name, bounds in AXES.items()
    }
    columns = statistics(windows, AXES, magnitude=True)
    for name, bounds in statistic_bounds(AXES, magnitude=True).items():
        values = columns[name]
        assert np.isfinite(values).all()
        assert (values >= bounds.low - 1e-9).all()
        # A root of at most four times the bound: twice it.
        limit = bounds.high if bounds.low < 0 else 2 * bounds.high
        assert (values <= limit + 1e-9).all()


def test_readings_beyond_their_bounds_are_clipped() -> None:
    inside = {"a": np.full((1, 30), 4.0), "b": np.full((1, 30), 10.0)}
    beyond = {name: 100 * x for name, x in inside.items()}
    expected, clipped = (statistics(x, AXES, magnitude=True) for x in (inside, beyond))
    for name, column in expected.items():
        assert np.array_equal(column, clipped[name])


def test_a_constant_channel_has_no_correlation() -> None:
    windows = readings() | {"b": np.full((20, 50), 3.0)}
    assert not statistics(windows, AXES)["a_b_correlation"].any()


def test_a_window_is_computed_from_itself_alone() -> None:
    """Replacing one window changes one row: one window is one sample."""
    windows = readings()
    before = statistics(windows, AXES, magnitude=True)
    windows["a"] = windows["a"].copy()
    windows["a"][7] = 0.0
    after = statistics(windows, AXES, magnitude=True)
    changed = {int(i) for n in before for i in np.flatnonzero(before[n] != after[n])}
    assert changed == {7}
