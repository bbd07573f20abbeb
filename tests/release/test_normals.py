"""Compiled exact normals: distribution, ties, source."""

import ast
import math
from decimal import Decimal, localcontext
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedbudget.fleet.device.exact_noise import ExactNormals, Words
from fedbudget.release import normals as module
from fedbudget.release.normals import (
    COIN_BITS,
    FastNormals,
    Stream,
    draw_candidates,
    falling_exp,
)
from fedbudget.simulation.kernels.simd import compiled


def p_value(draws: np.ndarray, scale_bits: int, cells: int) -> float:
    """Return the p-value of the chi-square test against scipy's normal cells."""
    edges = np.unique(
        np.rint(stats.norm.ppf(np.arange(1, cells) / cells) * 2**scale_bits)
    )
    cdf = stats.norm.cdf((edges + 0.5) / 2**scale_bits)
    expected = len(draws) * np.diff(np.concatenate([[0], cdf, [1]]))
    assert expected.min() > 10  # fewer would not be nearly normal
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(expected))
    return float(stats.chisquare(counts, expected).pvalue)


@pytest.mark.parametrize("scale_bits, cells", [(0, 5), (3, 40), (16, 1000), (30, 1000)])
def test_draws_follow_the_exact_distribution(scale_bits: int, cells: int) -> None:
    draws = FastNormals().draw(1_000_000, scale_bits=scale_bits)
    assert p_value(draws, scale_bits, cells) > 1e-9


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8])
def test_draws_with_many_ties_follow_it_too(bits: int) -> None:
    # With few bits most comparisons are undecided at first.
    draws = FastNormals(bits=bits).draw(20_000, scale_bits=3)
    assert p_value(draws, 3, 20) > 1e-9


def test_the_reference_has_the_same_distribution() -> None:
    ours, theirs = (
        normals.draw(100_000, scale_bits=30) / 2.0**30
        for normals in (FastNormals(), ExactNormals())
    )
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-9


def test_tails_and_moments_of_a_fine_grid() -> None:
    draws = FastNormals().draw(1_000_000, scale_bits=30) / 2.0**30
    assert abs(draws.mean()) < 6e-3
    assert abs(np.mean(draws**2) - 1) < 6.5 * math.sqrt(2) / 1e3
    assert abs(np.mean(draws**4) - 3) < 7 * math.sqrt(96) / 1e3
    for size in (3.0, 4.0):
        p = 2 * stats.norm.sf(size)
        beyond = int((np.abs(draws) > size).sum())
        assert stats.binomtest(beyond, len(draws), p).pvalue > 1e-9
    # All bits of the grid are in use: noise has no gaps.
    low = (draws * 2**30).astype(np.int64) & 7
    assert stats.chisquare(np.bincount(low, minlength=8)).pvalue > 1e-9


def words_of(seed: int) -> module.Source:
    rng = np.random.default_rng(seed)

    def words(count: int) -> Words:
        return rng.integers(0, 2**64, count, dtype=np.uint64)

    return words


def test_words_decide_everything() -> None:
    def drawn(seed: int) -> list[int]:
        return list(FastNormals(words_of(seed)).draw(100, scale_bits=20))

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_undecided_candidates_end_as_more_bits_would_have_decided(bits: int) -> None:
    # The same candidate with few and with all bits: if the few decide, they are right.
    words = words_of(7)(2 * 50_000)
    few, all_bits = np.empty((2, 50_000), dtype=np.int64)
    first, second = words[:50_000], words[50_000:]
    # u and v are the upper bits of their halves, so fewer bits are a prefix.
    draw_candidates(first, second, (3, bits, 8), few)
    assert draw_candidates(first, second, (3, COIN_BITS, 63), all_bits) == 0
    decided = few != module._UNDECIDED
    assert 0.05 < decided.mean() < 1
    assert (few[decided] == all_bits[decided]).all()


def test_an_exact_decision_is_that_of_the_fast_one() -> None:
    words = words_of(8)(2 * 2000)
    fast = np.empty(2000, dtype=np.int64)
    bits = 10, COIN_BITS, 63
    assert draw_candidates(words[:2000], words[2000:], bits, fast) == 0
    slow = FastNormals(words_of(9))
    for i in range(2000):
        assert slow._decided((int(words[i]), int(words[2000 + i])), bits) == fast[i]


@pytest.mark.parametrize("k", range(7))
def test_cumulative_probabilities_are_those_of_another_library(k: int) -> None:
    with mpmath.workdps(50):
        weights = [mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(40)]
        exact = mpmath.fsum(weights[: k + 1]) / mpmath.fsum(weights)
        limit = int(mpmath.floor(exact * 2**32))
        digits = mpmath.nstr(exact, 45)
    assert int(getattr(module, f"_T{k}")) == limit
    with localcontext(prec=60):
        assert abs(module._cumulative(k, 60) - Decimal(digits)) < Decimal("1e-43")


def test_ties_with_a_cumulative_probability_are_undecided() -> None:
    for k in range(7):
        limit = int(getattr(module, f"_T{k}"))
        second = np.array([limit << 32, (limit - 1) << 32], dtype=np.uint64)
        first, out = np.zeros(2, dtype=np.uint64), np.empty(2, dtype=np.int64)
        draw_candidates(first, second, (0, COIN_BITS, 63), out)
        # Just below the limit the whole part is k; v = 0 and x = 0 are accepted.
        assert out.tolist() == [module._UNDECIDED, -k]


@compiled
def exps(r: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(r)):
        out[i] = falling_exp(r[i])


def test_the_exponential_is_far_more_accurate_than_its_bound() -> None:
    r = np.concatenate([np.linspace(0, 8, 100_001), np.log(2) * np.arange(12) / 2])
    out = np.empty_like(r)
    exps(r, out)
    assert np.abs(out - np.exp(-r)).max() < 1e-14 < module._ERROR / 50


def test_every_stream_has_a_key_of_its_own() -> None:
    one, other = Stream()(1000), Stream()(1000)
    assert (one != other).all()
    draws = [FastNormals().draw(50, scale_bits=30).tolist() for _ in range(2)]
    assert draws[0] != draws[1]


def test_a_stream_goes_on() -> None:
    stream = Stream()
    words = np.concatenate([stream(n) for n in (1, 7, 1000, 1)])
    assert len(np.unique(words)) == 1009
    ones = np.unpackbits(words.view(np.uint8)).sum()
    assert stats.binomtest(int(ones), 64 * 1009).pvalue > 1e-9


def test_the_system_is_the_only_source_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def urandom(count: int) -> bytes:
        raise RuntimeError(f"no entropy for {count} bytes")

    monkeypatch.setattr("os.urandom", urandom)
    with pytest.raises(RuntimeError, match="no entropy for 32 bytes"):
        FastNormals().draw(1, scale_bits=30)


@pytest.mark.parametrize("name", ["normals", "rounds", "steps", "sums", "devices"])
def test_no_generator_with_a_seed_is_in_the_code(name: str) -> None:
    path = Path(str(module.__file__)).with_name(f"{name}.py")
    tree = ast.parse(path.read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not {"random", "default_rng", "Generator", "seed", "mix"} & names


@pytest.mark.parametrize("bits", [0, 33])
def test_bad_bits_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="bits must be 1 to 32"):
        FastNormals(bits=bits)


@pytest.mark.parametrize("scale_bits", [-1, 60])
def test_bad_scales_are_refused(scale_bits: int) -> None:
    with pytest.raises(ValueError, match="scale_bits must be 0 to 54"):
        FastNormals().draw(1, scale_bits=scale_bits)


def test_no_draws_are_no_draws() -> None:
    assert FastNormals().draw(0, scale_bits=30).tolist() == []
