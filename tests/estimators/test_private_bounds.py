"""Estimators with public bounds of columns, and with bounds that devices measure."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import check_estimator_sparse_tag

import fedbudget as fb
from fedbudget.errors import DataError, FedbudgetError, InvalidInputError
from fedbudget.privacy import GDP
from tests import iot_tables as iot

ALARMS, ENERGY = iot.alarms(), iot.energy()
NUMBERS = ("heat", "volts", "hum")
X = np.column_stack([ALARMS[name] for name in NUMBERS])
Y, SENSORS = ALARMS["alarm"], ALARMS["sensor"]
WIDE = [(-200, 300), (0, 100), (-10, 10)]  # of a data sheet
KWH = np.column_stack([ENERGY[name] for name in iot.ENERGY.features])


def classifier(**options: Any) -> fb.PrivateFederatedClassifier:
    settings: dict[str, Any] = {"epsilon": 4, "delta": 1e-5, "cost": 3000}
    settings |= {"classes": ["no", "yes"], "random_state": 0}
    return fb.PrivateFederatedClassifier(**settings | options)


def auc(model: Any) -> float:
    return float(roc_auc_score(Y == "yes", model.decision_function(X)))


def test_bounds_scale_columns_that_differ_in_size() -> None:
    tight = list(zip(X.min(axis=0), X.max(axis=0), strict=True))
    plain = classifier().fit(X, Y, SENSORS)
    model = classifier(bounds=tight).fit(X, Y, SENSORS)
    assert auc(model) > auc(plain) + 0.05
    assert model.bounds_ == pytest.approx(np.array(tight))
    assert plain.bounds_ is None and plain.plan_.epsilon.max() <= 4


def test_scores_by_hand() -> None:
    """Values beyond their bounds, and rows beyond the norm, count as clipped."""
    model = classifier(bounds=[(10, 40), (1, 5), (0, 1)], row_norm=0.5)
    model.fit(X, Y, SENSORS)
    row = np.array([[100.0, 3.0, 0.5]])  # scaled: (1, 0, 0), and clipped to (0.5, 0, 0)
    inside = np.array([[32.5, 3.0, 0.5]])
    expected = inside @ model.coef_.T + model.intercept_
    assert model.decision_function(row) == pytest.approx(expected[:, 0])
    assert model.decision_function(inside) == pytest.approx(expected[:, 0])


def test_wide_bounds_are_narrowed_and_charged() -> None:
    wide = classifier(bounds=WIDE).fit(X, Y, SENSORS)
    model = classifier(bounds=WIDE, scale="private").fit(X, Y, SENSORS)
    assert auc(model) > auc(wide) + 0.05
    widths = [np.ptp(np.asarray(each.bounds_), axis=1) for each in (wide, model)]
    assert (widths[1] < widths[0] / 2).all()
    # A fifth of mu squared went to the query, and the statement covers it.
    total = GDP.mu_from_epsilon(np.array(4.0), np.array(1e-5))
    assert model.plan_.prior_mu == pytest.approx(np.sqrt(0.2) * total)
    assert len(model.plan_.prior_releases) == 3
    assert model.plan_.epsilon.max() <= 4 and model.plan_.cost.max() <= 3000
    assert "(4, 1e-05)-differential privacy" in model.privacy_statement_
    # The same seed gives the same model, and a clone has the same parameters.
    again = clone(model).fit(X, Y, SENSORS)
    assert (again.coef_ == model.coef_).all()


def test_a_release_measures_too() -> None:
    model = classifier(bounds=WIDE, scale="private", random_state=None)
    model.fit(X, Y, SENSORS)
    assert model.kind_ == "release" and auc(model) > 0.7
    assert model.plan_.prior_mu.min() > 0


def test_the_label_of_a_regressor_is_narrowed() -> None:
    settings: Any = {"epsilon": 4, "delta": 1e-5, "cost": 3000, "random_state": 0}
    settings |= {"bounds": (-100, 100), "target_range": (0, 100)}
    wide = fb.PrivateFederatedRegressor(**settings)
    model = fb.PrivateFederatedRegressor(**settings, scale="private")
    for each in (wide, model):
        each.fit(KWH, ENERGY["kwh"], ENERGY["meter"])
    assert wide.score(KWH, ENERGY["kwh"]) < 0 < model.score(KWH, ENERGY["kwh"]) - 0.5
    assert model.plan_.prior_mu.min() > 0
    assert not np.array_equal(np.asarray(model.bounds_), np.asarray(wide.bounds_))


def test_weights_of_rows_go_with_the_query() -> None:
    model = classifier(
        bounds=WIDE,
        scale="private",
        class_weight="balanced",
        class_shares={"no": 0.97, "yes": 0.03},
    )
    model.fit(X, Y, SENSORS, sample_weight=np.full(len(X), 0.9))
    assert model.plan_.prior_mu.min() > 0 and auc(model) > 0.7
    assert (model.predict(X[Y == "yes"]) == "yes").mean() > 0.3


def test_one_row_changes_one_training_row_under_the_same_bounds() -> None:
    """The bounds are a release: given them, each row is scaled on its own."""
    model = classifier(bounds=WIDE, scale="private").fit(X, Y, SENSORS)
    other = X.copy()
    other[7] = 1e9
    scores = model.decision_function(X), model.decision_function(other)
    assert np.flatnonzero(scores[0] != scores[1]).tolist() == [7]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scale": "private"}, "there are none: give bounds"),
        ({"scale": "robust", "bounds": (0, 1)}, "'robust' is not known"),
        ({"bounds": (1, 0)}, "bounds of column 0: low must be below high"),
        ({"bounds": [(0, 1), (0, 1)]}, "not those of 3 columns"),
        ({"bounds": "wide"}, "not those of 3 columns"),
        ({"bounds": (0, np.inf)}, "both finite"),
        ({"bounds": WIDE, "scale": "private", "unit": "device"}, "unit 'device'"),
    ],
)
def test_refusals(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        classifier(**options).fit(X, Y, SENSORS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threshold": 1.5}, "threshold must be above 0 and below 1"),
        ({"threshold": "shares"}, "needs publicly known class shares"),
        ({"planner": "none"}, "'none' is not known"),
        ({"weights": "none"}, "'none' is not known"),
        ({"class_weight": "balanced"}, "needs publicly known class shares"),
        ({"class_weight": {"no": 1}}, "class_weight is for"),
        ({"loss": "huber"}, "huber"),
        ({"dissimilarity": "very"}, "'very'"),
        ({"cost": 350}, "does not pay for the query|below the price of one round"),
        ({"loss": "hinge", "threshold": 0.3}, "threshold"),
    ],
)
def test_wrong_options_are_refused_before_the_query(
    options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charged(*args: object, **kwargs: object) -> None:
        raise AssertionError("the query was charged")

    monkeypatch.setattr(fb.SimulatedDevices, "noisy_histograms", charged)
    with pytest.raises(FedbudgetError, match=says):
        classifier(bounds=WIDE, scale="private", **options).fit(X, Y, SENSORS)


@pytest.mark.filterwarnings("ignore:all rows are treated as one device")
def test_the_tag_says_whether_sparse_rows_are_taken() -> None:
    numbered = classifier(classes=[0, 1, 2])
    for model in (numbered, clone(numbered).set_params(bounds=(0, 1))):
        check_estimator_sparse_tag(type(model).__name__, model)


def test_sparse_rows_have_no_bounds() -> None:
    with pytest.raises(DataError, match="X is sparse, and bounds move its zeros"):
        classifier(bounds=WIDE).fit(csr_matrix(X), Y, SENSORS)
