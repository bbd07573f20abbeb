"""Exact Gaussian noise on a grid, from the operating system's random generator.

Floating-point noise has gaps and a largest value; both can reveal data (Mironov 2012).
Here a draw is a whole number, round(2^p N) with N a standard normal, and its
distribution is exact: no draw depends on floating-point arithmetic.

Why a *rounded* Gaussian and not the discrete one: for a whole number S,
S + round(s N) = round(S + s N). So a release is the ordinary Gaussian mechanism,
followed by rounding, and its guarantees (Gaussian DP, zCDP, composition) hold exactly.
The discrete Gaussian (Canonne, Kamath and Steinke 2020) has the same zCDP, but its
Gaussian DP is only approximately the same.

The sampler is a vectorised algorithm N of Karney, "Sampling exactly from the normal
distribution" (ACM Trans. Math. Softw. 42, 2016). Uniform numbers have 62 bits, and more
whenever a comparison needs them.
"""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
Bools: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[Any]

WORD_BITS = 62


def system_words(count: int) -> Words:
    """Return random 64-bit words from the operating system's generator."""
    return np.frombuffer(os.urandom(8 * count), dtype="<u8").astype(np.uint64)


class ExactNormals:
    """Draws exact, rounded normals.

    Args:
        words: The source of random 64-bit words. Tests count its calls; a device uses
            only the operating system.
        bits: The number of bits of a uniform number that are drawn first. Tests use
            fewer than 62 to make ties common.
    """

    def __init__(
        self, words: Callable[[int], Words] = system_words, *, bits: int = WORD_BITS
    ) -> None:
        if not 1 <= bits <= WORD_BITS:
            raise ValueError(f"bits must be 1 to {WORD_BITS}, got {bits}")
        self._words, self._bits = words, bits

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return round(2^scale_bits N) for `count` independent standard normals N."""
        if not 0 <= scale_bits < self._bits:
            raise ValueError(f"scale_bits must be 0 to {self._bits - 1}")
        draws: list[Integers] = []
        missing = count
        while missing > 0:
            # About 0.53 of the candidates are accepted.
            drawn = self._candidates(2 * missing + 16, scale_bits)[:missing]
            draws.append(drawn)
            missing -= len(drawn)
        return np.concatenate(draws) if draws else np.zeros(0, dtype=np.int64)

    def _candidates(self, count: int, scale_bits: int) -> Integers:
        """Return the accepted draws among `count` candidates."""
        whole = self._whole_parts(count)
        fraction = self._uniform(len(whole))
        accepted = np.ones(len(whole), dtype=bool)
        for trial in range(int(whole.max(initial=-1)) + 1):
            index = np.flatnonzero(accepted & (whole >= trial))
            accepted[index] = self._exp_trial(whole[index], fraction.take(index))
        whole = whole[accepted]
        top = fraction.take(np.flatnonzero(accepted)).first
        # One bit more than the grid has decides the rounding.
        bits = (top >> np.uint64(self._bits - scale_bits - 1)).astype(np.int64)
        size = (whole << scale_bits) + ((bits + 1) >> 1)
        return np.where(self._random_bits(len(size)), size, -size)

    def _whole_parts(self, count: int) -> Integers:
        """Return numbers k >= 0 with probabilities in proportion to exp(-k^2 / 2)."""
        whole = np.zeros(count, dtype=np.int64)
        index = np.arange(count)
        while index.size:  # k with probabilities exp(-k / 2)
            index = index[self._half_trial(index.size)]
            whole[index] += 1
        accepted = np.ones(count, dtype=bool)
        trials = whole * (whole - 1)  # ... accepted with probability exp(-k (k-1) / 2)
        while (index := np.flatnonzero(accepted & (trials > 0))).size:
            accepted[index] = self._half_trial(index.size)
            trials[index] -= 1
        return whole[accepted]

    def _half_trial(self, count: int) -> Bools:
        """Return true with probability exp(-1/2): a chain 1/2 > u1 > u2 ... is even."""
        even = np.ones(count, dtype=bool)
        index, previous = np.arange(count), None
        while index.size:
            drawn = self._uniform(index.size)
            half = np.uint64(1 << (self._bits - 1))
            falls = drawn.first < half if previous is None else drawn.below(previous)
            index, previous = index[falls], drawn.take(np.flatnonzero(falls))
            even[index] ^= True
        return even

    def _exp_trial(self, whole: Integers, fraction: "Uniform") -> Bools:
        """Return true with probability exp(-x (2k + x) / (2k + 2))."""
        even = np.ones(len(whole), dtype=bool)
        index, previous = np.arange(len(whole)), fraction
        while index.size:
            drawn = self._uniform(index.size)
            passed = np.flatnonzero(drawn.below(previous))
            # The chain continues with probability (2k + x) / (2k + 2).
            pick = self._below(2 * whole[index[passed]] + 2)
            last = np.flatnonzero(pick == 2 * whole[index[passed]])
            continues = pick < 2 * whole[index[passed]]
            x = fraction.take(index[passed[last]])
            continues[last] = self._uniform(last.size).below(x)
            passed = passed[continues]
            index, previous = index[passed], drawn.take(passed)
            even[index] ^= True
        return even

    def _uniform(self, count: int) -> "Uniform":
        first = self._words(count) >> np.uint64(64 - self._bits)
        return Uniform(first, np.arange(count), {}, self._next_bits)

    def _next_bits(self) -> int:
        return int(self._words(1)[0]) >> (64 - self._bits)

    def _random_bits(self, count: int) -> Bools:
        return (self._words(count) >> np.uint64(63)).astype(bool)

    def _below(self, limits: Integers) -> Integers:
        """Return uniform whole numbers from 0 to limit - 1, by rejection."""
        result = np.zeros(len(limits), dtype=np.int64)
        index = np.arange(len(limits))
        while index.size:
            drawn = (self._words(index.size) >> np.uint64(2)).astype(np.int64)
            limit = limits[index]
            result[index] = drawn % limit
            index = index[drawn >= (1 << 62) // limit * limit]
        return result


class Uniform:
    """Uniform numbers in [0, 1): their first bits, and further ones on demand."""

    def __init__(
        self,
        first: Words,
        ids: Indices,
        further: dict[int, list[int]],  # by id; shared by all subsets
        next_bits: Callable[[], int],
    ) -> None:
        self.first = first
        self._ids, self._further, self._next_bits = ids, further, next_bits

    def take(self, index: Indices) -> "Uniform":
        """Return a subset of the numbers, which shares bits drawn later."""
        return Uniform(
            self.first[index], self._ids[index], self._further, self._next_bits
        )

    def below(self, other: "Uniform") -> Bools:
        """Return elementwise whether these numbers are below the others; exact."""
        result: Bools = self.first < other.first
        for index in np.flatnonzero(self.first == other.first).tolist():
            word, mine, theirs = 0, 0, 0
            while mine == theirs:
                mine, theirs = self._word(index, word), other._word(index, word)
                word += 1
            result[index] = mine < theirs
        return result

    def _word(self, index: int, word: int) -> int:
        words = self._further.setdefault(int(self._ids[index]), [])
        while len(words) <= word:
            words.append(self._next_bits())
        return words[word]
