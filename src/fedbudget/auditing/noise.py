"""Part (b): the noise against the exact law of a rounded normal, round(2^p N).

Three tests, each at its share of the allowed error probability:

- the variance, by the chi-square interval of a normal sample;
- the number of draws beyond 2, 3 and 4 standard deviations, by exact binomial tests;
- the number of draws in 64 cells of equal probability, and in 16 residues of the lowest
  four bits, by Pearson's chi-square. Low bits that are not uniform are a grid of gaps
  (Mironov 2012).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fedbudget.auditing.bounds import scipy_stats
from fedbudget.checks import Array
from fedbudget.fleet.device.exact_noise import Integers

_CELLS = 64
_LOW_BITS = 4
_TAILS = (2, 3, 4)  # standard deviations
_TESTS = 1 + len(_TAILS) + 2


@dataclass(frozen=True, kw_only=True)
class NoiseTest:
    """The noise of a mechanism, compared with the law that it should have."""

    draws: int
    deviation: float  # std of the draws over the std that is claimed
    interval: tuple[float, float]  # of that ratio
    beyond: tuple[int, ...]  # draws beyond 2, 3 and 4 standard deviations
    expected: tuple[float, ...]  # of them
    least_p: float  # the smallest p-value of the tests on tails and cells
    level: float  # a p-value below it fails
    holds: bool

    def __str__(self) -> str:
        verdict = "as claimed" if self.holds else "NOT as claimed"
        low, high = self.interval
        return (
            f"{self.draws} draws: std {self.deviation:.5f} of the claimed one "
            f"({low:.5f} to {high:.5f}), smallest p-value {self.least_p:.2g}: {verdict}"
        )


class _Counts:
    """What is counted of the draws, chunk by chunk: draws need not stay in memory."""

    def __init__(self, scale_bits: int) -> None:
        self.scale_bits = scale_bits
        self.edges = _cell_edges(scale_bits)
        self.draws, self.squares = 0, 0.0
        self.beyond = np.zeros(len(_TAILS), dtype=np.int64)
        self.cells = np.zeros(_CELLS, dtype=np.int64)
        self.low = np.zeros(1 << _LOW_BITS, dtype=np.int64)

    def add(self, drawn: Integers) -> None:
        scale = 2.0**self.scale_bits
        self.draws += len(drawn)
        self.squares += float(np.sum((drawn / scale) ** 2))
        sizes = np.abs(drawn)
        self.beyond += [int((sizes > tail * scale).sum()) for tail in _TAILS]
        cells = np.searchsorted(self.edges, drawn)
        self.cells += np.bincount(cells, minlength=_CELLS)
        low = drawn & ((1 << _LOW_BITS) - 1)
        self.low += np.bincount(low, minlength=len(self.low))


def measure_noise(
    draw: Callable[[int], Integers],
    *,
    scale_bits: int,
    chunks: Iterable[int],
    error: float,
) -> NoiseTest:
    """Compare draws with round(2^scale_bits N).

    Args:
        draw: Returns that many draws.
        scale_bits: Of the grid; at least 8, so that the low bits are uniform.
        chunks: The sizes of the draws, one after the other.
        error: The probability with which noise as claimed fails.
    """
    counts = _Counts(scale_bits)
    for size in chunks:
        counts.add(draw(size))
    return _tested(counts, error / _TESTS)


def _tested(counts: _Counts, level: float) -> NoiseTest:
    stats = scipy_stats()
    ratio = counts.squares / _variance(counts.scale_bits)
    ends = stats.chi2.ppf([1 - level / 2, level / 2], counts.draws)
    low, high = (math.sqrt(ratio / end) for end in ends)
    tails = [_beyond(tail, counts.scale_bits) for tail in _TAILS]
    p_values = [
        float(stats.binomtest(int(count), counts.draws, share).pvalue)
        for count, share in zip(counts.beyond, tails, strict=True)
    ]
    p_values.append(_chi_square(counts.cells, _cell_shares(counts)))
    p_values.append(_chi_square(counts.low, np.full(1 << _LOW_BITS, 2.0**-_LOW_BITS)))
    return NoiseTest(
        draws=counts.draws,
        deviation=math.sqrt(ratio / counts.draws),
        interval=(low, high),
        beyond=tuple(counts.beyond.tolist()),
        expected=tuple(share * counts.draws for share in tails),
        least_p=min(p_values),
        level=level,
        holds=low <= 1 <= high and min(p_values) >= level,
    )


def _variance(scale_bits: int) -> float:
    """Return the variance of round(s N) / s: Sheppard's correction adds 1/(12 s^2).

    The error of the correction is below exp(-2 pi^2 s^2), which is 0 in float64.
    """
    return 1 + 4.0**-scale_bits / 12


def _below(values: Iterable[float]) -> Array:
    """Return Phi of each value."""
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in values])


def _beyond(tail: int, scale_bits: int) -> float:
    """Return P(|round(s N)| > tail s): round(s N) is above m from m + 1/2 on."""
    return math.erfc((tail + 0.5 / 2**scale_bits) / math.sqrt(2))


def _cell_edges(scale_bits: int) -> Integers:
    """Return the largest whole number of every cell but the last."""
    normal = scipy_stats().norm
    edges = normal.ppf(np.arange(1, _CELLS) / _CELLS) * 2.0**scale_bits
    return np.asarray(np.floor(edges), dtype=np.int64)


def _cell_shares(counts: _Counts) -> Array:
    """Return the exact probability of each cell, for whole numbers."""
    upper = _below((counts.edges + 0.5) / 2.0**counts.scale_bits)
    return np.diff(np.concatenate([[0.0], upper, [1.0]]))


def _chi_square(counts: Integers, shares: Array) -> float:
    """Return the p-value of Pearson's chi-square test."""
    return float(scipy_stats().chisquare(counts, shares * counts.sum()).pvalue)
