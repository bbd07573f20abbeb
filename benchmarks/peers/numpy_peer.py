"""NumPy: a careful loop over devices, all devices at a time, SciPy's sparse rows."""

from typing import Any

import numpy as np
from local_numpy import dense_steps, one_hot_steps, slopes
from measuring import Measuring, Run, Variants
from workloads import Workload


def looped(work: Workload, x: Any, steps: Any) -> Run:
    def run(rounds: int, noise_std: float, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        theta = np.zeros(work.dim, dtype=np.float32)
        for _ in range(rounds):
            total = np.zeros_like(theta)
            for xm, ym in zip(x, work.y, strict=True):
                total += steps(theta, xm, ym, rng, noise_std, work)
            theta = total / np.float32(work.num_devices)
        return theta

    return run


def batched(work: Workload, x: Any, one_hot: bool) -> Run:
    num_devices, n = work.y.shape
    first_row = n * np.arange(num_devices)[:, None]
    x, y = x.reshape(num_devices * n, -1), work.y.reshape(-1)
    if one_hot:  # columns of all devices in one flat array of parameters
        first_column = np.repeat(work.dim * np.arange(num_devices), n)
        x = x + first_column[:, None]

    def gradients(local: Any, rows: Any) -> Any:
        xb, yb = x.take(rows, axis=0), y.take(rows)
        if not one_hot:
            scores = np.matmul(xb, local[:, :, None])[:, :, 0]
            return np.matmul(slopes(scores, yb, work.loss)[:, None], xb)[:, 0]
        scores = work.value * local.reshape(-1).take(xb).sum(axis=2)
        by_row = slopes(scores, yb, work.loss).reshape(-1)
        sums = np.bincount(xb.reshape(-1), by_row.repeat(x.shape[1]), local.size)
        return (work.value * sums).astype(np.float32).reshape(local.shape)

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        rate, scale = np.float32(work.learning_rate), np.float32(noise_std)
        theta = np.zeros(work.dim, dtype=np.float32)
        for _ in range(rounds):
            local = np.tile(theta, (num_devices, 1))
            for _ in range(work.tau):
                draws = [
                    rng.choice(n, work.batch, replace=False, shuffle=False)
                    for _ in range(num_devices)
                ]
                gradient = gradients(local, np.stack(draws) + first_row) / work.batch
                noise = rng.standard_normal(local.shape, dtype=np.float32)
                local -= rate * (gradient + scale * noise)
            theta = local.mean(axis=0)
        return theta

    return run


def scipy_rows(work: Workload) -> Run | None:
    """One sparse matrix for all devices: a step is a row selection and two products."""
    try:
        from scipy.sparse import csr_array
    except ImportError:
        return None
    num_devices, n = work.y.shape
    width = work.x.shape[2]
    first_column = work.dim * np.arange(num_devices, dtype=np.int32)[:, None, None]
    columns = (work.x + first_column).reshape(-1)
    starts = np.arange(0, columns.size + 1, width, dtype=np.int32)
    values = np.full(columns.size, work.value)
    shape = (num_devices * n, num_devices * work.dim)
    x, y = csr_array((values, columns, starts), shape=shape), work.y.reshape(-1)
    first_row = n * np.arange(num_devices)[:, None]

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        rate, scale = np.float32(work.learning_rate), np.float32(noise_std)
        theta = np.zeros(work.dim, dtype=np.float32)
        for _ in range(rounds):
            local = np.tile(theta, num_devices)
            for _ in range(work.tau):
                draws = [
                    rng.choice(n, work.batch, replace=False, shuffle=False)
                    for _ in range(num_devices)
                ]
                rows = (np.stack(draws) + first_row).reshape(-1)
                xb = x[rows]
                gradient = slopes(xb @ local, y[rows], work.loss) @ xb / work.batch
                noise = rng.standard_normal(local.shape, dtype=np.float32)
                local -= rate * (gradient + scale * noise)
            theta = local.reshape(num_devices, -1).mean(axis=0)
        return theta

    return run


def main() -> None:
    measuring = Measuring("numpy", np.__version__)
    work = measuring.work
    rows = work.dense()
    variants: Variants = {
        "loop, dense rows": looped(work, rows, dense_steps),
        "all devices at a time, dense rows": batched(work, rows, one_hot=False),
    }
    if work.one_hot:
        columns = work.x.astype(np.int64)  # the type that take and bincount want
        variants["loop, columns"] = looped(work, columns, one_hot_steps)
        variants["all devices at a time, columns"] = batched(work, columns, True)
        sparse = scipy_rows(work)
        if sparse is not None:
            variants["all devices at a time, scipy.sparse"] = sparse
    measuring.run(variants)


if __name__ == "__main__":
    main()
