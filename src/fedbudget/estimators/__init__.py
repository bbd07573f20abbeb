"""scikit-learn estimators over the planner, releases and simulations.

estimators.py   PrivateFederatedClassifier, PrivateFederatedRegressor
base.py         their base class: plan, measure bounds, train
columns.py      public bounds of columns
unit_rows.py    from a matrix to rows in the unit ball, device by device
schema_encoder.py  SchemaEncoder: raw columns in front of an estimator
pipelines.py    detects the steps of a pipeline that are fitted on private rows
"""

from fedbudget.errors import needed

with needed("an estimator", "scikit-learn"):
    import sklearn  # noqa: F401

from fedbudget.estimators.estimators import (
    PrivateFederatedClassifier,
    PrivateFederatedRegressor,
)
from fedbudget.estimators.pipelines import check_pipeline
from fedbudget.estimators.schema_encoder import SchemaEncoder

__all__ = [
    "PrivateFederatedClassifier",
    "PrivateFederatedRegressor",
    "SchemaEncoder",
    "check_pipeline",
]
