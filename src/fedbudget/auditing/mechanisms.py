"""The release paths under test, behind one small protocol.

The audit knows a mechanism by four operations of one noisy step: the exact sum of a
table's gradients, the grid of the noise, the noise itself, and the release. It calls
the functions that real releases call, for many trials at once. `runs` carries out whole
runs through the path's own loop, and shows that the four are what it does.

`release_path` has the path of releases in this process, `upload_paths` both paths of
uploads to a sum.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbudget.auditing.canaries import Table
from fedbudget.auditing.settings import Claim
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers
from fedbudget.fleet.device.exact_steps import (
    ROW_BITS,
    ExactRows,
    NoiseGrid,
    gradient_sum,
    noisy_steps,
    slope_bits,
)

AnyClaim = TypeVar("AnyClaim", Claim, UploadClaim)
_Claimed = TypeVar("_Claimed", Claim, UploadClaim, contravariant=True)
LEARNING_RATE = 1.0  # of whole runs: a power of two, so that no step is rounded twice


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactSum:
    """A sum of gradients: numbers[i] * unit, without a rounding error."""

    numbers: Integers
    unit: Fraction

    @property
    def floats(self) -> Array:
        """The sum in float64."""
        return np.asarray(self.numbers * float(self.unit))

    def at(self, index: NDArray[np.intp]) -> "ExactSum":
        """Return some of the coordinates."""
        return ExactSum(numbers=self.numbers[index], unit=self.unit)


class Grid(Protocol):
    """The grid of released sums."""

    @property
    def step(self) -> float:
        """The distance of two values."""

    @property
    def scale_bits(self) -> int:
        """A draw of the noise has a std of 2^scale_bits steps."""


class Mechanism(Protocol[_Claimed]):
    """A path on which sums are released with noise."""

    name: str
    steps_at_once: int  # of whole runs together

    def exact_sum(self, claim: _Claimed, theta: Array, table: Table) -> ExactSum:
        """Return what is released of a table, without its noise."""

    def grid(self, claim: _Claimed) -> Grid:
        """Return the grid of the released sums."""

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return noise, in grid steps."""

    def release(self, grid: Any, total: ExactSum, noise: Integers) -> Array:
        """Return released sums: one row of `noise` for each."""

    def runs(self, claim: _Claimed, table: Table, theta: Array, count: int) -> Array:
        """Return the sums over all releases of `count` runs, on the path's own loop."""


def added_sums(claim: Claim, theta: Array, models: Array) -> Array:
    """Return the sums over all steps of runs from theta: X (theta - result) / eta."""
    return np.asarray((theta - models) * (claim.batch_size / LEARNING_RATE))


class DevicePath:
    """The noisy steps of a real device."""

    name = "device"
    steps_at_once = 1  # one run after the other

    def exact_sum(self, claim: Claim, theta: Array, table: Table) -> ExactSum:
        """Return the sum of the gradients of a table's rows."""
        loss, rows = claim.model, ExactRows.rounded(table.x, table.y)
        unit = Fraction(1, 2 ** (ROW_BITS + slope_bits(len(rows), loss.lipschitz)))
        return ExactSum(numbers=gradient_sum(loss, theta, rows), unit=unit)

    def grid(self, claim: Claim) -> NoiseGrid:
        """Return the grid of the released sums."""
        return NoiseGrid.of(
            noise_std=claim.noise_std,
            batch_size=claim.batch_size,
            lipschitz=claim.model.lipschitz,
            num_params=claim.num_params,
        )

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return noise, in grid steps."""
        return ExactNormals().draw(count, scale_bits=scale_bits)

    def release(self, grid: NoiseGrid, total: ExactSum, noise: Integers) -> Array:
        """Return released sums: one row of `noise` for each."""
        return np.asarray(grid.noisy(total.floats, noise))

    def runs(self, claim: Claim, table: Table, theta: Array, count: int) -> Array:
        """Return the sums over all steps of `count` runs, on the path's own loop."""
        rows = ExactRows.rounded(table.x, table.y)
        models = np.array([self._run(claim, rows, theta) for _ in range(count)])
        return added_sums(claim, theta, models)

    def _run(self, claim: Claim, rows: ExactRows, theta: Array) -> Array:
        moved = noisy_steps(
            theta,
            rows,
            loss=claim.model,
            tau=claim.steps,
            learning_rate=LEARNING_RATE,
            noise_std=claim.noise_std,
            batch_size=claim.batch_size,
        )
        if moved is None:
            raise InvalidInputError(
                f"a run of {claim.steps} steps ended early: its noise multiplier "
                f"{claim.noise_multiplier:g} is too large to be audited"
            )
        return moved
