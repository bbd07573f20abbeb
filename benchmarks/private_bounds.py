"""Bounds that are too wide, and bounds from one charged query, at epsilon 4.

Three synthetic tables of small devices (`tests/iot_tables.py`): 40 sensors with a rare
alarm, 60 meters and 200 watches with six activities. AUC for alarms and watches (there
the mean of each class against the rest), R2 for energy, on test rows, means over the
seeds of query and run.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import r2_score, roc_auc_score
from tables import header, row

import fedbudget as fb
from fedbudget.simulation.scaling import scale_privately

sys.path.insert(0, str(Path(__file__).parent.parent))

PRICES = fb.Prices(communication=100, computation=1)
BUDGET = fb.Budget(epsilon=4, delta=1e-5, cost=3000)
CASES: tuple[
    tuple[str, str, dict[str, int], float], ...
] = (  # table, column of its devices, size, and how much wider its bounds are
    ("alarms", "sensor", {}, 1.5),
    ("energy", "meter", {}, 1.5),
    ("watches", "person", {"rows": 12_000, "devices": 200}, 2),
)
SEEDS = range(8)


def widened(schema: fb.Schema, factor: float) -> fb.Schema:
    """Return bounds that exceed those of the schema on either side."""

    def wide(kind: Any) -> Any:
        if not isinstance(kind, fb.Numeric):
            return kind
        more = factor * (kind.high - kind.low)
        return replace(kind, low=kind.low - more, high=kind.high + more)

    target = schema.target
    if isinstance(target, fb.Numeric):
        target = replace(target, low=0, high=100)
    features = {name: wide(kind) for name, kind in schema.features.items()}
    return replace(schema, features=features, target=target)


def tightened(schema: fb.Schema, table: dict[str, Any]) -> fb.Schema:
    """Return bounds from 0.5 to 99.5 % of the values: NOT private, a reference."""

    def tight(name: str, kind: Any) -> Any:
        if not isinstance(kind, fb.Numeric):
            return kind
        low, high = map(float, np.quantile(table[name], (0.005, 0.995)))
        return replace(kind, low=low, high=high, missing=None)

    features = {name: tight(name, kind) for name, kind in schema.features.items()}
    return replace(schema, features=features, target=tight(schema.label, schema.target))


def score(data: fb.Dataset, plan: fb.Plan, seed: int) -> float:
    """Train, and return AUC or R2 on all test rows."""
    devices = fb.SimulatedDevices(data, seed=seed, budget=BUDGET, prices=PRICES)
    theta = fb.train(plan, devices).theta
    scores, y = plan.model.scores(theta, data.test.x), data.test.y
    if data.classes is None:
        return float(r2_score(y, scores))
    if len(data.classes) == 2:
        return float(roc_auc_score(y, scores))
    areas = [roc_auc_score(y == c, scores[:, c]) for c in range(len(data.classes))]
    return float(np.mean(areas))


def private(data: fb.Dataset, seed: int) -> float:
    """Narrow the bounds by a query, and train with the rest of the budgets."""
    devices = fb.SimulatedDevices(data, seed=seed, budget=BUDGET, prices=PRICES)
    scaled = scale_privately(devices, BUDGET, PRICES)
    plan = scaled.plan(scaled.problem(), BUDGET, PRICES)
    return score(scaled.data, plan, seed)


def main() -> None:
    """Print the table."""
    from tests import iot_tables

    print(
        *header(["table", "tight", "narrow", "wide", "wide, --scale private"]),
        sep="\n",
    )
    for name, device, size, factor in CASES:
        schema = getattr(iot_tables, name.upper())
        table = getattr(iot_tables, name)(**size)
        cells = []
        for bounds in (tightened(schema, table), schema, widened(schema, factor)):
            data = fb.from_table(
                table, label=schema.label, device=device, schema=bounds
            )
            plan = fb.plan(data.problem(), BUDGET, PRICES)
            cells.append(np.mean([score(data, plan, seed) for seed in SEEDS]))
        cells.append(np.mean([private(data, seed) for seed in SEEDS]))
        print(row([name, *(f"{cell:.3f}" for cell in cells)]), flush=True)


if __name__ == "__main__":
    main()
