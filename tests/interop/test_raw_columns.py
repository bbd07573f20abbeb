"""Exports take raw columns, and predict what the model itself predicts, to 1e-6."""

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

import fedbudget as fb
from fedbudget.data import Categorical, Numeric, Schema, Time
from fedbudget.data.times import seconds
from fedbudget.errors import DataError, InvalidInputError, RecordError
from fedbudget.interop.export import LinearModel
from tests import iot_tables as iot

RNG = np.random.default_rng(5)


def model_of(schema: Schema, loss: str, **options: Any) -> LinearModel:
    """Return a model with large weights: differences show."""
    count = len(schema.classes or ()) if loss == "softmax" else 1
    theta = 20 * RNG.normal(size=(count, len(schema.feature_names)))
    theta[:, -1] /= 20  # a large constant would decide alone
    return LinearModel(theta=theta, loss=loss, schema=schema, **options)


NUMBERS_ONLY = Schema(
    # The norm may be below 1, and there are bounds that float32 cannot tell apart.
    features={"time": Numeric(1.7e9, 1.7e9 + 60), "value": Numeric(-1, 1)},
    label="label",
    target=Categorical(("0", "1")),
    intercept=False,
)
HOURLY = Schema(
    features={
        "people": Numeric(0, 6),
        "time": Time(("month", "hour", "weekday")),
        "outside": Numeric(-20, 40),
    },
    label="kwh",
    target=Numeric(0, 5, unit="kWh"),
)
CASES = {
    "alarms": (model_of(iot.ALARMS, "logistic"), iot.alarms(400)),
    "threshold": (model_of(iot.ALARMS, "logistic", threshold=0.03), iot.alarms(400)),
    "svm": (model_of(iot.ALARMS, "smooth_hinge"), iot.alarms(400)),
    "two of softmax": (
        model_of(iot.ALARMS, "softmax", threshold=0.8),
        iot.alarms(400),
    ),
    "energy": (model_of(iot.ENERGY, "huber"), iot.energy(400)),
    "time stamps": (model_of(HOURLY, "huber"), iot.energy(400)),
    "time stamps, fourier": (
        model_of(HOURLY.with_features("fourier:40"), "huber"),
        iot.energy(400),
    ),
    "watches": (model_of(iot.WATCHES, "softmax"), iot.watches(400)),
    "fourier": (
        model_of(iot.ALARMS.with_features("fourier:60"), "logistic"),
        iot.alarms(400),
    ),
    "fourier, no intercept": (
        model_of(NUMBERS_ONLY.with_features("fourier:40"), "logistic"),
        {"time": 1.7e9 + np.linspace(0, 60, 400), "value": RNG.uniform(-1, 1, 400)},
    ),
    "numbers only": (
        model_of(NUMBERS_ONLY, "logistic"),
        {
            "time": 1.7e9 + np.linspace(-5, 65, 400),
            "value": RNG.uniform(-0.3, 0.3, 400),
        },
    ),
}


def expected(model: LinearModel, table: Any) -> dict[str, Any]:
    return model.columns(table)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[LinearModel, dict[str, Any]]:
    model, table = CASES[request.param]
    features = {n: c for n, c in table.items() if n in model.schema.features}  # type: ignore[union-attr]
    return model, features


def test_predictions_by_hand() -> None:
    schema = Schema(
        features={"v": Numeric(0, 10)}, label="kwh", target=Numeric(0, 4, unit="kWh")
    )
    model = LinearModel(theta=np.array([0.5, 0.0]), loss="huber", schema=schema)
    # v = 10 is 1 beside the intercept 1: the row (1, 1) / sqrt(2), score 0.5 / sqrt(2).
    assert model.predict({"v": [10, 5]}) == pytest.approx([2 + 2 * 0.5 / 2**0.5, 2])
    assert model.unit == "kWh"


def test_a_frame_a_dict_and_a_file_give_the_same(
    case: tuple[LinearModel, dict[str, Any]], tmp_path: Path
) -> None:
    model, table = case
    first = model.predict(table)
    frame = pd.DataFrame(table)
    assert (model.predict(frame) == first).all()
    # A file's numbers have all their digits.
    assert (model.predict(iot.write(tmp_path / "rows.csv", table)) == first).all()
    assert len(set(first.tolist())) > 1  # the test tells something


def test_onnx_on_raw_rows(case: tuple[LinearModel, dict[str, Any]]) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from fedbudget.interop.onnx_files import from_onnx, to_onnx

    model, table = case
    data = to_onnx(model)
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feed = {
        name: np.asarray(
            cells, dtype=object if cells.dtype.kind in "UO" else np.float64
        ).reshape(-1, 1)
        for name, cells in table.items()
    }
    for name, kind in (model.schema.features if model.schema else {}).items():
        if isinstance(kind, Time):
            feed[name] = seconds(name, table[name]).reshape(-1, 1)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feed), strict=True))
    label, *rest = expected(model, table).values()
    if model.classes is None:
        assert outputs["value"][:, 0] == pytest.approx(label, abs=1e-6)
        return
    assert (outputs["label"] == label).all()
    other = outputs["score" if model.loss == "smooth_hinge" else "probabilities"]
    assert other == pytest.approx(np.column_stack(rest), abs=1e-6)
    again = from_onnx(data)
    assert again.to_dict() == model.to_dict()


def test_onnx_of_windows_takes_their_statistics() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from fedbudget.interop.onnx_files import from_onnx, to_onnx

    windows = fb.Windows(
        length=20, columns=("x", "y"), magnitude=True, bounds={"x_mean": (-1, 1)}
    )
    schema = Schema(
        features={
            "x": Numeric(-2, 2),
            "room": Categorical(("hall", "yard")),
            "y": Numeric(0, 9),
            "time": Time(("hour",)),
        },
        label="label",
        target=Categorical(("no", "yes")),
        windows=windows,
    )
    readings = {
        "x": RNG.normal(size=600),
        "room": RNG.choice(["hall", "yard"], 600),
        "y": RNG.uniform(0, 9, 600),
        "time": 1.7e9 + 60.0 * np.arange(600),
    }
    model = model_of(schema, "logistic")
    data = to_onnx(model)
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    statistics = windows.samples(readings, schema.features)
    room = statistics["room"]
    statistics["room"] = np.array([room.values[code] for code in room.codes], object)
    feed = {name: np.asarray(c).reshape(-1, 1) for name, c in statistics.items()}
    label, probabilities = session.run(["label", "probabilities"], feed)
    assert len(label) == 30 and (label == model.predict(readings)).all()
    assert probabilities == pytest.approx(model.probabilities(readings), abs=1e-6)
    assert from_onnx(data).to_dict() == model.to_dict()


def test_scikit_learn_on_raw_rows(
    case: tuple[LinearModel, dict[str, Any]], tmp_path: Path
) -> None:
    model, table = case
    model.save(tmp_path / "m.joblib")
    fitted = joblib.load(tmp_path / "m.joblib")
    label, *rest = expected(model, table).values()
    for source in (table, pd.DataFrame(table)):
        if model.classes is None:
            assert fitted.predict(source) == pytest.approx(label, abs=1e-6)
            continue
        assert (fitted.predict(source) == label).all()
        if model.loss != "smooth_hinge":
            probabilities = fitted.predict_proba(source)
            assert probabilities == pytest.approx(np.column_stack(rest), abs=1e-6)


def test_json_holds_all_of_it(
    case: tuple[LinearModel, dict[str, Any]], tmp_path: Path
) -> None:
    model, table = case
    model.save(tmp_path / "m.json")
    again = LinearModel.load(tmp_path / "m.json")
    assert again.to_dict() == model.to_dict()
    assert (again.predict(table) == model.predict(table)).all()


def test_empty_and_unknown_cells_in_a_graph() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from fedbudget.interop.onnx_files import to_onnx

    model, table = CASES["alarms"]
    rows: dict[str, Any] = {n: table[n][:3].copy() for n in iot.ALARMS.features}
    rows["heat"][0] = np.nan
    rows["site"] = np.array(["nowhere", "roof", "yard"], dtype=object)
    rows["door"] = np.array(["shut", None, "open"], dtype=object)
    feed = {
        n: np.where(c == None, "", c).reshape(-1, 1)  # noqa: E711  # elementwise
        if c.dtype == object
        else np.asarray(c, dtype=object if c.dtype.kind == "U" else float).reshape(
            -1, 1
        )
        for n, c in rows.items()
    }
    session = runtime.InferenceSession(to_onnx(model))
    _, probabilities = session.run(None, feed)
    assert probabilities == pytest.approx(model.probabilities(rows), abs=1e-6)


def test_an_output_with_the_name_of_a_column_is_renamed() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from fedbudget.interop.onnx_files import to_onnx

    schema = Schema(
        features={"label": Numeric(0, 1)}, label="y", target=Categorical(("a", "b"))
    )
    session = runtime.InferenceSession(to_onnx(model_of(schema, "logistic")))
    names = [output.name for output in session.get_outputs()]
    assert names == ["predicted_label", "probabilities"]


def test_a_changed_schema_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    CASES["energy"][0].save(path)
    plain = json.loads(path.read_text())
    plain["schema"]["features"]["people"]["high"] = 60.0
    path.write_text(json.dumps(plain))
    with pytest.raises(DataError, match="it was changed"):
        LinearModel.load(path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("m.json", "{", "not a model of fedbudget"),
        ("m.json", "[]", "its format is not"),
        ("m.json", '{"format": "fedbudget model 1"}', "it lacks 'loss'"),
        ("m.txt", "", "not a run's folder"),
        ("m.joblib", "", "runs code when it is loaded"),
    ],
)
def test_files_that_are_no_model(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((DataError, InvalidInputError), match=says) as caught:
        LinearModel.load(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        LinearModel.load(tmp_path / "none.json")


def test_models_without_a_schema_take_encoded_rows_only() -> None:
    model = LinearModel(theta=np.ones(3), loss="logistic")
    with pytest.raises(DataError, match="has no schema"):
        model.predict({"a": [1]})
    with pytest.raises(DataError, match=r"shape \(2, 2\), encoded rows have 3"):
        model.predict(np.ones((2, 2)))


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "smooth_hinge", "threshold": 0.2},
        {"loss": "huber", "threshold": 0.2},
        {"loss": "logistic", "threshold": 1.0},
        {"loss": "logistic", "classes": ("a", "b")},
        {"loss": "logistic", "feature_names": ("a", "b")},
    ],
)
def test_contradictions_are_refused(options: dict[str, Any]) -> None:
    schema = iot.ENERGY if options["loss"] == "huber" else iot.ALARMS
    with pytest.raises(InvalidInputError):
        LinearModel(theta=np.ones(len(schema.feature_names)), schema=schema, **options)


def test_a_run_in_memory_or_released_carries_its_schema(tmp_path: Path) -> None:
    table = iot.energy(1200, 12)
    data = fb.from_table(table, label="kwh", device="meter", schema=iot.ENERGY)
    budget = fb.Budget(epsilon=20, delta=1e-4, cost=1000)
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(data.problem(), budget, prices)
    assert plan.schema == iot.ENERGY
    assert (
        fb.Plan.from_dict(json.loads(json.dumps(plan.to_dict()))).schema == plan.schema
    )
    devices = fb.ReleaseDevices(data, budget=budget, prices=prices)
    fb.train(plan, devices, record=tmp_path / "run")
    model = fb.LinearModel.from_run(tmp_path / "run")
    assert model.schema == iot.ENERGY
    predicted = model.predict(pd.DataFrame(table))
    # In kWh: around the mean use, not in [-1, 1]. A wide net: the noise is real.
    assert abs(predicted.mean() - table["kwh"].mean()) < 1
