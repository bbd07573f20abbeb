"""The JSON Schema of a plan, generated from `Plan`.

`python docs/plan_schema.py` writes it to docs/plan.schema.json.
"""

from dataclasses import fields
from typing import Any

from fedbudget.losses import LOSSES
from fedbudget.planning import PLANNERS, Plan
from fedbudget.privacy import ACCOUNTANTS
from fedbudget.privacy.runs import TRUSTS, UNITS

_DESCRIPTIONS: dict[str, str] = {
    "tau": "local steps between two uploads",
    "rounds": "uploads per device",
    "steps": "local steps in total: tau times rounds",
    "learning_rate": "size of a local step",
    "momentum": "momentum of the server's averaged update",
    "server_rate": "factor of a round's averaged move, on the server; 1 unless only "
    "sums are seen",
    "sampling": "how a batch is sampled",
    "num_samples": "training rows of each device",
    "batch_size": "rows averaged in each gradient, per device; num_samples if sampling "
    "is full",
    "noise_std": "std of the noise, per coordinate and device: on every mean gradient, "
    "or, if only sums are seen, of the device's share on its weighted upload",
    "noise_decay": "noise of a round over that of the round before; below 1, "
    "noise_std is the constant noise of equal cost",
    "weights": "weight of each device in the average; they sum to 1",
    "epsilon": "spent by the whole run, per device; null: no privacy guarantee",
    "delta": "delta of (epsilon, delta)-differential privacy, per device",
    "prior_mu": "spent before the run, as Gaussian DP; epsilon includes it",
    "prior_releases": "names of the measurements that prior_mu includes",
    "cost": "spent by the whole run, per device, in the unit of the prices",
    "prior_cost": "spent before the run on prior_releases, per device; cost includes "
    "it; null: nothing",
    "loss": "the loss that is minimised",
    "num_classes": "scores per row; 1 unless the loss is softmax",
    "l2": "weight of the L2 term, per parameter squared",
    "dim": "columns of a row",
    "lipschitz": "largest norm of one sample's gradient",
    "planner": "the planner that made the plan",
    "accountant": "the accountant that computed epsilon; none: not private",
    "predicted_loss": "predicted excess loss over the best linear model",
    "predicted_range": "where the excess loss is expected in 8 of 10 cases: the least "
    "and the most",
    "epsilon_price": "predicted decrease of the loss per additional unit of epsilon",
    "cost_price": "predicted decrease of the loss per additional unit of cost",
    "binding": "the budgets that limit the loss",
    "reasons": "the reasons for this plan, in words",
    "last_round": "last round of each device; null: all take part to the end",
    "advice": "a hint if federating is not predicted to pay; else empty",
    "drift_correction": "whether each device corrects its local steps by its last "
    "deviation from the average",
    "trust": "what the server sees: each upload, or only sums of uploads",
    "unit": "what epsilon protects: one sample, or one device with all its samples",
    "least_answers": "least number of uploads in a sum that the server sees",
    "colluders": "devices that may collude with the server",
    "clip": "largest norm of a device's move in a round; null: not clipped",
    "schema": "the public encoding of the rows: columns, bounds, categories, label and "
    "units; null: not known",
    "participation": "share of the devices that a round asks, by turns",
    "threshold": "with two classes, the probability above which the second one is "
    "predicted",
    "schema_digest": "SHA-256 of the schema's canonical JSON; null: no schema",
    "device_rounds": "number of rounds of each device",
    "privacy": "the privacy statement, in words",
    "data": "the data set in one line; in the output of commands",
    "constants": "the constants that the planner used; in the output of commands",
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
    "server_rate": _POSITIVE,
    "noise_decay": {**_POSITIVE, "maximum": 1},
    "sampling": {"enum": ["full", "fixed", "poisson", "cyclic"]},
    "num_samples": _WHOLE,
    "batch_size": _WHOLE,
    "epsilon": {"type": ["number", "null"], "minimum": 0},
    "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "loss": {"enum": sorted(LOSSES)},
    "planner": {"enum": [*sorted(PLANNERS), "schedule"]},
    "accountant": {"enum": [*sorted(ACCOUNTANTS), "none"]},
    "lipschitz": _POSITIVE,
    "predicted_loss": {"type": "number"},
    "predicted_range": {"type": "number"},
    "binding": {"enum": ["privacy", "cost"]},
    "reasons": _TEXT,
    "last_round": _COUNT,
    "trust": {"enum": list(TRUSTS)},
    "unit": {"enum": list(UNITS)},
    "colluders": _COUNT,
    "clip": {"type": ["number", "null"], "exclusiveMinimum": 0},
    "schema": {"type": ["object", "null"]},
    "threshold": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "participation": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
}


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan, as `Plan.to_dict` and --json write it."""
    items = {item.name: str(item.type) for item in fields(Plan)}
    properties = {name: _property(name, kind) for name, kind in items.items()}
    counts = {"type": "array", "items": _COUNT, "minItems": 1}
    derived = {"device_rounds": counts, "steps": _WHOLE, "privacy": _TEXT}
    derived["schema_digest"] = {"type": ["string", "null"]}
    properties |= {name: _described(name, kind) for name, kind in derived.items()}
    required = list(properties)
    properties["data"] = _described("data", _TEXT)
    properties["constants"] = _described("constants", {"type": "object"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fedbudget plan",
        "description": "Rounds, local steps and noise of a run, and what it costs "
        "the devices. Lists have one entry per device.",
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
    return {"description": _DESCRIPTIONS.get(name, "no description"), **schema}
