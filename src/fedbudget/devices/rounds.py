"""Rounds over devices and over runs, compiled and spread over the threads."""

from typing import Any

import numpy as np
from numba import prange

from fedbudget.devices.compiled import compiled, compiled_parallel
from fedbudget.devices.random_numbers import MEAN_NOISE, fill_normals, stream
from fedbudget.devices.steps import Scratch, device_steps
from fedbudget.devices.vectors import RUN

f32 = np.float32
# Devices are summed in this many blocks whatever the number of threads, so that the
# rounding of the mean, too, does not depend on it.
BLOCKS = 256


@compiled
def new_scratch(sizes: Any) -> Any:
    """Return one thread's working memory."""
    dim, longest, table_size = sizes
    params = (dim + RUN - 1) // RUN * RUN + RUN
    entries = (table_size + RUN - 1) // RUN * RUN + RUN
    return Scratch(
        np.zeros(params, dtype=np.float32),
        np.zeros(params, dtype=np.float32),
        np.zeros(params, dtype=np.float32),
        np.arange(longest + RUN).astype(np.uint32),
        np.zeros(longest + RUN, dtype=np.uint32),
        np.zeros(longest + RUN, dtype=np.float32),
        np.zeros(longest + RUN, dtype=np.float32),
        np.zeros(entries, dtype=np.float32),
        np.zeros(2 * entries, dtype=np.float32),
    )


@compiled
def add_mean_noise(
    mean: Any, weights: Any, work: Any, seed: Any, step: Any, noise: Any
) -> None:
    """Add the noise of the devices' last step to their weighted mean.

    A weighted sum of independent normals is one normal with variance
    sum p_m^2 sigma_m^2: one draw instead of M, and the same distribution. Only the
    simulator may do this: a device adds its own noise before anything leaves it.
    """
    variance = 0.0
    for m in range(len(weights)):
        variance += (weights[m] * np.float64(work.noise_std[m])) ** 2
    if variance > 0.0:
        state, gamma = stream(seed, 0, step, MEAN_NOISE)
        fill_normals(noise, len(mean), state, gamma)
        spread = np.float64(work.learning_rate) * np.sqrt(variance)
        for i in range(len(mean)):
            mean[i] -= spread * np.float64(noise[i])


@compiled
def add_devices(
    rows: Any,
    start: Any,  # theta at the start of the round, float64, shape (dim,)
    devices: Any,  # (first, stop)
    weights: Any,
    key: Any,  # (seed, first step)
    work: Any,
    scratch: Any,
    total: Any,
) -> None:
    """Add the weighted models of the devices to total, without the last noise."""
    seed, first_step = key
    theta = scratch.theta
    for m in range(devices[0], devices[1]):
        weight = weights[m]
        if weight == 0.0:
            continue
        for i in range(len(start)):
            theta[i] = f32(start[i])
        device_steps(rows, m, first_step, work.tau - 1, seed, work, scratch)
        for i in range(len(start)):
            total[i] += weight * np.float64(theta[i])


@compiled
def worker(
    rows: Any,
    start: Any,
    share: Any,  # (this worker, number of workers)
    weights: Any,
    key: Any,
    work: Any,
    sizes: Any,
    partial: Any,
) -> None:
    """Sum every so-manieth block of devices into its line of `partial`."""
    scratch = new_scratch(sizes)
    blocks = len(partial)
    for block in range(share[0], blocks, share[1]):
        partial[block] = 0.0
        first = block * len(weights) // blocks
        stop = (block + 1) * len(weights) // blocks
        add_devices(
            rows, start, (first, stop), weights, key, work, scratch, partial[block]
        )


@compiled_parallel
def rounds_over_devices(
    rows: Any,
    theta: Any,
    weights: Any,
    num_rounds: Any,
    key: Any,
    work: Any,
    sizes: Any,
    num_workers: Any,
) -> Any:
    """Return the mean model after each round, shape (rounds, dim)."""
    dim = len(theta)
    partial = np.empty((min(len(weights), BLOCKS), dim), dtype=np.float64)
    means = np.zeros((num_rounds, dim), dtype=np.float64)
    noise = np.empty(dim + RUN, dtype=np.float32)
    for r in range(num_rounds):
        step = key[1] + r * work.tau
        for share in prange(num_workers):
            worker(
                rows,
                theta,
                (share, num_workers),
                weights,
                (key[0], step),
                work,
                sizes,
                partial,
            )
        for block in range(len(partial)):
            means[r] += partial[block]
        add_mean_noise(
            means[r], weights, work, key[0], step + work.tau - 1, noise
        )
        theta = means[r]
    return means
