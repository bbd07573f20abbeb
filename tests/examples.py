"""Small data sets that tests of several modules share."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedbudget.data import Dataset
from fedbudget.data.dataset import split_rows
from fedbudget.planning import Plan
from fedbudget.privacy import accountant_named
from fedbudget.record import Round


def honest(plan: Plan, **values: Any) -> Plan:
    """Change a plan, and raise its epsilons to what it then spends."""
    plan = replace(plan, **values)
    spent = accountant_named(plan.accountant).epsilon(
        plan.gradients, delta=plan.delta, prior_mu=plan.prior_mu
    )
    return replace(plan, epsilon=np.maximum(plan.epsilon, spent))


def round_of(number: int = 1, **values: Any) -> Round:
    """Return a round of two devices, with some of its values changed."""
    usual: dict[str, Any] = {
        "steps": 10 * number,
        "answered": 2,
        "epsilon": np.array([0.5, 1.0]) * number,
        "cost": np.array([110.0, 90.0]) * number,
    }
    return Round(number=number, **(usual | values))


def plain(rounds: list[Round]) -> list[dict[str, Any]]:
    """Return rounds as values that can be compared."""
    return [done.to_dict() for done in rounds]


def small_data(
    *,
    devices: int = 4,
    rows: int = 60,
    dim: int = 5,
    classes: int | None = 2,
    unlike: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """Draw rows whose labels follow a linear rule; `unlike` turns it by device."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(devices), rows)
    x = rng.standard_normal((len(ids), dim))
    x[:, 0] = 1.0  # the constant
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
    outputs = 1 if classes in (None, 2) else classes
    rules = rng.standard_normal((devices, outputs, dim)) * unlike
    rules += rng.standard_normal((outputs, dim))
    scores = np.einsum("nd,ncd->nc", x, rules[ids])
    scores += 0.1 * rng.standard_normal(scores.shape)
    if classes is None:
        y = np.clip(scores[:, 0], -1, 1)
    else:
        y = (scores[:, 0] > 0) * 1 if outputs == 1 else scores.argmax(axis=1)
    train, validation, test = split_rows(x.astype(np.float32), y, ids, seed=seed)
    return Dataset(
        name="small",
        train=train,
        validation=validation,
        test=test,
        device_names=tuple(map(str, range(devices))),
        feature_names=tuple(f"x{i}" for i in range(dim)),
        classes=None if classes is None else tuple(map(str, range(classes))),
        dissimilarity="mild",
        synthetic=True,
    )
