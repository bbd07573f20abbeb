"""Statistics of windows, by hand, by their bounds and by scipy; windows of tables."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from scipy import signal, stats as scipy_stats

import fedbudget as fb
from fedbudget.data import Categorical, Numeric, Schema, Windows
from fedbudget.data.windows import BANDS, statistic_bounds, statistics
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.fleet.device.data_file import read_rows
from fedbudget.fleet.device.policy import DataPolicy
from fedbudget.interop.prediction import predict_table
from tests import iot_tables as iot

AXES = {"a": Numeric(-4, 4), "b": Numeric(0, 10)}


def readings(n: int = 20, length: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.uniform(bounds.low, bounds.high, (n, length))
        for name, bounds in AXES.items()
    }


def test_a_sine_by_hand() -> None:
    """2 + sin at 1/10 of the sampling rate, 0.2 of the highest frequency."""
    time = np.arange(100)
    x = 2 + np.sin(2 * np.pi * time / 10)
    columns = statistics({"x": x[None]}, {"x": Numeric(-4, 4)})
    values = {name: float(value[0]) for name, value in columns.items()}
    assert values["x_mean"] == pytest.approx(2)
    assert values["x_median"] == pytest.approx(2)
    assert values["x_deviation"] ** 2 == pytest.approx(0.5**0.5)
    # All of it is in the second band, whose upper limit is 0.2.
    bands = [values[f"x_band{k}"] ** 2 for k in range(1, len(BANDS))]
    assert bands == pytest.approx([0, 0.5**0.5, 0, 0, 0], abs=1e-7)


def test_statistics_agree_with_scipy_and_numpy() -> None:
    windows = readings()
    columns = statistics(windows, AXES)
    for name, x in windows.items():
        assert columns[f"{name}_iqr"] ** 2 == pytest.approx(scipy_stats.iqr(x, axis=1))
        frequencies, density = signal.periodogram(x, axis=1, scaling="spectrum")
        for k, (low, high) in enumerate(pairwise(BANDS), start=1):
            inside = (frequencies > low / 2 + 1e-9) & (frequencies <= high / 2 + 1e-9)
            power = density[:, inside].sum(axis=1)
            assert columns[f"{name}_band{k}"] ** 4 == pytest.approx(power)
        variance = sum(columns[f"{name}_band{k}"] ** 4 for k in range(1, len(BANDS)))
        assert variance == pytest.approx(x.var(axis=1))
    expected = [
        np.corrcoef(a, b)[0, 1] for a, b in zip(windows["a"], windows["b"], strict=True)
    ]
    assert columns["a_b_correlation"] == pytest.approx(expected)


def test_bounds_have_the_columns_of_the_statistics_in_their_order() -> None:
    columns = statistics(readings(), AXES, magnitude=True)
    assert list(columns) == list(statistic_bounds(AXES, magnitude=True))
    assert len(columns) == 3 * 12 + 1


@given(st.integers(0, 2**32), st.integers(20, 121))
def test_no_statistic_is_below_its_bounds_or_above_four_times(
    seed: int, length: int
) -> None:
    """Square waves at the limits are the worst case, and random ones come near."""
    rng = np.random.default_rng(seed)
    windows = {
        name: np.where(rng.random((3, length)) < 0.5, bounds.low, bounds.high)
        for name, bounds in AXES.items()
    }
    columns = statistics(windows, AXES, magnitude=True)
    for name, bounds in statistic_bounds(AXES, magnitude=True).items():
        values = columns[name]
        assert np.isfinite(values).all()
        assert (values >= bounds.low - 1e-9).all()
        # A root of at most four times the bound: twice it.
        limit = bounds.high if bounds.low < 0 else 2 * bounds.high
        assert (values <= limit + 1e-9).all()


def test_readings_beyond_their_bounds_are_clipped() -> None:
    inside = {"a": np.full((1, 30), 4.0), "b": np.full((1, 30), 10.0)}
    beyond = {name: 100 * x for name, x in inside.items()}
    expected, clipped = (statistics(x, AXES, magnitude=True) for x in (inside, beyond))
    for name, column in expected.items():
        assert np.array_equal(column, clipped[name])


def test_a_constant_channel_has_no_correlation() -> None:
    windows = readings() | {"b": np.full((20, 50), 3.0)}
    assert not statistics(windows, AXES)["a_b_correlation"].any()


def test_a_window_is_computed_from_itself_alone() -> None:
    """Replacing one window changes one row: one window is one sample."""
    windows = readings()
    before = statistics(windows, AXES, magnitude=True)
    windows["a"] = windows["a"].copy()
    windows["a"][7] = 0.0
    after = statistics(windows, AXES, magnitude=True)
    changed = {int(i) for n in before for i in np.flatnonzero(before[n] != after[n])}
    assert changed == {7}


def schema_of(**options: object) -> Schema:
    return Schema(
        features={**AXES, "room": Categorical(("hall", "yard"))},
        label="y",
        target=Categorical(("no", "yes")),
        windows=Windows(**{"length": 25, "columns": ("a", "b")} | options),  # type: ignore[arg-type]
    )


def table_of(devices: int = 3, readings: int = 110, seed: int = 0) -> dict[str, Any]:
    """Readings of devices, mixed, with a time for each."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(devices), readings)
    time = np.tile(np.arange(readings), devices)
    shuffled = rng.permutation(len(owner))
    table = {
        "id": owner,
        "time": time,
        "a": rng.uniform(-4, 4, len(owner)),
        "b": rng.uniform(0, 10, len(owner)),
        "room": np.where(time % 2 == 0, "hall", "yard"),
        "y": np.where(time // 25 % 2 == 0, "no", "yes"),
    }
    return {name: cells[shuffled] for name, cells in table.items()}


def test_readings_become_one_row_per_whole_window() -> None:
    schema, table = schema_of(order="time"), table_of()
    data = fb.from_table(table, label="y", device="id", schema=schema)
    total = data.train.sizes + data.validation.sizes + data.test.sizes
    assert total.tolist() == [4, 4, 4]  # 110 readings: 4 windows of 25
    assert data.dim == 2 * 12 + 1 + 2 + 1
    # By hand: device 1, sorted, its second window, among all of its rows.
    mine = table["id"] == 1
    order = np.argsort(table["time"][mine])
    columns = {name: cells[mine][order][25:50] for name, cells in table.items()}
    expected = np.asarray(schema.encode(columns))[0]
    assert data.train.device(1)[0][1] == pytest.approx(expected, abs=1e-6)
    assert data.train.device(1)[1].tolist() == [0, 1, 0]
    room = data.feature_names.index("room=hall")  # of the last reading, at time 49
    assert data.train.device(1)[0][1, room] == 0


def test_the_split_is_by_time() -> None:
    table = table_of(readings=1000)
    schema = schema_of(order="time")
    data = fb.from_table(table, label="y", device="id", schema=schema)
    assert data.test.sizes.tolist() == [4, 4, 4]
    mine = table["id"] == 2
    order = np.argsort(table["time"][mine])[-100:]
    last = {name: cells[mine][order] for name, cells in table.items()}
    assert data.test.device(2)[0] == pytest.approx(
        np.asarray(schema.encode(last)), abs=1e-6
    )


def test_a_table_without_windows_is_split_by_time_too() -> None:
    plain = replace(schema_of(), windows=None)
    data = fb.from_table(table_of(), label="y", device="id", schema=plain, order="time")
    # Times 88 .. 98 validate and 99 .. 109 test; labels of 75 .. 99 are yes.
    assert data.test.device(0)[1].tolist() == [1] + [0] * 10


def test_a_schema_with_windows_travels() -> None:
    schema = schema_of(
        order="time", magnitude=True, bounds={"b_median": (2, 8), "a_mean": [-1, 1]}
    ).with_features("fourier:20")
    kinds = schema.sample_features
    assert kinds["b_median"] == Numeric(2, 8) and kinds["a_mean"] == Numeric(-1, 1)
    again = Schema.from_json(schema.to_json())
    assert again == schema and again.digest == schema.digest
    assert schema.digest != schema_of(order="time").digest


def test_a_device_computes_the_same_windows(tmp_path: Path) -> None:
    """Its blocks of lines never cut a window, and an unfinished one waits."""
    rng = np.random.default_rng(3)
    count = 1330
    table = {
        "a": rng.uniform(-4, 4, count),
        "b": rng.uniform(0, 10, count),
        "room": rng.choice(["hall", "yard"], count),
        "y": rng.choice(["no", "yes"], count),
    }
    schema = schema_of(length=60)
    path = iot.write(tmp_path / "rows.csv", table)
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*text[:300], "\n", *text[300:]]))  # an empty line
    stored = tmp_path / "schema.json"
    stored.write_text(schema.to_json())
    policy = DataPolicy(
        file=path, schema=stored, label=None, loss="logistic", classes=2, lineage="x"
    )
    rows = read_rows(policy).rows
    assert rows.x.shape == (22, len(schema.feature_names))
    assert np.abs(rows.x - np.asarray(schema.encode(table))).max() < 1e-4
    assert rows.y.tolist() == schema.encode_label(table["y"]).tolist()


def test_predictions_are_one_per_window(tmp_path: Path) -> None:
    schema = schema_of()
    model = fb.LinearModel(
        theta=np.ones(len(schema.feature_names)), loss="logistic", schema=schema
    )
    path = iot.write(tmp_path / "rows.csv", table_of(devices=1))
    result = predict_table(model, path, tmp_path / "out.csv")
    assert result.num_rows == 4
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 5
    assert lines[1].startswith(path.read_text().splitlines()[25])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", "option"])
def test_no_predicted_window_mixes_devices(tmp_path: Path, suffix: str) -> None:
    """Readings of three devices, interleaved: as if each had a table of its own."""
    schema, table = schema_of(), table_of()
    order = np.argsort(np.asarray(table["time"]), kind="stable")
    table = {name: np.asarray(cells)[order] for name, cells in table.items()}
    theta = np.random.default_rng(1).normal(size=len(schema.feature_names))
    alone = fb.LinearModel(theta=theta, loss="logistic", schema=schema)
    each, last = [], []
    for device in range(3):
        rows = np.flatnonzero(table["id"] == device)
        own = {name: cells[rows] for name, cells in table.items()}
        each.append(alone.probabilities(own)[:, 1])
        last.append(rows[24::25][:4])
    by_end = np.argsort(np.concatenate(last))
    expected = np.concatenate(each)[by_end]
    assert not np.allclose(alone.probabilities(table)[:12, 1], expected)

    model = replace(alone, device="id")
    assert model.probabilities(table)[:, 1] == pytest.approx(expected)
    model.save(tmp_path / "m.json")
    model = fb.LinearModel.load(tmp_path / "m.json")
    pipeline = model.to_sklearn()
    assert pipeline.predict_proba(table)[:, 1] == pytest.approx(expected)

    path = iot.write(tmp_path / "rows.csv", table)
    out = tmp_path / ("out.csv" if suffix == "option" else f"out{suffix}")
    if suffix == "option":
        result = predict_table(alone, path, out, device="id")
    else:
        result = predict_table(model, path, out)
    assert result.num_rows == 12 and result.device == "id"
    frame = pd.read_parquet(out) if suffix == ".parquet" else pd.read_csv(out)
    assert frame["probability_yes"].to_numpy() == pytest.approx(expected)
    ends = np.sort(np.concatenate(last))
    assert frame["id"].astype(int).tolist() == table["id"][ends].tolist()
    assert frame["time"].tolist() == table["time"][ends].tolist()


def test_tables_whose_windows_belong_to_no_device(tmp_path: Path) -> None:
    schema, table = schema_of(), table_of()
    theta = np.ones(len(schema.feature_names))
    model = fb.LinearModel(theta=theta, loss="logistic", schema=schema, device="watch")
    path = iot.write(tmp_path / "rows.csv", table)
    assert predict_table(model, path).device is None  # as one device's
    unnamed = {"": table["id"], **table}  # such as pandas writes its index
    nobody = replace(model, device="")
    assert len(nobody.predict(unnamed)) == 330 // 25
    written = iot.write(tmp_path / "unnamed.csv", unnamed)
    assert predict_table(nobody, written).device is None
    for out in (None, tmp_path / "out.parquet"):
        with pytest.raises(DataError, match="column 'ids' is not in the table"):
            predict_table(model, path, out, device="ids")
    plain = replace(schema, windows=None)
    rows = fb.LinearModel(
        theta=np.ones(len(plain.feature_names)), loss="logistic", schema=plain
    )
    with pytest.raises(InvalidInputError, match="--device is 'id', and is for windows"):
        predict_table(rows, path, device="id")
    text = path.read_text().splitlines()
    index = text[0].split(",").index("id")
    cells = text[7].split(",")
    cells[index] = ""
    text[7] = ",".join(cells)
    path.write_text("\n".join(text) + "\n")
    for out in (None, tmp_path / "out.parquet"):
        with pytest.raises(DataError, match="row 7 names no device"):
            predict_table(model, path, out, device="id")


@pytest.mark.parametrize("channel", [True, False])
def test_a_column_with_the_name_of_a_statistic_is_refused(channel: bool) -> None:
    raw = {"a": fb.Numeric(-1, 1), "a_mean": fb.Numeric(-9, 9)}
    columns = ("a", "a_mean") if channel else ("a",)
    windows = fb.Windows(length=25, columns=columns)
    with pytest.raises(InvalidInputError, match="statistic 'a_mean', and a column"):
        fb.Schema(
            features=raw,
            label="y",
            target=fb.Categorical(("no", "yes")),
            windows=windows,
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 10}, "in up to 3 samples, and cost as often; use step = 25"),
        ({"step": 50}, "between windows would be lost"),
        ({"length": 5}, "length"),
        ({"columns": ("a", "room")}, "'room', which is no numeric feature"),
        ({"columns": ()}, "no columns"),
        ({"columns": "a"}, "must be a list"),
        ({"magnitude": 1}, "true or false"),
        ({"order": 3}, "must name a column"),
        ({"bounds": {"a_mode": (0, 1)}}, "bounds of 'a_mode', which is no statistic"),
        ({"bounds": {"a_mean": (1, 0)}}, "low must be below high"),
        ({"bounds": {"a_mean": 3}}, r"write NAME = \[low, high\]"),
        ({"bounds": [1]}, r"write NAME = \[low, high\]"),
    ],
)
def test_windows_that_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        schema_of(**options)


def test_tables_that_do_not_go_with_windows() -> None:
    table = table_of()
    with pytest.raises(InvalidInputError, match="need the devices of the rows"):
        fb.from_table(table, label="y", partition="iid:2", schema=schema_of())
    with pytest.raises(DataError, match="fewer than 25 readings"):
        fb.from_table(table_of(readings=20), label="y", device="id", schema=schema_of())
    plain = schema_of().to_dict()
    with pytest.raises(InvalidInputError, match="'overlap', which is not known"):
        Schema.from_dict(
            plain | {"windows": {"length": 25, "columns": ["a"], "overlap": 2}}
        )
    with pytest.raises(InvalidInputError, match="write length and columns"):
        Schema.from_dict(plain | {"windows": {"length": 25}})
