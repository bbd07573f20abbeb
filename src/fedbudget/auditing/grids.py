"""Part (c): released values are whole multiples of their grid's step.

Noise with rounding errors of its own leaves a trace: subtract what a table would have
released without noise, and only the true table leaves numbers on the noise's own grid
(Mironov 2012). The noise here is a whole number of grid steps, and so is the rounded
sum: every release is a multiple of the step for both tables, and no candidate is told
apart by its lattice. A value passes if it is exactly the float64 of a multiple.
"""

from dataclasses import dataclass

import numpy as np

from fedbudget.auditing.canaries import Pair
from fedbudget.auditing.mechanisms import AnyClaim, Mechanism
from fedbudget.checks import Array
from fedbudget.fleet.device.exact_steps import NoiseGrid
from fedbudget.record import RecordedRun

_FINE = 2.0**-6  # of a grid step: rounding errors up to it leave the grid visible
_EXACT = 2.0**53  # above it, float64 has no fractions: nothing could be seen


@dataclass(frozen=True, kw_only=True)
class GridTest:
    """Whether released values lie on their grid, for each of two tables."""

    values: int  # of each table
    off: tuple[int, int]  # values off the grid
    step: float

    @property
    def holds(self) -> bool:
        """Whether every value is on the grid."""
        return not any(self.off)

    def __str__(self) -> str:
        if self.holds:
            return f"{self.values} values of each table: all on the grid of the noise"
        first, second = self.off
        return (
            f"{first} and {second} of {self.values} values are OFF the grid: rounding "
            "tells the tables apart"
        )


def off_grid(values: Array, step: float) -> int:
    """Return how many values are not multiples of the step."""
    whole = np.rint(values / step)
    return int(((whole * step != values) | (np.abs(whole) >= _EXACT)).sum())


def measure_grid(
    mechanism: Mechanism[AnyClaim], claim: AnyClaim, pair: Pair, *, values: int
) -> GridTest:
    """Release sums of both tables, and look for values off the grid."""
    grid = mechanism.grid(claim)
    off = []
    for table in pair.tables:
        total = mechanism.exact_sum(claim, pair.theta, table)
        width = len(total.numbers)
        count = -(-values // width)
        noise = mechanism.draw(count * width, scale_bits=grid.scale_bits)
        released = mechanism.release(grid, total, noise.reshape(count, width))
        off.append(off_grid(np.ravel(released)[:values], grid.step))
    return GridTest(values=values, off=(off[0], off[1]), step=grid.step)


@dataclass(frozen=True, kw_only=True)
class ModelGridTest:
    """Whether the model of a run lies on its grid; or why this cannot be said."""

    weights: int
    off: int
    not_applicable: str = ""  # the reason

    @property
    def holds(self) -> bool:
        """Whether nothing is off the grid."""
        return self.off == 0

    def __str__(self) -> str:
        if self.not_applicable:
            return f"not applicable: {self.not_applicable}"
        if self.holds:
            return f"all {self.weights} weights are on the grid of the noise"
        return f"{self.off} of {self.weights} weights are OFF the grid of the noise"


def measure_model_grid(run: RecordedRun, *, released: bool) -> ModelGridTest:
    """Look for weights of a recorded model that are off the grid of its noise.

    A model after one step of one device is -eta S / X, with S the released sum: the
    start is zero. More steps or devices add up grids of several sizes.
    """
    plan = run.plan
    reason = _no_lattice(run, released)
    if reason or run.theta is None:
        return ModelGridTest(weights=0, off=0, not_applicable=reason)
    grid = NoiseGrid.of(
        noise_std=float(plan.noise_std[0]),
        batch_size=int(plan.batch_size[0]),
        lipschitz=plan.model.lipschitz,
        num_params=len(run.theta),
    )
    steps = run.theta * int(plan.batch_size[0]) / -plan.learning_rate / grid.step
    # Three products, in any order, are each rounded once, as is the quotient here.
    rounding = np.abs(steps) * 2.0**-50
    if rounding.max() > _FINE:
        reason = "its weights are so large that float64 is coarser than the grid"
        return ModelGridTest(weights=0, off=0, not_applicable=reason)
    off = int((np.abs(steps - np.rint(steps)) > rounding).sum())
    return ModelGridTest(weights=len(run.theta), off=off)


def _no_lattice(run: RecordedRun, released: bool) -> str:
    """Return why the model need not lie on one grid; empty if it must."""
    plan = run.plan
    if not released:
        return "the model is of a simulation, whose noise is on no grid"
    if run.theta is None:
        return "the run is not finished"
    if plan.trust == "sum":
        return "the model is a mean of sums: their grid is audited before it is taken"
    if plan.steps != 1 or plan.num_devices != 1:
        return "the model is a sum of several releases, each with its own grid"
    as_floats = run.theta.astype(np.float32).astype(np.float64)
    if np.array_equal(as_floats, run.theta):
        return "the model was sent in float32, which is coarser than the grid"
    return ""
