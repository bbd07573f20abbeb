"""Losses: gradients against differences, constants against random rows."""

from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import optimize, sparse
from sklearn.linear_model import LogisticRegression

from fedbudget.errors import InvalidInputError
from fedbudget.losses import Hinge, Huber, Loss, SmoothHinge, Softmax, loss_named

LOSSES = [
    loss_named("logistic", l2=0.1),
    loss_named("softmax", num_classes=2),
    loss_named("softmax", num_classes=5, l2=0.01),
    loss_named("hinge"),
    loss_named("smooth_hinge"),
    SmoothHinge(width=0.25, l2=0.1),
    loss_named("huber"),
    Huber(threshold=0.3, l2=0.2),
]


def rows(
    loss: Loss, seed: int, count: int = 40, dim: int = 6
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, dim))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = (
        rng.uniform(-1, 1, count)
        if loss.name == "huber"
        else rng.integers(max(2, loss.num_outputs), size=count)
    )
    return 5 * rng.normal(size=loss.num_params(dim)), x, y


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradient_is_that_of_the_value(loss: Loss) -> None:
    theta, x, y = rows(loss, seed=1)
    numeric = optimize.approx_fprime(theta, loss.value, 1e-7, x, y)
    assert loss.gradient(theta, x, y) == pytest.approx(numeric, abs=1e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradient_is_the_mean_of_the_samples(loss: Loss) -> None:
    theta, x, y = rows(loss, seed=2)
    mean = loss.sample_gradients(theta, x, y).mean(axis=0) + loss.l2 * theta
    assert loss.gradient(theta, x, y) == pytest.approx(mean)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_sparse_rows_give_the_same(loss: Loss) -> None:
    theta, x, y = rows(loss, seed=3)
    x[np.abs(x) < 0.3] = 0
    thin = sparse.csr_array(x)
    assert loss.value(theta, thin, y) == pytest.approx(loss.value(theta, x, y))
    assert loss.gradient(theta, thin, y) == pytest.approx(loss.gradient(theta, x, y))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seed=st.integers(0, 10_000))
def test_no_sample_gradient_exceeds_lipschitz(loss: Loss, seed: int) -> None:
    theta, x, y = rows(loss, seed)
    norms = np.linalg.norm(loss.sample_gradients(100 * theta, x, y), axis=1)
    assert norms.max() <= loss.lipschitz * (1 + 1e-12)


def test_lipschitz_is_reached() -> None:
    for loss in (*LOSSES[:2], *LOSSES[3:]):
        x, y = np.eye(1, 3), np.zeros(1, dtype=int)
        theta = np.zeros(loss.num_params(3))
        theta[0], theta[-3] = 1e3, 1e3  # far on the wrong side of class 0
        if loss.name == "softmax":
            theta[0] = -1e3
        norm = np.linalg.norm(loss.sample_gradients(theta, x, y))
        assert norm == pytest.approx(loss.lipschitz, rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seed=st.integers(0, 10_000))
def test_curvature_is_bounded_by_smoothness_and_trace(loss: Loss, seed: int) -> None:
    if loss.curvature == inf:
        assert loss.name == "hinge"
        return
    theta, x, y = rows(loss, seed, count=20, dim=3)
    theta *= 0.2
    step = 1e-4
    hessian = np.array(
        [
            loss.gradient(theta + step * e, x, y)
            - loss.gradient(theta - step * e, x, y)
            for e in np.eye(len(theta))
        ]
    ) / (2 * step)
    eigenvalues = np.linalg.eigvalsh((hessian + hessian.T) / 2)
    assert eigenvalues.max() <= loss.smoothness + 1e-6
    assert eigenvalues.sum() <= loss.hessian_trace + loss.l2 * len(theta) + 1e-6


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_loss_at_zero_bounds_the_loss_at_zero(loss: Loss) -> None:
    theta, x, y = rows(loss, seed=4)
    assert loss.value(0 * theta, x, y) <= loss.loss_at_zero + 1e-12


def test_constants_by_hand() -> None:
    assert loss_named("logistic").loss_at_zero == pytest.approx(log(2))
    assert loss_named("logistic").smoothness == 0.25
    assert loss_named("softmax", num_classes=10).loss_at_zero == pytest.approx(log(10))
    assert loss_named("softmax", num_classes=10).hessian_trace == pytest.approx(0.9)
    assert loss_named("softmax").lipschitz == pytest.approx(sqrt(2))
    assert loss_named("hinge").loss_at_zero == 1
    smooth = loss_named("smooth_hinge")
    assert (smooth.loss_at_zero, smooth.smoothness, smooth.lipschitz) == (0.5, 1, 1)
    assert SmoothHinge(width=0.25, l2=0.5).smoothness == 4.5
    assert Huber(threshold=0.5, label_bound=2).loss_at_zero == 0.5 * (2 - 0.25)


@given(
    first=st.floats(-5, 5),
    second=st.floats(-5, 5),
    width=st.floats(0.01, 1),
    label=st.integers(0, 1),
)
def test_no_pair_of_scores_breaks_the_smooth_hinges_curvature(
    first: float, second: float, width: float, label: int
) -> None:
    loss, y = SmoothHinge(width=width), np.full(2, label)
    slopes = loss.slopes(np.array([first, second]), y)
    change, distance = abs(slopes[0] - slopes[1]), abs(first - second)
    assert change <= loss.curvature * distance * (1 + 1e-12) + 1e-12
    assert np.abs(slopes).max() <= loss.lipschitz


def test_smooth_hinges_curvature_and_slope_are_reached() -> None:
    for width in (1.0, 0.2):
        loss, y = SmoothHinge(width=width), np.ones(2, dtype=int)
        slopes = loss.slopes(np.array([1 - width, 1.0]), y)
        assert slopes.tolist() == pytest.approx([-1, 0])


def test_smooth_hinge_approaches_hinge() -> None:
    theta, x, y = rows(Hinge(), seed=8)
    for width in (1.0, 0.1, 1e-3):
        gap = Hinge().value(theta, x, y) - SmoothHinge(width=width).value(theta, x, y)
        assert 0 <= gap <= width / 2
    # Rennie and Srebro's smooth hinge, piece by piece.
    ours = SmoothHinge().losses(np.array([-2.0, 0.5, 1.5]), np.ones(3))
    assert ours.tolist() == pytest.approx([2.5, 0.125, 0])


def test_two_class_softmax_is_logistic_regression() -> None:
    theta, x, y = rows(Softmax(), seed=5)
    first, second = theta.reshape(2, -1)
    logistic = loss_named("logistic").value(second - first, x, y)
    assert Softmax().value(theta, x, y) == pytest.approx(logistic)


def test_the_minimum_is_scikit_learns() -> None:
    loss = loss_named("logistic", l2=0.05)
    theta, x, y = rows(loss, seed=6, count=200)
    minimum = optimize.minimize(
        loss.value, theta, (x, y), jac=loss.gradient, method="BFGS"
    )
    model = LogisticRegression(C=1 / (0.05 * len(x)), fit_intercept=False, tol=1e-9)
    assert minimum.x == pytest.approx(model.fit(x, y).coef_[0], abs=1e-3)
    agree = loss.predictions(loss.scores(minimum.x, x)) == model.predict(x)
    assert agree.all()


def test_huge_scores_do_not_overflow() -> None:
    for loss in LOSSES:
        theta, x, y = rows(loss, seed=7)
        assert np.isfinite(loss.gradient(1e6 * theta, x, y)).all()
        assert np.isfinite(loss.value(1e6 * theta, x, y))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: loss_named("square"), "'square' is not known"),
        (lambda: loss_named("logistic", num_classes=3), "use 'softmax'"),
        (
            lambda: loss_named("softmax", num_classes=1),
            "num_classes must be a whole number of at least 2, got 1",
        ),
        (lambda: loss_named("hinge", l2=-1), "l2 must be at least 0"),
        (lambda: loss_named("hinge", l2=float("nan")), "l2 must be at least 0"),
        (lambda: Huber(threshold=0), "threshold must be above 0"),
        (lambda: SmoothHinge(width=1.5), "width must be above 0 and at most 1"),
        (lambda: loss_named("smooth_hinge", num_classes=3), "use 'softmax'"),
    ],
)
def test_bad_losses_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]
