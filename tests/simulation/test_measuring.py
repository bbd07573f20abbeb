"""Compiled measurements are those of the reference, for every layout and loss."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedbudget.data import Dataset, Part, load
from fedbudget.losses import Huber
from fedbudget.simulation import measuring
from fedbudget.simulation.measuring import measure, measure_all
from tests.examples import small_data


def assert_measured(data: Dataset, loss: object, thetas: np.ndarray) -> None:
    for side_by_side in (True, False):
        together = measure_all(data, loss, thetas, side_by_side=side_by_side)  # type: ignore[arg-type]
        for row in range(len(thetas)):
            single = measure(data, loss, thetas[row])  # type: ignore[arg-type]
            assert single.keys() == together.keys()
            for name, value in single.items():
                assert together[name][row] == pytest.approx(value, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "smooth_hinge", "softmax"])
def test_one_hot_rows(loss: str) -> None:
    data = load("adult", split="by-education")
    model = data.problem(loss=loss).model
    params = model.num_params(data.dim)
    assert_measured(data, model, np.random.default_rng(0).normal(size=(19, params)))


@pytest.mark.parametrize("classes", [2, 3, 20, None])
def test_dense_rows(classes: int | None) -> None:
    data = small_data(devices=5, rows=333, dim=21, classes=classes)
    model = data.problem().model
    if classes is None:
        model = Huber(threshold=0.3)
    params = model.num_params(data.dim)
    assert_measured(data, model, np.random.default_rng(0).normal(size=(7, params)))


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_sparse_rows(loss: str) -> None:
    dense = small_data(devices=3, rows=150, dim=9)

    def sparse(part: Part) -> Part:
        x = np.asarray(part.x)
        return replace(part, x=csr_array(np.where(x > 0.1, x, 0)))

    data = replace(
        dense,
        train=sparse(dense.train),
        validation=sparse(dense.validation),
        test=sparse(dense.test),
    )
    model = data.problem(loss=loss).model
    assert_measured(data, model, np.random.default_rng(0).normal(size=(4, data.dim)))


def test_devices_without_validation_or_test_rows() -> None:
    data = small_data(devices=40, rows=7)
    sizes = np.arange(40) % 3  # every third device has none
    keep = np.concatenate([np.arange(o, o + 1) for o in data.test.offsets[:-1]])
    rows = np.repeat(keep, sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    test = Part(x=data.test.x[rows], y=data.test.y[rows], offsets=offsets)
    data = replace(data, test=test)
    model = data.problem().model
    assert_measured(data, model, np.random.default_rng(0).normal(size=(3, data.dim)))


def test_a_measurement_depends_neither_on_its_company_nor_on_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = small_data(devices=3, rows=4000, dim=6)
    model = data.problem().model
    thetas = np.random.default_rng(1).normal(size=(40, data.dim))
    monkeypatch.setattr(measuring, "_SHORT", 0)
    together = measure_all(data, model, thetas)
    monkeypatch.setattr(measuring, "num_threads", lambda: 1)
    for rows in (slice(5, 6), slice(3, 30)):
        some = measure_all(data, model, thetas[rows])
        for name, values in some.items():
            assert np.array_equal(values, together[name][rows])


def test_a_model_that_is_not_finite_is_measured_as_such() -> None:
    data = small_data()
    theta = np.stack([np.full(data.dim, np.nan), np.zeros(data.dim)])
    measured = measure_all(data, data.problem().model, theta)
    assert np.isnan(measured["train_loss"]).tolist() == [True, False]
    assert np.isnan(measured["test_accuracy"]).tolist() == [True, False]
