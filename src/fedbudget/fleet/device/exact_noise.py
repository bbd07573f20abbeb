"""Gaussian noise for real devices: from the operating system, exact on a grid.

Noise made of floating-point numbers has gaps and a last value, and both can give data
away (Mironov 2012). Here a draw is a whole number, round(2^p N) with N a standard
normal, and its distribution is exact: not one draw rests on floating-point arithmetic.

Why a *rounded* Gaussian and not the discrete one: with S a whole number, S + round(s N)
is round(S + s N). So a release is nothing but the ordinary Gaussian mechanism, rounded
afterwards, and all that is known of that (Gaussian DP, zCDP, their composition) holds
to the last digit. The discrete Gaussian (Canonne, Kamath and Steinke 2020) has the same
zCDP, but its Gaussian DP is only nearly that.

The sampler is algorithm N of Karney, "Sampling exactly from the normal distribution"
(ACM Trans. Math. Softw. 42, 2016), for many draws at once. Uniform numbers are known to
62 bits, and to more whenever a comparison needs them.
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
        words: Where random 64-bit words come from. Tests count its calls; a device has
            no other source than the operating system.
        bits: How many bits of a uniform number are drawn at first. Fewer than the usual
            62 make ties common, for tests of what happens then.
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
        found: list[Integers] = []
        missing = count
        while missing > 0:
            # About 0.53 of the candidates are accepted.
            drawn = self._candidates(2 * missing + 16, scale_bits)[:missing]
            found.append(drawn)
            missing -= len(drawn)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _candidates(self, count: int, scale_bits: int) -> Integers:
        """Return the draws of those candidates that are accepted."""
        whole = self._whole_parts(count)
        fraction = self._uniform(len(whole))
        accepted = np.ones(len(whole), dtype=bool)
        for trial in range(int(whole.max(initial=-1)) + 1):
            index = np.flatnonzero(accepted & (whole >= trial))
            accepted[index] = self._exp_trial(whole[index], fraction.take(index))
        whole = whole[accepted]
        top = fraction.take(np.flatnonzero(accepted)).first
        # One bit more than the grid has says which way to round.
        bits = (top >> np.uint64(self._bits - scale_bits - 1)).astype(np.int64)
        size = (whole << scale_bits) + ((bits + 1) >> 1)
        return np.where(self._bits_of(len(size)), size, -size)

    def _whole_parts(self, count: int) -> Integers:
        """Return numbers k >= 0 with probabilities in proportion to exp(-k^2 / 2)."""
        whole = np.zeros(count, dtype=np.int64)
        index = np.arange(count)
        while index.size:  # k with probabilities exp(-k / 2)
            index = index[self._half_trial(index.size)]
            whole[index] += 1
        kept = np.ones(count, dtype=bool)
        trials = whole * (whole - 1)  # ... accepted with probability exp(-k (k-1) / 2)
        while (index := np.flatnonzero(kept & (trials > 0))).size:
            kept[index] = self._half_trial(index.size)
            trials[index] -= 1
        return whole[kept]

    def _half_trial(self, count: int) -> Bools:
        """Return true with probability exp(-1/2): a chain 1/2 > u1 > u2 ... is even."""
        even = np.ones(count, dtype=bool)
        index, before = np.arange(count), None
        while index.size:
            drawn = self._uniform(index.size)
            half = np.uint64(1 << (self._bits - 1))
            falls = drawn.first < half if before is None else drawn.below(before)
            index, before = index[falls], drawn.take(np.flatnonzero(falls))
            even[index] ^= True
        return even

    def _exp_trial(self, whole: Integers, fraction: "Uniform") -> Bools:
        """Return true with probability exp(-x (2k + x) / (2k + 2))."""
        even = np.ones(len(whole), dtype=bool)
        index, before = np.arange(len(whole)), fraction
        while index.size:
            drawn = self._uniform(index.size)
            going = drawn.below(before)
            here = np.flatnonzero(going)
            # With probability (2k + x) / (2k + 2) the chain goes on.
            pick = self._below(2 * whole[index[here]] + 2)
            last = np.flatnonzero(pick == 2 * whole[index[here]])
            passes = pick < 2 * whole[index[here]]
            x = fraction.take(index[here[last]])
            passes[last] = self._uniform(last.size).below(x)
            here = here[passes]
            index, before = index[here], drawn.take(here)
            even[index] ^= True
        return even

    def _uniform(self, count: int) -> "Uniform":
        first = self._words(count) >> np.uint64(64 - self._bits)
        return Uniform(first, np.arange(count), {}, self._more)

    def _more(self) -> int:
        return int(self._words(1)[0]) >> (64 - self._bits)

    def _bits_of(self, count: int) -> Bools:
        return (self._words(count) >> np.uint64(63)).astype(bool)

    def _below(self, limits: Integers) -> Integers:
        """Return uniform whole numbers from 0 to limit - 1, by rejection."""
        found = np.zeros(len(limits), dtype=np.int64)
        index = np.arange(len(limits))
        while index.size:
            drawn = (self._words(index.size) >> np.uint64(2)).astype(np.int64)
            limit = limits[index]
            found[index] = drawn % limit
            index = index[drawn >= (1 << 62) // limit * limit]
        return found


class Uniform:
    """Uniform numbers in [0, 1): their first bits, and further ones on demand."""

    def __init__(
        self,
        first: Words,
        names: Indices,
        rest: dict[int, list[int]],
        more: Callable[[], int],
    ) -> None:
        self.first = first
        self._names, self._rest, self._more = names, rest, more

    def take(self, index: Indices) -> "Uniform":
        """Return some of the numbers: the same ones, also in bits drawn later."""
        return Uniform(self.first[index], self._names[index], self._rest, self._more)

    def below(self, other: "Uniform") -> Bools:
        """Return where these numbers are below the others, one by one; exact."""
        result: Bools = self.first < other.first
        for place in np.flatnonzero(self.first == other.first).tolist():
            word, mine, theirs = 0, 0, 0
            while mine == theirs:
                mine, theirs = self._word(place, word), other._word(place, word)
                word += 1
            result[place] = mine < theirs
        return result

    def _word(self, place: int, word: int) -> int:
        words = self._rest.setdefault(int(self._names[place]), [])
        while len(words) <= word:
            words.append(self._more())
        return words[word]
