"""Exact rounded normals, many at a time: round(2^p N) from a cryptographic stream.

The distribution is that of `fleet.device.exact_noise`, which says why it is needed and
stays the reference. The method is again Karney's algorithm N (ACM Trans. Math. Softw.
42, 2016), with other coins:

1.  Draw a whole part k >= 0 with probability in proportion to exp(-k^2 / 2).
2.  Draw a uniform fraction x in [0, 1).
3.  Accept k + x with probability exp(-x (2k + x) / 2); else begin again.
4.  Give it a random sign, and round it.

An accepted k + x has a density in proportion to exp(-k^2 / 2) exp(-x (2k + x) / 2) =
exp(-(k + x)^2 / 2): it is half-normal.

Karney's coins are chains of comparisons, for one draw at a time. Here steps 1 and 3
each compare a uniform number with a real one: u with the cumulative probabilities of k,
and v with the exponential. The first 32 bits of u and v, and an exponential in float64
with a bounded error, decide nearly all comparisons without a branch. A comparison that
they leave undecided (once in about 2^28 candidates) draws further bits of u, v and x
and repeats with as many digits as it needs: `_Undecided`. So every decision is that of
numbers with infinitely many bits, and the distribution is exact.

The bits are the key stream of AES-256 in counter mode, with a new key from the
operating system for each `Stream`. A draw is exact if the stream is random; so the
guarantee is computational differential privacy (Mironov, Pandey, Reingold and Vadhan
2009): it holds against everyone who cannot tell AES-256 from a random permutation. A
real device draws every bit from the operating system's generator itself.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from math import factorial
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedbudget.fleet.device.exact_noise import Integers, Words
from fedbudget.simulation.kernels.simd import compiled, compiled_inline

Source: TypeAlias = Callable[[int], Words]

u64, i64, f64 = np.uint64, np.int64, np.float64
COIN_BITS = 32  # of u and of v, together a word
FRACTION_BITS = 63  # of x; the last bit of its word is the sign
AT_ONCE = 1 << 13  # candidates, so that their words stay in the cache
ACCEPTED = 0.71  # share of the candidates: sqrt(pi / 2) / 1.7533
_REJECTED, _UNDECIDED = i64(-(2**63)), i64(-(2**63) + 1)  # no draw is as small
_LEAST_DIGITS = 60


class Stream:
    """Random 64-bit words: AES-256-CTR with a key from the operating system."""

    def __init__(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()

    def __call__(self, count: int) -> Words:
        """Return the next words: the key stream is what encrypts zeros."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype=u64)


class FastNormals:
    """Draws exact, rounded normals: `exact_noise.ExactNormals`, compiled.

    Args:
        words: The source of random 64-bit words; by default a new `Stream`. Only tests
            give another.
        bits: The number of bits of u and v that are drawn first. Tests use fewer than
            32, which leaves many comparisons undecided.
    """

    def __init__(self, words: Source | None = None, *, bits: int = COIN_BITS) -> None:
        if not 1 <= bits <= COIN_BITS:
            raise ValueError(f"bits must be 1 to {COIN_BITS}, got {bits}")
        self._words, self._bits = words or Stream(), bits

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return round(2^scale_bits N) for `count` independent standard normals N."""
        if not 0 <= scale_bits < FRACTION_BITS - 8:
            raise ValueError(f"scale_bits must be 0 to {FRACTION_BITS - 9}")
        fraction_bits = FRACTION_BITS
        if self._bits < COIN_BITS:
            fraction_bits = max(self._bits, scale_bits + 1)
        draws = np.empty(count + 1, dtype=np.int64)  # the last entry is spare
        done = 0
        while done < count:
            size = min(AT_ONCE, int((count - done) / ACCEPTED) + 32)
            words = self._words(2 * size)
            candidates = np.empty(size, dtype=np.int64)
            bits = scale_bits, self._bits, fraction_bits
            if draw_candidates(words[:size], words[size:], bits, candidates):
                for i in np.flatnonzero(candidates == _UNDECIDED):
                    pair = int(words[i]), int(words[size + i])
                    candidates[i] = self._decided(pair, bits)
            done = keep_accepted(candidates, draws, done)
        return draws[:count]

    def _decided(self, words: tuple[int, int], bits: tuple[int, int, int]) -> int:
        """Return an undecided candidate's draw, or _REJECTED."""
        scale_bits, coin_bits, fraction_bits = bits
        candidate = _Undecided(
            u=_Uniform(words[1] >> (64 - coin_bits), coin_bits),
            v=_Uniform((words[1] & 0xFFFFFFFF) >> (32 - coin_bits), coin_bits),
            x=_Uniform(words[0] >> (64 - fraction_bits), fraction_bits),
            words=self._words,
        )
        k = candidate.whole_part()
        if not candidate.accepted(k):
            return int(_REJECTED)
        # One bit more than the grid has decides the rounding.
        size = (k << scale_bits) + (((words[0] >> (63 - scale_bits)) + 1) >> 1)
        return size if words[0] & 1 else -size


@dataclass
class _Uniform:
    """A uniform number in [0, 1), known up to its first bits."""

    top: int
    bits: int

    def extend(self, words: Source) -> None:
        self.top = self.top << COIN_BITS | int(words(1)[0]) >> (64 - COIN_BITS)
        self.bits += COIN_BITS

    def bounds(self) -> tuple[Decimal, Decimal]:
        """Return the least and the largest value that it may have."""
        unit = Decimal(2) ** -self.bits
        return self.top * unit, (self.top + 1) * unit


@dataclass
class _Undecided:
    """A candidate whose first bits do not decide it: the comparisons, with more bits.

    Decimal numbers have as many digits as needed. Their exponential is rounded
    correctly, and the bounds of a uniform number have no rounding error at all, since
    2^-bits has `bits` digits. So the error of a comparison is a few units of the last
    digit, far below `slack`.
    """

    u: _Uniform
    v: _Uniform
    x: _Uniform
    words: Source

    def whole_part(self) -> int:
        """Return k: the number of cumulative probabilities that u exceeds."""
        k = 0
        while True:
            with localcontext(prec=self._digits):
                (low, high), limit = self.u.bounds(), _cumulative(k, self._digits)
                if high <= limit - self._slack:
                    return k
                is_above = low >= limit + self._slack
            if is_above:
                k += 1
            else:
                self.u.extend(self.words)

    def accepted(self, k: int) -> bool:
        """Return whether v is below exp(-x (2k + x) / 2)."""
        while True:
            with localcontext(prec=self._digits):
                low, high = self.v.bounds()
                # The exponential falls with x: its largest value is at the least x.
                most, least = ((-x * (2 * k + x) / 2).exp() for x in self.x.bounds())
                if high <= least - self._slack:
                    return True
                if low >= most + self._slack:
                    return False
            self.v.extend(self.words)
            self.x.extend(self.words)

    @property
    def _digits(self) -> int:
        """Digits with which bounds, and products of two of them, are exact."""
        bits = max(self.u.bits, self.v.bits, self.x.bits)
        return max(_LEAST_DIGITS, 2 * bits + 8)

    @property
    def _slack(self) -> Decimal:
        return Decimal(1).scaleb(10 - self._digits)


@cache
def _cumulative(k: int, digits: int) -> Decimal:
    """Return the probability of a whole part up to k."""
    with localcontext(prec=digits):
        weights = [Decimal(1)]
        while weights[-1].adjusted() > -digits:
            weights.append((-Decimal(len(weights) ** 2) / 2).exp())
        return sum(weights[: k + 1], Decimal(0)) / sum(weights, Decimal(0))


# floor(2^32 c) for the cumulative probabilities c of k = 0 .. 6; that of k = 6 is the
# largest number of 32 bits, so a larger k is always undecided at first.
_T0, _T1, _T2, _T3, _T4, _T5, _T6 = (
    u64(int(_cumulative(k, _LEAST_DIGITS) * 2**COIN_BITS)) for k in range(7)
)
_LOG2_E = 1.4426950408889634
# log 2 in two parts: the first has few bits, so that n * _LN2_HIGH is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = (
    1 / factorial(n) for n in range(2, 12)
)
_ERROR = 2.0**-40  # bound on the error of `falling_exp` and of what it is compared with


@compiled_inline
def falling_exp(r: Any) -> Any:
    """Return exp(-r) for r in 0 .. 8, with an error far below _ERROR.

    Taylor's polynomial of degree 11 at |s| <= log(2) / 2 has a remainder below 1e-14;
    rounding, in any order, adds a few units of 1e-16.
    """
    n = np.floor(r * _LOG2_E + 0.5)
    s = n * _LN2_HIGH - r + n * _LN2_LOW
    p = _C11
    p = p * s + _C10
    p = p * s + _C9
    p = p * s + _C8
    p = p * s + _C7
    p = p * s + _C6
    p = p * s + _C5
    p = p * s + _C4
    p = p * s + _C3
    p = p * s + _C2
    p = p * s * s + s + 1.0
    # 2^-n, by writing its exponent
    return p * i64((i64(1023) - i64(n)) << i64(52)).view(np.float64)


@compiled
def draw_candidates(first: Any, second: Any, bits: Any, out: Any) -> Any:
    """Write candidates' draws, _REJECTED or _UNDECIDED; return the undecided's number.

    `first` has x and the sign, `second` has u and v.
    """
    scale_bits, coin_bits, fraction_bits = bits
    coin = u64(32 - coin_bits)
    t0, t1, t2, t3 = _T0 >> coin, _T1 >> coin, _T2 >> coin, _T3 >> coin
    t4, t5, t6 = _T4 >> coin, _T5 >> coin, _T6 >> coin
    known = min(fraction_bits, 52)  # bits of x that float64 holds
    to_x, x_unit, v_unit = u64(64 - known), 2.0**-known, 2.0**-coin_bits
    undecided = i64(0)
    for i in range(len(out)):
        word = first[i]
        u = second[i] >> u64(32) >> coin
        v = f64(i64((second[i] & u64(0xFFFFFFFF)) >> coin)) * v_unit
        k = i64(u > t0) + i64(u > t1) + i64(u > t2) + i64(u > t3)
        k += i64(u > t4) + i64(u > t5) + i64(u > t6)
        tie = (u == t0) | (u == t1) | (u == t2) | (u == t3)
        tie |= (u == t4) | (u == t5) | (u == t6)
        x = f64(i64(word >> to_x)) * x_unit
        largest = falling_exp(x * (f64(k) + 0.5 * x)) + _ERROR
        # The slope in x is at most k + 1, so further bits of x change no more.
        smallest = largest - (f64(k) + 1.0) * x_unit - 2.0 * _ERROR
        # One bit more than the grid has decides the rounding.
        size = (k << i64(scale_bits)) + ((i64(word >> u64(63 - scale_bits)) + 1) >> 1)
        draw = size if word & u64(1) else -size
        draw = draw if v + v_unit <= smallest else _UNDECIDED
        draw = _REJECTED if v >= largest else draw
        draw = _UNDECIDED if tie else draw
        undecided += i64(draw == _UNDECIDED)
        out[i] = draw
    return undecided


@compiled
def keep_accepted(candidates: Any, draws: Any, done: Any) -> Any:
    """Append accepted draws to draws[:done], up to its spare entry; return the end."""
    for i in range(len(candidates)):
        draws[done] = candidates[i]  # overwritten by the next unless it is accepted
        done += i64(candidates[i] != _REJECTED)
        if done == len(draws) - 1:
            break
    return done
