"""A scikit-learn step that encodes raw columns by a public schema."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from fedbudget.data.schema import Schema
from fedbudget.data.tables import read_features
from fedbudget.losses import Rows


class SchemaEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Turns raw columns into rows in the unit ball, as in training.

    It reads nothing from the rows that it is fitted on: bounds and categories are those
    of the schema. So it may stand in front of a private estimator.

    >>> from fedbudget.data import Categorical, Numeric
    >>> schema = Schema(features={"v": Numeric(0, 9)}, label="y",
    ...                 target=Categorical(("no", "yes")))
    >>> SchemaEncoder(schema).transform({"v": [9.0]}).round(3).tolist()
    [[0.707..., 0.707...]]
    """

    def __init__(self, schema: Schema, device: str = "") -> None:
        self.schema = schema
        self.device = device  # its column: no window mixes the readings of devices

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: N803
        """Do nothing: the schema says all."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Rows:  # noqa: N803
        """Encode a frame, a dict of columns or a file's path."""
        return self.schema.encode(read_features(X, self.schema, self.device))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the encoded columns."""
        return np.array(self.schema.feature_names, dtype=object)
