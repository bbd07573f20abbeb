"""The released model, in formats that other programs read.

It is for rows encoded by `Schema.encode`: in the unit ball, with a constant column. So
no exported model has a separate intercept.

An ONNX file holds the model as a graph, rows in, labels and probabilities out:

    input    rows            float32 (n, dim), encoded as the model's schema says
    output   label           int64 (n,): an index into the classes in the metadata
             probabilities   float32 (n, C), for logistic and softmax
             score           float32 (n, 1), for hinge and smooth_hinge
             value           float32 (n, 1), for huber: its only output

The file's metadata holds the names of the columns and the classes, and the privacy
statement.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array
from fedbudget.errors import DataError, InvalidInputError, RecordError, needed
from fedbudget.files import whole_file
from fedbudget.losses import MARGIN_LOSSES, Loss, Rows, loss_named
from fedbudget.record import read_run

_OPSET, _IR = 17, 8  # of 2022: every runtime of today reads them
_PRODUCER = "fedbudget"


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearModel:
    """A linear model, with the names of its columns and classes.

    >>> model = LinearModel(theta=np.array([2.0, -1.0]), loss="logistic")
    >>> model.predict(np.array([[0.5, 0.1], [0.1, 0.5]])).tolist()
    ['1', '0']
    """

    theta: Array  # shape (params,)
    loss: str
    feature_names: tuple[str, ...] = ()  # of an encoded row; by default 0, 1, ...
    classes: tuple[str, ...] | None = None  # by default 0, 1, ...; none for huber
    privacy: str = ""  # the privacy statement, in words

    def __post_init__(self) -> None:
        theta = np.array(self.theta, dtype=np.float64).reshape(-1)
        theta.setflags(write=False)
        object.__setattr__(self, "theta", theta)
        if not len(theta) or not np.isfinite(theta).all():
            raise InvalidInputError(
                f"theta has {len(theta)} entries, or entries that are not finite: give "
                "the model of a run"
            )
        if self.classes is None and self.loss != "huber":
            if self.loss == "softmax":
                raise InvalidInputError("softmax needs classes: list them")
            object.__setattr__(self, "classes", ("0", "1"))
        outputs = self.model.num_outputs
        names = self.feature_names or tuple(map(str, range(len(theta) // outputs)))
        object.__setattr__(self, "feature_names", names)
        if len(names) * outputs != len(theta):
            raise InvalidInputError(
                f"theta has {len(theta)} entries, not {outputs} for each of "
                f"{len(names)} columns: name the columns of an encoded row"
            )

    @property
    def model(self) -> Loss:
        """The loss, which says how scores become predictions."""
        count = len(self.classes) if self.classes is not None else None
        return loss_named(self.loss, num_classes=count)

    @property
    def dim(self) -> int:
        """Columns of a row."""
        return len(self.feature_names)

    @property
    def weights(self) -> Array:
        """One row of coefficients per score; shape (outputs, dim)."""
        return self.theta.reshape(self.model.num_outputs, -1)

    def predict(self, x: Rows) -> NDArray[Any]:
        """Return the class, or the value, of each encoded row; shape (n,)."""
        predictions = self.model.predictions(self.model.scores(self.theta, x))
        if self.classes is None:
            return predictions
        return np.array(self.classes)[predictions]

    @classmethod
    def from_run(cls, path: str | os.PathLike[str]) -> Self:
        """Return the model of a finished run folder.

        Raises:
            RecordError: The folder holds no finished run.
        """
        run = read_run(path)
        if run.theta is None:
            raise RecordError(f"{path} holds a run that is not finished: finish it")
        classes = run.about.get("classes")
        if classes is None and run.plan.loss == "softmax":
            classes = range(run.plan.num_classes)
        return cls(
            theta=run.theta,
            loss=run.plan.loss,
            feature_names=tuple(run.about.get("feature_names") or ()),
            classes=None if classes is None else tuple(map(str, classes)),
            privacy=str(run.privacy),
        )

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn model with the same predictions.

        LogisticRegression for logistic and softmax, LinearSVC for hinge and
        smooth_hinge, and LinearRegression for huber.
        """
        linear_model, svm = _sklearn()
        kinds = dict.fromkeys(MARGIN_LOSSES, svm.LinearSVC)
        kinds["huber"] = linear_model.LinearRegression
        fitted = kinds.get(self.loss, linear_model.LogisticRegression)(
            fit_intercept=False
        )
        weights = self.weights
        if (
            self.loss == "softmax" and len(weights) == 2
        ):  # scikit-learn has one score for 2 classes
            weights = weights[1:] - weights[:1]
        fitted.coef_ = weights[0].copy() if self.loss == "huber" else weights.copy()
        fitted.intercept_ = 0.0 if self.loss == "huber" else np.zeros(len(weights))
        fitted.n_features_in_ = self.dim
        if self.classes is not None:
            fitted.classes_ = np.array(self.classes)
            fitted.n_iter_ = np.ones(1, dtype=np.int32)
        return fitted

    @classmethod
    def from_sklearn(cls, fitted: Any) -> Self:
        """Return the model of a scikit-learn estimator fitted on encoded rows.

        Raises:
            InvalidInputError: It is not linear, or has an intercept.
        """
        _sklearn()
        if not hasattr(fitted, "coef_"):
            raise InvalidInputError(
                f"a {type(fitted).__name__} without coef_ is not a fitted linear "
                "model: give a LogisticRegression, a LinearSVC or a LinearRegression"
            )
        if np.any(np.asarray(fitted.intercept_) != 0):
            raise InvalidInputError(
                "the model has an intercept, and encoded rows already have a constant "
                "column: fit it with fit_intercept=False"
            )
        classes = getattr(fitted, "classes_", None)
        weights = np.atleast_2d(np.asarray(fitted.coef_, dtype=np.float64))
        if classes is None:
            loss = "huber"
        elif len(weights) > 1:
            loss = "softmax"
        else:
            loss = "logistic" if hasattr(fitted, "predict_proba") else "hinge"
        return cls(
            theta=weights.reshape(-1),
            loss=loss,
            feature_names=tuple(map(str, getattr(fitted, "feature_names_in_", ()))),
            classes=None if classes is None else tuple(map(str, classes)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the model as values for JSON."""
        return {
            "loss": self.loss,
            "feature_names": list(self.feature_names),
            "classes": None if self.classes is None else list(self.classes),
            "weights": self.weights.tolist(),
            "privacy": self.privacy,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; the suffix is the format: .onnx, .joblib (sklearn) or .json.

        Raises:
            InvalidInputError: The suffix is not one of these.
            RecordError: The file cannot be written.
        """
        target = Path(path)
        writers = {".onnx": _save_onnx, ".joblib": _save_joblib, ".json": _save_json}
        if target.suffix not in writers:
            raise InvalidInputError(
                f"file {str(target)!r} has suffix {target.suffix!r}: use "
                f"{' or '.join(writers)}"
            )
        with whole_file(target, "wb") as file:
            writers[target.suffix](self, file)


def to_onnx(model: LinearModel) -> bytes:
    """Return the model as the bytes of an ONNX file.

    Raises:
        MissingExtraError: onnx is not installed.
    """
    onnx = _onnx()
    helper = onnx.helper
    weights = np.ascontiguousarray(model.weights.T, dtype=np.float32)
    nodes, outputs, constants = _graph(model, onnx)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["rows", "weights"], ["scores"]), *nodes],
        "linear",
        [_table(onnx, "rows", model.dim)],
        outputs,
        [
            onnx.numpy_helper.from_array(value, name)
            for name, value in {"weights": weights, **constants}.items()
        ],
    )
    onnx_model = helper.make_model(
        graph,
        producer_name=_PRODUCER,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
    )
    metadata = model.to_dict()
    del metadata["weights"]
    properties = {name: json.dumps(value) for name, value in metadata.items()}
    helper.set_model_props(onnx_model, properties)
    onnx.checker.check_model(onnx_model, full_check=True)
    return bytes(onnx_model.SerializeToString())


def from_onnx(data: bytes) -> LinearModel:
    """Read a model that `to_onnx` wrote; weights have float32 precision.

    Raises:
        DataError: The bytes are not an ONNX file, or not one of fedbudget.
    """
    onnx = _onnx()
    try:
        onnx_model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has its own exceptions
        raise DataError(
            f"this is not an ONNX file ({error}): give one that fedbudget has written"
        ) from None
    props = {item.key: json.loads(item.value) for item in onnx_model.metadata_props}
    arrays = {item.name: item for item in onnx_model.graph.initializer}
    producer = onnx_model.producer_name
    if producer != _PRODUCER or "weights" not in arrays or "loss" not in props:
        raise DataError(
            f"this ONNX file was written by {producer!r}, not by fedbudget: its graph "
            "may be different; give one that fedbudget has written"
        )
    weights = onnx.numpy_helper.to_array(arrays["weights"]).T
    classes = props["classes"]
    return LinearModel(
        theta=np.asarray(weights, dtype=np.float64).reshape(-1),
        loss=props["loss"],
        feature_names=tuple(props["feature_names"]),
        classes=None if classes is None else tuple(classes),
        privacy=props["privacy"],
    )


def _save_onnx(model: LinearModel, file: IO[bytes]) -> None:
    file.write(to_onnx(model))


def _save_joblib(model: LinearModel, file: IO[bytes]) -> None:
    fitted = model.to_sklearn()
    import joblib

    joblib.dump(fitted, file)


def _save_json(model: LinearModel, file: IO[bytes]) -> None:
    file.write(json.dumps(model.to_dict(), indent=1).encode() + b"\n")


def _sklearn() -> tuple[Any, Any]:
    with needed("a scikit-learn model", "scikit-learn"):
        from sklearn import linear_model, svm
    return linear_model, svm


def _graph(
    model: LinearModel, onnx: Any
) -> tuple[list[Any], list[Any], dict[str, NDArray[Any]]]:
    """Return the nodes after the scores, the outputs, and the constants."""
    node = onnx.helper.make_node
    label = onnx.helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"])
    if model.loss == "huber":
        nodes = [node("Identity", ["scores"], ["value"])]
        return nodes, [_table(onnx, "value", 1)], {}
    if model.loss == "softmax":
        nodes = [
            node("Softmax", ["scores"], ["probabilities"], axis=1),
            node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ]
        count = model.model.num_outputs
        return nodes, [label, _table(onnx, "probabilities", count)], {}
    decide = [
        node("Greater", ["scores", "zero"], ["positive"]),
        node("Cast", ["positive"], ["column"], to=onnx.TensorProto.INT64),
        node("Squeeze", ["column", "axis"], ["label"]),
    ]
    constants: dict[str, NDArray[Any]] = {
        "zero": np.zeros(1, np.float32),
        "axis": np.ones(1, np.int64),
    }
    if model.loss in MARGIN_LOSSES:
        nodes = [*decide, node("Identity", ["scores"], ["score"])]
        return nodes, [label, _table(onnx, "score", 1)], constants
    nodes = [
        *decide,
        node("Sigmoid", ["scores"], ["second"]),
        node("Sub", ["one", "second"], ["first"]),
        node("Concat", ["first", "second"], ["probabilities"], axis=1),
    ]
    constants["one"] = np.ones(1, np.float32)
    return nodes, [label, _table(onnx, "probabilities", 2)], constants


def _table(onnx: Any, name: str, columns: int) -> Any:
    kind = onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(name, kind, ["n", columns])


def _onnx() -> Any:
    with needed("an ONNX file", "onnx", "interop"):
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    return onnx
