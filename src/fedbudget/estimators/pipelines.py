"""Detect what else is fitted on private rows around a private estimator, without noise.

A scaler that is fitted inside a pipeline computes means of private rows, and a
calibration or a search around the estimator reads them again: no guarantee covers that.

Every step counts as one that learns, except for:

- steps of scikit-learn whose fit reads only the shape of the rows, with the parameters
  for which this is so (`_SHAPE_ONLY`), such as encoders with fixed categories;
- a `FunctionTransformer` without a function, or with one of NumPy's element-wise
  functions. Any other function is given all rows at once and may mix them, which cannot
  be checked;
- what is wrapped in `sklearn.frozen.FrozenEstimator`: a step that was fitted on public
  rows, or one that treats each row alone. Wrapping it declares that.

Estimators around the private one (calibration, bagging, stacking, searches) count as
ones that learn, except for a `TransformedTargetRegressor` whose transformer does not.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedbudget.errors import InvalidInputError, NotPrivateWarning

# NumPy's element-wise functions that are not ufuncs.
_ELEMENT_WISE = (np.clip, np.nan_to_num, np.round, np.around, np.isin)


def check_pipeline(pipeline: Any) -> tuple[str, ...]:
    """Return what a fit would learn from private rows without noise, and warn.

    All steps except the last are checked, also those inside a `ColumnTransformer`, a
    `FeatureUnion` or another pipeline, before or after the fit. Estimators around the
    private one are named as well: pipeline may be one of them. The private estimators
    call it themselves, for everything that is fitting them in the same thread; a
    wrapper that starts processes or threads is not seen from inside.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> check_pipeline(make_pipeline(Normalizer(), "passthrough"))
    ()
    """
    from sklearn.pipeline import Pipeline

    if not isinstance(pipeline, Pipeline) and not _inner(pipeline):
        raise InvalidInputError(
            f"a {type(pipeline).__name__} is not a pipeline: give a "
            "sklearn.pipeline.Pipeline, or an estimator around a private one"
        )
    steps = tuple(dict.fromkeys(_all_uncovered(pipeline)))
    _warn(steps)
    return steps


def warn_of_pipeline(estimator: Any) -> tuple[str, ...]:
    """Return what learns in the estimators that are fitting this one, and warn.

    They do not pass themselves to what they fit, so the call stack is searched.
    """
    from sklearn.base import BaseEstimator

    steps: dict[str, None] = {}
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if isinstance(owner, BaseEstimator) and owner is not estimator:
            steps |= dict.fromkeys(_uncovered(owner))
    _warn(tuple(steps))
    return tuple(steps)


def _warn(steps: tuple[str, ...]) -> None:
    if steps:
        warnings.warn(
            f"{', '.join(steps)} learns from the private rows outside of the private "
            "estimator, and no privacy guarantee covers what it learns; use a step "
            "that learns nothing, or fit it on public rows and wrap it in "
            "sklearn.frozen.FrozenEstimator, which also declares that a function "
            "treats each row alone",
            NotPrivateWarning,
            stacklevel=3,
        )


def _all_uncovered(estimator: Any) -> Iterator[str]:
    """Yield what learns in an estimator and in those that it wraps, by name."""
    from sklearn.pipeline import Pipeline

    yield from _uncovered(estimator)
    inner = _inner(estimator)
    if isinstance(estimator, Pipeline):
        inner = [estimator.steps[-1][1]]  # its steps have been looked at
    for each in inner:
        if isinstance(each, Pipeline) or _inner(each):
            yield from _all_uncovered(each)


def _uncovered(estimator: Any) -> Iterator[str]:
    """Yield what learns in a pipeline or a wrapper, without what is wrapped."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    if isinstance(estimator, Pipeline):
        steps = estimator.steps[:-1]
    elif isinstance(estimator, TransformedTargetRegressor):
        by_function = FunctionTransformer(estimator.func)
        steps = [("transformer", estimator.transformer or by_function)]
    else:
        yield type(estimator).__name__
        return
    for outer, outer_step in steps:
        for name, step in _parts(outer, outer_step):
            if _learns(step):
                yield f"{name} ({type(step).__name__})"


def _inner(estimator: Any) -> list[Any]:
    """Return the estimators that one wraps; none for a frozen or a simple one."""
    if _is_frozen(estimator) or not hasattr(estimator, "get_params"):
        return []
    return [part for part in estimator.get_params().values() if _is_estimator(part)]


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "fit") and not isinstance(value, type)


def _parts(name: str, step: Any) -> Iterator[tuple[str, Any]]:
    """Yield a step, or its inner steps and the functions that choose their columns."""
    from sklearn.compose import ColumnTransformer, make_column_selector
    from sklearn.pipeline import FeatureUnion, Pipeline

    if isinstance(step, ColumnTransformer):
        inner = [*step.transformers, ("remainder", step.remainder, None)]
        for part_name, _, columns in inner:
            if callable(columns) and not isinstance(columns, make_column_selector):
                yield f"{name}.{part_name}'s columns", columns
    elif isinstance(step, FeatureUnion):
        inner = step.transformer_list
    elif isinstance(step, Pipeline):
        inner = step.steps
    else:
        yield name, step
        return
    for part_name, part, *_ in inner:
        yield from _parts(f"{name}.{part_name}", part)


def _learns(step: Any) -> bool:
    """Return whether a fit of this step may learn more than the shape of the rows."""
    if step is None or isinstance(step, str) or _is_frozen(step):  # passthrough, drop
        return False
    kind = type(step)  # exactly: a subclass may learn
    if kind.__module__.split(".")[0] != "sklearn":
        return True
    return not _SHAPE_ONLY.get(kind.__name__, _never)(step)


def _is_frozen(step: Any) -> bool:
    from sklearn.frozen import FrozenEstimator

    return isinstance(step, FrozenEstimator)


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


def _has_fixed_categories(step: Any) -> bool:
    # Infrequent categories would be counted in the rows.
    counts = step.max_categories, step.min_frequency
    return not isinstance(step.categories, str) and counts == (None, None)


def _has_fixed_components(step: Any) -> bool:
    return not isinstance(step.n_components, str)


def _has_fixed_width(step: Any) -> bool:
    return not isinstance(step.gamma, str)


def _has_fixed_knots(step: Any) -> bool:
    return not isinstance(step.knots, str)


def _fills_a_constant(step: Any) -> bool:
    fixed = step.strategy == "constant" and step.fill_value is not None
    # Otherwise columns would be dropped or added by what is missing in the rows.
    return fixed and step.keep_empty_features and not step.add_indicator


def _is_element_wise(step: Any) -> bool:
    function = step.func
    if isinstance(function, np.ufunc):
        return function.signature is None  # others, such as matmul, mix entries
    return function is None or any(function is each for each in _ELEMENT_WISE)


# Steps of scikit-learn, and for which parameters they read only the shape of the rows.
_SHAPE_ONLY: dict[str, Callable[[Any], bool]] = {
    "AdditiveChi2Sampler": _always,
    "Binarizer": _always,
    "FeatureHasher": _always,
    "FunctionTransformer": _is_element_wise,
    "GaussianRandomProjection": _has_fixed_components,
    "HashingVectorizer": _always,
    "Normalizer": _always,
    "OneHotEncoder": _has_fixed_categories,
    "OrdinalEncoder": _has_fixed_categories,
    "PolynomialCountSketch": _always,
    "PolynomialFeatures": _always,
    "RBFSampler": _has_fixed_width,
    "SimpleImputer": _fills_a_constant,
    "SkewedChi2Sampler": _always,
    "SparseRandomProjection": _has_fixed_components,
    "SplineTransformer": _has_fixed_knots,
}
