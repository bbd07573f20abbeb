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

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedbudget.errors import (
    DataError,
    DataWarning,
    FedbudgetError,
    InfeasibleBudgetError,
    InvalidInputError,
    LedgerError,
    MessageError,
    MissingExtraError,
    NotPrivateWarning,
    OneDeviceWarning,
    RecordError,
    TrainingError,
)
from fedbudget.version import __version__

if TYPE_CHECKING:
    from fedbudget.auditing import Audit, ClaimAudit, audit
    from fedbudget.budget import Budget, Prices
    from fedbudget.data import (
        Categorical,
        Dataset,
        Fourier,
        Numeric,
        Schema,
        Time,
        Windows,
        from_partitions,
        from_table,
        hold_out,
        infer_schema,
        load,
        weight_rows,
    )
    from fedbudget.estimators import (
        PrivateFederatedClassifier,
        PrivateFederatedRegressor,
        SchemaEncoder,
        check_pipeline,
    )
    from fedbudget.interop import LinearModel, plan_schema
    from fedbudget.ledger import Charge, Ledger, Turns
    from fedbudget.planning import (
        Frontier,
        Plan,
        TrustComparison,
        compare_trust,
        frontier,
        plan,
    )
    from fedbudget.privacy import (
        LocalSteps,
        NoisyGradients,
        NoisyUploads,
        PrivacyStatement,
    )
    from fedbudget.problem import Constant, Problem
    from fedbudget.record import Record, Round
    from fedbudget.release.devices import ReleaseDevices
    from fedbudget.replanning import replan, train_replanning
    from fedbudget.reporting.run_report import report
    from fedbudget.simulation.devices import SimulatedDevices
    from fedbudget.simulation.sweeping import Sweep, sweep
    from fedbudget.trackers import tracker
    from fedbudget.training import Run, train

# The module of each other name. It is imported on first use: a device has little memory
# and must not load planning or simulation.
_MODULES = {
    "auditing": "Audit ClaimAudit audit",
    "budget": "Budget Prices",
    "data": "Categorical Dataset Fourier Numeric Schema Time Windows "
    "from_partitions from_table hold_out infer_schema load weight_rows",
    "simulation.devices": "SimulatedDevices",
    "simulation.sweeping": "Sweep sweep",
    "estimators": "PrivateFederatedClassifier PrivateFederatedRegressor SchemaEncoder "
    "check_pipeline",
    "interop": "LinearModel plan_schema",
    "ledger": "Charge Ledger Turns",
    "planning": "Frontier Plan TrustComparison compare_trust frontier plan",
    "privacy": "LocalSteps NoisyGradients NoisyUploads PrivacyStatement",
    "problem": "Constant Problem",
    "record": "Record Round",
    "release.devices": "ReleaseDevices",
    "replanning": "replan train_replanning",
    "reporting.run_report": "report",
    "trackers": "tracker",
    "training": "Run train",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Audit",
    "Budget",
    "Categorical",
    "Charge",
    "ClaimAudit",
    "Constant",
    "DataError",
    "DataWarning",
    "Dataset",
    "FedbudgetError",
    "Fourier",
    "Frontier",
    "InfeasibleBudgetError",
    "InvalidInputError",
    "Ledger",
    "LedgerError",
    "LinearModel",
    "LocalSteps",
    "MessageError",
    "MissingExtraError",
    "NoisyGradients",
    "NoisyUploads",
    "NotPrivateWarning",
    "Numeric",
    "OneDeviceWarning",
    "Plan",
    "Prices",
    "PrivacyStatement",
    "PrivateFederatedClassifier",
    "PrivateFederatedRegressor",
    "Problem",
    "Record",
    "RecordError",
    "ReleaseDevices",
    "Round",
    "Run",
    "Schema",
    "SchemaEncoder",
    "SimulatedDevices",
    "Sweep",
    "Time",
    "TrainingError",
    "TrustComparison",
    "Turns",
    "Windows",
    "__version__",
    "audit",
    "check_pipeline",
    "compare_trust",
    "from_partitions",
    "from_table",
    "frontier",
    "hold_out",
    "infer_schema",
    "load",
    "plan",
    "plan_schema",
    "replan",
    "report",
    "sweep",
    "tracker",
    "train",
    "train_replanning",
    "weight_rows",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
