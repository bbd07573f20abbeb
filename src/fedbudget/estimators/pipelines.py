"""Detect pipeline steps that are fitted on private rows without noise.

A scaler that is fitted inside a pipeline computes means of private rows, and no
guarantee covers them. Steps that learn nothing (`Normalizer`, `FunctionTransformer`),
encoders with fixed categories, and steps fitted on public rows and wrapped in
`sklearn.frozen.FrozenEstimator` are safe.
"""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

from fedbudget.errors import InvalidInputError, NotPrivateWarning

# Attributes that every fitted estimator has: the shape of X, which is public.
_SHAPE = {"n_features_in_", "feature_names_in_"}
# Most stack frames between an estimator's fit and its pipeline's: decorators.
_MOST_FRAMES = 12


def check_pipeline(pipeline: Any) -> tuple[str, ...]:
    """Return the steps that a fit of the pipeline fits on private rows, and warn.

    All steps except the last are checked, also those inside a `ColumnTransformer`, a
    `FeatureUnion` or another pipeline, before or after the fit. The private estimators
    call it themselves when a pipeline fits them.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> check_pipeline(make_pipeline(Normalizer(), "passthrough"))
    ()
    """
    if not hasattr(pipeline, "steps"):
        raise InvalidInputError(
            f"a {type(pipeline).__name__} is not a pipeline: give a "
            "sklearn.pipeline.Pipeline"
        )
    steps = tuple(
        f"{name} ({type(step).__name__})"
        for outer, outer_step in pipeline.steps[:-1]
        for name, step in _parts(outer, outer_step)
        if _learns(step)
    )
    if steps:
        warnings.warn(
            f"pipeline step {', '.join(steps)} learns from the private rows before the "
            "private estimator does, and no privacy guarantee covers what it learns; "
            "use a step that learns nothing, or fit it on public rows and wrap it in "
            "sklearn.frozen.FrozenEstimator",
            NotPrivateWarning,
            stacklevel=3,
        )
    return steps


def warn_of_pipeline(estimator: Any) -> None:
    """Check the pipeline that is fitting this estimator, if there is one.

    A pipeline does not pass itself to its steps, so the call stack is searched.
    """
    from sklearn.pipeline import Pipeline

    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and owner.steps[-1][1] is estimator:
            check_pipeline(owner)
            return
        if frame.f_back is None:
            return
        frame = frame.f_back


def _parts(name: str, step: Any) -> Iterator[tuple[str, Any]]:
    """Yield a step, or its inner steps."""
    for attribute in ("steps", "transformers", "transformer_list"):
        inner = getattr(step, attribute, None)
        if isinstance(inner, list | tuple):
            for part_name, part, *_ in inner:
                yield from _parts(f"{name}.{part_name}", part)
            return
    yield name, step


def _learns(step: Any) -> bool:
    """Return whether fitting this step learns more from the rows than their shape."""
    from sklearn.utils import get_tags

    if step is None or isinstance(step, str):  # passthrough, drop
        return False
    if type(step).__name__ == "FrozenEstimator":  # since scikit-learn 1.6
        return False
    if not isinstance(getattr(step, "categories", "auto"), str):  # fixed categories
        return False
    if hasattr(step, "__sklearn_tags__") and not get_tags(step).requires_fit:
        return False
    # A fitted step shows what it learned; an unfitted one that needs a fit may learn.
    learned = {n for n in vars(step) if n.endswith("_") and not n.startswith("_")}
    return not learned or bool(learned - _SHAPE)
