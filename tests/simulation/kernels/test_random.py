"""The random numbers of the kernels, against distributions from SciPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numba import njit
from numba.extending import intrinsic
from scipy import stats

from fedbudget.losses import Logistic
from fedbudget.simulation.kernels import simd as formulas
from fedbudget.simulation.kernels.lanes import fast_exp
from fedbudget.simulation.kernels.layouts import RUN, OneHotRows, pack_one_hot
from fedbudget.simulation.kernels.random import (
    draw_poisson,
    draw_subset,
    fill_normals,
    restore,
    stream,
)
from fedbudget.simulation.kernels.simd import Lanes, load, store


def key(*parts: int) -> tuple[np.uint64, np.uint64]:
    state, gamma = stream(*parts)
    return np.uint64(state), np.uint64(gamma)


def normals(count: int, *parts: int) -> np.ndarray:
    out = np.empty(count + 32, dtype=np.float32)
    fill_normals(out, count, *key(*parts))
    return out[:count].astype(np.float64)


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return normals(8_000_000, 11, 0, 0, 1)


def test_normals_pass_a_kolmogorov_smirnov_test(sample: np.ndarray) -> None:
    assert stats.kstest(sample[:1_000_000], "norm").pvalue > 1e-3


def test_moments_of_the_normals(sample: np.ndarray) -> None:
    # Variances of z, z^2, z^3 and z^4 are 1, 2, 15 and 96.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = 5 * (variance / len(sample)) ** 0.5
        assert np.mean(sample**power) == pytest.approx(expected, abs=error)


@pytest.mark.parametrize("limit", [2.0, 3.0, 4.0, 4.5, 5.0])
def test_tails_of_the_normals(sample: np.ndarray, limit: float) -> None:
    chance = stats.norm.sf(limit)
    for count in (np.sum(sample > limit), np.sum(sample < -limit)):
        assert stats.binomtest(int(count), len(sample), chance).pvalue > 1e-4


def test_two_normals_of_one_word_are_independent(sample: np.ndarray) -> None:
    first, second = sample.reshape(2, -1)
    for power in (1, 2):
        correlation = np.corrcoef(first**power, second**power)[0, 1]
        assert abs(correlation) < 5 * len(first) ** -0.5


def test_streams_of_neighbours_are_independent() -> None:
    base = normals(200_000, 3, 5, 7, 1)
    for parts in ((4, 5, 7, 1), (3, 6, 7, 1), (3, 5, 8, 1), (3, 5, 7, 2)):
        other = normals(200_000, *parts)
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 * len(base) ** -0.5


def test_the_first_normal_of_many_streams_is_normal() -> None:
    firsts = [normals(1, 1, device, 0, 1)[0] for device in range(20_000)]
    assert stats.kstest(firsts, "norm").pvalue > 1e-3


@pytest.mark.parametrize(("size", "num_samples"), [(3, 7), (8, 9), (2, 40)])
def test_every_row_and_every_pair_is_drawn_equally_often(
    size: int, num_samples: int
) -> None:
    order = np.arange(num_samples + 16, dtype=np.uint32)
    picks = np.empty(num_samples + 16, dtype=np.uint32)
    repeats = 20_000
    together = np.zeros((num_samples, num_samples))
    for step in range(repeats):
        draw_subset(order, picks, size, num_samples, *key(1, 2, step, 0))
        drawn = order[:size].copy()
        together[np.ix_(drawn, drawn)] += 1
        restore(order, picks, size, num_samples)
        assert (order[:num_samples] == np.arange(num_samples)).all()
    rows = np.diag(together)
    pairs = together[np.triu_indices(num_samples, 1)]
    for counts in (rows, pairs):
        # Counts of a fixed-size sample vary less than multinomial ones by 1 - n/N.
        expected = counts.sum() / len(counts)
        chance = expected / repeats
        spread = np.sum((counts - expected) ** 2) / (expected * (1 - chance))
        spread *= (len(counts) - 1) / len(counts)
        assert spread == pytest.approx(
            len(counts) - 1, abs=6 * (2 * len(counts)) ** 0.5
        )
    assert rows.sum() == size * repeats  # always `size` distinct rows


def test_poisson_batches_draw_rows_independently() -> None:
    num_samples, size, repeats = 50, 10, 20_000
    rows = np.empty(num_samples + 16, dtype=np.uint32)
    included = np.zeros((repeats, num_samples), dtype=bool)
    for step in range(repeats):
        count = draw_poisson(rows, num_samples, size, *key(1, 2, step, 0))
        included[step, rows[:count]] = True
    expected = repeats * size / num_samples
    spread = np.sum((included.sum(axis=0) - expected) ** 2) / (expected * 0.8)
    assert stats.chi2.sf(spread, num_samples) > 1e-4
    counts = included.sum(axis=1)
    assert counts.var() == pytest.approx(num_samples * 0.2 * 0.8, rel=0.05)


Formula = Callable[[Lanes], Lanes]


def over_runs(formula: Formula, x: np.ndarray) -> np.ndarray:
    """Apply a formula to every number."""

    def code(typing: Any, run: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return formula(Lanes(builder, args[0])).value

        return run(run), generate

    apply: Any = intrinsic(code)

    @njit
    def over(x: Any, out: Any) -> None:
        for i in range(0, len(x), RUN):
            store(out, i, apply(load(x, i)))

    padded = np.resize(x, -(-len(x) // RUN) * RUN).astype(np.float32)
    out = np.empty_like(padded)
    over(padded, out)
    return out[: len(x)]


@pytest.mark.parametrize(
    ("fast", "exact", "low", "high", "absolute"),
    [
        (formulas.exponential, np.exp, -86.0, 86.9, False),
        (formulas.logarithm, np.log, 2.0**-33, 1.0, True),
        (formulas.sine, lambda t: np.sin(np.pi / 4 * t), -1.0, 1.0, True),
        (formulas.cosine, lambda t: np.cos(np.pi / 4 * t), -1.0, 1.0, True),
        (formulas.reciprocal, np.reciprocal, 1.0, 3.0, False),
        (formulas.reciprocal, np.reciprocal, 1.0, 6e37, False),
    ],
)
def test_formulas(
    fast: Formula, exact: Any, low: float, high: float, absolute: bool
) -> None:
    x = np.linspace(low, high, 300_001).astype(np.float32)
    truth = exact(x.astype(np.float64))
    scale = np.maximum(1.0, np.abs(truth)) if absolute else np.abs(truth)
    assert np.max(np.abs(over_runs(fast, x) - truth) / scale) < 4e-7


def test_exp_of_single_numbers() -> None:
    @njit
    def over(x: Any, out: Any) -> None:
        for i in range(len(x)):
            out[i] = fast_exp(x[i])

    x = np.linspace(-86.0, 87.0, 300_001).astype(np.float32)
    out = np.empty_like(x)
    over(x, out)
    assert out == pytest.approx(np.exp(x.astype(np.float64)), rel=4e-7)


def test_exp_of_large_numbers_is_finite() -> None:
    @njit
    def call(x: Any) -> Any:
        return fast_exp(x)

    large = np.array([1e30, -1e30, 200, -200], dtype=np.float32)
    for values in (over_runs(formulas.exponential, large), [call(x) for x in large]):
        assert np.isfinite(values).all()
        assert max(values[1], values[3]) < 1e-37


@given(width=st.integers(1, 9), dim=st.sampled_from([20, 255, 256, 300]))
def test_words_hold_the_codes_of_every_row(width: int, dim: int) -> None:
    codes = np.random.default_rng(width).integers(0, dim, (5, width))
    y, offsets = np.zeros(5, dtype=np.int64), np.array([0, 5])
    packed = pack_one_hot(codes, y, offsets, dim=dim, loss=Logistic())
    rows = packed.rows
    assert isinstance(rows, OneHotRows)
    assert rows.words.dtype == (np.uint32 if dim < 256 else np.uint64)
    bits = 8 * rows.words.itemsize // 4
    shifts = bits * np.arange(4, dtype=np.uint64)
    decoded = (rows.words[:, None].astype(np.uint64) >> shifts) & np.uint64(2**bits - 1)
    assert np.array_equal(decoded.reshape(5, -1)[:, :width], codes)
    assert (decoded.reshape(5, -1)[:, width:] == dim).all()


def test_codes_in_bytes_are_not_copied() -> None:
    codes = np.zeros((6, 8), dtype=np.uint8)
    y, offsets = np.zeros(6, dtype=np.int64), np.array([0, 6])
    packed = pack_one_hot(codes, y, offsets, dim=9, loss=Logistic())
    assert isinstance(packed.rows, OneHotRows)
    assert np.shares_memory(packed.rows.words, codes)
