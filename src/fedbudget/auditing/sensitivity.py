"""Part (a): how far one unit moves the sum of a table, in whole numbers.

A claim rests on two bounds, for every pair of neighbouring tables and every model:

1.  the sum moves by at most a known distance: 2 G for gradients (G: `Loss.lipschitz`);
    for uploads, that of tau steps without noise, with their rounding errors;
2.  the sum in grid steps, rounded, moves by at most 2 / z standard deviations of the
    noise, with z the noise multiplier of the claim: rounding is paid for by more noise.

Both are verified without a tolerance: squares of whole numbers are compared as
fractions. A pair that breaks one is a proof; pairs that do not are only evidence.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedbudget.auditing.canaries import Pair
from fedbudget.auditing.mechanisms import AnyClaim, Mechanism


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The largest moves over all crafted pairs, relative to what is allowed."""

    pairs: int
    bound: str  # of a sum, in words
    largest: float  # |difference of the sums|, over that bound
    on_grid: float  # |difference of the rounded sums|, over 2 / z deviations
    worst: str  # the pair with the largest move
    holds: bool  # both at most 1, in exact arithmetic

    def __str__(self) -> str:
        verb = "within" if self.holds else "BROKEN by"
        return (
            f"{self.pairs} crafted pairs move the sum by at most {self.largest:.7f} "
            f"x {self.bound}: {verb} the bound ({self.worst})"
        )


def measure_sensitivity(mechanism: Mechanism[AnyClaim], claim: AnyClaim) -> Sensitivity:
    """Return the largest moves over the crafted pairs."""
    moves = [
        (_moves(mechanism, claim, pair), pair.name) for pair in claim.crafted_pairs()
    ]
    (squared, _), worst = max(moves, key=lambda move: move[0][0])
    on_grid = max(grid for (_, grid), _ in moves)
    return Sensitivity(
        pairs=len(moves),
        bound=claim.bound,
        largest=math.sqrt(squared),
        on_grid=math.sqrt(on_grid),
        worst=worst,
        holds=squared <= 1 and on_grid <= 1,
    )


def _moves(
    mechanism: Mechanism[AnyClaim], claim: AnyClaim, pair: Pair
) -> tuple[Fraction, Fraction]:
    """Return the squares of both moves, relative to what is allowed."""
    first, second = (
        mechanism.exact_sum(claim, pair.theta, table) for table in pair.tables
    )
    moved = _squared(first.numbers, second.numbers) * first.unit**2
    grid = mechanism.grid(claim)
    still = np.zeros((1, len(first.numbers)), dtype=np.int64)
    steps = [
        np.rint(mechanism.release(grid, total, still)[0] / grid.step)
        for total in (first, second)
    ]
    deviations = _squared(*steps) / Fraction(4**grid.scale_bits * claim.shares)
    allowed = (2 / Fraction(claim.noise_multiplier)) ** 2
    return moved / claim.squared_bound, deviations / allowed


def _squared(first: Iterable[object], second: Iterable[object]) -> Fraction:
    """Return the squared distance of two vectors of whole numbers; exact."""
    pairs = zip(first, second, strict=True)
    return Fraction(sum((int(a) - int(b)) ** 2 for a, b in pairs))  # type: ignore[call-overload]
