"""JAX: one jitted run, vmap over devices, scan over steps and over rounds."""

# mypy: disable-error-code="import-not-found, untyped-decorator, misc"

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import Measuring, Run, Variants
from workloads import Workload


def largest_keys(key: Any, n: int, batch: int) -> Any:
    """Draw rows without replacement: those with the largest random keys."""
    return jax.lax.top_k(jax.random.uniform(key, (n,)), batch)[1]


def permuted(key: Any, n: int, batch: int) -> Any:
    """Draw rows without replacement as the manual says."""
    return jax.random.choice(key, n, (batch,), replace=False)


def drawn_by_numpy(work: Workload, rounds: int, seed: int) -> Any:
    """Draw all rows of a run on the host, (rounds, M, tau, batch)."""
    rng = np.random.default_rng(seed)
    num_devices, n = work.y.shape
    rows = np.empty((rounds * num_devices * work.tau, work.batch), dtype=np.int32)
    for i in range(len(rows)):
        rows[i] = rng.choice(n, work.batch, replace=False, shuffle=False)
    return rows.reshape(rounds, num_devices, work.tau, work.batch)


def compiled(
    work: Workload, x: Any, *, columns: bool, draw: Any = largest_keys, chunk: int = 0
) -> Run:
    """Return a jitted run; without `draw`, NumPy draws the batches on the host."""
    num_devices, n = work.y.shape
    x, y = jnp.asarray(x), jnp.asarray(work.y)

    def slopes(scores: Any, yb: Any) -> Any:
        if work.loss == "logistic":
            return -yb * jax.nn.sigmoid(-yb * scores)
        return jnp.where(yb * scores < 1, -yb, 0.0)

    def gradient(theta: Any, xb: Any, yb: Any) -> Any:
        if not columns:
            return slopes(xb @ theta, yb) @ xb
        xb = xb.astype(jnp.int32)
        by_row = work.value * slopes(work.value * theta[xb].sum(axis=1), yb)
        return jnp.zeros(work.dim).at[xb].add(by_row[:, None])

    def local(theta: Any, noise_std: Any, draws: Any, xm: Any, ym: Any) -> Any:
        def step(theta: Any, draws: Any) -> Any:
            key, rows = draws
            row_key, noise_key = jax.random.split(key)
            if rows is None:
                rows = draw(row_key, n, work.batch)
            noise = noise_std * jax.random.normal(noise_key, (work.dim,))
            mean = gradient(theta, xm[rows], ym[rows]) / work.batch
            return theta - work.learning_rate * (mean + noise), None

        key, rows = draws
        return jax.lax.scan(step, theta, (jax.random.split(key, work.tau), rows))[0]

    @partial(jax.jit, static_argnums=3)
    def train(x: Any, y: Any, noise_std: Any, rounds: int, draws: Any) -> Any:
        def one_round(theta: Any, draws: Any) -> Any:
            key, rows = draws
            draws = jax.random.split(key, num_devices), rows
            on_device = partial(local, theta, noise_std)
            if chunk:  # vmap over some devices at a time
                replies = jax.lax.map(
                    lambda args: on_device(*args), (draws, x, y), batch_size=chunk
                )
            else:
                replies = jax.vmap(on_device)(draws, x, y)
            return replies.mean(axis=0), None

        key, rows = draws
        draws = jax.random.split(key, rounds), rows
        return jax.lax.scan(one_round, jnp.zeros(work.dim), draws)[0]

    def run(rounds: int, noise_std: float, seed: int) -> Any:
        rows = None if draw else drawn_by_numpy(work, rounds, seed)
        theta = train(x, y, noise_std, rounds, (jax.random.key(seed), rows))
        return np.asarray(theta.block_until_ready())

    return run


def main() -> None:
    measuring = Measuring("jax", jax.__version__)
    work = measuring.work
    variants: Variants = {}
    if work.one_hot:
        make = partial(compiled, work, work.x, columns=True)
        variants["columns"] = make()
    if work.name == "many":
        variants["columns, 1,000 devices at a time"] = make(chunk=1000)
    else:
        make = partial(compiled, work, work.dense(), columns=False)
        variants["dense rows"] = make()
        variants["dense rows, jax.random.choice"] = make(draw=permuted)
        variants["dense rows, batches drawn by NumPy"] = make(draw=None)
    measuring.run(variants)


if __name__ == "__main__":
    main()
