"""Rounds over devices and over runs, compiled and distributed over threads.

Models with L lanes are flat arrays: parameter i of lane l is at i * L + l.
"""

from typing import Any

import numpy as np
from numba import prange
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import Work, scratch_of
from fedbudget.simulation.kernels.lanes import lane_steps
from fedbudget.simulation.kernels.random import MEAN_NOISE, fill_normals, stream
from fedbudget.simulation.kernels.simd import (
    compiled,
    compiled_inline,
    compiled_parallel,
)
from fedbudget.simulation.kernels.steps import single_steps

f32 = np.float32
# Devices are summed in this many blocks, so that the rounding of the mean does not
# depend on the number of threads.
BLOCKS = 256


def device_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any
) -> None:
    """Take tau steps of one device from scratch.theta, in place."""
    raise NotImplementedError


@overload(device_steps)
def _device_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any
) -> Any:
    """Select the kernel for one lane or many, at compile time."""
    kernel = single_steps if work.instance_class is Work else lane_steps

    def call(
        rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any
    ) -> None:
        kernel(rows, device, noisy, key, work, scratch)

    return call


@compiled
def add_devices(
    rows: Any,
    start: Any,  # theta at the start of the round, float64
    devices: Any,  # (first, stop)
    key: Any,  # (seed, first step)
    work: Any,
    scratch: Any,
    total: Any,  # float64
    shifts: Any,  # float32, shape (M, dim * L); empty without drift correction
) -> None:
    """Write the weighted sum of a range of devices' models, without the last noise.

    With drift correction a device's own last noise is also in its next shift: then it
    cannot be drawn once for all devices.
    """
    theta = scratch.theta
    noisy = work.tau if work.drift_corrected else work.tau - 1
    for i in range(len(total)):
        total[i] = 0.0
    for m in range(devices[0], devices[1]):
        if work.takes_part[m]:
            load_theta(start, theta)
            if work.drift_corrected:
                load_theta(shifts[m], scratch.shift)
            device_steps(rows, m, noisy, key, work, scratch)
            add_model(m, theta, work, total)
            if work.drift_corrected:
                for i in range(len(start)):
                    shifts[m, i] -= theta[i] / f32(work.tau)


@compiled
def finish_shifts(mean: Any, work: Any, shifts: Any) -> None:
    """Add the mean to the shifts; `add_devices` subtracted the devices' own models."""
    for m in range(len(shifts)):
        if work.takes_part[m]:
            for i in range(len(mean)):
                shifts[m, i] += f32(mean[i]) / f32(work.tau)


@compiled_inline
def add_model(device: Any, theta: Any, work: Any, total: Any) -> None:
    """Add a device's model to the sum, weighted in every lane."""
    lanes = len(work.learning_rate)
    if lanes == 1:  # the common case: a simple loop, which vectorises
        weight = work.weights[device, 0]
        for i in range(len(total)):
            total[i] += weight * np.float64(theta[i])
        return
    for i in range(work.dim):
        for lane in range(lanes):
            position = i * lanes + lane
            weight = work.weights[device, lane]
            total[position] += weight * np.float64(theta[position])


@compiled_inline
def load_theta(start: Any, theta: Any) -> None:
    """Copy a model in single precision into a buffer, padded with zeros."""
    for i in range(len(start)):
        theta[i] = f32(start[i])
    for i in range(len(start), len(theta)):
        theta[i] = f32(0.0)


@compiled
def add_mean_noise(mean: Any, key: Any, work: Any, noise: Any) -> None:
    """Add the noise of the devices' last step to their weighted mean.

    A weighted sum of independent normals is one normal with variance
    sum p_m^2 sigma_m^2: one draw instead of M, and the same distribution. Only the
    simulator may do this: a device adds its own noise before anything leaves it.
    """
    lanes, outputs = len(work.learning_rate), work.num_outputs
    state, gamma = stream(key[0], 0, key[1] + work.tau - 1, MEAN_NOISE)
    fill_normals(noise, work.dim * outputs, state, gamma)
    for lane in range(lanes):
        variance = 0.0
        for m in range(len(work.weights)):
            spread = work.weights[m, lane] * np.float64(work.noise_std[m, lane])
            variance += spread * spread
        scale = np.float64(work.learning_rate[lane]) * np.sqrt(variance)
        for i in range(work.dim):
            normal = np.float64(noise[i * outputs + lane % outputs])
            mean[i * lanes + lane] -= scale * normal


@compiled
def sum_blocks(
    rows: Any,
    start: Any,
    share: Any,  # (this worker, all workers)
    key: Any,
    work: Any,
    memory: Any,
    partial: Any,
    shifts: Any,
) -> None:
    """Sum a worker's share of the blocks."""
    scratch = scratch_of(memory, share[0])
    blocks, num_devices = len(partial), len(work.weights)
    for block in range(share[0], blocks, share[1]):
        first = block * num_devices // blocks
        stop = (block + 1) * num_devices // blocks
        devices = (first, stop)
        add_devices(rows, start, devices, key, work, scratch, partial[block], shifts)


@compiled
def finish_round(
    partial: Any, key: Any, work: Any, memory: Any, mean: Any, shifts: Any
) -> None:
    """Sum the blocks in their order and add the noise of the last step."""
    for block in range(len(partial)):
        for i in range(len(mean)):
            mean[i] += partial[block, i]
    if work.drift_corrected:
        finish_shifts(mean, work, shifts)
    else:
        add_mean_noise(mean, key, work, memory.noise[0])


@compiled
def add_momentum(model: Any, now: Any, before: Any, momentum: Any) -> None:
    """Add heavy-ball momentum to a new model: a multiple of the server's last step."""
    lanes = len(momentum)
    for i in range(len(model)):
        model[i] += momentum[i % lanes] * (now[i] - before[i])


@compiled_parallel
def rounds_over_devices(
    rows: Any,
    models: Any,
    key: Any,
    work: Any,
    memory: Any,
    partial: Any,
    shifts: Any,
) -> None:
    """Fill models[1:] with the mean after each round; models[0] is the start."""
    num_workers = len(memory.theta)
    for r in range(len(models) - 1):
        round_key = (key[0], key[1] + r * work.tau)
        for worker in prange(num_workers):
            share = (worker, num_workers)
            sum_blocks(rows, models[r], share, round_key, work, memory, partial, shifts)
        finish_round(partial, round_key, work, memory, models[r + 1], shifts)
        if r > 0:
            add_momentum(models[r + 1], models[r], models[r - 1], work.momentum)


@compiled
def rounds_single_threaded(
    rows: Any,
    models: Any,
    key: Any,
    work: Any,
    memory: Any,
    partial: Any,
    shifts: Any,
) -> None:
    """Do the same on the calling thread; the result is identical to the last bit."""
    for r in range(len(models) - 1):
        round_key = (key[0], key[1] + r * work.tau)
        sum_blocks(rows, models[r], (0, 1), round_key, work, memory, partial, shifts)
        finish_round(partial, round_key, work, memory, models[r + 1], shifts)
        if r > 0:
            add_momentum(models[r + 1], models[r], models[r - 1], work.momentum)


@compiled
def worker_replies(
    rows: Any, start: Any, share: Any, key: Any, work: Any, memory: Any, replies: Any
) -> None:
    """Write each device's own model with all its noise, for one worker's devices."""
    scratch = scratch_of(memory, share[0])
    for m in range(share[0], len(replies), share[1]):
        if work.takes_part[m]:
            load_theta(start, scratch.theta)
            device_steps(rows, m, work.tau, key, work, scratch)
            for i in range(len(start)):
                replies[m, i] = scratch.theta[i]


def work_of_group(works: Any, group: Any) -> Any:
    """Return the work of one group of a sweep."""
    raise NotImplementedError


@overload(work_of_group)
def _work_of_group(works: Any, group: Any) -> Any:
    kind = works.instance_class

    def select(works: Any, group: Any) -> Any:
        return kind(
            works.loss,
            works.threshold,
            works.sampling,
            works.tau[group],
            works.dim,
            works.num_outputs,
            works.l2[group],
            works.learning_rate[group],
            works.momentum[group],
            works.batch_size[group],
            works.noise_std[group],
            works.weights[group],
            works.takes_part[group],
            works.smallest[group],
            works.largest[group],
            works.noisy[group],
            works.drift_corrected,
        )

    return select


@compiled
def worker_runs(
    rows: Any,
    models: Any,  # float64, shape (groups, 3, dim * L): the start, three times
    share: Any,
    keys: Any,  # (seeds, shape (groups,); rounds, shape (groups, L))
    works: Any,  # arrays with a first axis over groups
    memory: Any,
    finals: Any,  # float64, shape (groups, dim * L)
    shifts: Any,  # float32, shape (workers, M, dim * L); empty without correction
) -> None:
    """Run one worker's share of the groups, one after the other."""
    seeds, num_rounds = keys
    scratch = scratch_of(memory, share[0])
    for group in range(share[0], len(seeds), share[1]):
        work = work_of_group(works, group)
        lanes = len(work.learning_rate)
        own_shifts = shifts[share[0]]
        own_shifts[:] = f32(0.0)
        longest = 0
        for lane in range(lanes):
            longest = max(longest, num_rounds[group, lane])
        for r in range(longest):
            key = (seeds[group], r * work.tau)
            start, mean = models[group, r % 3], models[group, (r + 1) % 3]
            all_devices = (0, len(work.weights))
            add_devices(rows, start, all_devices, key, work, scratch, mean, own_shifts)
            if work.drift_corrected:
                finish_shifts(mean, work, own_shifts)
            else:
                add_mean_noise(mean, key, work, scratch.noise)
            add_momentum(mean, start, models[group, (r + 2) % 3], work.momentum)
            for lane in range(lanes):
                if num_rounds[group, lane] == r + 1:
                    for i in range(lane, len(mean), lanes):
                        finals[group, i] = mean[i]
