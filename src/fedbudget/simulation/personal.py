"""Personal models: the global model, adapted by each device to its own rows.

A device adapts the model after training and sends nothing: no message, no charge.
Its measurements on its own rows stay on the device, too.

The candidates are the global model, scaled to the device's rows; fits of the training
rows that are regularised towards the global model, at several strengths; and fits
regularised towards zero. The personal model is their weighted average. The weights
come from cross-validation on the training and validation rows: a fit's weight falls
exponentially with its loss on held-out rows. Selecting the single best fit instead
would overfit to a few rows.

Fits without noise are not private and need not be: a fit that never leaves the device
reveals nothing. A fit that is sent (`baselines.one_shot`) gets noise of its own.
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
from fedbudget.losses import Hinge, Labels, Loss, Rows, SmoothHinge
from fedbudget.simulation.measuring import means, measure_devices

# Strengths of the regularisation towards the global model (or zero); decreasing.
STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)

# Candidate factors of the global model. With few rounds or much noise it may be under-
# or overconfident; a factor does not change the predicted classes.
SCALES = (0.5, 1.0, 2.0)

# A total loss higher by this much (in nats, for the logistic loss) has 1/e the weight.
TEMPERATURE = 5.0
_FOLDS = 5

# With fewer validation rows, fits are cross-validated on the training rows, too.
_ENOUGH_VALIDATION_ROWS = 300

# Hinge is fitted with its kink rounded: a quasi-Newton method needs a gradient.
_FIT_WIDTH = 0.1

# Up to this many cells, dense rows are faster than sparse ones.
_DENSE_CELLS = 300_000
_LabelledRows: TypeAlias = tuple[Rows, Labels]


@dataclass(frozen=True, kw_only=True, eq=False)
class Personal:
    """A device's personal model, and the weights of its parts."""

    theta: Array
    own: Array  # the local-only model
    global_weight: float  # of the global model itself, scaled
    local_weight: float  # of the fits that ignore the global model


def adapt(
    loss: Loss,
    train: _LabelledRows,
    validation: _LabelledRows,
    theta: Array | None,
    *,
    seed: int = 0,
) -> Personal:
    """Adapt a global model to a device's own rows.

    Args:
        loss: The loss to minimise.
        train: Rows and labels to fit.
        validation: Rows and labels that judge the fits, together with those of `train`.
        theta: The global model; None for a local-only model.
        seed: Seed of the assignment of rows to folds.
    """
    return _adapted(loss, train, validation, [theta], seed)[0]


def adapt_all(data: Dataset, loss: Loss, theta: Array | None) -> list[Personal]:
    """Let every device of a data set adapt a model."""
    return adapt_each(data, loss, [theta])[0]


def adapt_each(
    data: Dataset, loss: Loss, thetas: Sequence[Array | None]
) -> list[list[Personal]]:
    """Let every device adapt each of several models; local-only fits are shared."""
    with one_thread():
        by_device = [
            _adapted(loss, data.train.device(m), data.validation.device(m), thetas, m)
            for m in range(data.num_devices)
        ]
    return [list(personal) for personal in zip(*by_device, strict=True)]


def measure_personal(data: Dataset, loss: Loss, theta: Array) -> dict[str, float]:
    """Measure personal models, local-only models and the best constant guess.

    Returns:
        "personal_test_accuracy", "alone_test_accuracy", "constant_test_accuracy" and
        so on: means over the devices' own rows; not private.
    """
    return measure_adapted(data, loss, adapt_all(data, loss, theta))


def measure_adapted(
    data: Dataset, loss: Loss, adapted: Sequence[Personal], *, threshold: float = 0.5
) -> dict[str, float]:
    """Measure the models of devices that have adapted one: see `measure_personal`."""
    models = {
        "personal": np.array([personal.theta for personal in adapted]),
        "alone": np.array([personal.own for personal in adapted]),
    }
    measured = {
        f"{name}_{metric}": value
        for name, model in models.items()
        for metric, value in means(
            measure_devices(data, loss, model, threshold=threshold)
        ).items()
    }
    guess = means(measure_devices(*best_constant(data, loss)))
    return measured | {f"constant_{metric}": value for metric, value in guess.items()}


def best_constant(data: Dataset, loss: Loss) -> tuple[Dataset, Loss, Array]:
    """Fit one constant score for all devices, on the rows of `without_features`."""
    ones = without_features(data)
    return ones, loss, fit(loss, ones.train.x, ones.train.y, strength=1e-6)


def without_features(data: Dataset) -> Dataset:
    """Return the data with a single column of ones instead of all others."""
    return replace(
        data,
        train=_without_features(data.train),
        validation=_without_features(data.validation),
        test=_without_features(data.test),
        feature_names=("one",),
    )


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
        loss: The loss, including its own L2 term.
        x: Rows, dense or CSR.
        y: Labels.
        strength: Strength of the regularisation towards the centre.
        centre: Zero by default.
        start: Start of the iteration; by default the centre.
        row_weights: Weights of the rows, summing to 1; by default equal.
        tolerance: Largest entry of the gradient at the end.
    """
    with needed("fitting on the device", "scipy"):
        from scipy.optimize import minimize

    smoothed, rows = smooth(loss), _prepared(x)
    target = np.zeros(loss.num_params(x.shape[1])) if centre is None else centre
    weights = np.full(len(y), 1 / len(y)) if row_weights is None else row_weights

    def value_and_gradient(theta: Array) -> tuple[float, Array]:
        scores = smoothed.scores(theta, rows)
        offset = theta - target
        value = float(weights @ smoothed.losses(scores, y))
        value += 0.5 * strength * float(offset @ offset)
        value += 0.5 * loss.l2 * float(theta @ theta)
        slopes = (smoothed.slopes(scores, y).T * weights).T
        gradient = np.asarray((rows.T @ slopes).T).reshape(-1)
        return value, gradient + strength * offset + loss.l2 * theta

    result = minimize(
        value_and_gradient,
        target if start is None else start,
        jac=True,
        method="L-BFGS-B",
        options={"gtol": tolerance, "ftol": 0.0, "maxiter": 2000, "maxcor": 20},
    )
    return np.asarray(result.x)


def fit_path(
    loss: Loss,
    x: Rows,
    y: Labels,
    *,
    strengths: Sequence[float],
    row_weights: Array | None = None,
    tolerance: float = 1e-4,
) -> list[Array]:
    """Return one fit per strength, each started from the last; list them decreasing."""
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
                tolerance=tolerance,
            )
        )
    return fits


def smooth(loss: Loss) -> Loss:
    """Return the loss, or a smooth approximation of the hinge loss."""
    if isinstance(loss, Hinge):
        return SmoothHinge(width=_FIT_WIDTH, l2=loss.l2)
    return loss


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread: a device has too few rows for more to be faster.

    Only libraries that are loaded are limited, and scipy has a BLAS of its own: it is
    loaded first. Its threads would wait for each other for most of the time.
    """
    try:
        import scipy.optimize  # noqa: F401  # loads its BLAS
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def _without_features(part: Part) -> Part:
    ones = np.ones((len(part), 1), dtype=np.float32)
    return Part(x=ones, y=part.y, offsets=part.offsets, owned=True)


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
    adapted = []
    for theta in thetas:
        if theta is None:
            adapted.append(
                Personal(theta=own, own=own, global_weight=0.0, local_weight=1.0)
            )
            continue
        fits, losses = judged_fits(loss, rows, validation, theta, seed)
        # The model itself, fits towards it and fits towards zero: equal prior weights.
        group_sizes = [1] + [len(STRENGTHS)] * (len(fits) - 1 + len(own_fits))
        weights = _weights(np.concatenate([losses, own_losses]), group_sizes)
        adapted.append(
            Personal(
                theta=weights @ np.concatenate([fits, own_fits]),
                own=own,
                global_weight=float(weights[0]),
                local_weight=float(weights[len(fits) :].sum()),
            )
        )
    return adapted


def _weights(losses: Array, group_sizes: ArrayLike = 1) -> Array:
    """Weight fits by their losses on held-out rows and the sizes of their groups."""
    weights = np.exp(-(losses - losses.min()) / TEMPERATURE) / np.asarray(group_sizes)
    return np.asarray(weights / weights.sum())


def _fits(
    loss: Loss, x: Rows, y: Labels, theta: Array | None, starts: Array | None = None
) -> Array:
    """Return the scaled model and fits regularised towards it, or fits towards zero."""
    fits = [] if theta is None else [_scaled(loss, x, y, theta)]
    start = np.zeros(loss.num_params(x.shape[1])) if theta is None else theta
    for strength in STRENGTHS:
        if starts is not None:
            start = starts[len(fits)]
        # Refits only judge a strength on held-out rows: they need not be exact.
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
    """Return the model times the factor that fits these rows best."""
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
    """Return fits, and each one's total loss on held-out rows."""
    fits = _fits(loss, *train, theta)
    if len(validation[1]) >= _ENOUGH_VALIDATION_ROWS:
        return fits, _totals(loss, fits, *validation)
    x = _stacked(train[0], validation[0])
    y = np.concatenate([train[1], validation[1]])
    folds = min(_FOLDS, len(y))
    totals = np.zeros(len(fits))
    if folds < 2:  # a single row leaves no row to judge by
        return fits, totals
    fold_of_row = np.random.default_rng(seed).permutation(np.arange(len(y)) % folds)
    for fold in range(folds):
        rest: NDArray[np.bool_] = fold_of_row != fold
        refits = _fits(loss, x[rest], y[rest], theta, starts=fits)
        totals += _totals(loss, refits, x[~rest], y[~rest])
    return fits, totals


def _totals(loss: Loss, fits: Array, x: Rows, y: Labels) -> Array:
    return np.array([loss.losses(loss.scores(fit, x), y).sum() for fit in fits])


def _prepared(x: Rows) -> Rows:
    """Return the rows in double precision, dense if that is faster."""
    if not isinstance(x, np.ndarray) and x.shape[0] * x.shape[1] <= _DENSE_CELLS:
        return np.asarray(x.toarray(), dtype=np.float64)
    return x.astype(np.float64, copy=False)


def _stacked(x: Rows, other: Rows) -> Rows:
    """Return both sets of rows, one below the other, in double precision."""
    if isinstance(x, np.ndarray):
        dense = other if isinstance(other, np.ndarray) else other.toarray()
        return np.concatenate([x, dense]).astype(np.float64, copy=False)
    from scipy.sparse import csr_array, vstack

    return csr_array(vstack([x, csr_array(other)]).astype(np.float64))
