"""Random Fourier features: by their kernel, by published values, and by their norm."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

import fedbudget as fb
from fedbudget.data.features import Categorical, Numeric
from fedbudget.data.fourier import Fourier, _normals
from fedbudget.data.schema import Schema
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.data_file import read_rows
from fedbudget.fleet.device.policy import DataPolicy
from tests import iot_tables as iot


def test_frequencies_are_the_published_ones() -> None:
    """Computed here from the definition: 12 little-endian words of SHAKE-256 each."""
    drawn = hashlib.shake_256(
        b"fedbudget fourier 1" + bytes([0, 0, 0, 7]) + bytes([0, 0, 0, 2])
    ).digest(24 * 3)
    words = [int.from_bytes(drawn[i : i + 2], "little") for i in range(0, 72, 2)]
    expected = [(sum(words[12 * k : 12 * k + 12]) - 393210) / 65536 for k in range(3)]
    assert _normals(7, 3, 2, 3)[0].tolist() == expected
    # A published value: any change of it would change every model.
    assert _normals(0, 2, 0, 1).tolist() == PUBLISHED


PUBLISHED = [[2.1603240966796875, 0.1595611572265625]]


def test_frequencies_are_almost_normal() -> None:
    values = _normals(1, 100, 0, 500).ravel()
    assert abs(values.mean()) < 0.03 and abs(values.var() - 1) < 0.04
    # Sums of 12 uniform numbers are within 0.003 of a normal distribution.
    assert stats.kstest(values, "norm").statistic < 0.02


def test_frequencies_do_not_depend_on_blocks_or_on_the_count() -> None:
    few, many = (Fourier(count=c, scale=2.0, seed=3) for c in (8, 5000))
    first = next(iter(few.blocks(40)))[1]
    blocks = list(many.blocks(40))
    assert len(blocks) > 1
    joined = np.concatenate([block for _, block in blocks])
    assert joined.shape == (2500, 40)
    assert np.array_equal(joined[:4], first)
    assert [start for start, _ in blocks] == np.cumsum(
        [0, *(len(block) for _, block in blocks[:-1])]
    ).tolist()


def test_inner_products_approximate_the_gaussian_kernel() -> None:
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (30, 5))
    x = Fourier(count=20_000, scale=1.3).encode(z).astype(np.float64)
    distances = ((z[:, None] - z[None]) ** 2).sum(-1)
    kernel = np.exp(-distances / (2 * 1.3**2))
    # 10,000 frequencies: a standard error below 0.0071, and 435 pairs.
    assert np.abs(x @ x.T - kernel).max() < 0.04


@given(
    st.integers(1, 40),
    st.integers(1, 30).map(lambda half: 2 * half),
    st.floats(1e-3, 1e3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_every_row_is_in_the_unit_ball(
    columns: int, count: int, scale: float, intercept: bool, seed: int
) -> None:
    z = np.random.default_rng(seed).uniform(-1, 1, (20, columns))
    x = Fourier(count=count, scale=scale, seed=seed).encode(z, intercept=intercept)
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    assert (norms <= 1).all() and (norms > 1 - 1e-6).all()


@pytest.mark.parametrize("name", ["alarms", "energy", "watches"])
def test_a_schema_with_features_travels(name: str) -> None:
    plain = getattr(iot, name.upper())
    schema = plain.with_features("fourier:60")
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.digest != plain.digest
    assert schema.with_features("linear") == plain
    other = schema.with_features(
        Fourier(count=60, scale=schema.expansion.scale, seed=1)
    )
    assert other.digest != schema.digest
    x = schema.encode(getattr(iot, name)(300))
    assert x.shape == (300, 61) and len(schema.feature_names) == 61


def test_a_row_is_encoded_independently_of_the_others() -> None:
    schema, table = iot.ALARMS.with_features("fourier:60"), iot.alarms(3000)
    whole = np.asarray(schema.encode(table))
    part = schema.encode({name: cells[2500:] for name, cells in table.items()})
    assert np.abs(whole[2500:] - part).max() < 1e-6


def test_a_device_reads_the_same_rows(tmp_path: Path) -> None:
    """Its reader has numpy only, and reads 500 lines at a time."""
    schema, table = iot.ALARMS.with_features("fourier:40"), iot.alarms(1200)
    path = iot.write(tmp_path / "rows.csv", table)
    plain = tmp_path / "schema.json"
    plain.write_text(schema.to_json())
    policy = DataPolicy(
        file=path, schema=plain, label=None, loss="logistic", classes=2, lineage="x"
    )
    rows = read_rows(policy).rows
    assert rows.x.shape == (1200, 41)
    # The device rounds entries to its grid.
    assert np.abs(rows.x - np.asarray(schema.encode(table))).max() < 1e-4


def test_the_plan_knows_dimension_and_spectrum() -> None:
    data = fb.load("wisdm")
    linear, wide = data.problem(), data.problem(features="fourier:200")
    encoded = fb.load("wisdm", features="fourier:200")
    assert wide.dim == encoded.dim == encoded.problem().dim == 201
    assert encoded.schema is not None and wide.schema == encoded.schema.to_json()
    for name in ("spike_share", "spectrum_decay", "gap_decay", "learnable_share"):
        assert wide[name] == encoded.problem()[name]
        assert wide[name] != linear[name]
    # The share of the rows' mean, which the scale predicts without rows.
    x = np.asarray(encoded.train.x, dtype=np.float64)
    measured = float(np.sum(x.mean(0) ** 2))
    assert wide["spike_share"] == pytest.approx(measured, abs=0.15)


def test_more_features_fit_a_circle_that_no_line_does() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 2))
    inside = np.where((x**2).sum(1) < 0.64, "in", "out")
    schema = Schema(
        features={"a": Numeric(-1, 1), "b": Numeric(-1, 1)},
        label="y",
        target=Categorical(("in", "out")),
    )
    table = {"a": x[:, 0], "b": x[:, 1], "y": inside}
    accuracies = {}
    for features in ("linear", "fourier:100"):
        data = fb.from_table(
            table, label="y", partition="iid:4", schema=schema, features=features
        )
        budget = fb.Budget(epsilon=8, delta=1e-5, cost=3000)
        plan = fb.plan(
            data.problem(), budget, fb.Prices(communication=100, computation=1)
        )
        run = fb.train(plan, fb.SimulatedDevices(data, budget=budget))
        accuracies[features] = run.measured["test_accuracy"]
    assert accuracies["fourier:100"] > accuracies["linear"] + 0.15


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 7, "scale": 1.0}, "use an even number, such as 8"),
        ({"count": 0, "scale": 1.0}, "count"),
        ({"count": 10**6, "scale": 1.0}, "count"),
        ({"count": 4, "scale": 0.0}, "scale"),
        ({"count": 4, "scale": 1.0, "seed": -1}, "seed"),
    ],
)
def test_what_is_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        Fourier(**options)  # type: ignore[arg-type]


def test_texts_and_tables_that_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="use linear, fourier or fourier:500"):
        iot.ALARMS.with_features("rbf")
    plain = iot.ALARMS.to_dict()
    with pytest.raises(InvalidInputError, match="write kind = 'fourier'"):
        Schema.from_dict(plain | {"expansion": {"kind": "poly"}})
    with pytest.raises(InvalidInputError, match="use only kind, count, scale, seed"):
        Schema.from_dict(plain | {"expansion": {"kind": "fourier", "size": 4}})
    with pytest.raises(InvalidInputError, match="whose rows have no schema"):
        fb.load("vehicle", features="fourier")
    with pytest.raises(InvalidInputError, match="whose rows have no schema"):
        fb.load("vehicle").problem(features="fourier")
