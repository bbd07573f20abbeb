"""Random words, normals and batches inside kernels.

Every random number is a function of (seed, device, step, purpose) and its index in that
stream only. It depends neither on the number of threads, nor on tau, nor on the order
of the devices. So runs are reproducible however they are scheduled, a run can be
resumed at any step, and plans that share a seed share their random numbers.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, 2014): word i of a stream is mix(state + i gamma), which vectorises because
no word depends on the previous one. It is for simulation only; a real device draws its
noise from the operating system.
"""

from typing import Any

import numpy as np

from fedbudget.simulation.kernels.layouts import RUN
from fedbudget.simulation.kernels.simd import (
    compiled,
    compiled_inline,
    store_normals,
)

u64 = np.uint64

BATCHES = 0  # purposes, each with streams of its own
NOISE = 1
MEAN_NOISE = 2
SHUFFLE = 3  # of a device's rows, for cyclic batches

_GOLDEN = u64(0x9E3779B97F4A7C15)
_LOW_32 = u64(0xFFFFFFFF)


@compiled_inline
def mix(z: Any) -> Any:
    """Return SplitMix64's scrambling of a 64-bit word."""
    z = (z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> u64(27))) * u64(0x94D049BB133111EB)
    return z ^ (z >> u64(31))


@compiled
def stream(seed: Any, device: Any, step: Any, purpose: Any) -> Any:
    """Return (state, gamma), the start and the stride of an independent stream."""
    key = mix(u64(seed) + _GOLDEN)
    key = mix(key ^ (u64(device) * _GOLDEN + u64(1)))
    key = mix(key ^ (u64(step) * _GOLDEN + u64(purpose)))
    gamma = mix(key + _GOLDEN) | u64(1)
    # A stride with long runs of equal bits mixes badly: flipped as in their section 5.
    if count_ones(gamma ^ (gamma >> u64(1))) < u64(24):
        gamma ^= u64(0xAAAAAAAAAAAAAAAA)
    return key, gamma


@compiled_inline
def count_ones(x: Any) -> Any:
    """Count the set bits of a word, by adding neighbouring bits in parallel."""
    x = x - ((x >> u64(1)) & u64(0x5555555555555555))
    x = (x & u64(0x3333333333333333)) + ((x >> u64(2)) & u64(0x3333333333333333))
    x = (x + (x >> u64(4))) & u64(0x0F0F0F0F0F0F0F0F)
    return (x * u64(0x0101010101010101)) >> u64(56)


@compiled
def fill_normals(out: Any, count: Any, state: Any, gamma: Any) -> None:
    """Write `count` standard normals, rounded up to a multiple of 32.

    One word of the stream gives two normals: see `simd.two_normals`.
    """
    for i in range(0, count, 2 * RUN):
        store_normals(out, i, state, gamma)
        state = u64(state) + u64(RUN) * u64(gamma)


@compiled_inline
def draw_picks(picks: Any, size: Any, num_samples: Any, state: Any, gamma: Any) -> None:
    """Write for each i < size a uniform number from i .. num_samples - 1.

    Multiply and shift instead of a division: the relative error of a number's
    probability is below num_samples / 2^32. `picks` needs one spare entry if size is
    odd.
    """
    half = (size + 1) // 2
    for i in range(half):
        word = mix(u64(state) + u64(i) * u64(gamma))
        remaining = u64(num_samples - i)
        picks[i] = np.uint32(u64(i) + (((word >> u64(32)) * remaining) >> u64(32)))
        j = half + i
        remaining = u64(max(num_samples - j, 0))
        picks[j] = np.uint32(u64(j) + (((word & _LOW_32) * remaining) >> u64(32)))


@compiled_inline
def draw_subset(
    order: Any, picks: Any, size: Any, num_samples: Any, state: Any, gamma: Any
) -> None:
    """Write a uniform subset of `size` rows into order[:size] (Fisher-Yates, partial).

    `order` must be 0 .. num_samples - 1 before, and needs `restore` after: so a batch
    depends on its stream only.
    """
    draw_picks(picks, size, num_samples, state, gamma)
    for i in range(size):
        j = picks[i]
        swapped = order[i]
        order[i] = order[j]
        order[j] = swapped


@compiled_inline
def restore(order: Any, picks: Any, size: Any, num_samples: Any) -> None:
    """Reset `order` to 0 .. num_samples - 1 after `draw_subset`."""
    if num_samples <= 8 * size:
        for i in range(num_samples):  # vectorises: cheaper than following the picks
            order[i] = np.uint32(i)
    else:
        for i in range(size):
            order[i] = np.uint32(i)
            order[picks[i]] = picks[i]


@compiled_inline
def draw_poisson(rows: Any, num_samples: Any, size: Any, state: Any, gamma: Any) -> Any:
    """Draw each row with probability size / num_samples; return the number drawn.

    `rows` needs num_samples entries and a spare one.
    """
    threshold = u64(size / num_samples * 2.0**32)
    count = np.int64(0)
    for i in range(num_samples):
        word = mix(u64(state) + u64(i) * u64(gamma))
        rows[count] = np.uint32(i)  # overwritten by the next unless the row is drawn
        count += np.int64((word >> u64(32)) < threshold)
    return count
