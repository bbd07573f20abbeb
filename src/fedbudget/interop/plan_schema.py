"""The JSON Schema of a plan, made from `Plan` itself.

`python docs/plan_schema.py` publishes it anew, as docs/plan.schema.json.
"""

from dataclasses import fields
from typing import Any

from fedbudget.losses import LOSSES
from fedbudget.planning import PLANNERS, Plan
from fedbudget.privacy import ACCOUNTANTS

_ABOUT: dict[str, str] = {
    "tau": "local steps between two uploads",
    "rounds": "uploads per device",
    "steps": "local steps in all: tau times rounds",
    "learning_rate": "size of a local step",
    "momentum": "of the server's averaged update",
    "sampling": "how a batch is drawn",
    "num_samples": "training rows of each device",
    "batch_size": "rows averaged in each gradient, per device",
    "noise_std": "of the noise on every coordinate of a mean gradient, per device",
    "weights": "of each device in the average; they sum to 1",
    "epsilon": "spent by the whole run, per device; null: nothing is promised",
    "delta": "of (epsilon, delta), per device",
    "prior_mu": "spent before the run, as Gaussian DP; epsilon includes it",
    "prior_releases": "measurements on private rows that prior_mu adds up, by name",
    "cost": "spent by the whole run, per device, in the unit of the prices",
    "loss": "what is minimised",
    "num_classes": "scores per row; 1 for logistic, hinge and huber",
    "l2": "weight of the L2 term, per parameter squared",
    "dim": "columns of a row",
    "lipschitz": "largest norm of one sample's gradient",
    "planner": "who made the plan",
    "accountant": "by which epsilon was computed; none: not private",
    "predicted_loss": "above the best model's, by the planner's own model",
    "epsilon_price": "predicted loss saved per unit of more epsilon",
    "cost_price": "predicted loss saved per unit of more cost",
    "binding": "which budgets hold the loss up",
    "reasons": "why this plan, in words",
    "last_round": "the last in which each device takes part; null: none leaves early",
    "advice": "says when federating is not predicted to pay; else empty",
    "drift_control": "whether devices take their last deviation from the average back",
    "device_rounds": "rounds in which each device takes part",
    "privacy": "the promise, in words",
    "data": "the data set in one line; in the output of commands",
    "constants": "what the planner took for granted; in the output of commands",
}

_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 1}
_SIZE: dict[str, Any] = {"type": "number", "minimum": 0}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_SINGLE: dict[str, dict[str, Any]] = {
    "<class 'int'>": _WHOLE,
    "<class 'str'>": _TEXT,
    "<class 'bool'>": {"type": "boolean"},
}
_LIMITS: dict[str, dict[str, Any]] = {
    "learning_rate": _POSITIVE,
    "momentum": {**_SIZE, "exclusiveMaximum": 1},
    "sampling": {"enum": ["full", "fixed", "poisson", "cyclic"]},
    "num_samples": _WHOLE,
    "batch_size": _WHOLE,
    "epsilon": {"type": ["number", "null"], "minimum": 0},
    "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "loss": {"enum": sorted(LOSSES)},
    "planner": {"enum": sorted(PLANNERS)},
    "accountant": {"enum": [*sorted(ACCOUNTANTS), "none"]},
    "lipschitz": _POSITIVE,
    "predicted_loss": {"type": "number"},
    "binding": {"enum": ["privacy", "cost"]},
    "reasons": _TEXT,
    "last_round": _COUNT,
}


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan, as `Plan.to_dict` and --json write it."""
    items = {item.name: str(item.type) for item in fields(Plan)}
    properties = {name: _property(name, kind) for name, kind in items.items()}
    counts = {"type": "array", "items": _COUNT, "minItems": 1}
    derived = {"device_rounds": counts, "steps": _WHOLE, "privacy": _TEXT}
    properties |= {name: _described(name, kind) for name, kind in derived.items()}
    required = list(properties)
    properties["data"] = _described("data", _TEXT)
    properties["constants"] = _described("constants", {"type": "object"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fedbudget plan",
        "description": "How often devices talk, how long they train, and what it will "
        "cost them. Lists have one entry per device.",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _property(name: str, kind: str) -> dict[str, Any]:
    """Return the schema of one field, by its type and its limits."""
    single = _LIMITS.get(name, _SINGLE.get(kind, _SIZE))
    if "ndarray" in kind and kind.endswith("| None"):
        return _described(name, {"type": ["array", "null"], "items": single})
    if "ndarray" in kind:
        return _described(name, {"type": "array", "items": single, "minItems": 1})
    if kind.startswith("tuple"):
        return _described(name, {"type": "array", "items": single})
    return _described(name, single)


def _described(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": _ABOUT.get(name, "not described yet"), **schema}
