"""Which pipeline steps learn from private rows."""

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)

import fedbudget as fb
from fedbudget.errors import InvalidInputError, NotPrivateWarning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = (X[:, 0] > 0).astype(int)
MODEL = fb.PrivateFederatedClassifier(epsilon=4, classes=[0, 1], random_state=0)

pytestmark = pytest.mark.filterwarnings("ignore::fedbudget.OneDeviceWarning")


def quiet(pipeline: Any) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        return fb.check_pipeline(pipeline)


def test_a_fit_in_a_pipeline_with_a_scaler_warns() -> None:
    pipe = make_pipeline(StandardScaler(), MODEL)
    with pytest.warns(NotPrivateWarning, match=r"standardscaler \(StandardScaler\)"):
        pipe.fit(X, Y)


def test_so_does_a_search_that_clones_the_pipeline() -> None:
    search = GridSearchCV(make_pipeline(PCA(2), MODEL), {"pca__n_components": [1]})
    with pytest.warns(NotPrivateWarning, match="PCA"):
        search.fit(X, Y)


@pytest.mark.parametrize(
    "step",
    [
        Normalizer(),
        FunctionTransformer(np.tanh),
        "passthrough",
        FrozenEstimator(StandardScaler().fit(RNG.normal(size=(9, 3)))),
    ],
)
def test_steps_that_learn_nothing_private_are_quiet(step: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pipeline(step, MODEL).fit(
            X, Y, privatefederatedclassifier__groups=np.zeros(len(Y))
        )


def test_steps_inside_steps_are_found_before_and_after_a_fit() -> None:
    inner = ColumnTransformer(
        [
            ("fixed", OneHotEncoder(categories=[[0, 1]]), [0]),
            ("read", OneHotEncoder(), [1]),
            ("rest", "passthrough", [2]),
        ]
    )
    both = FeatureUnion([("a", Normalizer()), ("b", StandardScaler())])
    nested = Pipeline([("union", both), ("none", None)])
    pipe = Pipeline([("columns", inner), ("nested", nested), ("model", MODEL)])
    expected = ("columns.read (OneHotEncoder)", "nested.union.b (StandardScaler)")
    assert quiet(pipe) == expected
    rows = np.column_stack([Y, Y, X[:, 0]])
    with pytest.warns(NotPrivateWarning):
        pipe.fit(rows, Y)
    assert quiet(pipe) == expected


def test_other_objects_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="is not a pipeline"):
        fb.check_pipeline(StandardScaler())
