"""The release path of this process under test: compiled sums, steps and normals."""

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from fedbudget.auditing.canaries import Table
from fedbudget.auditing.mechanisms import LEARNING_RATE, ExactSum, added_sums
from fedbudget.auditing.settings import Claim
from fedbudget.checks import Array
from fedbudget.data import Part
from fedbudget.errors import needed
from fedbudget.fleet.device.exact_noise import Integers
from fedbudget.fleet.device.exact_steps import NoiseGrid
from fedbudget.losses import Loss
from fedbudget.planning import Plan

_NONE = np.zeros(0, dtype=np.uint32)  # the order of cyclic batches, of full ones


class ReleasePath:
    """The noisy steps of `ReleaseDevices`."""

    name = "release"
    steps_at_once = 1 << 16  # of whole runs together

    def exact_sum(self, claim: Claim, theta: Array, table: Table) -> ExactSum:
        """Return the sum of the gradients of a table's rows."""
        rounds = _rounds(_any_claim(claim.model, table), table)
        from fedbudget.auditing.kernels import write_sums

        write_sums(rounds.rows, len(table), theta, rounds.work, rounds.memory)
        numbers = np.array(rounds.memory.sums[0][: len(theta)])
        return ExactSum(numbers=numbers, unit=Fraction(float(rounds.work.unit[0])))

    def grid(self, claim: Claim) -> NoiseGrid:
        """Return the grid of the released sums."""
        from fedbudget.release.rounds import noise_grids

        return noise_grids(_plan(claim))[0]

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        """Return noise, in grid steps."""
        with needed("an audit of the release path", "numba"):
            from fedbudget.release.normals import FastNormals
        return FastNormals().draw(count, scale_bits=scale_bits)

    def release(self, grid: NoiseGrid, total: ExactSum, noise: Integers) -> Array:
        """Return released sums: one row of `noise` for each.

        The compiled step is taken from zero, at a rate of -1 and with a batch of 1: the
        model after it is the released sum.
        """
        from fedbudget.auditing.kernels import write_released

        out = np.zeros(noise.shape)
        work, scratch = _one_step(grid, total)
        write_released(out, np.zeros(noise.shape[1]), noise, work, scratch)
        return out

    def runs(self, claim: Claim, table: Table, theta: Array, count: int) -> Array:
        """Return the sums over all steps of `count` runs."""
        rounds, devices = _rounds(claim, table), np.zeros(count, dtype=np.int64)
        models = rounds.replies(theta, devices, first_step=0, shifts=None, deal=_NONE)
        return added_sums(claim, theta, models)


@lru_cache(maxsize=8)
def _rounds(claim: Claim, table: Table) -> Any:
    """Return the compiled steps of a claim on a table of its size."""
    with needed("an audit of the release path", "numba"):
        from fedbudget.release.rounds import ReleaseRounds
        from fedbudget.release.rows import exact_rows
    offsets = np.array([0, len(table)])
    part = Part(x=table.x, y=table.y, offsets=offsets)
    return ReleaseRounds.of(_plan(claim), exact_rows(part, claim.model))


def _any_claim(loss: Loss, table: Table) -> Claim:
    """Return a claim for sums alone, which do not depend on its noise."""
    rows, dim = table.x.shape
    return Claim(
        name="sums",
        loss=loss.name,
        num_classes=loss.num_outputs,
        dim=dim,
        num_samples=rows,
        batch_size=rows,
        noise_std=loss.lipschitz / rows,
        steps=1,
        epsilon=1.0,
        delta=1e-5,
    )


def _plan(claim: Claim) -> Plan:
    """Return a plan of one device for the steps of a claim."""
    return Plan(
        tau=claim.steps,
        rounds=1,
        learning_rate=LEARNING_RATE,
        momentum=0.0,
        sampling="full" if claim.batch_size == claim.num_samples else "fixed",
        num_samples=np.array([claim.num_samples]),
        batch_size=np.array([claim.batch_size]),
        noise_std=np.array([claim.noise_std]),
        weights=np.ones(1),
        epsilon=np.array([claim.epsilon]),
        delta=np.array([claim.delta]),
        prior_mu=np.zeros(1),
        cost=np.zeros(1),
        loss=claim.loss,
        num_classes=claim.num_classes,
        l2=0.0,
        dim=claim.dim,
        lipschitz=claim.model.lipschitz,
        planner="audit",
        accountant="gdp",
        predicted_loss=0.0,
        epsilon_price=0.0,
        cost_price=0.0,
        binding=(),
        reasons=(),
    )


def _one_step(grid: NoiseGrid, total: ExactSum) -> tuple[Any, Any]:
    """Return the numbers and the memory of a step whose model is the released sum."""
    from fedbudget.release.sums import Scratch, Work

    one, ones = np.ones(1, dtype=np.int64), np.ones(1)
    work = Work(
        loss=0,
        threshold=np.float32(0.0),
        sampling=0,
        dim=len(total.numbers),
        num_outputs=1,
        l2=0.0,
        learning_rate=-1.0,
        batch_size=one,
        inclusion=np.zeros(1, dtype=np.uint64),
        slope_scale=ones,
        slope_bound=ones,
        unit=np.array([float(total.unit)]),
        grid_step=np.array([grid.step]),
    )
    indices, single = np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.float32)
    scratch = Scratch(
        theta=single,
        order=indices,
        picks=indices,
        labels=single,
        scores=single,
        slopes=ones,
        table=single,
        by_code=ones,
        partial=ones,
        sums=np.ascontiguousarray(total.numbers),
    )
    return work, scratch
