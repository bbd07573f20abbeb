"""The noisy local steps of a real device, with sums that have no rounding error.

`algorithm` has the same steps in a few lines of ordinary arithmetic. This version keeps
the privacy guarantee also against attacks on floating-point rounding, for any model
that a coordinator may send:

- Rows and slopes are whole numbers over a power of two, so the sum of the samples'
  gradients is exact, and does not depend on the order of the rows. Replacing one sample
  moves it by at most 2 G, without a rounding error.
- The sum is rounded to a grid, and whole numbers from `exact_noise.ExactNormals` are
  added. Rounding can move a coordinate by one more grid step. The noise is raised to
  cover this (by less than a thousandth), so a step spends exactly what the plan says.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.fleet.device.exact_noise import ExactNormals, system_words
from fedbudget.losses import Floats, Labels, Loss

Rows32: TypeAlias = NDArray[np.float32]
Sums: TypeAlias = NDArray[np.int64]

ROW_BITS = 23  # entries of a row are multiples of 2^-23, which float32 holds exactly
MOST_SLOPE_BITS = 20
BLOCK = 512  # rows; 512 products of 43 bits and a sqrt(2) fit float64's 53 bits
MOST_ROWS = 1 << 24
NOISE_AT_ONCE = 1 << 14  # numbers per draw; more would only need memory
LARGEST_WEIGHT = 1e30  # of a model: above it, scores might overflow
MOST_SCALE_BITS, LEAST_SCALE_BITS = 30, 16  # of the grid, per standard deviation
_EXACT_GRID = 48  # bits of the largest sum in grid steps: well below float64's 53
_MOST_RAISE = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactRows:
    """Rows in the unit ball, as multiples of 2^-23, and their labels; read-only."""

    x: Rows32  # shape (n, dim)
    y: Labels  # shape (n,): classes (int64), or targets in [-1, 1] (float64)

    @classmethod
    def rounded(cls, x: NDArray[Any], y: Labels) -> "ExactRows":
        """Round rows to the grid."""
        return cls.joined([(x, y)])

    @classmethod
    def joined(cls, blocks: Iterable[tuple[NDArray[Any], Labels]]) -> "ExactRows":
        """Round blocks of rows to the grid, and join them.

        Raises:
            DataError: There are no rows, too many, or one outside the unit ball.
        """
        parts, labels = [], []
        for x, y in blocks:
            if len(x) != len(y):
                raise DataError(
                    f"{len(x)} rows have {len(y)} labels: give one label per row"
                )
            for start in range(0, len(x), BLOCK):
                parts.append(rounded_rows(x[start : start + BLOCK]))
            labels.append(y)
        count = sum(map(len, parts))
        _check_count(count)
        exact, y = np.concatenate(parts), np.concatenate(labels)
        for array in (exact, y):  # both are copies
            array.setflags(write=False)
        return cls(x=exact, y=y)

    def __len__(self) -> int:
        return len(self.y)

    def first(self, count: int) -> "ExactRows":
        """Return the first rows, as a view."""
        return self.part(0, count)

    def part(self, start: int, stop: int) -> "ExactRows":
        """Return a range of rows, as a view."""
        return ExactRows(x=self.x[start:stop], y=self.y[start:stop])


def _check_count(rows: int) -> None:
    """Refuse more rows than exact sums have bits for, or none."""
    if not 0 < rows <= MOST_ROWS:
        raise DataError(f"there are {rows} rows: give 1 to {MOST_ROWS}")


def rounded_rows(x: NDArray[Any]) -> Rows32:
    """Round to the nearest; towards zero if the row would leave the unit ball."""
    scaled = np.asarray(x, dtype=np.float64) * 2**ROW_BITS
    if not (np.abs(scaled) <= 2**ROW_BITS * (1 + 1e-6)).all():  # also NaN
        raise DataError("a row has an entry outside [-1, 1]: scale rows first")
    whole = np.rint(scaled)
    long = _squares(whole) > 4**ROW_BITS
    whole[long] = np.trunc(scaled[long] * (1 - 2.0**-22))
    if (_squares(whole) > 4**ROW_BITS).any():
        raise DataError("a row is longer than 1: divide each row by max(1, its norm)")
    return np.asarray(whole / 2**ROW_BITS, dtype=np.float32)


def _squares(whole: Floats) -> Sums:
    """Return exact squared norms: at most a small multiple of 2^46."""
    return np.asarray(np.einsum("ij,ij->i", *[whole.astype(np.int64)] * 2))


@dataclass(frozen=True, kw_only=True)
class NoiseGrid:
    """A grid for the sum of a batch's gradients, with exact noise.

    With g the grid's step and s = 2^scale_bits, a released sum is g (k + round(s N)).
    The rounded sum k moves by at most 2 G / g + 2 sqrt(d) steps when one sample is
    replaced, so a step has mu = (2 G / g + 2 sqrt(d)) / s. The step g is selected such
    that this is at most 2 G / (X sigma), the mu without rounding.
    """

    step: float
    scale_bits: int
    raised: float  # relative increase of the noise above sigma

    @classmethod
    def of(
        cls,
        *,
        noise_std: float,
        batch_size: int,
        lipschitz: float,
        num_params: int,
        most_rows: int | None = None,
    ) -> "NoiseGrid":
        """Return the grid for noise on the mean gradient of a batch.

        Args:
            noise_std: Of the mean gradient.
            batch_size: What the sum of the batch's gradients is divided by.
            lipschitz: G, the largest norm of one row's gradient.
            num_params: The length of a gradient.
            most_rows: That a batch may have, if more than `batch_size`: with Poisson
                sampling, all rows of the device.

        Raises:
            InvalidInputError: The noise is too small or too large to be drawn exactly.
        """
        ratio = lipschitz / noise_std if noise_std > 0 else math.inf
        if most_rows is not None:
            ratio *= max(1.0, most_rows / batch_size)
        if not 2.0**-40 <= ratio <= 2.0 ** (_EXACT_GRID - LEAST_SCALE_BITS):
            raise InvalidInputError(
                f"noise_std {noise_std:g} cannot be drawn exactly next to gradients of "
                f"norm {lipschitz:g}"
            )
        scale_bits = min(
            MOST_SCALE_BITS, _EXACT_GRID - max(0, math.ceil(math.log2(ratio)))
        )
        multiplier = noise_std * batch_size / lipschitz
        # Twice sqrt(d) g / G, for g as large as twice X sigma / s: more than enough.
        raised = 2 * math.sqrt(num_params) * multiplier / 2**scale_bits
        if raised > _MOST_RAISE:
            raise InvalidInputError(
                f"noise_std {noise_std:g} is too large for {num_params} parameters and "
                f"batches of {batch_size}: the grid would raise it by the "
                f"factor 1 + {raised:.2g}"
            )
        step = noise_std * (1 + raised) * batch_size / 2**scale_bits
        return cls(step=step, scale_bits=scale_bits, raised=raised)

    def noisy(self, sums: Floats, noise: Sums) -> Floats:
        """Return the sums rounded to the grid, with noise."""
        return np.asarray((np.rint(sums / self.step) + noise) * self.step)


def slope_bits(num_rows: int, lipschitz: float) -> int:
    """Return the fraction bits of slopes, such that sums fit 62 bits."""
    bits = 62 - ROW_BITS - math.ceil(math.log2(num_rows * max(1.0, lipschitz)))
    # A block's sums fit 53 bits for slopes up to sqrt(2); larger ones have fewer bits.
    larger = max(0, math.ceil(math.log2(lipschitz / math.sqrt(2))))
    return min(MOST_SLOPE_BITS - larger, bits)


def gradient_sum(loss: Loss, theta: Array, rows: ExactRows, batch: Any = None) -> Sums:
    """Return the exact sum of the rows' gradients, without the L2 term.

    It is in units of 2^-(ROW_BITS + slope_bits): see `noisy_steps`. `batch` has the
    indices of the rows; None: all of them.
    """
    bits = slope_bits(len(rows), loss.lipschitz)
    total = np.zeros(loss.num_params(rows.x.shape[1]), dtype=np.int64)
    count = len(rows) if batch is None else len(batch)
    for start in range(0, count, BLOCK):
        part = slice(start, start + BLOCK)
        index = part if batch is None else batch[part]
        total += _block_sum(loss, theta, rows.x[index], rows.y[index], bits)
    return total


def _block_sum(loss: Loss, theta: Array, rows: Rows32, y: Labels, bits: int) -> Sums:
    """Return the exact sum of the gradients of at most BLOCK rows."""
    x = rows.astype(np.float64)
    slopes = _whole_slopes(loss, loss.scores(theta, x), y, bits)
    # Whole numbers below 2^53: exact in any order of summation.
    x *= 2.0**ROW_BITS
    return np.asarray((x.T @ slopes).T.reshape(-1).astype(np.int64))


def noisy_gradient(loss: Loss, x: Any, y: Labels, *, noise_std: float) -> Array | None:
    """Return the mean gradient of all rows at zero, without the L2 term, with noise.

    It is minus what one of the `noisy_steps` of length 1 adds to zero; rows, dense or
    CSR, are rounded and summed block by block, so that no copy of all is made.
    """
    count, num_params = len(y), loss.num_params(x.shape[1])
    _check_count(count)
    grid = NoiseGrid.of(
        noise_std=noise_std,
        batch_size=count,
        lipschitz=loss.lipschitz,
        num_params=num_params,
    )
    bits, theta = slope_bits(count, loss.lipschitz), np.zeros(num_params)
    sums = np.zeros(num_params, dtype=np.int64)
    for start in range(0, count, BLOCK):
        part = slice(start, start + BLOCK)
        block = x[part] if isinstance(x, np.ndarray) else x[part].toarray()
        sums += _block_sum(loss, theta, rounded_rows(block), y[part], bits)
    (noise,) = _noise(1, num_params, grid.scale_bits)
    gradient = grid.noisy(sums * 2.0 ** -(ROW_BITS + bits), noise) / count
    return gradient if (np.abs(gradient) <= LARGEST_WEIGHT).all() else None


def _whole_slopes(loss: Loss, scores: Floats, y: Labels, bits: int) -> Floats:
    """Return slopes in units of 2^-bits, within the loss's bound."""
    slopes = np.asarray(loss.slopes(scores, y), dtype=np.float64) * 2.0**bits
    if loss.num_outputs > 1:
        return np.trunc(slopes)  # towards zero: its norm does not grow
    bound = math.floor(loss.lipschitz * 2.0**bits)
    return np.clip(np.rint(slopes), -bound, bound)


def noisy_steps(
    theta: Array,
    rows: ExactRows,
    *,
    loss: Loss,
    tau: int,
    learning_rate: float,
    noise_std: float,
    batch_size: int,
    shift: Array | float = 0.0,
) -> Array | None:
    """Return theta after tau noisy steps; none if it exceeded LARGEST_WEIGHT.

    Each step's gradient, with its noise, is (2 G / (X sigma))-Gaussian-DP for replacing
    one row, for any theta. A batch smaller than the rows is drawn again in each step,
    without replacement; no amplification is claimed for it.

    `shift` is added to theta in each step. It must be computed from released values
    only, as in `drift`.
    """
    num_params = loss.num_params(rows.x.shape[1])
    grid = NoiseGrid.of(
        noise_std=noise_std,
        batch_size=batch_size,
        lipschitz=loss.lipschitz,
        num_params=num_params,
    )
    unit = 2.0 ** -(ROW_BITS + slope_bits(len(rows), loss.lipschitz))
    for noise in _noise(tau, num_params, grid.scale_bits):
        batch = None if batch_size == len(rows) else _batch(len(rows), batch_size)
        sums = gradient_sum(loss, theta, rows, batch)
        gradient = grid.noisy(sums * unit, noise) / batch_size
        theta = theta - learning_rate * (gradient + loss.l2 * theta) + shift
        if not (np.abs(theta) <= LARGEST_WEIGHT).all():
            return None
    return theta


def _noise(tau: int, num_params: int, scale_bits: int) -> Iterator[Sums]:
    """Yield the noise of each step; drawing several at once is faster."""
    normals, at_once = ExactNormals(), max(1, NOISE_AT_ONCE // num_params)
    for first in range(0, tau, at_once):
        count = min(at_once, tau - first)
        drawn = normals.draw(count * num_params, scale_bits=scale_bits)
        yield from drawn.reshape(count, num_params)


def _batch(num_rows: int, size: int) -> NDArray[np.int64]:
    """Return a uniform subset of the rows, from the operating system's generator."""
    return np.argsort(system_words(num_rows), kind="stable")[:size]
