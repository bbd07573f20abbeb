"""Weights of rows and classes, and thresholds, of the estimators."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.ensemble import BaggingClassifier
from sklearn.metrics import recall_score

import fedbudget as fb
from fedbudget.data.row_weights import weight_rows
from fedbudget.errors import InvalidInputError
from fedbudget.estimators import base

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6000, 3)) / 3
RARE = (X @ [1.0, -1.0, 0.5] + RNG.normal(size=6000) / 3 > 0.9).astype(int)
GROUPS = RNG.integers(6, size=6000)  # rows of a device are not next to each other
SHARES = {0: 0.95, 1: 0.05}


def classifier(**options: Any) -> fb.PrivateFederatedClassifier:
    settings: dict[str, Any] = {"epsilon": 8, "classes": [0, 1], "random_state": 0}
    return fb.PrivateFederatedClassifier(**settings | options)


def recall(model: Any) -> float:
    return float(recall_score(RARE, model.predict(X)))


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[tuple[fb.Dataset, int]]:
    """The data of every fit, as `weight_rows` returned them, and its seed."""
    calls: list[tuple[fb.Dataset, int]] = []

    def noted(data: fb.Dataset, *, seed: int, **options: Any) -> fb.Dataset:
        weighted = weight_rows(data, seed=seed, **options)
        calls.append((weighted, seed))
        return weighted

    monkeypatch.setattr(base, "weight_rows", noted)
    return calls


@pytest.mark.parametrize("state", [0, None])
def test_balanced_classes_find_the_rare_one_with_the_same_noise(state: Any) -> None:
    plain = classifier(random_state=state).fit(X, RARE, GROUPS)
    model = classifier(
        random_state=state, class_weight="balanced", class_shares=SHARES
    ).fit(X, RARE, GROUPS)
    # Of 30 releases each: 0.37 and 0.94 on average, deviations 0.02 and 0.01.
    assert recall(plain) < 0.55 < 0.75 < recall(model)
    assert (
        model.plan_.to_dict() == plain.plan_.to_dict()
    )  # noise, epsilon and counts of rows
    assert model.privacy_statement_ == plain.privacy_statement_


def test_labels_of_any_type_have_shares_and_weights() -> None:
    for labels in (["no", "yes"], [0.0, 1.0], [False, True], [3, 7]):
        names = np.array(labels)
        share = dict(zip(labels, [0.95, 0.05], strict=True))
        model = classifier(classes=labels, class_shares=share, threshold="shares")
        model.set_params(class_weight=dict(zip(names, [0.5, 1.0], strict=True)))
        assert model.fit(X, names[RARE], GROUPS).plan_.threshold == 0.05
    assert classifier(class_shares={"0": 0.5, "1": 0.5}, threshold="shares").fit(
        X, RARE, GROUPS
    )


def test_weights_of_classes_count_by_their_ratio(trained_on: Any) -> None:
    for weight in ({0: 0.1, 1: 1.0}, {0: 3.0, 1: 30.0}):
        classifier(class_weight=weight).fit(X, RARE, GROUPS)
    first, second = (data.train.x for data, _ in trained_on)
    assert (first == second).all()
    kept = np.abs(first).sum(axis=1) > 0
    assert 0.1 < kept.mean() < 0.2 and np.linalg.norm(first, axis=1).max() <= 1


def test_weights_follow_their_rows_to_the_devices(trained_on: Any) -> None:
    weight = (np.arange(6000) % 3 == 0).astype(float)
    for rows in (X, csr_matrix(X)):
        classifier().fit(rows, RARE, GROUPS, sample_weight=pd.Series(weight))
        data = trained_on[-1][0].train.x
        kept = abs(data).sum(axis=1) > 0
        order = np.argsort(GROUPS, kind="stable")
        assert (kept == (weight[order] == 1)).all()


def test_replacing_a_row_changes_one_training_row(trained_on: Any) -> None:
    options: Any = {"class_weight": "balanced", "class_shares": SHARES}
    half = np.full(6000, 0.5)
    classifier(**options).fit(X, RARE, GROUPS, sample_weight=half)
    for row in (0, 17, 4000):
        x, y, weight = X.copy(), RARE.copy(), half.copy()
        x[row], y[row], weight[row] = 100.0, 1 - y[row], 1.0
        classifier(**options).fit(x, y, GROUPS, sample_weight=weight)
        before, after = trained_on[0][0].train, trained_on[-1][0].train
        changed = np.flatnonzero((before.x != after.x).any(axis=1))
        assert np.argsort(GROUPS, kind="stable")[changed].tolist() in ([], [row])
        assert np.linalg.norm(after.x, axis=1).max() <= 1


def test_weights_of_one_change_nothing_and_of_zero_leave_out() -> None:
    plain = classifier().fit(X, RARE, GROUPS)
    ones = classifier().fit(X, RARE, GROUPS, sample_weight=np.ones(6000))
    assert (ones.coef_ == plain.coef_).all()
    first = (np.arange(6000) < 3000).astype(float)
    left = classifier().fit(X, RARE, GROUPS, sample_weight=first)
    assert left.plan_.to_dict() == plain.plan_.to_dict()
    assert (left.coef_ != plain.coef_).all()
    other = X.copy()
    other[3000:] = 9.0  # rows of weight 0 teach nothing, whatever they hold
    again = classifier().fit(other, RARE, GROUPS, sample_weight=first)
    assert (again.coef_ == left.coef_).all()


def test_the_statement_says_what_weights_must_depend_on() -> None:
    model = classifier(random_state=None)
    model.fit(X, RARE, GROUPS, sample_weight=np.full(6000, 0.5))
    assert model.kind_ == "release"
    says = "NOT covered: sample_weight, if a row's weight depends on other rows"
    assert model.privacy_statement_.endswith(says)
    assert says not in model.fit(X, RARE, GROUPS).privacy_statement_


def test_a_release_draws_anew_and_a_simulation_repeats(trained_on: Any) -> None:
    half = np.full(6000, 0.5)
    for state in (None, None, 0, 0):
        classifier(random_state=state).fit(X, RARE, GROUPS, sample_weight=half)
    drawn = [data.train.x.any(axis=1) for data, _ in trained_on]
    assert (drawn[0] != drawn[1]).any() and (drawn[2] == drawn[3]).all()
    assert trained_on[0][1] != trained_on[1][1]
    assert all(
        (data.num_samples == np.bincount(GROUPS)).all() for data, _ in trained_on
    )


def test_regressors_take_weights() -> None:
    y = X @ [1.0, -1.0, 0.5]
    y[3000:] *= -1
    first = (np.arange(6000) < 3000).astype(float)
    model = fb.PrivateFederatedRegressor(
        epsilon=8, target_range=(-3, 3), random_state=0
    ).fit(X, y, GROUPS, sample_weight=first)
    assert model.score(X[:3000], y[:3000]) > 0.5


@pytest.mark.filterwarnings("ignore::fedbudget.OneDeviceWarning")
def test_bagging_takes_no_row_twice() -> None:
    twice = BaggingClassifier(classifier(), n_estimators=2, random_state=0)
    with (
        pytest.warns(fb.NotPrivateWarning, match="BaggingClassifier"),
        pytest.raises(InvalidInputError, match="in bagging, set bootstrap=False"),
    ):
        twice.fit(X, RARE)
    once = twice.set_params(bootstrap=False, max_samples=0.5)
    with pytest.warns(fb.NotPrivateWarning, match="BaggingClassifier"):
        once.fit(X, RARE)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_threshold_decides(loss: str) -> None:
    model = classifier(loss=loss, threshold=0.2).fit(X, RARE, GROUPS)
    probabilities = model.predict_proba(X)[:, 1]
    assert (model.predict(X) == (probabilities > 0.2)).all()
    plain = classifier(loss=loss).fit(X, RARE, GROUPS)
    assert (plain.coef_ == model.coef_).all() and recall(plain) < recall(model)
    shares = classifier(loss=loss, threshold="shares", class_shares=SHARES)
    assert shares.fit(X, RARE, GROUPS).plan_.threshold == pytest.approx(0.05)
    assert recall(shares) > 0.8


ONES = np.ones(6000)


@pytest.mark.parametrize(
    ("options", "weight", "says"),
    [
        ({"class_weight": "balanced"}, None, "publicly known .*give class_shares"),
        ({"class_weight": "heavy"}, None, "'heavy' is not known"),
        ({"class_weight": 3}, None, "class_weight 3 is not a mapping: give {class"),
        (
            {"class_weight": {0: 1, 1: -9}},
            None,
            "got -9 for class 1: give weights from",
        ),
        ({"class_weight": {0: 1, 1: np.inf}}, None, "got inf for class 1"),
        ({"class_weight": {0: 1}}, None, "give one weight for each"),
        ({"class_shares": [0.9, 0.1]}, None, "class_shares .* is not a mapping"),
        ({"class_shares": {0: 0.9, 2: 0.1}}, None, "give one share for each"),
        ({"class_shares": {0: 0.9, 1: 0.9}}, None, "sum to 1"),
        ({"class_shares": {0: "a", 1: 0.9}}, None, "class_shares must be a number"),
        ({"threshold": "shares"}, None, "give class_shares={class: share}"),
        ({"threshold": 1.0}, None, "threshold must be .* got 1: give a probability"),
        ({"threshold": "half"}, None, "threshold must be .*'half'"),
        ({"threshold": np.nan}, None, "threshold must be"),
        ({"threshold": 0.2, "loss": "hinge"}, None, "threshold is 0.2.*leave it out"),
        ({"threshold": 0.5, "classes": [0, 1, 2]}, None, "there are 3: leave it out"),
        ({}, 2 * ONES, "at most 1 .*got 2 for row 0: divide all weights by a public"),
        ({}, np.where(np.arange(6000) == 7, -1, 1), "got -1 for row 7"),
        ({}, np.where(np.arange(6000) == 7, np.nan, 1), "got nan for row 7"),
        ({}, 0 * ONES, "sample_weight is zero for all 6000 rows"),
        ({}, 0.5, r"sample_weight has shape \(\), there are 6000"),
        ({}, ONES[:5], r"sample_weight has shape \(5,\), there are 6000"),
        ({}, ONES.reshape(2, -1), r"sample_weight has shape \(2, 3000\)"),
        ({}, [[1.0], [1.0, 0.5]], r"sample_weight has shape \(2,\)"),
        ({}, ["a"] * 6000, "sample_weight must be a number"),
    ],
)
def test_refusals(options: dict[str, Any], weight: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        classifier(**options).fit(X, RARE, GROUPS, sample_weight=weight)
