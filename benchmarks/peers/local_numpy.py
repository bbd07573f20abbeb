"""Local steps of one device in careful NumPy: for the NumPy, pfl and Flower peers."""

from typing import Any

import numpy as np


def slopes(scores: Any, y: Any, loss: str) -> Any:
    """Return the derivative of the loss by the score."""
    if loss == "logistic":
        return -y / (1 + np.exp(y * scores))
    return np.where(y * scores < 1, -y, np.float32(0))


def dense_steps(
    theta: Any, x: Any, y: Any, rng: Any, noise_std: float, settings: Any
) -> Any:
    """Take tau noisy steps on dense rows; `settings` is a workload."""
    s = settings
    rate, noise_scale = s.learning_rate / s.batch, s.learning_rate * noise_std
    theta = theta.copy()
    noise = rng.standard_normal((s.tau, len(theta)), dtype=np.float32)
    noise *= np.float32(noise_scale)
    for b in noise:
        rows = rng.choice(len(y), s.batch, replace=False, shuffle=False)
        xb = x.take(rows, axis=0)
        theta -= rate * (slopes(xb @ theta, y.take(rows), s.loss) @ xb) + b
    return theta


def one_hot_steps(
    theta: Any, x: Any, y: Any, rng: Any, noise_std: float, settings: Any
) -> Any:
    """Take tau noisy steps on one-hot rows given by their columns."""
    s = settings
    rate = s.learning_rate / s.batch * s.value
    noise_scale, width = s.learning_rate * noise_std, x.shape[1]
    theta = theta.copy()
    noise = rng.standard_normal((s.tau, len(theta)), dtype=np.float32)
    noise *= np.float32(noise_scale)
    for b in noise:
        rows = rng.choice(len(y), s.batch, replace=False, shuffle=False)
        xb = x.take(rows, axis=0)
        scores = s.value * theta.take(xb).sum(axis=1)
        by_row = slopes(scores, y.take(rows), s.loss)
        sums = np.bincount(xb.reshape(-1), by_row.repeat(width), len(theta))
        theta -= (rate * sums).astype(np.float32) + b
    return theta
