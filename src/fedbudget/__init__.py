"""Federated learning within two budgets: privacy and resources.

import fedbudget as fb

data = fb.load("adult", split="iid", seed=0)
plan = fb.plan(
    data.problem(),
    fb.Budget(epsilon=4, delta=1e-4, cost=1000),
    fb.Prices(communication=100, computation=1),
)
"""

from fedbudget.budget import Budget, Prices
from fedbudget.data import (
    Categorical,
    Dataset,
    Numeric,
    Schema,
    from_table,
    infer_schema,
    load,
)
from fedbudget.errors import (
    DataError,
    FedbudgetError,
    InfeasibleBudgetError,
    InvalidInputError,
    MissingExtraError,
    NotPrivateWarning,
)
from fedbudget.planning import Frontier, Plan, frontier, plan
from fedbudget.privacy import NoisyGradients, PrivacyStatement
from fedbudget.problem import Constant, Problem

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Categorical",
    "Constant",
    "DataError",
    "Dataset",
    "FedbudgetError",
    "Frontier",
    "InfeasibleBudgetError",
    "InvalidInputError",
    "MissingExtraError",
    "NoisyGradients",
    "NotPrivateWarning",
    "Numeric",
    "Plan",
    "Prices",
    "PrivacyStatement",
    "Problem",
    "Schema",
    "__version__",
    "from_table",
    "frontier",
    "infer_schema",
    "load",
    "plan",
]
