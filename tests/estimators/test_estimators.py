"""The estimators: scikit-learn's own checks, devices, privacy, and their warnings."""

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array, csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedbudget as fb
from fedbudget.data.unit_ball import check_unit_ball
from fedbudget.errors import InvalidInputError, NotPrivateWarning
from fedbudget.estimators.unit_rows import unit_rows
from tests.cli.running import run_python

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1200, 4)) / 3
Y = np.where(X @ [1.0, -2.0, 1.0, 0.0] > 0.1, "yes", "no")
GROUPS = np.array([f"s{i % 6}" for i in range(1200)])

# Many tests need one device only.
pytestmark = pytest.mark.filterwarnings("ignore::fedbudget.OneDeviceWarning")


def classifier(**options: Any) -> fb.PrivateFederatedClassifier:
    settings: dict[str, Any] = {"epsilon": 4, "classes": ["no", "yes"]}
    settings["random_state"] = 0
    return fb.PrivateFederatedClassifier(**settings | options)


_ABOVE_ONE = "it passes weights above 1, which would raise the sensitivity: refused"
_LEFT_OUT = {
    "check_sample_weights_list": _ABOVE_ONE,
    "check_sample_weights_not_overwritten": _ABOVE_ONE,
    "check_sample_weight_equivalence_on_dense_data": _ABOVE_ONE,
    "check_sample_weight_equivalence_on_sparse_data": _ABOVE_ONE,
    "check_class_weight_classifiers": "50 rows at epsilon 1: the noise decides",
}


# Nothing else is expected to fail: the checks run on data whose classes and ranges are
# read from it, which warns, and the regressor declares that 200 rows are few
# (poor_score).
@pytest.mark.filterwarnings("ignore::fedbudget.NotPrivateWarning")
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API.*")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [fb.PrivateFederatedClassifier(), fb.PrivateFederatedRegressor()],
    expected_failed_checks=lambda _: _LEFT_OUT,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_devices_are_the_groups_and_each_keeps_its_budget() -> None:
    cost = [400.0, 500.0, 600.0, 700.0, 800.0, 900.0]
    model = classifier(epsilon=[4.0, 4, 4, 4, 4, 2], cost=cost).fit(X, Y, GROUPS)
    assert model.plan_.num_devices == 6
    assert model.plan_.num_samples.tolist() == [200] * 6
    assert (model.plan_.epsilon <= [4, 4, 4, 4, 4, 2]).all()
    assert (model.plan_.cost <= cost).all()


def test_it_learns_and_has_scikit_learns_interface() -> None:
    model = classifier().fit(X, Y, groups=GROUPS)
    assert model.score(X, Y) > 0.85
    assert model.classes_.tolist() == ["no", "yes"]
    probabilities = model.predict_proba(X)
    assert probabilities.sum(axis=1) == pytest.approx(1.0)
    assert ((model.decision_function(X) > 0) == (probabilities[:, 1] > 0.5)).all()


def test_the_linear_model_is_that_of_rows_within_the_norm() -> None:
    model = classifier(row_norm=3.0).fit(X, Y)
    assert np.linalg.norm(X, axis=1).max() < 3
    expected = X @ model.coef_[0] + model.intercept_[0]
    assert model.decision_function(X) == pytest.approx(expected)
    long = 100 * X[:5]
    short = long * (3 / np.linalg.norm(long, axis=1, keepdims=True))
    assert model.decision_function(long) == pytest.approx(
        model.decision_function(short)
    )


def test_dense_sparse_and_frames_give_one_model() -> None:
    dense = classifier().fit(X, Y, groups=GROUPS)
    frame = pd.DataFrame(X, columns=list("abcd"))
    for rows in (csr_matrix(X), coo_array(X), frame):
        other = classifier().fit(rows, Y, groups=pd.Series(GROUPS))
        assert other.coef_ == pytest.approx(dense.coef_, rel=1e-4)
        assert (other.predict(rows) == dense.predict(X)).all()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_never_leave_the_unit_ball(intercept: bool, sparse: bool) -> None:
    x = RNG.normal(size=(500, 3)) * 10.0 ** RNG.integers(-3, 6, size=(500, 1))
    x[0], x[1] = 1e300, 5e-324
    rows = unit_rows(csr_matrix(x) if sparse else x, row_norm=0.7, intercept=intercept)
    check_unit_ball(rows)
    dense = np.asarray(rows.toarray() if sparse else rows, dtype=np.float64)  # type: ignore[union-attr]
    assert np.linalg.norm(dense, axis=1).max() <= 1
    assert np.linalg.norm(dense, axis=1).max() > 0.999
    single = unit_rows(x[7:8], row_norm=0.7, intercept=intercept)
    assert (
        dense[7] == np.asarray(single, np.float64)[0]
    ).all()  # independent of the others


def test_losses_and_classes() -> None:
    three = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.2, 0.2])]
    model = classifier(classes=["c", "b", "a"]).fit(X, three, groups=GROUPS)
    assert model.plan_.loss == "softmax"
    assert model.predict_proba(X).shape == model.decision_function(X).shape == (1200, 3)
    assert model.classes_.tolist() == ["a", "b", "c"]
    for loss in ("hinge", "smooth_hinge"):
        hinge = classifier(loss=loss).fit(X, Y)
        assert hinge.score(X, Y) > 0.8
        assert not hasattr(hinge, "predict_proba")
    pair = classifier(loss="softmax").fit(X, Y)
    probabilities = pair.predict_proba(X)[:, 1]
    logit = np.log(probabilities / (1 - probabilities))
    assert pair.decision_function(X) == pytest.approx(logit)


def test_a_class_that_no_row_has_is_still_a_class() -> None:
    model = classifier(classes=["maybe", "no", "yes"]).fit(X, Y)
    assert model.predict_proba(X).shape == (1200, 3)


def test_values_read_from_the_labels_are_stated() -> None:
    with pytest.warns(NotPrivateWarning, match="classes were read from y"):
        model = classifier(classes=None).fit(X, Y)
    assert "NOT covered: the classes" in model.privacy_statement_
    y = X @ [1.0, 0, 0, 0]
    with pytest.warns(NotPrivateWarning, match="range of y"):
        other = fb.PrivateFederatedRegressor().fit(X, y)
    assert "NOT covered: the range of y" in other.privacy_statement_


def test_a_fit_is_a_release_unless_it_has_a_random_state() -> None:
    model = classifier(random_state=None).fit(X, Y)
    assert model.kind_ == "release"
    assert model.privacy_statement_ == f"release: {model.plan_.privacy}"
    again = classifier(random_state=None).fit(X, Y)
    assert (again.coef_ != model.coef_).all()
    assert model.score(X, Y) > 0.8


@pytest.mark.parametrize("state", [0, np.random.RandomState(0)])
def test_a_random_state_makes_a_simulation_that_says_so(state: Any) -> None:
    model = classifier(random_state=state).fit(X, Y)
    assert model.kind_ == "simulation"
    statement = f"simulation: devices would spend {model.plan_.privacy}"
    assert model.privacy_statement_.startswith(statement)
    assert "nothing is promised for this model" in model.privacy_statement_


def test_regression_in_the_units_of_the_target() -> None:
    y = 100 + 20 * X @ [1.0, -1.0, 0.5, 0.0]
    model = fb.PrivateFederatedRegressor(
        epsilon=8, target_range=(40, 160), row_norm=1.5, random_state=0
    ).fit(X, y, groups=GROUPS)
    assert model.score(X, y) > 0.5
    assert model.predict(X) == pytest.approx(X @ model.coef_[0] + model.intercept_[0])


def test_clone_pickle_and_cross_validation() -> None:
    model = classifier(epsilon=2.0)
    assert clone(model).get_params() == model.get_params()
    fitted = model.fit(X, Y, groups=GROUPS)
    restored = pickle.loads(pickle.dumps(fitted))
    assert (restored.predict(X) == fitted.predict(X)).all()
    scores = cross_val_score(clone(model), X, Y, groups=GROUPS, cv=GroupKFold(3))
    assert scores.min() > 0.7


def test_groups_reach_it_through_metadata_routing() -> None:
    with config_context(enable_metadata_routing=True):
        model = classifier().set_fit_request(groups=True)
        scores = cross_validate(
            model,
            X,
            Y,
            params={"groups": GROUPS},
            cv=GroupKFold(3),
            return_estimator=True,
        )
    assert [each.plan_.num_devices for each in scores["estimator"]] == [4, 4, 4]


def test_a_search_over_groups_has_as_many_devices_as_it_should() -> None:
    with (
        config_context(enable_metadata_routing=True),
        pytest.warns(fb.NotPrivateWarning, match="GridSearchCV"),
    ):
        search = GridSearchCV(
            classifier().set_fit_request(groups=True),
            {"epsilon": [2.0, 4.0]},
            cv=GroupKFold(3),
        ).fit(X, Y, groups=GROUPS)
    assert search.best_estimator_.plan_.num_devices == 6
    assert search.cv_results_["mean_test_score"].min() > 0.7


def test_a_fit_without_groups_warns() -> None:
    with pytest.warns(fb.OneDeviceWarning, match="one device; pass groups=") as caught:
        model = classifier().fit(X, Y)
    assert caught[0].filename == __file__
    assert model.plan_.num_devices == 1
    with (
        pytest.warns(fb.OneDeviceWarning, match=r"set_fit_request\(groups=True\)"),
        pytest.warns(fb.NotPrivateWarning, match="GridSearchCV"),
    ):
        GridSearchCV(classifier(), {"epsilon": [4.0]}, cv=GroupKFold(2)).fit(
            X, Y, groups=GROUPS
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = classifier().fit(X, Y, groups=np.zeros(len(Y)))  # on purpose
    assert (one.predict(X) == model.predict(X)).all()


def test_text_is_named_with_its_column() -> None:
    frame = pd.DataFrame(X, columns=list("abcd")).assign(site="roof")
    says = (
        r"column 'site' of X holds text, such as 'roof': .*OneHotEncoder\(categories="
    )
    for text in (frame, frame.astype({"site": "category"})):
        with pytest.raises(InvalidInputError, match=says):
            classifier().fit(text, Y, groups=GROUPS)
    with pytest.raises(InvalidInputError, match="column 4 of X holds text"):
        classifier().fit(frame.to_numpy(), Y, groups=GROUPS)
    model = classifier().fit(frame.assign(site=1), Y, groups=GROUPS)
    with pytest.raises(InvalidInputError, match="column 'site' of X holds text"):
        model.predict(frame)


def test_a_regressor_takes_no_text_for_numbers() -> None:
    for y in (Y, Y.astype(object), ["3"] * len(Y)):
        with pytest.raises(InvalidInputError, match="y holds text, "):
            fb.PrivateFederatedRegressor(target_range=(0, 1)).fit(X, y, groups=GROUPS)


def test_groups_reach_it_through_a_pipeline() -> None:
    pipe = make_pipeline(Normalizer(), classifier())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe.fit(X, Y, privatefederatedclassifier__groups=GROUPS)
    assert pipe[-1].plan_.num_devices == 6


@pytest.mark.parametrize(
    ("options", "y", "groups", "says"),
    [
        ({"row_norm": 0}, Y, None, "row_norm must be above 0"),
        ({"classes": ["no"]}, Y, None, "one class"),
        ({"classes": ["no", "off"]}, Y, None, "'yes'"),
        ({"loss": "huber"}, Y, None, "does not fit"),
        ({"epsilon": [1.0, 2.0]}, Y, GROUPS, "2 values but there are 6 devices"),
        ({}, Y, GROUPS[:7], r"groups has shape \(7,\)"),
        ({}, Y, np.array(["a", 1] * 600, object), "mixes types"),
        ({}, Y, np.array([None, 1] * 600, object), "no device for row 0:"),
        ({}, Y, np.where(np.arange(1200) == 7, np.nan, 1), "no device for row 7:"),
        ({}, Y, ["a"] * 1199 + [np.nan], "no device for row 1199:"),
        ({}, Y, pd.Series(GROUPS).where(GROUPS != "s2"), "no device for row 2:"),
        ({"epsilon": "4"}, Y, GROUPS, "epsilon must be a number, .* got '4'"),
        ({"cost": [1, "4"]}, Y, GROUPS, "cost must be a number"),
    ],
)
def test_refusals(options: Any, y: Any, groups: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        classifier(**options).fit(X, y, groups=groups)


@pytest.mark.parametrize("limits", [(1, 0), (-np.inf, 1), (0, np.inf), (np.nan, 1)])
def test_an_invalid_range_is_refused(limits: tuple[float, float]) -> None:
    with pytest.raises(InvalidInputError, match="low below high"):
        fb.PrivateFederatedRegressor(target_range=limits).fit(X, X[:, 0])


def test_without_scikit_learn_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import fedbudget as fb\n"
        "try:\n    fb.PrivateFederatedClassifier\n"
        "except fb.MissingExtraError as error:\n    print(error)"
    )
    result = run_python(code)
    assert "needs scikit-learn, which is not installed" in result.out


def test_sums_and_units_are_those_of_the_budget() -> None:
    groups = np.arange(1200) % 40
    shared = {"epsilon": 0.5, "trust": "sum", "least_answers": 30, "colluders": 2}
    for state in (0, None):
        model = classifier(**shared, random_state=state).fit(X, Y, groups=groups)
        plan = model.plan_
        assert (plan.trust, plan.least_answers, plan.colluders) == ("sum", 30, 2)
        assert model.kind_ == ("release" if state is None else "simulation")
        for words in ("up to 2 colluding devices", "at least 30 answers", "alone,"):
            assert words in model.privacy_statement_
    own = classifier(epsilon=0.5).fit(X, Y, groups=groups)
    shares = classifier(epsilon=0.5, trust="sum").fit(X, Y, groups=groups)
    assert shares.score(X, Y) > own.score(X, Y) + 0.02
    dear = classifier(epsilon=0.5, trust="sum", secure_round_price=450)
    assert dear.fit(X, Y, groups=groups).plan_.rounds <= 2 < shares.plan_.rounds
    whole = classifier(epsilon=8, trust="sum", unit="device", random_state=None)
    whole.fit(X, Y, groups=groups)
    assert "for one device (replace all samples" in whole.privacy_statement_


def test_regressors_share_noise_too() -> None:
    target = X @ [1.0, -2.0, 1.0, 0.0]
    settings: dict[str, Any] = {"epsilon": 2, "target_range": (-3, 3)}
    model = fb.PrivateFederatedRegressor(**settings, trust="sum")
    model.fit(X, target, groups=np.arange(1200) % 40)
    assert model.plan_.trust == "sum" and model.score(X, target) > 0.3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trust": "all"}, "trust 'all' is not known"),
        ({"unit": "row"}, "unit 'row' is not known"),
        ({"least_answers": 3}, "least_answers 3 is for trust 'sum'"),
        ({"trust": "sum", "least_answers": 7}, "least_answers 7 is above the 6"),
        ({"trust": "sum", "colluders": 6}, "colluders 6 must be below"),
        ({"trust": "sum", "loss": "hinge"}, "use loss 'smooth_hinge'"),
    ],
)
def test_trust_that_cannot_be_kept_is_refused(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        classifier(**options).fit(X, Y, GROUPS)
