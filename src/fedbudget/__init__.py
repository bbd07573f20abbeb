"""Federated learning within two budgets: privacy and resources.

import fedbudget as fb

data = fb.load("adult", split="iid", seed=0)
plan = fb.plan(
    data.problem(),
    fb.Budget(epsilon=4, delta=1e-4, cost=1000),
    fb.Prices(communication=100, computation=1),
)
run = fb.train(plan, fb.SimulatedDevices(data, seed=0), record="runs/adult")
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
from fedbudget.devices.simulated import SimulatedDevices
from fedbudget.devices.sweeping import Sweep, sweep
from fedbudget.errors import (
    DataError,
    FedbudgetError,
    InfeasibleBudgetError,
    InvalidInputError,
    MissingExtraError,
    NotPrivateWarning,
    RecordError,
    TrainingError,
)
from fedbudget.ledger import Charge, Ledger
from fedbudget.planning import Frontier, Plan, frontier, plan
from fedbudget.privacy import NoisyGradients, PrivacyStatement
from fedbudget.problem import Constant, Problem
from fedbudget.record import Record
from fedbudget.training import Run, train

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Categorical",
    "Charge",
    "Constant",
    "DataError",
    "Dataset",
    "FedbudgetError",
    "Frontier",
    "InfeasibleBudgetError",
    "InvalidInputError",
    "Ledger",
    "MissingExtraError",
    "NoisyGradients",
    "NotPrivateWarning",
    "Numeric",
    "Plan",
    "Prices",
    "PrivacyStatement",
    "Problem",
    "Record",
    "RecordError",
    "Run",
    "Schema",
    "SimulatedDevices",
    "Sweep",
    "TrainingError",
    "__version__",
    "from_table",
    "frontier",
    "infer_schema",
    "load",
    "plan",
    "sweep",
    "train",
]
