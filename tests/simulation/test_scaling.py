"""Bounds from a charged query: by hand, by sampling, and by what a run reaches."""

from dataclasses import replace

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError
from fedbudget.privacy import GDP
from fedbudget.simulation.scaling import narrowed, scale_privately
from tests import iot_tables as iot

PRICES = fb.Prices(communication=100, computation=1)
BUDGET = fb.Budget(epsilon=4, delta=1e-5, cost=3000)


def wide_energy() -> fb.Dataset:
    schema = replace(iot.ENERGY, target=fb.Numeric(0, 100, unit="kWh"))
    table = iot.energy()
    return fb.from_table(table, label="kwh", device="meter", schema=schema)


def test_bounds_by_hand() -> None:
    shares = np.array([0.0, 0.001, 0.5, 0.499, 0.0, 0.0, 0.0, 0.0])
    assert narrowed(fb.Numeric(0, 8), shares, 0.0) == fb.Numeric(2, 4)
    # An empty cell's value stays inside.
    kind = fb.Numeric(0, 8, missing=7)
    assert narrowed(kind, shares, 0.0) == fb.Numeric(2, 7, missing=7)
    nothing = np.full(8, 1e-9)
    assert narrowed(fb.Numeric(0, 8), nothing, 1.0) == fb.Numeric(0, 8)


def test_rows_are_those_of_the_new_schema() -> None:
    data = wide_energy()
    devices = fb.SimulatedDevices(data, seed=1, budget=BUDGET, prices=PRICES)
    scaled = scale_privately(devices, BUDGET, PRICES)
    schema = scaled.data.schema
    assert schema is not None and data.schema is not None
    assert isinstance(schema.target, fb.Numeric) and schema.target.high < 10
    assert schema.target.unit == "kWh"
    again = fb.from_table(iot.energy(), label="kwh", device="meter", schema=schema)
    x = np.asarray(again.train.x) - np.asarray(scaled.data.train.x)
    assert np.abs(x).max() < 1e-5
    assert np.abs(again.train.y - scaled.data.train.y).max() < 1e-5
    # Labels of test rows are the true ones, also beyond the bounds.
    truth = data.schema.target.decode(np.asarray(data.test.y))  # type: ignore[union-attr]
    assert schema.target.decode(np.asarray(scaled.data.test.y)) == pytest.approx(truth)
    norms = np.linalg.norm(np.asarray(scaled.data.train.x, np.float64), axis=1)
    assert (norms <= 1).all()


def test_the_query_is_charged_and_the_run_spends_the_rest() -> None:
    data = wide_energy()
    devices = fb.SimulatedDevices(data, seed=1, budget=BUDGET, prices=PRICES)
    scaled = scale_privately(devices, BUDGET, PRICES, share=0.2)
    total = GDP.mu_from_epsilon(np.array(4.0), np.array(1e-5))
    assert scaled.mu == pytest.approx(np.sqrt(0.2) * total)
    expected = GDP.epsilon_from_mu(scaled.mu, np.full(60, 1e-5))
    assert devices.ledger.epsilon == pytest.approx(expected, rel=1e-6)
    assert (devices.ledger.cost == 202).all()  # two parts
    plan = scaled.plan(scaled.problem(), BUDGET, PRICES)
    after = fb.SimulatedDevices(scaled.data, seed=1, budget=BUDGET, prices=PRICES)
    run = fb.train(plan, after)
    assert run.privacy.epsilon <= 4 and plan.epsilon.max() <= 4
    # Without the query the same rounds would cost less: it is in the ledgers.
    assert after.ledger.epsilon.max() == pytest.approx(plan.epsilon.max(), rel=1e-3)
    assert plan.cost.max() <= 3000


@pytest.mark.parametrize("name", ["alarms", "energy"])
def test_wide_bounds_and_a_query_come_close_to_narrow_bounds(name: str) -> None:
    """R2 within 0.02, and AUC within 0.01, of the schema's own bounds."""
    from sklearn.metrics import r2_score, roc_auc_score

    schema, device = getattr(iot, name.upper()), {"alarms": "sensor"}.get(name, "meter")
    target = schema.target
    if isinstance(target, fb.Numeric):
        target = replace(target, low=0, high=100)
    features = {
        key: replace(kind, low=kind.low - 60, high=kind.high + 60)
        if isinstance(kind, fb.Numeric) and kind.high > 1
        else kind
        for key, kind in schema.features.items()
    }
    wide = replace(schema, features=features, target=target)
    scores = {}
    for bounds in ("narrow", "private"):
        used = schema if bounds == "narrow" else wide
        table = getattr(iot, name)()
        data = fb.from_table(table, label=schema.label, device=device, schema=used)
        plan = fb.plan(data.problem(), BUDGET, PRICES)
        if bounds == "private":
            devices = fb.SimulatedDevices(data, seed=0, budget=BUDGET, prices=PRICES)
            scaled = scale_privately(devices, BUDGET, PRICES)
            plan, data = scaled.plan(scaled.problem(), BUDGET, PRICES), scaled.data
        results = []
        for seed in range(3):
            run = fb.train(plan, fb.SimulatedDevices(data, seed=seed))
            scored = plan.model.scores(run.theta, data.test.x)
            measure = r2_score if data.classes is None else roc_auc_score
            results.append(measure(data.test.y, scored))
        scores[bounds] = float(np.mean(results))
    assert scores["private"] > scores["narrow"] - (0.02 if name == "energy" else 0.01)


def test_a_release_answers_too() -> None:
    data = wide_energy()
    devices = fb.ReleaseDevices(data, budget=BUDGET, prices=PRICES)
    scaled = scale_privately(devices, BUDGET, PRICES)
    assert (devices.ledger.epsilon > 0).all()
    target = scaled.data.schema.target  # type: ignore[union-attr]
    assert isinstance(target, fb.Numeric) and target.high < 100


def test_what_is_refused() -> None:
    for data in (fb.load("vehicle"), fb.load("wisdm"), fb.load("adult")):
        devices = fb.SimulatedDevices(data, budget=BUDGET, prices=PRICES)
        with pytest.raises(InvalidInputError, match="scale 'private' does not go with"):
            scale_privately(devices, BUDGET, PRICES)
        assert (devices.ledger.epsilon == 0).all()
