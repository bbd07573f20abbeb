"""Fits without noise: what a device does with its own rows, and keeps to itself.

Nothing here is private, and nothing needs to be: a fit that never leaves the device
reveals nothing. What does leave it (`baselines.one_shot`) adds its own noise.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedbudget.checks import Array
from fedbudget.errors import needed
from fedbudget.losses import Floats, Hinge, Labels, Loss, Rows

# Up to so many cells, dense rows are faster than sparse ones.
_DENSE_CELLS = 300_000


@dataclass(frozen=True, kw_only=True)
class _SmoothHinge(Hinge):
    """Hinge with its kink rounded, so that a quasi-Newton method gets to the end."""

    width: float = 0.1  # of the margins where it is a parabola

    def losses(self, scores: Floats, y: Labels) -> Floats:
        """Return the loss of each sample."""
        short = np.maximum(0, 1 - np.where(y > 0, 1.0, -1.0) * scores)
        inside = np.minimum(short, self.width)
        return np.asarray(inside * (short - 0.5 * inside) / self.width)

    def slopes(self, scores: Floats, y: Labels) -> Floats:
        """Return d loss / d score."""
        sign = np.where(y > 0, 1.0, -1.0)
        return np.asarray(-sign * np.clip((1 - sign * scores) / self.width, 0, 1))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS on one thread: for rows as few as a device's, waiting costs more."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def smooth(loss: Loss) -> Loss:
    """Return the loss, or for a loss with a kink one that differs little."""
    return _SmoothHinge(l2=loss.l2) if isinstance(loss, Hinge) else loss


def fit(
    loss: Loss,
    x: Rows,
    y: Labels,
    *,
    strength: float = 0.0,
    centre: Array | None = None,
    start: Array | None = None,
    row_weights: Array | None = None,
    tolerance: float = 1e-5,
) -> Array:
    """Minimise mean loss + (strength / 2) |theta - centre|^2 by L-BFGS.

    Args:
        loss: Its own L2 term stays in.
        x: Rows, dense or CSR.
        y: Labels.
        strength: How strongly the model is pulled to the centre.
        centre: Zero if left out.
        start: Where to begin: the centre if left out.
        row_weights: Weights of the rows, summing to 1; alike if left out.
        tolerance: Largest entry of the gradient at the end.
    """
    with needed("fitting on the device", "scipy"):
        from scipy.optimize import minimize

    smoothed, rows = smooth(loss), prepared(x)
    middle = np.zeros(loss.num_params(x.shape[1])) if centre is None else centre
    each = np.full(len(y), 1 / len(y)) if row_weights is None else row_weights

    def value_and_gradient(theta: Array) -> tuple[float, Array]:
        scores = smoothed.scores(theta, rows)
        apart = theta - middle
        value = float(each @ smoothed.losses(scores, y))
        value += 0.5 * strength * float(apart @ apart)
        value += 0.5 * loss.l2 * float(theta @ theta)
        slopes = (smoothed.slopes(scores, y).T * each).T
        gradient = np.asarray((rows.T @ slopes).T).reshape(-1)
        return value, gradient + strength * apart + loss.l2 * theta

    found = minimize(
        value_and_gradient,
        middle if start is None else start,
        jac=True,
        method="L-BFGS-B",
        options={"gtol": tolerance, "ftol": 0.0, "maxiter": 2000, "maxcor": 20},
    )
    return np.asarray(found.x)


def fit_path(
    loss: Loss,
    x: Rows,
    y: Labels,
    *,
    strengths: Sequence[float],
    row_weights: Array | None = None,
) -> list[Array]:
    """Return one fit per strength; each starts from the one before: list falling."""
    rows = prepared(x)
    fits: list[Array] = []
    for strength in strengths:
        fits.append(
            fit(
                loss,
                rows,
                y,
                strength=strength,
                start=fits[-1] if fits else None,
                row_weights=row_weights,
                tolerance=1e-4,
            )
        )
    return fits


def prepared(x: Rows) -> Rows:
    """Return the rows in double precision, dense where that is faster."""
    if not isinstance(x, np.ndarray) and x.shape[0] * x.shape[1] <= _DENSE_CELLS:
        return np.asarray(x.toarray(), dtype=np.float64)
    return x.astype(np.float64, copy=False)


def stacked(x: Rows, more: Rows) -> Rows:
    """Return both rows below each other, in double precision."""
    if isinstance(x, np.ndarray):
        dense = more if isinstance(more, np.ndarray) else more.toarray()
        return np.concatenate([x, dense]).astype(np.float64, copy=False)
    from scipy.sparse import csr_array, vstack

    return csr_array(vstack([x, csr_array(more)]).astype(np.float64))
