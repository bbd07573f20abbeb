"""The rows and the settings that every peer gets; needs NumPy alone.

Labels follow a hidden model, so that a peer that trains lowers the loss.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CATEGORIES = (9, 16, 7, 15, 6, 5, 2, 42)  # the 102 one-hot columns of Adult


@dataclass(frozen=True, kw_only=True)
class Workload:
    """M devices with n rows each, and the settings of their steps."""

    name: str
    x: Any  # (M, n, 8) columns of one-hot rows (uint8), or (M, n, dim) rows (float32)
    y: Any  # (M, n), -1 and 1 (float32)
    dim: int
    loss: str  # logistic or hinge
    batch: int  # drawn again at every step, without replacement
    rounds: int
    tau: int = 10
    learning_rate: float = 2.0
    noise_std: float = 0.01  # of the noise on the averaged gradient, per coordinate

    @property
    def one_hot(self) -> bool:
        """Whether x has columns instead of rows."""
        return bool(self.x.dtype.kind == "u")

    @property
    def value(self) -> Any:
        """What a one-hot row has in its columns: its norm is 1."""
        return np.float32(self.x.shape[2] ** -0.5)

    @property
    def num_devices(self) -> int:
        """M."""
        return len(self.x)

    def dense(self) -> Any:
        """Return the rows, (M, n, dim)."""
        if not self.one_hot:
            return self.x
        rows = np.zeros((*self.y.shape, self.dim), dtype=np.float32)
        np.put_along_axis(rows, self.x.astype(np.int64), self.value, axis=2)
        return rows

    def scores(self, theta: Any) -> Any:
        """Return x theta of every row, (M, n), one device at a time."""
        theta = np.asarray(theta, dtype=np.float32)
        if self.one_hot:
            return np.stack([self.value * theta[x].sum(axis=1) for x in self.x])
        return np.stack([x @ theta for x in self.x])

    def mean_loss(self, theta: Any) -> float:
        """Return the loss over all rows: log 2 or 1 before training."""
        margins = self.y * self.scores(theta)
        if self.loss == "logistic":
            return float(np.logaddexp(0, -margins).mean())
        return float(np.maximum(0, 1 - margins).mean())


def load(name: str, *, small: bool = False) -> Workload:
    """Return a workload; a small one has the same shape of work, but little of it."""
    num_devices, n, dim, batch, rounds = SIZES[name]
    if small:
        num_devices, n, rounds = min(num_devices, 4), min(n, 300), min(rounds, 10)
    rng = np.random.default_rng(0)
    if dim is None:
        work = _one_hot(rng, num_devices, n, batch, rounds)
    else:
        work = _dense(rng, num_devices, n, dim, batch, rounds)
    return replace(work, name=name)


SIZES: dict[str, tuple[int, int, int | None, int, int]] = {
    # devices, rows each, dense columns, batch, rounds of 10 steps
    "w": (16, 1628, None, 256, 50),
    "w2": (23, 1519, 100, 256, 50),
    "many": (100_000, 64, None, 16, 1),
    "wide-1000": (16, 512, 1_000, 64, 5),
    "wide-10000": (16, 512, 10_000, 64, 5),
}


def _one_hot(rng: Any, num_devices: int, n: int, batch: int, rounds: int) -> Workload:
    starts = np.cumsum((0, *CATEGORIES))
    x = np.empty((num_devices, n, len(CATEGORIES)), dtype=np.uint8)
    for j, count in enumerate(CATEGORIES):
        x[:, :, j] = starts[j] + rng.integers(0, count, (num_devices, n), np.uint8)
    blank = np.empty((num_devices, n), dtype=np.float32)
    dim = int(starts[-1])
    settings: dict[str, Any] = {"dim": dim, "batch": batch, "rounds": rounds}
    work = Workload(name="", x=x, y=blank, loss="logistic", **settings)
    return _labelled(work, rng, 4 * rng.standard_normal(dim))


def _dense(
    rng: Any, num_devices: int, n: int, dim: int, batch: int, rounds: int
) -> Workload:
    x = rng.standard_normal((num_devices, n, dim), dtype=np.float32)
    for rows in x:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    blank = np.empty((num_devices, n), dtype=np.float32)
    settings: dict[str, Any] = {"dim": dim, "batch": batch, "rounds": rounds}
    work = Workload(name="", x=x, y=blank, loss="hinge", **settings)
    return _labelled(work, rng, 4 * rng.standard_normal(dim))


def _labelled(work: Workload, rng: Any, hidden: Any) -> Workload:
    """Draw the labels of a logistic model."""
    uniform = rng.random(work.y.shape, dtype=np.float32)
    positive = uniform * (1 + np.exp(-work.scores(hidden))) < 1
    return replace(work, y=np.where(positive, np.float32(1), np.float32(-1)))
