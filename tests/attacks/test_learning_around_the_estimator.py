"""Attack: something else in the same fit reads the private rows, without noise.

A step before the private estimator, or an estimator around it, may learn from rows or
mix them. Whatever does must be named; whatever reads only their shape must not be.
"""

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import (
    ColumnTransformer,
    TransformedTargetRegressor,
    make_column_selector,
)
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import (
    AdditiveChi2Sampler,
    Nystroem,
    PolynomialCountSketch,
    RBFSampler,
    SkewedChi2Sampler,
)
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

import fedbudget as fb
from fedbudget.errors import NotPrivateWarning

KINDS = [[0, 1, 2]] * 3
MODEL = fb.PrivateFederatedClassifier(epsilon=4, classes=[0, 1], random_state=0)
REGRESSOR = fb.PrivateFederatedRegressor(epsilon=4, target_range=(0, 9), random_state=0)
RNG = np.random.default_rng(0)
# Two tables of the same shape that share the first rows: the attacker's own.
FIRST = RNG.integers(0, 3, size=(60, 3)).astype(float)
OTHER = FIRST.copy()
OTHER[9:] = np.where(RNG.random((51, 3)) < 0.8, 0, 2)
LABELS = RNG.integers(0, 2, size=60)
OTHER_LABELS = np.concatenate([LABELS[:9], 1 - LABELS[9:]])

pytestmark = pytest.mark.filterwarnings("ignore::fedbudget.OneDeviceWarning")


def type_name(step: Any) -> str:
    return type(step).__name__


class DividesByTheSum(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A step of one's own that says it needs no fit."""

    def fit(self, x: Any, y: Any = None) -> Any:
        return self

    def transform(self, x: Any) -> Any:
        return x / x.sum()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


SHAPE_ONLY = [
    Normalizer(),
    Binarizer(),
    PolynomialFeatures(2),
    AdditiveChi2Sampler(),
    SkewedChi2Sampler(random_state=0),
    PolynomialCountSketch(random_state=0),
    RBFSampler(gamma=1.0, random_state=0),
    GaussianRandomProjection(2, random_state=0),
    SparseRandomProjection(2, random_state=0),
    SplineTransformer(knots=[[-1] * 3, [3] * 3]),
    OneHotEncoder(categories=KINDS, sparse_output=False),
    OrdinalEncoder(categories=KINDS),
    SimpleImputer(strategy="constant", fill_value=0, keep_empty_features=True),
    FunctionTransformer(),
    FunctionTransformer(np.tanh),
    FunctionTransformer(np.clip, kw_args={"a_min": 0, "a_max": 1}),
    FrozenEstimator(StandardScaler().fit(np.eye(3))),
    ColumnTransformer([("n", Normalizer(), [0, 2])]),
]
LEARNING = [
    StandardScaler(),
    TargetEncoder(categories=KINDS),
    OneHotEncoder(categories=KINDS, max_categories=2, sparse_output=False),
    OneHotEncoder(categories=KINDS, min_frequency=20, sparse_output=False),
    OrdinalEncoder(categories=KINDS, max_categories=2),
    KBinsDiscretizer(2, encode="ordinal", strategy="kmeans", random_state=0),
    Nystroem(n_components=3, random_state=0),
    RBFSampler(gamma="scale", random_state=0),
    SplineTransformer(knots="quantile"),
    SimpleImputer(missing_values=1.0, strategy="mean"),
    FunctionTransformer(lambda x: x - x.mean(axis=0)),
    DividesByTheSum(),
    ColumnTransformer([], remainder=StandardScaler()),
    ColumnTransformer([("a", "passthrough", lambda x: np.var(x, axis=0) > 0.7)]),
]


def attacked(step: Any, rows: Any, labels: Any) -> Any:
    """Return what a pipeline's fit turns the attacker's nine rows into."""
    made = make_pipeline(clone(step), "passthrough").fit_transform(rows, labels)
    return made[:9].tolist()


def named(step: Any) -> tuple[str, ...]:
    pipe = make_pipeline(step, MODEL)
    if step not in LEARNING:
        return fb.check_pipeline(pipe)
    with pytest.warns(NotPrivateWarning, match="outside of the private estimator"):
        return fb.check_pipeline(pipe)


@pytest.mark.parametrize("step", SHAPE_ONLY, ids=type_name)
def test_steps_that_read_only_the_shape_are_not_accused(step: Any) -> None:
    rows = attacked(step, FIRST, LABELS), attacked(step, OTHER, OTHER_LABELS)
    assert rows[0] == rows[1]
    assert named(step) == ()


@pytest.mark.parametrize("step", LEARNING, ids=type_name)
def test_steps_that_carry_other_rows_along_are_named(step: Any) -> None:
    rows = attacked(step, FIRST, LABELS), attacked(step, OTHER, OTHER_LABELS)
    assert rows[0] != rows[1]
    assert len(named(step)) == 1


def test_columns_chosen_by_their_names_are_not_accused() -> None:
    by_name = make_column_selector(pattern="volts")
    assert named(ColumnTransformer([("n", Normalizer(), by_name)])) == ()


def test_automatic_components_depend_on_the_number_of_rows() -> None:
    pipe = make_pipeline(GaussianRandomProjection(), MODEL)
    with pytest.warns(NotPrivateWarning, match="GaussianRandomProjection"):
        fb.check_pipeline(pipe)


WRAPPERS = [
    CalibratedClassifierCV(MODEL, cv=2),
    BaggingClassifier(MODEL, n_estimators=1, bootstrap=False),
    StackingClassifier([("a", MODEL)], cv=2),
    VotingClassifier([("a", MODEL)]),
    GridSearchCV(MODEL, {"row_norm": [1.0]}, cv=2),
    make_pipeline(Normalizer(), CalibratedClassifierCV(MODEL, cv=2)),
]


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=type_name)
def test_estimators_around_the_private_one_are_named(wrapper: Any) -> None:
    name = type(getattr(wrapper, "steps", [("", wrapper)])[-1][1]).__name__
    with pytest.warns(NotPrivateWarning, match=name):
        assert fb.check_pipeline(wrapper) == (name,)
    with pytest.warns(NotPrivateWarning, match=name):
        wrapper.fit(FIRST, LABELS)


def test_a_target_that_is_scaled_by_the_targets_is_named() -> None:
    target = LABELS + 1.0
    learns = TransformedTargetRegressor(REGRESSOR, transformer=StandardScaler())
    with pytest.warns(NotPrivateWarning, match=r"transformer \(StandardScaler\)"):
        learns.fit(FIRST, target)
    with pytest.warns(NotPrivateWarning):
        assert fb.check_pipeline(learns) == ("transformer (StandardScaler)",)
    fixed = TransformedTargetRegressor(REGRESSOR, func=np.log, inverse_func=np.exp)
    assert fb.check_pipeline(fixed.fit(FIRST, target)) == ()


def test_a_step_that_a_search_puts_in_is_named() -> None:
    search = GridSearchCV(
        make_pipeline(Normalizer(), MODEL), {"normalizer": [StandardScaler()]}, cv=2
    )
    with pytest.warns(NotPrivateWarning, match=r"\(StandardScaler\), GridSearchCV"):
        search.fit(FIRST, LABELS)


def test_the_statement_names_what_learns_around_the_estimator() -> None:
    pipeline = make_pipeline(StandardScaler(), clone(MODEL))
    with pytest.warns(NotPrivateWarning, match="standardscaler"):
        pipeline.fit(FIRST, LABELS)
    says = "NOT covered: what standardscaler (StandardScaler) learns from the same rows"
    assert pipeline[-1].privacy_statement_.endswith(says)
    alone = clone(MODEL).fit(FIRST, LABELS)
    assert "NOT covered" not in alone.privacy_statement_
