"""The noisy local steps of a release, compiled and distributed over threads.

A step adds noise to the exact sum of a batch's gradients, in whole numbers on a grid
(`exact_steps.NoiseGrid`). All that follows is post-processing, in float64. Random words
are drawn before the compiled steps, which only read them.
"""

from typing import Any

import numpy as np

from fedbudget.fleet.device.exact_steps import LARGEST_WEIGHT
from fedbudget.release.sums import add_sums, scratch_of
from fedbudget.simulation.kernels.arrays import CYCLIC, FIXED, FULL, POISSON
from fedbudget.simulation.kernels.random import restore
from fedbudget.simulation.kernels.sharing import claim
from fedbudget.simulation.kernels.simd import compiled, compiled_inline, never_inline

f64, i64, u32, u64 = np.float64, np.int64, np.uint32, np.uint64


@compiled_inline
def draw_batch(
    rows: Any, device: Any, step: Any, words: Any, deal: Any, work: Any, scratch: Any
) -> Any:
    """Write a step's rows into scratch.order; return their number.

    A Poisson batch compares 32 random bits per row with `inclusion`: its probability is
    a multiple of 2^-32, and at most batch_size / n. No amplification is claimed for a
    fixed batch, so the tiny bias of its picks costs no privacy.
    """
    num_rows = rows.offsets[device + 1] - rows.offsets[device]
    size, order = work.batch_size[device], scratch.order
    if work.sampling == CYCLIC:
        first = rows.offsets[device] + step % (num_rows // size) * size
        for i in range(size):
            order[i] = deal[first + i]
        return size
    if work.sampling == POISSON:
        count = i64(0)
        for i in range(num_rows):
            bits = (words[i >> 1] >> u64(32 * (i & 1))) & u64(0xFFFFFFFF)
            order[count] = u32(i)  # overwritten by the next unless the row is drawn
            count += i64(bits < work.inclusion[device])
        return count
    if work.sampling == FULL or size == num_rows:
        return num_rows
    for i in range(size):
        # At most 2^24 rows: the product of 40 bits and their number fits 64.
        pick = u64(i) + (((words[i] >> u64(24)) * u64(num_rows - i)) >> u64(40))
        scratch.picks[i] = u32(pick)
        swapped = order[i]
        order[i] = order[pick]
        order[pick] = swapped
    return size


@compiled_inline
def undo_batch(rows: Any, device: Any, drawn: Any, work: Any, scratch: Any) -> None:
    """Reset scratch.order to 0, 1, 2, .. after a step."""
    num_rows = rows.offsets[device + 1] - rows.offsets[device]
    if work.sampling == FIXED and drawn < num_rows:
        restore(scratch.order, scratch.picks, drawn, num_rows)


@compiled_inline
def move(
    device: Any, theta: Any, shift: Any, noise: Any, work: Any, scratch: Any
) -> Any:
    """Release a noisy gradient and take a step; return whether theta stays in range."""
    step, size = work.grid_step[device], f64(work.batch_size[device])
    unit, rate = work.unit[device], work.learning_rate
    inside = True
    for i in range(len(theta)):
        whole = np.rint(f64(scratch.sums[i]) * unit / step) + f64(noise[i])
        gradient = whole * step / size
        theta[i] += shift[i] - rate * (gradient + work.l2 * theta[i])
        inside &= abs(theta[i]) <= LARGEST_WEIGHT
    return inside


@compiled
def device_steps(
    rows: Any,
    device: Any,
    first_step: Any,
    theta: Any,  # float64, in place
    shift: Any,  # float64
    noise: Any,  # int64, shape (steps, num_params)
    words: Any,  # uint64, for the batches of all steps
    deal: Any,  # uint32, over all rows: the order of cyclic batches
    work: Any,
    scratch: Any,
) -> None:
    """Take steps from theta in place; they end early where scores might overflow."""
    never_inline()
    per_step = len(words) // len(noise)
    for k in range(len(noise)):
        own = words[k * per_step : (k + 1) * per_step]
        size = draw_batch(rows, device, first_step + k, own, deal, work, scratch)
        add_sums(rows, device, size, theta, work, scratch)
        undo_batch(rows, device, size, work, scratch)
        if not move(device, theta, shift, noise[k], work, scratch):
            return


@compiled
def worker_steps(
    rows: Any,
    worker: Any,
    claims: Any,  # int64, shape (1,): devices that workers have claimed
    devices: Any,
    first_step: Any,
    thetas: Any,  # float64, shape (devices, num_params), in place
    shifts: Any,  # float64, of the same shape
    noise: Any,  # int64, shape (devices, steps, num_params)
    words: Any,  # uint64: those of device j are words[starts[j] : starts[j + 1]]
    starts: Any,
    deal: Any,
    work: Any,
    memory: Any,
) -> None:
    """Take the steps of one device after the other, until all are claimed."""
    scratch = scratch_of(memory, worker)
    while True:
        j = claim(claims, 0)
        if j >= len(devices):
            return
        own = words[starts[j] : starts[j + 1]]
        device_steps(
            rows,
            devices[j],
            first_step,
            thetas[j],
            shifts[j],
            noise[j],
            own,
            deal,
            work,
            scratch,
        )
