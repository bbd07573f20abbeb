"""Bounds from a charged query: by hand, by sampling, and by what a run reaches."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import fedbudget as fb
from fedbudget.data.row_weights import weight_rows
from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.privacy import GDP
from fedbudget.simulation.scaling import PrivateScale, narrowed, scale_privately
from tests import iot_tables as iot

PRICES = fb.Prices(communication=100, computation=1)
BUDGET = fb.Budget(epsilon=4, delta=1e-5, cost=3000)


def wide_energy() -> fb.Dataset:
    schema = replace(iot.ENERGY, target=fb.Numeric(0, 100, unit="kWh"))
    table = iot.energy()
    return fb.from_table(table, label="kwh", device="meter", schema=schema)


def test_bounds_by_hand() -> None:
    shares = np.array([0.0, 0.001, 0.5, 0.499, 0.0, 0.0, 0.0, 0.0])
    assert narrowed(fb.Numeric(0, 8), shares, 0.01, 1.0) == fb.Numeric(2, 4)
    # An empty cell's value stays inside.
    kind = fb.Numeric(0, 8, missing=7)
    assert narrowed(kind, shares, 0.01, 1.0) == fb.Numeric(2, 7, missing=7)
    nothing = np.full(8, 1e-9)
    assert narrowed(fb.Numeric(0, 8), nothing, 1.0, 1.0) == fb.Numeric(0, 8)
    # Samples beyond a gap count if they are more than the noise of the gap.
    few = np.array([0.9, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0])
    assert narrowed(fb.Numeric(0, 8), few, 0.01, 1.0) == fb.Numeric(0, 4)
    assert narrowed(fb.Numeric(0, 8), few, 0.02, 1.0) == fb.Numeric(0, 1)


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
    assert (devices.ledger.cost == 303).all()  # three parts
    plan = scaled.plan(scaled.problem(), BUDGET, PRICES)
    after = fb.SimulatedDevices(scaled.data, seed=1, budget=BUDGET, prices=PRICES)
    run = fb.train(plan, after)
    assert run.privacy.epsilon <= 4 and plan.epsilon.max() <= 4
    # Without the query the same rounds would cost less: it is in the ledgers.
    assert after.ledger.epsilon.max() == pytest.approx(plan.epsilon.max(), rel=1e-3)
    assert plan.cost.max() <= 3000


def tight(schema: fb.Schema, table: dict[str, Any]) -> fb.Schema:
    """Return bounds that hold 99 % of the values: a reference, NOT private."""

    def of(name: str, kind: Any) -> Any:
        if not isinstance(kind, fb.Numeric):
            return kind
        low, high = map(float, np.quantile(table[name], (0.005, 0.995)))
        return replace(kind, low=low, high=high, missing=None)

    features = {name: of(name, kind) for name, kind in schema.features.items()}
    return replace(schema, features=features, target=of(schema.label, schema.target))


@pytest.mark.parametrize("name", ["alarms", "energy"])
def test_wide_bounds_and_a_query_come_close_to_tight_bounds(name: str) -> None:
    """R2 within 0.02, and AUC within 0.01, of bounds that hold 99 % of the values."""
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
    scores, table = {}, getattr(iot, name)()
    for bounds in ("tight", "private"):
        used = tight(schema, table) if bounds == "tight" else wide
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
    assert scores["private"] > scores["tight"] - (0.02 if name == "energy" else 0.01)


def test_a_release_answers_too() -> None:
    data = wide_energy()
    devices = fb.ReleaseDevices(data, budget=BUDGET, prices=PRICES)
    scaled = scale_privately(devices, BUDGET, PRICES)
    assert (devices.ledger.epsilon > 0).all()
    target = scaled.data.schema.target  # type: ignore[union-attr]
    assert isinstance(target, fb.Numeric) and target.high < 100


def test_a_release_of_histograms_needs_no_copy_of_all_bins() -> None:
    rows, columns, count = 40_000, 6, 32
    schema = fb.Schema(
        features={"v": fb.Numeric(0, 1)},
        label="y",
        target=fb.Categorical(("no", "yes")),
    )
    rng = np.random.default_rng(0)
    table = {"v": rng.random(rows), "y": rng.choice(["no", "yes"], rows)}
    table["id"] = np.zeros(rows, dtype=np.int64)
    data = fb.from_table(table, label="y", device="id", schema=schema)
    bins = rng.integers(0, count, (len(data.train), columns))
    devices = fb.ReleaseDevices(data)
    scipy.sparse.csr_array((1, 1))  # loaded before memory is measured
    tracemalloc.start()
    devices.noisy_histograms(bins, count, np.array([1e-3]), cost=np.array([1.0]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(data.train) * columns * count  # bytes; half of a copy


def test_what_is_refused() -> None:
    no_numbers = fb.Schema(
        features={"site": fb.Categorical(("a", "b"))},
        label="y",
        target=fb.Categorical(("no", "yes")),
    )
    table = {"site": ["a", "b", "a"], "y": ["no", "yes", "no"], "id": [1, 1, 1]}
    bare = replace(no_numbers, features={"v": fb.Numeric(0, 9)}, intercept=False)
    more = {**table, "v": [1, 2, 3]}
    for data in (
        fb.load("vehicle"),
        fb.load("adult", features="fourier:20"),
        fb.from_table(table, label="y", device="id", schema=no_numbers),
        fb.from_table(more, label="y", device="id", schema=bare),
    ):
        devices = fb.SimulatedDevices(data, budget=BUDGET, prices=PRICES)
        with pytest.raises(InvalidInputError, match="scale 'private' does not go with"):
            scale_privately(devices, BUDGET, PRICES)
        assert (devices.ledger.epsilon == 0).all()


@pytest.mark.parametrize("cost", [150, 250, 303, 350])
def test_a_cost_budget_that_leaves_no_round_is_refused_before_a_part(
    cost: float,
) -> None:
    small = replace(BUDGET, cost=cost)
    devices = fb.SimulatedDevices(wide_energy(), seed=1, budget=small, prices=PRICES)
    with pytest.raises(InfeasibleBudgetError, match="303, and one round: raise it to"):
        scale_privately(devices, small, PRICES)
    assert (devices.ledger.cost == 0).all() and (devices.ledger.epsilon == 0).all()


def test_weighted_rows_are_refused_before_the_query() -> None:
    weights = np.full(len(wide_energy().train), 0.9)
    data = weight_rows(wide_energy(), sample_weight=weights)
    devices = fb.SimulatedDevices(data, budget=BUDGET, prices=PRICES)
    with pytest.raises(InvalidInputError, match="weights come after the query"):
        scale_privately(devices, BUDGET, PRICES)
    assert (devices.ledger.epsilon == 0).all()


def test_rows_of_many_categories_stay_sparse() -> None:
    rng, rooms = np.random.default_rng(0), tuple(f"r{k}" for k in range(200))
    schema = fb.Schema(
        features={"v": fb.Numeric(-200, 200), "room": fb.Categorical(rooms)},
        label="y",
        target=fb.Categorical(("no", "yes")),
    )
    table = {
        "v": rng.normal(20, 3, 3000),
        "room": rng.choice(rooms, 3000),
        "y": rng.choice(["no", "yes"], 3000),
        "id": np.arange(3000) % 5,
    }
    data = fb.from_table(table, label="y", device="id", schema=schema)
    scaled = scaled_by(data, share=0.5)
    new = scaled.data.schema
    assert new is not None and new.features["v"] != schema.features["v"]
    again = fb.from_table(table, label="y", device="id", schema=new)
    for name in ("train", "test"):
        rows, expected = getattr(scaled.data, name).x, getattr(again, name).x
        assert type(rows) is type(expected) and rows.nnz == expected.nnz
        assert abs(rows - expected).max() < 1e-5
    held_out = scaled.encoded(data).train.x
    assert type(held_out) is type(data.train.x)


def test_an_unknown_feature_step_is_refused_before_the_query() -> None:
    devices = fb.SimulatedDevices(wide_energy(), budget=BUDGET, prices=PRICES)
    with pytest.raises(InvalidInputError, match="cubic"):
        scale_privately(devices, BUDGET, PRICES, features="cubic")
    assert (devices.ledger.epsilon == 0).all()


def wide_readings() -> dict[str, Any]:
    """Readings of 8 devices, windows of 20: the label is whether they shake."""
    rng = np.random.default_rng(0)
    windows = 8 * 60
    shakes = rng.random(windows) < 0.5
    deviation = np.where(shakes, 1.5, 0.5)[:, None]
    a = 9.8 + deviation * rng.normal(size=(windows, 20))
    return {
        "id": np.repeat([f"d{m}" for m in range(8)], 60 * 20),
        "a": a.ravel(),
        "room": rng.choice(["hall", "yard"], 20 * windows),
        "load": rng.normal(5, 0.2, 20 * windows),
        "y": np.repeat(np.where(shakes, "yes", "no"), 20),
    }


WINDOWED = fb.Schema(
    features={
        "a": fb.Numeric(-200, 200),
        "room": fb.Categorical(("hall", "yard")),
        "load": fb.Numeric(0, 100),
    },
    label="y",
    target=fb.Categorical(("no", "yes")),
    windows=fb.Windows(length=20, columns=("a",)),
)


def scaled_by(data: fb.Dataset, **options: Any) -> PrivateScale:
    devices = fb.SimulatedDevices(data, seed=1, budget=BUDGET, prices=PRICES)
    return scale_privately(devices, BUDGET, PRICES, **options)


def test_windows_get_bounds_of_their_statistics() -> None:
    table = wide_readings()
    data = fb.from_table(table, label="y", device="id", schema=WINDOWED)
    scaled = scaled_by(data, share=0.5)
    schema = scaled.data.schema
    assert schema is not None and schema.windows is not None
    assert schema.features["a"] == fb.Numeric(-200, 200)  # readings are not clipped
    assert schema.features["load"] != fb.Numeric(0, 100)
    bounds = schema.windows.bounds
    assert bounds is not None and set(bounds) == set(data.feature_names[:12])
    low, high = bounds["a_mean"]
    assert -200 < low < 9.8 < high < 60
    # The schema travels, and encodes the readings as the query did.
    again = fb.Schema.from_json(schema.to_json())
    assert again.digest == schema.digest
    same = fb.from_table(table, label="y", device="id", schema=again)
    difference = np.asarray(same.train.x) - np.asarray(scaled.data.train.x)
    assert np.abs(difference).max() < 1e-4
    plan = scaled.plan(scaled.problem(), BUDGET, PRICES)
    assert plan.schema == schema and plan.epsilon.max() <= 4


def test_too_much_noise_is_refused_before_it_is_charged() -> None:
    poor = replace(BUDGET, epsilon=0.2)
    devices = fb.SimulatedDevices(wide_energy(), seed=1, budget=poor, prices=PRICES)
    with pytest.raises(InvalidInputError, match="would learn nothing about 6 numbers"):
        scale_privately(devices, poor, PRICES)
    assert (devices.ledger.epsilon == 0).all()


def test_fourier_features_follow_the_query() -> None:
    data = wide_energy()
    scaled = scaled_by(data, features="fourier:40")
    schema = scaled.data.schema
    assert schema is not None and schema.expansion is not None
    assert scaled.data.dim == 41 == len(scaled.data.feature_names)
    again = fb.from_table(iot.energy(), label="kwh", device="meter", schema=schema)
    difference = np.asarray(again.train.x) - np.asarray(scaled.data.train.x)
    assert np.abs(difference).max() < 1e-4
    plan = scaled.plan(scaled.problem(), BUDGET, PRICES)
    after = fb.SimulatedDevices(scaled.data, seed=1, budget=BUDGET, prices=PRICES)
    assert fb.train(plan, after).privacy.epsilon <= 4
    expanded = fb.from_table(
        iot.energy(), label="kwh", device="meter", schema=schema, features="fourier:8"
    )
    with pytest.raises(InvalidInputError, match="Fourier features already"):
        scaled_by(expanded)


def test_new_devices_have_the_same_schema_and_true_labels() -> None:
    data, new = fb.hold_out(wide_energy(), count=10)
    scaled = scaled_by(data)
    held_out = scaled.encoded(new)
    assert held_out.schema == scaled.data.schema and held_out.num_devices == 10
    kinds = scaled.data.schema.target, new.schema.target  # type: ignore[union-attr]
    raw = [
        kind.decode(np.asarray(part.y))  # type: ignore[union-attr]
        for kind, part in zip(kinds, (held_out.train, new.train), strict=True)
    ]
    assert raw[0] == pytest.approx(raw[1])  # none is clipped: these never train
    plan = scaled.plan(scaled.problem(), BUDGET, PRICES)
    devices = fb.SimulatedDevices(scaled.data, seed=1, new_devices=held_out)
    measured = fb.train(plan, devices).measured
    assert measured["new_loss"] < 2 * measured["test_loss"]


def test_weights_come_after_the_query() -> None:
    table = iot.alarms()
    wide = {
        name: replace(kind, low=-300, high=300)
        if isinstance(kind, fb.Numeric)
        else kind
        for name, kind in iot.ALARMS.features.items()
    }
    schema = replace(iot.ALARMS, features=wide)
    data = fb.from_table(table, label="alarm", device="sensor", schema=schema)
    scaled = scaled_by(data)
    shares = {"no": 0.97, "yes": 0.03}
    weighted = weight_rows(scaled.data, class_weight="balanced", class_shares=shares)
    plan = scaled.plan(scaled.spent(weighted.problem()), BUDGET, PRICES)
    after = fb.SimulatedDevices(weighted, seed=1, budget=BUDGET, prices=PRICES)
    run = fb.train(plan, after)
    assert run.privacy.epsilon <= 4 and run.measured["test_recall/yes"] > 0.3
