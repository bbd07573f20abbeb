"""Fits reach the minimum that libraries we did not write reach."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from fedbudget.losses import loss_named
from fedbudget.simulation.fitting import fit, smooth
from tests.examples import small_data


def test_a_logistic_fit_is_sklearns() -> None:
    x, y = small_data(rows=200).train.device(0)
    theta = fit(loss_named("logistic"), x, y, strength=1e-2, tolerance=1e-8)
    witness = LogisticRegression(C=1 / (1e-2 * len(y)), fit_intercept=False, tol=1e-10)
    assert theta == pytest.approx(witness.fit(x, y).coef_[0], abs=1e-4)


def test_a_hinge_fit_is_about_sklearns() -> None:
    x, y = small_data(rows=200).train.device(0)
    loss = loss_named("hinge")
    theta = fit(loss, x, y, strength=1e-2)
    witness = LinearSVC(
        C=1 / (1e-2 * len(y)), loss="hinge", fit_intercept=False, max_iter=10**6
    ).fit(x, y)

    def objective(model: np.ndarray) -> float:
        return loss.value(model, x, y) + 0.5e-2 * float(model @ model)

    # The rounded kink costs at most half its width.
    assert objective(theta) == pytest.approx(objective(witness.coef_[0]), abs=0.05)


@pytest.mark.parametrize("name", ["logistic", "softmax", "hinge", "huber"])
def test_the_gradient_vanishes_at_the_fit(name: str) -> None:
    classes = {"softmax": 3, "huber": None}.get(name, 2)
    x, y = small_data(classes=classes).train.device(1)
    loss = loss_named(name, num_classes=classes if name == "softmax" else None, l2=1e-3)
    centre = np.linspace(-1, 1, loss.num_params(x.shape[1]))
    theta = fit(loss, x, y, strength=0.1, centre=centre, tolerance=1e-7)
    left = smooth(loss).gradient(theta, x, y) + 0.1 * (theta - centre)
    assert np.abs(left).max() < 1e-6


def test_a_strong_pull_keeps_the_centre_and_weights_count_as_copies() -> None:
    x, y = small_data().train.device(0)
    loss, centre = loss_named("logistic"), np.arange(5.0)
    kept, free = (fit(loss, x, y, strength=s, centre=centre) for s in (1e6, 1e-3))
    assert kept == pytest.approx(centre, abs=1e-5)
    assert loss.value(free, x, y) < loss.value(kept, x, y)
    twice = np.where(np.arange(len(y)) < 10, 2.0, 1.0)
    weighed = fit(loss, x, y, strength=0.1, row_weights=twice / twice.sum())
    copied = np.concatenate([x, x[:10]]), np.concatenate([y, y[:10]])
    assert weighed == pytest.approx(fit(loss, *copied, strength=0.1), abs=1e-3)
