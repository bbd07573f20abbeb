"""Personal models: the global one, adapted by a device to its own rows.

A device adapts after training, keeps the result and sends nothing: no message, no
charge. What it measures on its own rows is its own to know.

The device fits its training rows with a pull towards the global model, at several
strengths, and without one; or it keeps the global model, scaled to its rows. How much
each of these counts follows from cross-validation on all rows that the device may look
at: the weight of a fit falls exponentially with its loss on rows it has not seen.
Picking the one best fit instead would follow the noise of a few rows; averaging does
not.

Fits without noise are not private, and need not be: a fit that never leaves the device
reveals nothing. What does leave it (`baselines.one_shot`) adds its own noise.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.errors import needed
from fedbudget.losses import Floats, Hinge, Labels, Loss, Rows
from fedbudget.simulation.measuring import means, measure_devices

# How strongly a fit is pulled to the global model (or to zero); falling.
STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)

# What the global model may be multiplied by where it is kept. Few rounds or much noise
# can leave it less sure, or surer, than its hits allow; the classes stay the same.
SCALES = (0.5, 1.0, 2.0)

# A total loss higher by this (in nats, for the logistic loss) counts 1/e as much.
TEMPERATURE = 5.0
_FOLDS = 5

# So many validation rows judge well alone; with fewer, training rows take turns.
_ENOUGH = 300

# Up to so many cells, dense rows are faster than sparse ones.
_DENSE_CELLS = 300_000
_LabelledRows: TypeAlias = tuple[Rows, Labels]


@dataclass(frozen=True, kw_only=True, eq=False)
class Personal:
    """A device's own model, and how it came about."""

    theta: Array
    own: Array  # what the device makes of its own rows alone
    kept: float  # weight of the global model in its own direction
    alone: float  # weight of fits that ignore it


def adapt(
    loss: Loss,
    train: _LabelledRows,
    validation: _LabelledRows,
    theta: Array | None,
    *,
    seed: int = 0,
) -> Personal:
    """Return the model that a device makes of a global one and its own rows.

    Args:
        loss: What is minimised.
        train: Rows and labels to fit.
        validation: Rows and labels that, with those of `train`, say which fit is good.
        theta: The global model; None where there is none: the device is on its own.
        seed: Deals the rows out to the folds.
    """
    return _adapted(loss, train, validation, [theta], seed)[0]


def adapt_all(data: Dataset, loss: Loss, theta: Array | None) -> list[Personal]:
    """Let every device of a data set adapt a model."""
    return adapt_each(data, loss, [theta])[0]


def adapt_each(
    data: Dataset, loss: Loss, thetas: Sequence[Array | None]
) -> list[list[Personal]]:
    """Let every device adapt each of several models; devices' own fits are shared."""
    with one_thread():
        by_device = [
            _adapted(loss, data.train.device(m), data.validation.device(m), thetas, m)
            for m in range(data.num_devices)
        ]
    return [list(personal) for personal in zip(*by_device, strict=True)]


def measure_personal(data: Dataset, loss: Loss, theta: Array) -> dict[str, float]:
    """Measure personal models, and what devices have without the global one.

    Returns:
        "personal_test_accuracy", "alone_test_accuracy", "constant_test_accuracy" and
        so on: means over the devices' own rows; not private.
    """
    adapted = adapt_all(data, loss, theta)
    models = {
        "personal": np.array([personal.theta for personal in adapted]),
        "alone": np.array([personal.own for personal in adapted]),
    }
    found = {
        f"{name}_{what}": value
        for name, model in models.items()
        for what, value in means(measure_devices(data, loss, model)).items()
    }
    guess = means(measure_devices(*best_constant(data, loss)))
    return found | {f"constant_{what}": value for what, value in guess.items()}


def best_constant(data: Dataset, loss: Loss) -> tuple[Dataset, Loss, Array]:
    """Fit the best constant score, the same on all devices, to rows of a single 1."""
    ones = replace(
        data,
        train=_without_features(data.train),
        validation=_without_features(data.validation),
        test=_without_features(data.test),
        feature_names=("one",),
    )
    return ones, loss, fit(loss, ones.train.x, ones.train.y, strength=1e-6)


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

    smoothed, rows = smooth(loss), _prepared(x)
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
    rows = _prepared(x)
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


def smooth(loss: Loss) -> Loss:
    """Return the loss, or for a loss with a kink one that differs little."""
    return _SmoothHinge(l2=loss.l2) if isinstance(loss, Hinge) else loss


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


def _without_features(part: Part) -> Part:
    ones = np.ones((len(part), 1), dtype=np.float32)
    return Part(x=ones, y=part.y, offsets=part.offsets)


def _adapted(
    loss: Loss,
    train: _LabelledRows,
    validation: _LabelledRows,
    thetas: Sequence[Array | None],
    seed: int,
) -> list[Personal]:
    rows = _prepared(train[0]), train[1]
    own_fits, own_losses = judged_fits(loss, rows, validation, None, seed)
    own = _weights(own_losses) @ own_fits
    found = []
    for theta in thetas:
        if theta is None:
            found.append(Personal(theta=own, own=own, kept=0.0, alone=1.0))
            continue
        fits, losses = judged_fits(loss, rows, validation, theta, seed)
        # Keeping the model, pulling to it and ignoring it start out with equal chances.
        kinds = [1] + [len(STRENGTHS)] * (len(fits) - 1 + len(own_fits))
        weights = _weights(np.concatenate([losses, own_losses]), kinds)
        found.append(
            Personal(
                theta=weights @ np.concatenate([fits, own_fits]),
                own=own,
                kept=float(weights[0]),
                alone=float(weights[len(fits) :].sum()),
            )
        )
    return found


def _weights(losses: Array, kinds: ArrayLike = 1) -> Array:
    """Weigh fits by their total losses on unseen rows, and by how many are alike."""
    weights = np.exp(-(losses - losses.min()) / TEMPERATURE) / np.asarray(kinds)
    return np.asarray(weights / weights.sum())


def _fits(
    loss: Loss, x: Rows, y: Labels, theta: Array | None, starts: Array | None = None
) -> Array:
    """Return a model, scaled, and fits pulled to it; without one, fits to zero."""
    fits = [] if theta is None else [_scaled(loss, x, y, theta)]
    start = np.zeros(loss.num_params(x.shape[1])) if theta is None else theta
    for strength in STRENGTHS:
        if starts is not None:
            start = starts[len(fits)]
        # A fit is judged by rows it has not seen: it need not be exact.
        start = fit(
            loss,
            x,
            y,
            strength=strength,
            centre=theta,
            start=start,
            tolerance=1e-4 if starts is None else 1e-3,
        )
        fits.append(start)
    return np.array(fits)


def _scaled(loss: Loss, x: Rows, y: Labels, theta: Array) -> Array:
    """Return the model at the length that fits these rows best."""
    scores = loss.scores(theta, x)
    totals = [loss.losses(scale * scores, y).sum() for scale in SCALES]
    return SCALES[int(np.argmin(totals))] * theta


def judged_fits(
    loss: Loss,
    train: _LabelledRows,
    validation: _LabelledRows,
    theta: Array | None,
    seed: int,
) -> tuple[Array, Array]:
    """Return fits, and each one's total loss on rows that it has not seen."""
    fits = _fits(loss, *train, theta)
    if len(validation[1]) >= _ENOUGH:
        return fits, _totals(loss, fits, *validation)
    x = _stacked(train[0], validation[0])
    y = np.concatenate([train[1], validation[1]])
    folds = min(_FOLDS, len(y))
    totals = np.zeros(len(fits))
    if folds < 2:  # one row alone can judge nothing
        return fits, totals
    turn = np.random.default_rng(seed).permutation(np.arange(len(y)) % folds)
    for fold in range(folds):
        rest: NDArray[np.bool_] = turn != fold
        refits = _fits(loss, x[rest], y[rest], theta, starts=fits)
        totals += _totals(loss, refits, x[~rest], y[~rest])
    return fits, totals


def _totals(loss: Loss, fits: Array, x: Rows, y: Labels) -> Array:
    return np.array([loss.losses(loss.scores(fit, x), y).sum() for fit in fits])


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


def _prepared(x: Rows) -> Rows:
    """Return the rows in double precision, dense where that is faster."""
    if not isinstance(x, np.ndarray) and x.shape[0] * x.shape[1] <= _DENSE_CELLS:
        return np.asarray(x.toarray(), dtype=np.float64)
    return x.astype(np.float64, copy=False)


def _stacked(x: Rows, more: Rows) -> Rows:
    """Return both rows below each other, in double precision."""
    if isinstance(x, np.ndarray):
        dense = more if isinstance(more, np.ndarray) else more.toarray()
        return np.concatenate([x, dense]).astype(np.float64, copy=False)
    from scipy.sparse import csr_array, vstack

    return csr_array(vstack([x, csr_array(more)]).astype(np.float64))
