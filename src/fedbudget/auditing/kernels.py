"""Entries into the compiled release path: its own sums, and its own noisy releases."""

from typing import Any

from fedbudget.release.steps import move
from fedbudget.release.sums import add_sums, scratch_of
from fedbudget.simulation.kernels.simd import compiled


@compiled
def write_sums(rows: Any, size: Any, theta: Any, work: Any, memory: Any) -> None:
    """Write the sum of the first device's gradients into its scratch memory."""
    add_sums(rows, 0, size, theta, work, scratch_of(memory, 0))


@compiled
def write_released(out: Any, shift: Any, noise: Any, work: Any, scratch: Any) -> None:
    """Take one step from each row of `out`, with the noise of that row."""
    for k in range(len(noise)):
        move(0, out[k], shift, noise[k], work, scratch)
