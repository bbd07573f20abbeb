"""Part (a): how far one row moves the sum of a table's gradients, in whole numbers.

A claim rests on two bounds, for every pair of neighbouring tables and every model:

1.  the sum of the gradients moves by at most 2 G (G: `Loss.lipschitz`);
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

from fedbudget.auditing.canaries import Pair, crafted_pairs
from fedbudget.auditing.mechanisms import Mechanism
from fedbudget.auditing.settings import Claim
from fedbudget.losses import Loss

_MOST_COLUMNS = 8  # of crafted tables: more add only columns without a difference


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The largest moves over all crafted pairs, relative to what is allowed."""

    pairs: int
    largest: float  # |difference of the sums| / 2 G
    on_grid: float  # |difference of the rounded sums|, over 2 / z deviations
    worst: str  # the pair with the largest move
    holds: bool  # both at most 1, in exact arithmetic

    def __str__(self) -> str:
        verb = "within" if self.holds else "BROKEN by"
        return (
            f"{self.pairs} crafted pairs move the sum by at most {self.largest:.7f} "
            f"x 2 G: {verb} the bound ({self.worst})"
        )


def measure_sensitivity(
    mechanism: Mechanism, claim: Claim, pairs: Iterable[Pair] | None = None
) -> Sensitivity:
    """Return the largest moves over the crafted pairs."""
    loss = claim.model
    dim = min(claim.dim, _MOST_COLUMNS)
    moves = [
        (_moves(mechanism, claim, pair), pair.name)
        for pair in (crafted_pairs(loss, dim=dim) if pairs is None else pairs)
    ]
    (squared, _), worst = max(moves, key=lambda move: move[0][0])
    on_grid = max(grid for (_, grid), _ in moves)
    return Sensitivity(
        pairs=len(moves),
        largest=math.sqrt(squared),
        on_grid=math.sqrt(on_grid),
        worst=worst,
        holds=squared <= 1 and on_grid <= 1,
    )


def _moves(mechanism: Mechanism, claim: Claim, pair: Pair) -> tuple[Fraction, Fraction]:
    """Return the squares of both moves, relative to what is allowed."""
    loss = claim.model
    first, second = (
        mechanism.gradient_sum(loss, pair.theta, table) for table in pair.tables
    )
    moved = _squared(first.numbers, second.numbers) * first.unit**2
    grid = mechanism.grid(claim)
    still = np.zeros((1, len(first.numbers)), dtype=np.int64)
    steps = [
        np.rint(mechanism.release(grid, total, still)[0] / grid.step)
        for total in (first, second)
    ]
    deviations = _squared(*steps) / Fraction(4**grid.scale_bits)
    allowed = (2 / Fraction(claim.noise_multiplier)) ** 2
    return moved / (4 * _squared_lipschitz(loss)), deviations / allowed


def _squared(first: Iterable[object], second: Iterable[object]) -> Fraction:
    """Return the squared distance of two vectors of whole numbers; exact."""
    pairs = zip(first, second, strict=True)
    return Fraction(sum((int(a) - int(b)) ** 2 for a, b in pairs))  # type: ignore[call-overload]


def _squared_lipschitz(loss: Loss) -> Fraction:
    """Return G^2: whole for softmax, whose G is the square root of 2."""
    return Fraction(2) if loss.name == "softmax" else Fraction(loss.lipschitz) ** 2
