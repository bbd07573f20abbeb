"""Models for other programs: they must predict what the devices' model predicts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import DataError, InvalidInputError, RecordError
from fedbudget.interop.export import LinearModel
from tests.cli.examples import BUDGET, sensors
from tests.cli.running import assert_one_line, run

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(300, 4)) / 4).astype(np.float32)
MODELS = {
    "logistic": LinearModel(theta=RNG.normal(size=4), loss="logistic"),
    "hinge": LinearModel(theta=RNG.normal(size=4), loss="hinge", classes=("no", "yes")),
    "smooth_hinge": LinearModel(
        theta=RNG.normal(size=4), loss="smooth_hinge", classes=("no", "yes")
    ),
    "huber": LinearModel(theta=RNG.normal(size=4), loss="huber"),
    "softmax": LinearModel(
        theta=RNG.normal(size=12),
        loss="softmax",
        feature_names=("a", "b", "c", "intercept"),
        classes=("red", "green", "blue"),
        privacy="(1, 0.0001)-differential privacy",
    ),
    "softmax of two": LinearModel(
        theta=RNG.normal(size=8), loss="softmax", classes=("no", "yes")
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_scikit_learn_predicts_the_same(model: LinearModel) -> None:
    fitted = model.to_sklearn()
    if model.classes is None:
        assert fitted.predict(X) == pytest.approx(model.predict(X))
    else:
        assert (fitted.predict(X) == model.predict(X)).all()
    if model.loss in ("logistic", "softmax"):
        probabilities = fitted.predict_proba(X)
        scores = model.model.scores(model.theta, X)
        labels = np.zeros(len(X), dtype=np.int64)
        assert -np.log(probabilities[:, 0]) == pytest.approx(
            model.model.losses(scores, labels), rel=1e-4
        )


@pytest.mark.parametrize("name", ["logistic", "hinge", "huber", "softmax"])
def test_a_round_trip_through_scikit_learn(name: str) -> None:
    model = MODELS[name]
    back = LinearModel.from_sklearn(model.to_sklearn())
    assert (back.theta == model.theta).all()
    assert (back.loss, back.classes) == (model.loss, model.classes)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_onnx_runtime_predicts_the_same(model: LinearModel) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from fedbudget.interop.onnx_files import from_onnx, to_onnx

    data = to_onnx(model)
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {"rows": X}), strict=True))
    scores = model.model.scores(model.theta, X)
    if model.loss == "huber":
        assert outputs["value"][:, 0] == pytest.approx(scores, abs=1e-5)
    else:
        assert model.classes is not None
        assert (outputs["label"] == model.predict(X)).all()
    if model.loss in ("hinge", "smooth_hinge"):
        assert outputs["score"][:, 0] == pytest.approx(scores, abs=1e-5)
    if "probabilities" in outputs:
        expected = model.to_sklearn().predict_proba(X)
        assert outputs["probabilities"] == pytest.approx(expected, abs=1e-5)
    back = from_onnx(data)
    assert back.theta == pytest.approx(model.theta, rel=1e-6)
    assert back.to_dict() | {"weights": 0} == model.to_dict() | {"weights": 0}


def test_onnx_files_of_others_are_refused() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    from fedbudget.interop.onnx_files import from_onnx

    with pytest.raises(DataError, match="not an ONNX file"):
        from_onnx(b"nonsense")
    empty = onnx.helper.make_model(onnx.helper.make_graph([], "x", [], []))
    with pytest.raises(DataError, match="not by fedbudget"):
        from_onnx(empty.SerializeToString())


def test_only_linear_models_without_intercept_are_imported() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    y = X[:, 0] > 0
    with pytest.raises(InvalidInputError, match="fit_intercept=False"):
        LinearModel.from_sklearn(LogisticRegression().fit(X, y))
    with pytest.raises(InvalidInputError, match="not a fitted linear model"):
        LinearModel.from_sklearn(DecisionTreeClassifier().fit(X, y))
    fitted = LogisticRegression(fit_intercept=False).fit(X, y)
    imported = LinearModel.from_sklearn(fitted)
    assert (imported.predict(X) == fitted.predict(X).astype(str)).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"theta": [], "loss": "logistic"}, "0 entries"),
        ({"theta": [np.nan], "loss": "logistic"}, "not finite"),
        ({"theta": [1.0, 2.0], "loss": "softmax"}, "softmax needs classes"),
        ({"theta": [1.0, 2.0], "loss": "magic"}, "'magic'"),
        (
            {"theta": [1.0, 2.0], "loss": "logistic", "feature_names": ("a",)},
            "name the columns",
        ),
    ],
)
def test_models_that_contradict_themselves(options: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        LinearModel(**options)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    out = tmp_path / "run"
    assert (
        run(capsys, "train", *sensors(tmp_path), *BUDGET, "--out", str(out)).code == 0
    )
    return out


def test_a_run_is_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fb.LinearModel.from_run(folder)
    assert model.classes == ("no", "yes")
    assert model.feature_names == ("volts", "site=cellar", "site=roof", "intercept")
    schema = json.loads((folder.parent / "schema.json").read_text())
    columns: dict[str, list[Any]] = {"volts": [4.9, 0.1], "site": ["roof", "roof"]}
    rows = fb.Schema.from_dict(schema).encode(columns)
    assert model.predict(rows).tolist() == ["yes", "no"]
    assert model.predict(columns).tolist() == ["yes", "no"]
    out = folder / "model.json"
    result = run(capsys, "export", str(folder), str(out))
    assert result.code == 0
    assert (
        "privacy: simulation: devices would spend (4, 0.0001)-differential"
        in result.words
    )
    assert "simulation: devices would spend (" in result.words
    assert json.loads(out.read_text()) == model.to_dict()
    import joblib

    result = run(capsys, "export", str(folder), str(folder / "m.joblib"), "--json")
    assert json.loads(result.out)["classes"] == ["no", "yes"]
    fitted = joblib.load(folder / "m.joblib")
    assert fitted.privacy_statement_.startswith("simulation: devices would spend")
    assert fitted.predict(columns).tolist() == ["yes", "no"]
    pytest.importorskip("onnx", reason="onnx is not installed")
    assert run(capsys, "export", str(folder), str(folder / "m.onnx")).code == 0


def test_exports_that_fail_say_why(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "export", str(folder), "m.pdf")
    assert_one_line(result, code=2, says=("'.pdf'", ".onnx"))
    result = run(capsys, "export", str(folder), "/proc/m.json")
    assert_one_line(result, code=1, says=("cannot write /proc/m.json",))
    (folder / "model.npz").unlink()
    result = run(capsys, "export", str(folder), "m.json")
    assert_one_line(result, code=1, says=("not finished",))
    with pytest.raises(RecordError, match="not a run folder"):
        LinearModel.from_run(folder / "none")
