"""The claims of plans whose server sees only sums: uploads, and their epsilon."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.auditing.canaries import Pair, crafted_moves, opposite_moves
from fedbudget.checks import Array, floats
from fedbudget.fleet.device.exact_uploads import UploadGrid
from fedbudget.losses import Loss, loss_named
from fedbudget.planning import Plan
from fedbudget.privacy import NoisyUploads
from fedbudget.release.uploads import grid_of
from fedbudget.text import counted

_MOST_ROWS, _MOST_COLUMNS = 1024, 8  # of the canaries' tables
_RUN_ROWS, _RUN_COLUMNS = 32, 4  # of the table of whole runs: larger ones are slow


@dataclass(frozen=True, kw_only=True)
class UploadClaim:
    """The uploads of one device to sums, and the epsilon that they are said to spend.

    Of the devices whose answers are in a sum, only the honest ones count: they carry
    the noise.
    """

    name: str  # whose claim it is
    loss: str
    num_classes: int  # as in a plan: 1 unless the loss is softmax
    dim: int  # columns of a row
    uploads: NoisyUploads  # of the device: its fields are numbers
    epsilon: float
    delta: float

    @property
    def model(self) -> Loss:
        """The loss."""
        classes = self.num_classes if self.loss == "softmax" else None
        return loss_named(self.loss, num_classes=classes, l2=self.uploads.steps.l2)

    @property
    def steps(self) -> int:
        """K: rounds, each with one upload."""
        return int(floats(self.uploads.rounds))

    @property
    def noise_multiplier(self) -> float:
        """Noise of the sum over half of what replacing one unit moves, at most."""
        return float(self.uploads.noise_multiplier)

    @property
    def deviation(self) -> float:
        """Std of the honest noise in a sum, per coordinate."""
        return self.uploads.sum_noise_std

    @property
    def shares(self) -> int:
        """The honest devices whose shares are the noise of a sum: t - c."""
        return self.uploads.least_answers - self.uploads.colluders

    @property
    def batch_size(self) -> int:
        """Rows of a step."""
        return int(floats(self.uploads.steps.batch_size))

    @property
    def blocks(self) -> int:
        """Disjoint batches that the steps take in turn."""
        return int(floats(self.uploads.steps.blocks))

    @property
    def grid(self) -> UploadGrid:
        """The grid of the sums."""
        return grid_of(self.uploads, self.model, self.dim)

    @property
    def bound(self) -> str:
        """What limits the move of an upload, in words."""
        return f"the bound of {counted(self.uploads.steps.tau, 'step')}"

    @property
    def squared_bound(self) -> Fraction:
        """The square of how far an upload moves, with its rounding errors."""
        grid = self.grid
        most = grid.most_moved(self.uploads, self.model, dim=self.dim)
        return (Fraction(float(most)) * Fraction(grid.step)) ** 2

    def canaries(self) -> Pair:
        """Return tables of the claim's own size with moves of full length."""
        return opposite_moves(self.model, **self._table)

    def crafted_pairs(self) -> Iterator[Pair]:
        """Yield tables that might move an upload too far."""
        return crafted_moves(self.model, **self._table)

    @property
    def _table(self) -> dict[str, Any]:
        """Arguments of `opposite_moves`: the canary is in the batch of the last step.

        So it is in as many steps of a round as any row.
        """
        steps, size = self.uploads.steps, self.batch_size
        return {
            "rows": size * self.blocks,
            "dim": self.dim,
            "progress": steps.learning_rate * steps.lipschitz * steps.tau,
            "at": (steps.tau - 1) % self.blocks * size + size // 2,
            "whole": steps.unit == "device",
        }

    def with_noise(self, factor: float) -> "UploadClaim":
        """Return the same claim with `factor` times the noise: a control."""
        noise_std = self.uploads.noise_std * factor
        return replace(self, uploads=replace(self.uploads, noise_std=noise_std))

    def with_table(self, *, rows: int, dim: int) -> "UploadClaim":
        """Return the claim at the same noise multiplier for batches of this shape."""
        steps = replace(self.uploads.steps, batch_size=float(rows))
        moved = float(steps.sensitivity / self.uploads.steps.sensitivity)
        uploads = replace(
            self.uploads, steps=steps, noise_std=self.uploads.noise_std * moved
        )
        return replace(self, uploads=uploads, dim=dim)

    def small(self) -> "UploadClaim":
        """Return the claim for a small table."""
        rows = max(1, min(self.batch_size, _RUN_ROWS // self.blocks))
        return self.with_table(rows=rows, dim=max(2, min(self.dim, _RUN_COLUMNS)))


def upload_claim(
    plan: Plan, group: list[int], epsilon: Array
) -> tuple[UploadClaim, tuple[str, ...]]:
    """Return the claim of a group of devices, and notes on how it is audited.

    Raises:
        InvalidInputError: The plan's uploads do not fit a grid.
    """
    grid_of(plan.uploads, plan.model, plan.dim)  # of the plan's own size
    m = max(group, key=lambda device: float(epsilon[device]))
    claim = UploadClaim(
        name=f"{len(group)} of {counted(plan.num_devices, 'device')}",
        loss=plan.loss,
        num_classes=plan.num_classes,
        dim=plan.dim,
        uploads=_of_device(plan, m),
        epsilon=float(epsilon[m]),
        delta=float(plan.delta[m]),
    )
    rows = max(1, min(claim.batch_size, _MOST_ROWS // claim.blocks))
    dim = max(2, min(plan.dim, _MOST_COLUMNS))
    shares = counted(claim.shares, "honest device")
    notes = [f"the noise of a sum is that of {shares}: all but the colluders"]
    if (rows, dim) != (claim.batch_size, plan.dim):
        notes.append(
            f"tables have {rows} rows in a batch and {dim} columns, at the plan's "
            "noise multiplier"
        )
    return claim.with_table(rows=rows, dim=dim), tuple(notes)


def _of_device(plan: Plan, device: int) -> NoisyUploads:
    """Return one device's uploads, with plain numbers."""
    uploads, steps = plan.uploads, plan.uploads.steps

    def own(values: NDArray[np.int64] | Array) -> float:
        return float(values[device])

    return replace(
        uploads,
        steps=replace(steps, batch_size=own(plan.batch_size), blocks=own(plan.blocks)),
        weights=own(plan.weights),
        rounds=own(plan.device_rounds),
    )
