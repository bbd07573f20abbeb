"""Rounds over devices and over runs, compiled and shared by threads.

Models with L lanes are flat arrays: parameter i of lane l is at i * L + l.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from fedbudget.simulation.kernels.arrays import Work, noise_of, scratch_of
from fedbudget.simulation.kernels.lanes import lane_steps
from fedbudget.simulation.kernels.random import MEAN_NOISE, fill_normals, stream
from fedbudget.simulation.kernels.sharing import change, claim, peek, unfinished
from fedbudget.simulation.kernels.simd import (
    compiled,
    compiled_exact,
    compiled_inline,
)
from fedbudget.simulation.kernels.steps import single_steps

f32 = np.float32
# Devices are summed in at most this many blocks, which are the pieces that threads
# take. The rounding of the mean does not depend on the number of threads.
BLOCKS = 256


class Rounds(NamedTuple):
    """The arrays of R rounds, which the threads share.

    Entry r belongs to the start of round r, entry r + 1 to its end. An entry is written
    once (or twice, with the same bytes) and never changed.
    """

    means: Any  # float64, shape (R + 1, P): weighted means of the devices' models
    models: Any  # float64, shape (R + 1, P): the server's models
    velocities: Any  # float64, shape (R + 1, P): the server's momentum
    shifts: Any  # float32, shape (R + 1, M, P): see `shift_of`; M = 0 without drift
    partial: Any  # float64, shape (workers, blocks + 2, P): sums of blocks, and spare
    claims: Any  # int64, shape (R,): counters of the blocks that were claimed
    done: Any  # int64, shape (R, blocks): the worker of a finished block, from 1
    rounds_done: Any  # int64, shape (1,)


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


@compiled_exact
def shift_of(raw: Any, mean: Any, tau: Any) -> Any:
    """Return a device's shift; `raw` is the last one minus its reply over tau.

    The mean of the replies is known only after the round: it is added when it is used.
    """
    return raw + f32(mean) / f32(tau)


@compiled_exact
def raw_shift(shift: Any, reply: Any, tau: Any) -> Any:
    """Return the next round's shift of a device, without the mean."""
    return shift - reply / f32(tau)


@compiled
def add_devices(
    rows: Any,
    start: Any,  # theta at the start of the round, float64
    devices: Any,  # (first, stop)
    key: Any,  # (seed, first step, number of the round in its run, from 0)
    work: Any,
    scratch: Any,
    total: Any,  # float64
    drift: Any,  # (last mean, raw shifts, raw shifts of the next round)
) -> None:
    """Write the weighted sum of a range of devices' models, without the last noise.

    With drift correction a device's own last noise is also in its next shift: then it
    cannot be drawn once for all devices.
    """
    theta, shift = scratch.theta, scratch.shift
    mean, before, after = drift
    noisy = work.tau if work.drift_corrected else work.tau - 1
    for i in range(len(total)):
        total[i] = 0.0
    for m in range(devices[0], devices[1]):
        if work.takes_part[m]:
            load_theta(start, theta)
            if work.drift_corrected:
                for i in range(len(start)):
                    shift[i] = shift_of(before[m, i], mean[i], work.tau)
            device_steps(rows, m, noisy, key, work, scratch)
            clip_moves(start, theta, work)
            add_model(m, theta, work, total)
            if work.drift_corrected:
                for i in range(len(start)):
                    after[m, i] = raw_shift(shift[i], theta[i], work.tau)


@compiled
def complete_shifts(raw: Any, means: Any, work: Any, out: Any) -> None:
    """Write the shifts after every round, shape (R, M, P), from those of `Rounds`."""
    for r in range(len(out)):
        for m in range(len(out[r])):
            for i in range(len(means[r])):
                out[r, m, i] = raw[r, m, i]
                if work.takes_part[m]:
                    out[r, m, i] = shift_of(raw[r, m, i], means[r, i], work.tau)


@compiled_inline
def clip_moves(start: Any, theta: Any, work: Any) -> None:
    """Scale each plan's move from the start to its largest norm."""
    lanes, outputs = len(work.learning_rate), work.num_outputs
    for first in range(0, lanes - outputs + 1, outputs):
        if work.clip[first] == np.inf:
            continue
        square = 0.0
        for i in range(work.dim):
            for position in range(i * lanes + first, i * lanes + first + outputs):
                move = np.float64(theta[position]) - start[position]
                square += move * move
        scale = min(1.0, work.clip[first] / np.sqrt(square)) if square > 0.0 else 1.0
        for i in range(work.dim):
            for position in range(i * lanes + first, i * lanes + first + outputs):
                move = np.float64(theta[position]) - start[position]
                theta[position] = f32(start[position] + scale * move)


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
    """Add the noise of the devices' last step, or of their uploads, to the mean.

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
            spread = work.weights[m, lane] * np.float64(noise_of(work, m, lane, key[2]))
            variance += spread * spread
        scale = np.float64(work.learning_rate[lane]) * np.sqrt(variance)
        scale += work.upload_noise[lane]  # one of the two is zero
        for i in range(work.dim):
            normal = np.float64(noise[i * outputs + lane % outputs])
            mean[i * lanes + lane] -= scale * normal


@compiled_inline
def block_of(block: Any, blocks: Any, num_devices: Any) -> Any:
    """Return the first device of a block, and the first of the next."""
    return block * num_devices // blocks, (block + 1) * num_devices // blocks


@compiled
def sum_block(
    rows: Any, r: Any, block: Any, key: Any, work: Any, memory: Any, run: Any
) -> None:
    """Sum a block of round r into the worker's own memory, and report it."""
    seed, first_step, first_round, worker = key
    blocks = len(run.done[r])
    add_devices(
        rows,
        run.models[r],
        block_of(block, blocks, len(work.weights)),
        (seed, first_step + r * work.tau, first_round + r),
        work,
        scratch_of(memory, worker),
        run.partial[worker, block],
        (run.means[r], run.shifts[r], run.shifts[r + 1]),
    )
    change(run.done[r], block, 0, worker + 1)


@compiled
def finish_round(r: Any, key: Any, work: Any, memory: Any, run: Any) -> None:
    """Write the mean and the server's model of a round whose blocks are all done.

    Every worker may try. One that comes too late has read sums of later rounds, and
    throws its result away.
    """
    seed, first_step, first_round, worker = key
    blocks = len(run.done[r])
    mean = run.partial[worker, blocks]
    mean[:] = 0.0
    for block in range(blocks):
        part = run.partial[peek(run.done[r], block) - 1, block]
        for i in range(len(mean)):
            mean[i] += part[i]
    if not work.drift_corrected:
        step = (seed, first_step + r * work.tau, first_round + r)
        add_mean_noise(mean, step, work, memory.noise[worker])
    if peek(run.rounds_done, 0) == r:
        for i in range(len(mean)):
            run.means[r + 1, i] = mean[i]
        spare = (run.partial[worker, blocks + 1], mean)
        now = (run.models[r], run.velocities[r])
        after = (run.models[r + 1], run.velocities[r + 1])
        serve(mean, work, spare, now, after)
        change(run.rounds_done, 0, r, r + 1)


@compiled_exact
def serve(mean: Any, work: Any, spare: Any, now: Any, after: Any) -> None:
    """Write the server's next model and velocity: `algorithm.Server.update`.

    Two loops: a product and a sum in one are fused, and rounded once instead of twice.
    Only final values are written, since another thread may read or write the same. The
    second of the spare arrays may be the mean itself.
    """
    kept, moves = spare
    lanes = len(work.momentum)
    for i in range(len(mean)):
        kept[i] = work.momentum[i % lanes] * now[1][i]
        moves[i] = work.server_rate[i % lanes] * (mean[i] - now[0][i])
    for i in range(len(mean)):
        velocity = kept[i] + moves[i]
        after[0][i] = now[0][i] + velocity
        after[1][i] = velocity


@compiled
def work_on_rounds(
    rows: Any, key: Any, work: Any, memory: Any, run: Any, patience: Any
) -> None:
    """Take blocks until all rounds are done, as one of the workers: see `sharing`.

    The key is (seed, first step, first round, number of this worker). `patience` is how
    often to look at a block of another worker before doing it again.
    """
    worker, num_rounds = key[3], len(run.done)
    r = peek(run.rounds_done, 0)
    while r < num_rounds:
        done = run.done[r]
        block = claim(run.claims, r)
        while block < len(done):
            sum_block(rows, r, block, key, work, memory, run)
            block = claim(run.claims, r)
        looks = 0
        while peek(run.rounds_done, 0) == r:
            block = unfinished(done, worker)
            if block < 0:
                finish_round(r, key, work, memory, run)
            while block >= 0 and looks < patience and peek(done, block) == 0:
                looks += 1
            if block >= 0 and peek(done, block) == 0:
                sum_block(rows, r, block, key, work, memory, run)
        r = peek(run.rounds_done, 0)


@compiled
def worker_replies(
    rows: Any, start: Any, key: Any, work: Any, memory: Any, replies: Any, claims: Any
) -> None:
    """Write devices' own models with all their noise, while there are unclaimed ones.

    The key is (seed, first step, number of the round, number of this worker).
    """
    scratch, step = scratch_of(memory, key[3]), (key[0], key[1], key[2])
    m = claim(claims, 0)
    while m < len(replies):
        if work.takes_part[m]:
            load_theta(start, scratch.theta)
            device_steps(rows, m, work.tau, step, work, scratch)
            for i in range(len(start)):
                replies[m, i] = scratch.theta[i]
        m = claim(claims, 0)


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
            works.server_rate[group],
            works.batch_size[group],
            works.noise_std[group],
            works.noise_decay[group],
            works.weights[group],
            works.takes_part[group],
            works.smallest[group],
            works.largest[group],
            works.noisy[group],
            works.upload_noise[group],
            works.clip[group],
            works.drift_corrected,
            works.noise_falls,
        )

    return select


@compiled
def worker_runs(
    rows: Any,
    models: Any,  # float64, shape (groups, 3, P): model, velocity, lanes' last models
    worker: Any,
    keys: Any,  # (seeds, shape (groups,); rounds, shape (groups, L))
    works: Any,  # arrays with a first axis over groups
    memory: Any,
    own: Any,  # (float64, shape (workers, 3, P); float32 shifts, (workers, M, P))
    claims: Any,
) -> None:
    """Run groups from the first round to the last, while there are unclaimed ones."""
    seeds, num_rounds = keys
    sums, shifts = own[0][worker], own[1][worker]
    scratch = scratch_of(memory, worker)
    group = claim(claims, 0)
    while group < len(seeds):
        work = work_of_group(works, group)
        lanes = len(work.learning_rate)
        shifts[:] = f32(0.0)
        sums[:] = 0.0
        now = (models[group, 0], models[group, 1])
        longest = 0
        for lane in range(lanes):
            longest = max(longest, num_rounds[group, lane])
        for r in range(longest):
            key = (seeds[group], r * work.tau, r)
            next_mean(rows, now[0], key, work, scratch, sums, shifts)
            serve(sums[0], work, (sums[1], sums[2]), now, now)
            for lane in range(lanes):
                if num_rounds[group, lane] == r + 1:
                    for i in range(lane, len(now[0]), lanes):
                        models[group, 2, i] = now[0][i]
        group = claim(claims, 0)


@compiled
def next_mean(
    rows: Any, theta: Any, key: Any, work: Any, scratch: Any, sums: Any, shifts: Any
) -> None:
    """Replace sums[0] by the mean of the next round, in the blocks of `sum_block`."""
    mean, part, total = sums[0], sums[1], sums[2]
    num_devices = len(work.weights)
    blocks = min(BLOCKS, num_devices)
    total[:] = 0.0
    for block in range(blocks):
        devices = block_of(block, blocks, num_devices)
        drift = (mean, shifts, shifts)
        add_devices(rows, theta, devices, key, work, scratch, part, drift)
        for i in range(len(total)):
            total[i] += part[i]
    for i in range(len(total)):
        mean[i] = total[i]
    if not work.drift_corrected:
        add_mean_noise(mean, key, work, scratch.noise)
