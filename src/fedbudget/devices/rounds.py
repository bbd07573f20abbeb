"""Rounds over devices and over runs, compiled and spread over the threads."""

from typing import Any

import numpy as np
from numba import prange
from numba.extending import overload

from fedbudget.devices.compiled import compiled, compiled_parallel
from fedbudget.devices.lanes import lane_steps
from fedbudget.devices.random_numbers import MEAN_NOISE, fill_normals, stream
from fedbudget.devices.steps import single_steps
from fedbudget.devices.vectors import RUN
from fedbudget.devices.work import Work, new_scratch

f32 = np.float32
# Devices are summed in this many blocks whatever the number of threads, so that the
# rounding of the mean, too, does not depend on it.
BLOCKS = 256


def device_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any, dim: Any
) -> None:
    """Take tau steps of one device from scratch.theta, in place."""
    raise NotImplementedError


@overload(device_steps)
def _device_steps(
    rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any, dim: Any
) -> Any:
    """Choose one lane or many when the caller is compiled."""
    if work.instance_class is Work:

        def single(
            rows: Any,
            device: Any,
            noisy: Any,
            key: Any,
            work: Any,
            scratch: Any,
            dim: Any,
        ) -> None:
            single_steps(rows, device, key[1], noisy, key[0], work, scratch, dim)

        return single

    def many(
        rows: Any, device: Any, noisy: Any, key: Any, work: Any, scratch: Any, dim: Any
    ) -> None:
        lane_steps(rows, device, key[1], noisy, key[0], work, scratch, dim)

    return many


@compiled
def add_devices(
    rows: Any,
    start: Any,  # theta at the start of the round, float64, shape (dim, L)
    first: Any,
    stop: Any,
    key: Any,  # (seed, first step)
    work: Any,
    scratch: Any,
    total: Any,  # float64, shape (dim, L)
) -> None:
    """Add the weighted models of devices first .. stop - 1, without the last noise."""
    theta = scratch.theta
    dim, lanes = start.shape
    for m in range(first, stop):
        if work.weights[m].max() == 0.0:
            continue
        load_theta(start, theta)
        device_steps(rows, m, work.tau - 1, key, work, scratch, dim)
        for i in range(dim):
            for lane in range(lanes):
                weight = work.weights[m, lane]
                total[i, lane] += weight * np.float64(theta[i * lanes + lane])


@compiled
def load_theta(start: Any, theta: Any) -> None:
    """Copy theta in single precision to the front of a buffer, the rest zero."""
    dim, lanes = start.shape
    for i in range(dim):
        for lane in range(lanes):
            theta[i * lanes + lane] = f32(start[i, lane])
    theta[dim * lanes :] = f32(0.0)


@compiled
def add_mean_noise(mean: Any, key: Any, work: Any) -> None:
    """Add the noise of the devices' last step to their weighted mean.

    A weighted sum of independent normals is one normal with variance
    sum p_m^2 sigma_m^2: one draw instead of M, and the same distribution. Only the
    simulator may do this: a device adds its own noise before anything leaves it.
    """
    dim, lanes = mean.shape
    noise = np.empty(dim * work.num_outputs + RUN, dtype=np.float32)
    state, gamma = stream(key[0], 0, key[1] + work.tau - 1, MEAN_NOISE)
    fill_normals(noise, dim * work.num_outputs, state, gamma)
    for lane in range(lanes):
        variance = 0.0
        for m in range(len(work.weights)):
            spread = work.weights[m, lane] * np.float64(work.noise_std[m, lane])
            variance += spread * spread
        scale = np.float64(work.learning_rate[lane]) * np.sqrt(variance)
        for i in range(dim):
            place = i * work.num_outputs + lane % work.num_outputs
            mean[i, lane] -= scale * np.float64(noise[place])


@compiled
def sum_blocks(
    rows: Any, start: Any, share: Any, key: Any, work: Any, sizes: Any, partial: Any
) -> None:
    """Sum a worker's share of the blocks; share is (this worker, all workers)."""
    longest, table_size = sizes
    dim, lanes = start.shape
    scratch = new_scratch(dim, longest, lanes, table_size)
    blocks, num_devices = len(partial), len(work.weights)
    for block in range(share[0], blocks, share[1]):
        partial[block] = 0.0
        first = block * num_devices // blocks
        stop = (block + 1) * num_devices // blocks
        add_devices(rows, start, first, stop, key, work, scratch, partial[block])


@compiled
def finish_round(partial: Any, key: Any, work: Any, mean: Any) -> None:
    """Sum the blocks in their order and add the noise of the last step."""
    for block in range(len(partial)):
        mean += partial[block]
    add_mean_noise(mean, key, work)


@compiled_parallel
def rounds_over_devices(
    rows: Any,
    start: Any,
    num_rounds: Any,
    key: Any,
    work: Any,
    sizes: Any,
    num_workers: Any,
) -> Any:
    """Return the mean model after each round, shape (rounds, dim, L)."""
    dim, lanes = start.shape
    partial = np.empty((min(len(work.weights), BLOCKS), dim, lanes))
    means = np.zeros((num_rounds, dim, lanes))
    for r in range(num_rounds):
        round_key = (key[0], key[1] + r * work.tau)
        for worker in prange(num_workers):
            share = (worker, num_workers)
            sum_blocks(rows, start, share, round_key, work, sizes, partial)
        finish_round(partial, round_key, work, means[r])
        start = means[r]
    return means


@compiled
def some_replies(
    rows: Any, start: Any, share: Any, key: Any, work: Any, sizes: Any, replies: Any
) -> None:
    """Write the own model of a worker's share of the devices, with all its noise."""
    longest, table_size = sizes
    dim, lanes = start.shape
    scratch = new_scratch(dim, longest, lanes, table_size)
    for m in range(share[0], len(replies), share[1]):
        if work.weights[m].max() == 0.0:
            continue
        load_theta(start, scratch.theta)
        device_steps(rows, m, work.tau, key, work, scratch, dim)
        for i in range(dim):
            for lane in range(lanes):
                replies[m, i, lane] = scratch.theta[i * lanes + lane]


@compiled_parallel
def replies_of_devices(
    rows: Any, start: Any, key: Any, work: Any, sizes: Any, num_workers: Any
) -> Any:
    """Return every device's own model, shape (M, dim, L); NaN for weight zero."""
    dim, lanes = start.shape
    replies = np.full((len(work.weights), dim, lanes), np.nan, dtype=np.float32)
    for worker in prange(num_workers):
        some_replies(rows, start, (worker, num_workers), key, work, sizes, replies)
    return replies


def one_of(works: Any, group: Any) -> Any:
    """Return the work of one group of a sweep."""
    raise NotImplementedError


@overload(one_of)
def _one_of(works: Any, group: Any) -> Any:
    kind = works.instance_class

    def select(works: Any, group: Any) -> Any:
        return kind(
            works.loss,
            works.threshold,
            works.sampling,
            works.tau[group],
            works.num_outputs,
            works.l2[group],
            works.learning_rate[group],
            works.batch_size[group],
            works.noise_std[group],
            works.weights[group],
        )

    return select


@compiled
def some_runs(
    rows: Any, start: Any, share: Any, keys: Any, works: Any, sizes: Any, finals: Any
) -> None:
    """Run the worker's share of the groups, round after round, on one thread."""
    seeds, num_rounds = keys
    longest, table_size = sizes
    dim, lanes = start.shape
    scratch = new_scratch(dim, longest, lanes, table_size)
    for group in range(share[0], len(seeds), share[1]):
        work = one_of(works, group)
        theta = start.copy()
        mean = np.empty_like(start)
        for r in range(num_rounds[group].max()):
            key = (seeds[group], r * work.tau)
            mean[:] = 0.0
            num_devices = len(work.weights)
            add_devices(rows, theta, 0, num_devices, key, work, scratch, mean)
            add_mean_noise(mean, key, work)
            theta[:] = mean
            for lane in range(lanes):
                if num_rounds[group, lane] == r + 1:
                    finals[group, :, lane] = theta[:, lane]


@compiled_parallel
def rounds_over_runs(
    rows: Any, start: Any, keys: Any, works: Any, sizes: Any, num_workers: Any
) -> Any:
    """Return the final models, shape (groups, dim, L): one group per work and seed.

    keys is (seeds, shape (groups,); rounds, shape (groups, L)).
    """
    dim, lanes = start.shape
    finals = np.zeros((len(keys[0]), dim, lanes))
    for worker in prange(num_workers):
        some_runs(rows, start, (worker, num_workers), keys, works, sizes, finals)
    return finals
