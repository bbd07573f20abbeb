"""The same workloads as users of NumPy and JAX would write them, with care.

Both take tau local steps on all devices at once and average; batches are drawn without
replacement, and every step has its own noise. One-hot rows are gathered by column
index, which is faster in both than a dense product.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def numpy_rounds(
    x: Any,
    y: Any,
    *,
    dim: int,
    loss: str,
    tau: int,
    rounds: int,
    batch: int,
    learning_rate: float,
    noise_std: float,
    seed: int = 0,
) -> Any:
    """Batched NumPy: one step of all devices at a time.

    x is (M, n, k) column indices of one-hot rows (integers) or (M, n, dim) dense rows.
    """
    rng = np.random.default_rng(seed)
    num_devices, n = x.shape[:2]
    one_hot = x.dtype.kind in "iu"
    value = np.float32(x.shape[2] ** -0.5)
    device = np.arange(num_devices)[:, None]
    if one_hot:  # columns of all devices in one flat array of parameters
        x = x + (np.arange(num_devices, dtype=np.int32) * dim)[:, None, None]
    theta = np.zeros(dim, dtype=np.float32)
    for _ in range(rounds):
        local = np.repeat(theta[None], num_devices, axis=0)
        for _ in range(tau):
            keys = rng.random((num_devices, n), dtype=np.float32)
            rows = np.argpartition(keys, batch - 1, axis=1)[:, :batch]
            xb, yb = x[device, rows], y[device, rows]
            if one_hot:
                scores = value * local.reshape(-1)[xb].sum(axis=2)
            else:
                scores = np.matmul(xb, local[:, :, None])[:, :, 0]
            if loss == "logistic":
                slopes = -yb / (1 + np.exp(yb * scores))
            else:
                slopes = np.where(yb * scores < 1, -yb, np.float32(0))
            if one_hot:
                weights = np.repeat(slopes.reshape(-1), x.shape[2])
                sums = np.bincount(xb.reshape(-1), weights, minlength=num_devices * dim)
                gradient = value * sums.astype(np.float32).reshape(num_devices, dim)
            else:
                gradient = np.matmul(slopes[:, None, :], xb)[:, 0]
            noise = rng.standard_normal((num_devices, dim), dtype=np.float32)
            local -= learning_rate * (gradient / batch + noise_std * noise)
        theta = local.mean(axis=0)
    return theta


def jax_rounds(
    x: Any,
    y: Any,
    *,
    dim: int,
    loss: str,
    tau: int,
    rounds: int,
    batch: int,
    learning_rate: float,
    noise_std: float,
) -> Callable[[int], Any]:
    """Jitted JAX: vmap over devices, scan over steps and over rounds."""
    import jax
    import jax.numpy as jnp

    num_devices, n = x.shape[:2]
    one_hot = x.dtype.kind in "iu"
    value = np.float32(x.shape[2] ** -0.5)
    x, y = jnp.asarray(x.astype(np.int32) if one_hot else x), jnp.asarray(y)

    def slopes_of(scores: Any, yb: Any) -> Any:
        if loss == "logistic":
            return -yb * jax.nn.sigmoid(-yb * scores)
        return jnp.where(yb * scores < 1, -yb, 0.0)

    def step(theta: Any, key: Any, xm: Any, ym: Any) -> Any:
        row_key, noise_key = jax.random.split(key)
        # The fastest exact method tried: the rows with the largest random keys.
        rows = jax.lax.top_k(jax.random.uniform(row_key, (n,)), batch)[1]
        xb, yb = xm[rows], ym[rows]
        if one_hot:
            slopes = slopes_of(value * theta[xb].sum(axis=1), yb)
            gradient = jnp.zeros(dim).at[xb].add(value * slopes[:, None])
        else:
            slopes = slopes_of(xb @ theta, yb)
            gradient = slopes @ xb
        noise = noise_std * jax.random.normal(noise_key, (dim,))
        return theta - learning_rate * (gradient / batch + noise), None

    def local(theta: Any, key: Any, xm: Any, ym: Any) -> Any:
        keys = jax.random.split(key, tau)
        return jax.lax.scan(lambda t, k: step(t, k, xm, ym), theta, keys)[0]

    def one_round(theta: Any, key: Any) -> Any:
        keys = jax.random.split(key, num_devices)
        replies = jax.vmap(local, in_axes=(None, 0, 0, 0))(theta, keys, x, y)
        return replies.mean(axis=0), None

    def run(key: Any) -> Any:
        return jax.lax.scan(one_round, jnp.zeros(dim), jax.random.split(key, rounds))[0]

    fast = jax.jit(run)
    return lambda seed: fast(jax.random.PRNGKey(seed)).block_until_ready()
