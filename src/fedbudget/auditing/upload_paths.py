"""Uploads to a sum under test: the code of real devices, and of releases here."""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from fedbudget.auditing.canaries import Table
from fedbudget.auditing.mechanisms import ExactSum
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.checks import Array, floats
from fedbudget.data import Part
from fedbudget.errors import needed
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.exact_uploads import (
    UploadGrid,
    exact_upload,
    whole_upload,
)


class DeviceUploads:
    """The uploads of real devices."""

    name = "device"
    steps_at_once = 1  # one run after the other

    def exact_sum(self, claim: UploadClaim, theta: Array, table: Table) -> ExactSum:
        """Return an upload without its noise, in grid steps."""
        numbers = whole_upload(theta, _exact_rows(table), **_arguments(claim))
        return ExactSum(numbers=numbers, unit=Fraction(claim.grid.step))

    def grid(self, claim: UploadClaim) -> UploadGrid:
        """Return the grid of the released sums."""
        return claim.grid

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return shares of the noise, in grid steps."""
        return ExactNormals().draw(count, scale_bits=scale_bits)

    def release(self, grid: UploadGrid, total: ExactSum, noise: Integers) -> Array:
        """Return released sums: one row of `noise` for each."""
        return grid.decoded(total.numbers + noise)

    def runs(self, claim: UploadClaim, table: Table, theta: Array, count: int) -> Array:
        """Return the sums over all rounds of `count` runs."""
        rows, arguments = _exact_rows(table), _arguments(claim)
        totals = np.zeros((count, len(theta)), dtype=np.int64)
        for run in range(count):
            for _ in range(claim.steps):
                totals[run] += exact_upload(theta, rows, **arguments)
                for _ in range(claim.shares - 1):  # of the other honest devices
                    bits = claim.grid.scale_bits
                    totals[run] += self.draw(len(theta), scale_bits=bits)
        return np.asarray(totals * claim.grid.step)


class ReleaseUploads(DeviceUploads):
    """The uploads of `ReleaseDevices`, compiled."""

    name = "release"

    def exact_sum(self, claim: UploadClaim, theta: Array, table: Table) -> ExactSum:
        """Return an upload without its noise, in grid steps."""
        rounds, deal = _rounds(claim, table)
        (numbers,) = rounds.whole_moves(
            theta, np.zeros(1, dtype=np.int64), first_step=0, deal=deal
        )
        return ExactSum(numbers=numbers, unit=Fraction(rounds.grid.step))

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return shares of the noise, in grid steps."""
        with needed("an audit of the release path", "numba"):
            from fedbudget.release.normals import FastNormals
        return FastNormals().draw(count, scale_bits=scale_bits)

    def runs(self, claim: UploadClaim, table: Table, theta: Array, count: int) -> Array:
        """Return the sums over all rounds of `count` runs."""
        rounds, deal = _rounds(claim, table)
        devices = np.arange(claim.shares)
        totals = np.zeros((count, len(theta)), dtype=np.int64)
        for run in range(count):
            for _ in range(claim.steps):
                totals[run] += rounds.noisy_sum(theta, devices, first_step=0, deal=deal)
        return np.asarray(totals * rounds.grid.step)


def _exact_rows(table: Table) -> ExactRows:
    return ExactRows.rounded(table.x, table.y)


def _arguments(claim: UploadClaim) -> dict[str, Any]:
    """Return the arguments of a real device's upload."""
    size, batches = claim.batch_size, None
    if claim.blocks > 1:
        rows = np.arange(size * claim.blocks)
        batches = [rows[start : start + size] for start in rows[::size]]
    return {
        "loss": claim.model,
        "uploads": claim.uploads,
        "grid": claim.grid,
        "batches": batches,
    }


@lru_cache(maxsize=8)
def _rounds(claim: UploadClaim, table: Table) -> Any:
    """Return the compiled uploads of the honest devices, and the order of batches.

    The first device has the table. The others add shares of the noise: they have one
    row and weight 0.
    """
    with needed("an audit of the release path", "numba"):
        from fedbudget.release.rows import exact_rows
        from fedbudget.release.uploads import UploadRounds
    others = claim.shares - 1
    first = np.eye(1, claim.shares)[0]
    part = Part(
        x=np.concatenate([table.x, np.repeat(table.x[:1], others, axis=0)]),
        y=np.concatenate([table.y, np.repeat(table.y[:1], others)]),
        offsets=np.concatenate([[0], len(table) + np.arange(claim.shares)]),
    )
    ones = 1 - first
    steps = replace(
        claim.uploads.steps,
        batch_size=claim.batch_size * first + ones,
        blocks=claim.blocks * first + ones,
    )
    weights = float(floats(claim.uploads.weights)) * first
    uploads = replace(claim.uploads, steps=steps, weights=weights)
    deal = np.concatenate([np.arange(len(table)), np.zeros(others)]).astype(np.uint32)
    packed = exact_rows(part, claim.model)
    return UploadRounds.of_uploads(uploads, packed, cyclic=claim.blocks > 1), deal
