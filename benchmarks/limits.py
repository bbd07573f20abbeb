"""The machine's rates: the minimum time of each elementary operation of the kernels."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from fedbudget.simulation.kernels.layouts import RUN
from fedbudget.simulation.kernels.random import draw_picks, fill_normals, stream
from fedbudget.simulation.kernels.simd import add, load, multiply_add, splat, store


@njit(fastmath=True)
def normals(repeats: int, out: Any) -> None:
    for step in range(repeats):
        state, gamma = stream(1, 2, step, 1)
        fill_normals(out, 1024, state, gamma)


@njit(fastmath=True)
def words(repeats: int, picks: Any) -> None:
    for step in range(repeats):
        state, gamma = stream(1, 2, step, 0)
        draw_picks(picks, 1024, 100_000, state, gamma)


@njit(fastmath=True)
def table_reads(repeats: int, table: Any, indices: Any) -> np.float32:
    total = np.float32(0.0)
    for _ in range(repeats):
        for i in range(len(indices)):
            total += table[indices[i]]
    return total


@njit
def table_adds(repeats: int, table: Any, indices: Any) -> None:
    for _ in range(repeats):
        for i in range(len(indices)):
            table[indices[i]] += np.float32(1.0)


@njit(fastmath=True)
def row_reads(x: Any, order: Any) -> np.float32:
    total = np.float32(0.0)
    for i in range(len(order)):
        for j in range(x.shape[1]):
            total += x[order[i], j]
    return total


@njit
def multiply_adds(repeats: int, a: Any) -> None:
    t = load(a, 0)
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = splat(np.float32(0.0))
    for _ in range(repeats):
        s0, s1 = multiply_add(s0, t, t), multiply_add(s1, t, t)
        s2, s3 = multiply_add(s2, t, t), multiply_add(s3, t, t)
        s4, s5 = multiply_add(s4, t, t), multiply_add(s5, t, t)
        s6, s7 = multiply_add(s6, t, t), multiply_add(s7, t, t)
    store(a, 0, add(add(add(s0, s1), add(s2, s3)), add(add(s4, s5), add(s6, s7))))


def least(task: Callable[[], Any], count: int) -> float:
    """Return the minimum time of one of `count` operations."""
    task()
    times = []
    for _ in range(15):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return min(times) / count


def rates() -> dict[str, float]:
    """Return seconds per operation, on one core."""
    rng = np.random.default_rng(0)
    out = np.empty(1040, dtype=np.float32)
    picks = np.empty(1040, dtype=np.uint32)
    table = np.zeros(512, dtype=np.float32)
    indices = rng.integers(0, 384, 1024).astype(np.uint64)
    records = np.zeros(1628, dtype=np.float32)
    rows = rng.permutation(1628).astype(np.uint64)
    x = rng.standard_normal((23 * 1519, 112), dtype=np.float32)
    order = rng.permutation(len(x)).astype(np.uint64)
    run = np.full(RUN, 0.5, dtype=np.float32)
    return {
        "normal": least(lambda: normals(200, out), 200 * 1024),
        "random word": least(lambda: words(200, picks), 200 * 1024),
        "table read": least(lambda: table_reads(200, table, indices), 200 * 1024),
        "table add": least(lambda: table_adds(200, table, indices), 200 * 1024),
        "row read (L1)": least(lambda: table_reads(100, records, rows), 100 * 1628),
        "float read (rows)": least(lambda: row_reads(x, order), x.size),
        "multiply-add": least(lambda: multiply_adds(100_000, run), 100_000 * 8 * RUN),
    }
