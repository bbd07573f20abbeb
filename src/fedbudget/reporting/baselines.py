"""Baselines: alternatives to a run on the same rows.

    constant      the best constant guess, which uses no feature
    local_only    every device fits its own rows and sends nothing
    one_shot      local fits, averaged once; with output perturbation, private
    centralised   all rows in one place, without noise: what privacy and federation cost
    centralised_private   all rows in one place, noisy gradients at the same epsilon

Regularisation is selected on validation rows, never on test rows; private baselines
are planned and select nothing. Accuracies are computed on the devices' own rows: they
are not private.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.budget import Budget, Prices, planned_delta
from fedbudget.checks import Array, one_of
from fedbudget.data import Dataset, Part
from fedbudget.errors import TrainingError
from fedbudget.losses import Labels, Loss, Rows
from fedbudget.planning import plan
from fedbudget.planning.spectral import Spectrum
from fedbudget.privacy import GDP
from fedbudget.simulation.measuring import means, measure_devices
from fedbudget.simulation.personal import (
    adapt_all,
    best_constant,
    fit,
    fit_path,
    one_thread,
    smooth,
)
from fedbudget.simulation.sweeping import sweep

# Candidate weights of the L2 term; decreasing, as each fit starts from the last.
_CENTRAL_STRENGTHS = (1e-3, 1e-4, 1e-5, 1e-6)
# Fourier features are many and small, and so are the entries of their gradients: the
# usual tolerance ends a fit half way.
_FOURIER: Any = {"strengths": (*_CENTRAL_STRENGTHS, 1e-7), "tolerance": 1e-6}

# Centralised training pays for no upload: it may take as many steps as are useful.
_CENTRAL_PRICES, _CENTRAL_STEPS = Prices(communication=0, computation=1), 600

# Tolerance of a perturbed fit: the largest entry of its gradient at the end.
_TOLERANCE = 1e-7


@dataclass(frozen=True, kw_only=True, eq=False)
class Baseline:
    """One alternative, measured on every device's own rows; not private."""

    name: str
    epsilon: float | None  # of the uploads; None: not private; 0: nothing is sent
    theta: Array  # one model, shape (params,), or one per device, shape (M, params)
    per_device: dict[str, Array]  # e.g. "test_accuracy"; nan where there are no rows

    @property
    def measured(self) -> dict[str, float]:
        """Means over the devices that have rows, as `Run.measured` has them."""
        return means(self.per_device)


def constant(data: Dataset, *, loss: str | None = None) -> Baseline:
    """Return the best constant score, the same on all devices."""
    ones, model, theta = best_constant(data, _model(data, loss))
    return _baseline("constant", ones, model, theta, epsilon=None)


def local_only(data: Dataset, *, loss: str | None = None) -> Baseline:
    """Let every device fit its own training rows; nothing is sent.

    Regularised like a personal model (`simulation.personal`), but towards zero.
    """
    model = _model(data, loss)
    thetas = np.array([personal.theta for personal in adapt_all(data, model, None)])
    return _baseline("local only", data, model, thetas, epsilon=0.0)


def centralised(
    data: Dataset, *, loss: str | None = None, target: str = "size"
) -> Baseline:
    """Fit all devices' rows in one place, without any privacy.

    Args:
        data: The rows of every device.
        loss: By default the usual one for the type of the labels.
        target: `size` gives every row the same weight, `uniform` every device.
    """
    one_of("target", target, ("size", "uniform"))
    model, train = _model(data, loss), data.train
    weights = np.full(len(train), 1 / len(train))
    if target == "uniform":
        weights = np.repeat(1 / (data.num_devices * train.sizes), train.sizes)
    options: Any = {"strengths": _CENTRAL_STRENGTHS}
    if data.schema is not None and data.schema.expansion is not None:
        options = _FOURIER
    with one_thread():
        fits = fit_path(model, train.x, train.y, row_weights=weights, **options)
    theta = fits[-1]
    if len(data.validation):
        theta = _best(model, fits, data.validation.x, data.validation.y)
    return _baseline("centralised", data, model, theta, epsilon=None)


def centralised_private(
    data: Dataset,
    *,
    epsilon: float,
    delta: float | None = None,
    loss: str | None = None,
    seeds: Sequence[int] = (0,),
) -> list[Baseline]:
    """Train on all rows in one place with noisy full-batch gradients; one per seed.

    Planned like any other run, for one device that holds every row. Without a delta, it
    has the one that is planned for the devices.
    """
    delta = planned_delta(data.num_samples) if delta is None else delta
    model = _model(data, loss)
    pooled = _pooled(data)
    budget = Budget(epsilon=epsilon, delta=delta, cost=_CENTRAL_STEPS)
    central = plan(pooled.problem(loss=model.name), budget, _CENTRAL_PRICES)
    spent = float(central.epsilon.max())
    return [
        _baseline("centralised, private", data, model, theta, epsilon=spent)
        for theta in sweep(pooled, [central], seeds=seeds).theta[0]
    ]


def one_shot(
    data: Dataset,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    loss: str | None = None,
    seed: int = 0,
) -> Baseline:
    """Average local fits once, weighted by their numbers of rows.

    With an epsilon, every device perturbs its fit: the minimiser of mean loss +
    (strength / 2) |theta|^2 moves by at most 2 G / (N strength) when one sample is
    replaced (Chaudhuri, Monteleoni and Sarwate 2011), and Gaussian noise hides that.
    The strength is planned from public numbers and is the same on every device.
    """
    model, sizes = _model(data, loss), data.num_samples
    weights = sizes / sizes.sum()
    if epsilon is None:
        thetas = local_only(data, loss=loss).theta
        return _baseline("one shot", data, model, weights @ thetas, epsilon=None)
    delta = planned_delta(sizes) if delta is None else delta
    budget = Budget(epsilon=epsilon, delta=delta, cost=1.0)  # cost is unused
    mu = float(GDP.mu_from_epsilon(budget.epsilon, delta))
    strength = planned_strength(data, model, weights, mu)
    with one_thread():
        thetas = np.array(
            [_exact_fit(data, model, strength, m) for m in range(data.num_devices)]
        )
    bounds = [sensitivity(model, n, strength, thetas.shape[1]) for n in sizes]
    noise = np.random.default_rng(seed).standard_normal(thetas.shape)
    sent = thetas + noise * np.array(bounds)[:, None] / mu
    return _baseline("one shot, private", data, model, weights @ sent, epsilon=epsilon)


def _exact_fit(data: Dataset, model: Loss, strength: float, m: int) -> Array:
    """Return device m's minimiser, as exact as the noise calibration assumes."""
    x, y = data.train.device(m)
    theta = fit(model, x, y, strength=strength, tolerance=_TOLERANCE)
    gradient = smooth(model).gradient(theta, x, y) + strength * theta
    norm, limit = np.linalg.norm(gradient), np.sqrt(len(theta)) * _TOLERANCE
    if not norm <= limit:
        raise TrainingError(
            f"the fit of device {m} ends with a gradient norm of {norm:g}, above "
            f"{limit:g}: not exact enough to be perturbed; use another loss"
        )
    return theta


def sensitivity(model: Loss, rows: float, strength: float, params: int) -> float:
    """Bound how far a fit moves when one sample is replaced.

    Both fits may end at a distance from their minimisers: the tolerance counts twice.
    """
    solver_error = 2 * np.sqrt(params) * _TOLERANCE
    return float((2 * model.lipschitz / rows + solver_error) / strength)


def planned_strength(
    data: Dataset, model: Loss, weights: NDArray[np.float64], mu: float
) -> float:
    """Return the strength that trades bias for noise best, by the spectral model.

    It reads no row.
    """
    spectrum = Spectrum.of(data.problem(loss=model.name))
    h, count, gap = spectrum.curvature, spectrum.count, spectrum.gap

    def predicted(strength: float) -> float:
        noise = np.array(
            [sensitivity(model, n, strength, 1) / mu for n in data.num_samples]
        )
        bias = np.sum(count * gap * (strength / (h + strength)) ** 2)
        return float(bias + 0.5 * np.sum(count * h) * np.sum((weights * noise) ** 2))

    return min(map(float, np.geomspace(1e-5, 1, 26)), key=predicted)


def _best(model: Loss, fits: Sequence[Array], x: Rows, y: Labels) -> Array:
    """Return the fit with the lowest loss on these rows."""
    return min(fits, key=lambda theta: model.value(theta, x, y))


def _model(data: Dataset, loss: str | None) -> Loss:
    return data.problem(loss=loss).model


def _pooled(data: Dataset) -> Dataset:
    """Return the data as if one device held every row."""
    return replace(
        data,
        train=_as_one_device(data.train),
        validation=_as_one_device(data.validation),
        test=_as_one_device(data.test),
        device_names=("all",),
        dissimilarity="iid",
    )


def _as_one_device(part: Part) -> Part:
    offsets = np.array([0, len(part)])
    return Part(x=part.x, y=part.y, offsets=offsets, owned=True)


def _baseline(
    name: str, data: Dataset, model: Loss, theta: Array, *, epsilon: float | None
) -> Baseline:
    return Baseline(
        name=name,
        epsilon=epsilon,
        theta=theta,
        per_device=measure_devices(data, model, theta),
    )
