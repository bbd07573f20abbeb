"""Metrics against scikit-learn, by hand, and what they warn of."""

import re
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as theirs

import fedbudget as fb
from fedbudget.losses import loss_named
from fedbudget.metrics import (
    calibration_error,
    cautions,
    class_metrics,
    class_rows,
    detail_rows,
    value_metrics,
)
from fedbudget.simulation.measuring import measure_details
from tests import iot_tables as iot

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("cut", [0.0, -2.0])
def test_two_classes_as_scikit_learn_has_it(ties: bool, cut: float) -> None:
    y = (RNG.random(500) < 0.1).astype(np.int64)
    scores = RNG.normal(size=500) + 2 * y - 2
    scores = scores.round(1) if ties else scores
    mine = class_metrics("logistic", scores, y, ("no", "yes"), cut=cut)
    predicted = scores > cut
    assert mine["auc"] == pytest.approx(theirs.roc_auc_score(y, scores))
    balanced = theirs.balanced_accuracy_score(y, predicted)
    assert mine["balanced_accuracy"] == pytest.approx(balanced)
    assert mine["f1"] == pytest.approx(theirs.f1_score(y, predicted, average="macro"))
    precision, recall, f1, _ = theirs.precision_recall_fscore_support(y, predicted)
    for c, name in enumerate(("no", "yes")):
        values = [mine[f"{kind}/{name}"] for kind in ("precision", "recall", "f1")]
        assert values == pytest.approx([precision[c], recall[c], f1[c]])


def test_more_classes_as_scikit_learn_has_it() -> None:
    y = RNG.integers(0, 4, 600)
    scores = RNG.normal(size=(600, 4)) + np.eye(4)[y]
    names = ("a", "b", "c", "d")
    mine = class_metrics("softmax", scores, y, names)
    odds = np.exp(scores)
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    # One against the rest by scores: a class's own order of rows.
    areas = [theirs.roc_auc_score(y == c, scores[:, c]) for c in range(4)]
    assert mine["auc"] == pytest.approx(np.mean(areas))
    predicted = probabilities.argmax(axis=1)
    balanced = theirs.balanced_accuracy_score(y, predicted)
    assert mine["balanced_accuracy"] == pytest.approx(balanced)
    assert mine["f1"] == pytest.approx(theirs.f1_score(y, predicted, average="macro"))


def test_two_columns_are_the_same_as_one() -> None:
    y = RNG.integers(0, 2, 200)
    margin = RNG.normal(size=200) + y
    columns = np.column_stack([margin * 0, margin])
    one = class_metrics("logistic", margin, y, ("a", "b"))
    two = class_metrics("softmax", columns, y, ("a", "b"))
    assert one == pytest.approx(two)


def test_calibration_by_hand() -> None:
    # Ten rows of confidence 0.75, of which 5 are right: off by 0.25.
    scores = np.tile([0.0, np.log(3)], (10, 1))
    y = np.array([1, 0] * 5)
    assert calibration_error(scores, y) == pytest.approx(0.25)
    y = np.array([1, 1, 1, 0] * 25)
    right = np.tile([0.0, np.log(3)], (100, 1))
    assert calibration_error(right, y) == pytest.approx(0, abs=1e-12)


def test_numbers_as_scikit_learn_has_it() -> None:
    truth = RNG.normal(3, 2, 400)
    predicted = truth + RNG.normal(0.1, 1, 400)
    mine = value_metrics(predicted, truth)
    assert mine["r2"] == pytest.approx(theirs.r2_score(truth, predicted))
    assert mine["mae"] == pytest.approx(theirs.mean_absolute_error(truth, predicted))
    square = theirs.mean_squared_error(truth, predicted)
    assert mine["rmse"] == pytest.approx(square**0.5)
    assert mine["bias"] == pytest.approx((predicted - truth).mean())
    assert "r2" not in value_metrics(predicted, np.ones(400))


def test_what_is_undefined_is_left_out() -> None:
    mine = class_metrics("hinge", np.array([1.0, 2.0]), np.array([1, 1]), ("a", "b"))
    assert set(mine) == {
        "balanced_accuracy",
        "f1",
        "recall/b",
        "precision/b",
        "f1/b",
    }
    many = tuple(map(str, range(30)))
    scores, y = RNG.normal(size=(90, 30)), RNG.integers(0, 30, 90)
    assert not [
        name for name in class_metrics("softmax", scores, y, many) if "/" in name
    ]


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"test_accuracy": 0.97, "constant_test_accuracy": 0.9}, []),
        (
            {
                "test_accuracy": 0.956,
                "constant_test_accuracy": 0.956,
                "test_auc": 0.89,
                "test_recall/yes": 0.0,
                "test_balanced_accuracy": 0.5,
            },
            [
                "no better than a constant",
                r"recall 0\), although .*AUC 0.890.*threshold",
            ],
        ),
        (
            {"test_recall/yes": 0.0, "test_auc": 0.52},
            ["hardly order .*larger budget"],
        ),
        (
            {
                "test_accuracy": 0.9,
                "constant_test_accuracy": 0.956,
                "test_auc": 0.89,
                "test_recall/yes": 0.8,
                "test_balanced_accuracy": 0.85,
            },
            ["judge it by its balanced accuracy, 0.850, and its AUC, 0.890"],
        ),
        ({"test_r2": -6.0}, ["R2 is -6: no better .* bounds"]),
        ({"test_r2": 0.4}, []),
        ({"train_loss": 0.4}, []),
    ],
)
def test_warnings_in_words(measured: dict[str, float], says: list[str]) -> None:
    lines = cautions(measured)
    assert len(lines) == len(says)
    for line, pattern in zip(lines, says, strict=True):
        assert re.search(pattern, line)


def test_rows_of_tables() -> None:
    measured = {"test_rmse": 0.25, "constant_test_rmse": 0.5, "test_r2": 0.75}
    assert list(detail_rows(measured, "kWh")) == [
        ("root mean square error", "0.2500 kWh", "0.5000 kWh"),
        ("R2", "0.7500", "0.0000"),
    ]
    measured = {"test_recall/a": 1.0, "test_precision/a": 0.5, "test_f1/a": 2 / 3}
    assert list(class_rows(measured)) == [("a", "1.0000", "0.5000", "0.6667")]
    assert list(detail_rows({"test_accuracy": 1.0, "test_loss": 0.1}, "")) == []


def trained(table: Any, **options: Any) -> tuple[fb.Run, fb.Dataset]:
    data = fb.from_table(table, **options)
    budget = fb.Budget(epsilon=4, delta=1e-4, cost=1000)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(data.problem(), budget, prices)
    devices = fb.SimulatedDevices(data, seed=0, budget=budget, prices=prices)
    return fb.train(plan, devices), data


def test_a_model_that_never_rings_the_alarm_is_called_that() -> None:
    run, data = trained(
        iot.alarms(8000, 10), label="alarm", device="sensor", schema=iot.ALARMS
    )
    measured = run.measured
    assert measured["test_accuracy"] > 0.94  # it looks good
    assert measured["test_recall/yes"] == 0
    assert any("recall 0" in line for line in run.cautions)
    # Only the last round has them: they cost time.
    assert "test_auc" not in run.rounds[0].measured
    lower = measure_details(data, loss_named("logistic"), run.theta, threshold=0.03)
    assert lower["test_recall/yes"] > 0.3
    assert lower["test_accuracy"] < measured["test_accuracy"]
    assert lower["test_auc"] == measured["test_auc"]


def test_errors_are_in_the_labels_unit() -> None:
    table = iot.energy(3000)
    run, data = trained(table, label="kwh", device="meter", schema=iot.ENERGY)
    predicted = fb.LinearModel(
        theta=run.theta, loss="huber", schema=iot.ENERGY
    ).predict(np.asarray(data.test.x))
    truth = iot.ENERGY.target.decode(data.test.y)  # type: ignore[union-attr]
    assert run.measured["test_rmse"] == pytest.approx(
        np.sqrt(np.mean((predicted - truth) ** 2)), rel=1e-6
    )
    assert run.measured["constant_test_rmse"] == pytest.approx(truth.std(), rel=0.05)
