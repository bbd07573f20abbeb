"""The model with its schema: raw columns in, label names or real units out.

A model knows the public schema that its rows were encoded by, so whoever uses it needs
no other file. Formats that other programs read:

    .json     all of it: schema, digest, weights and the privacy statement
    .joblib   a scikit-learn pipeline, the encoder and a linear model
    .onnx     a graph from raw columns to predictions: `interop.onnx_files`

A model without a schema is for encoded rows: in the unit ball, with a constant column
if there is an intercept. So no model has a separate intercept.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedbudget.checks import Array, number
from fedbudget.data.features import Numeric
from fedbudget.data.schema import Schema, read_schema
from fedbudget.errors import DataError, InvalidInputError, RecordError, needed
from fedbudget.files import whole_file
from fedbudget.losses import MARGIN_LOSSES, Floats, Loss, Rows, loss_named
from fedbudget.text import listed, shown

if TYPE_CHECKING:
    from fedbudget.record import RecordedRun

FORMAT = "fedbudget model 1"  # of JSON files
_KEYS = ("loss", "feature_names", "classes", "threshold", "weights", "privacy")
_NO_SCHEMA = (
    "the model has no schema, so it takes encoded rows only: give a matrix of "
    "{} columns, or export the model of a run that knows its schema"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearModel:
    """A linear model, with its schema or the names of its columns and classes.

    >>> model = LinearModel(theta=np.array([2.0, -1.0]), loss="logistic")
    >>> model.predict(np.array([[0.5, 0.1], [0.1, 0.5]])).tolist()
    ['1', '0']
    """

    theta: Array  # shape (params,)
    loss: str
    feature_names: tuple[str, ...] = ()  # of an encoded row; by default 0, 1, ...
    classes: tuple[str, ...] | None = None  # by default 0, 1, ...; none for huber
    privacy: str = ""  # the privacy statement, in words
    schema: Schema | None = None  # how raw columns are encoded; None: not known
    # With two classes: the second is predicted where its probability is above this.
    threshold: float = 0.5
    # The column of the devices in training. A table that has it may hold readings of
    # several devices: no window mixes them.
    device: str = ""

    def __post_init__(self) -> None:
        theta = np.array(self.theta, dtype=np.float64).reshape(-1)
        theta.setflags(write=False)
        object.__setattr__(self, "theta", theta)
        if not len(theta) or not np.isfinite(theta).all():
            raise InvalidInputError(
                f"theta has {len(theta)} entries, or entries that are not finite: give "
                "the model of a run"
            )
        if self.schema is not None:
            self._take_names(self.schema)
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
        number("threshold", self.threshold, above=0, below=1)
        binary = self.classes is not None and len(self.classes) == 2
        if self.threshold != 0.5 and (not binary or self.loss in MARGIN_LOSSES):
            raise InvalidInputError(
                f"threshold is {self.threshold:g}, and is for two classes with "
                f"probabilities, not for loss {self.loss!r}: leave it out"
            )

    def _take_names(self, schema: Schema) -> None:
        """Take columns and classes from the schema; refuse others."""
        for name, value in (
            ("feature_names", schema.feature_names),
            ("classes", schema.classes),
        ):
            if getattr(self, name) not in ((), None, value):
                raise InvalidInputError(
                    f"{name} are {shown(getattr(self, name))}, not those of the "
                    "schema: leave them out"
                )
            object.__setattr__(self, name, value)

    @property
    def model(self) -> Loss:
        """The loss, which says how scores become predictions."""
        count = len(self.classes) if self.classes is not None else None
        return loss_named(self.loss, num_classes=count)

    @property
    def dim(self) -> int:
        """Columns of an encoded row."""
        return len(self.feature_names)

    @property
    def weights(self) -> Array:
        """One row of coefficients per score; shape (outputs, dim)."""
        return self.theta.reshape(self.model.num_outputs, -1)

    @property
    def label(self) -> str:
        """The name of the label's column; `label` if it is not known."""
        return "label" if self.schema is None else self.schema.label

    @property
    def unit(self) -> str:
        """The unit of predicted numbers; empty if there is none."""
        return "" if self.schema is None else self.schema.unit

    @property
    def label_scale(self) -> tuple[float, float]:
        """Middle and half width of the label's bounds, for predicted numbers."""
        target = None if self.schema is None else self.schema.target
        if not isinstance(target, Numeric):
            return 0.0, 1.0
        middle, top = target.decode(np.array([0.0, 1.0]))
        return float(middle), float(top - middle)

    @property
    def cut(self) -> float:
        """The log-odds above which the second of two classes is predicted."""
        return log(self.threshold / (1 - self.threshold))

    def encode(self, table: Any) -> Rows:
        """Return encoded rows of raw columns; a matrix is of encoded rows already.

        Args:
            table: A dict of columns, a pandas, polars or pyarrow frame, or the path of
                a CSV or Parquet file. Or a matrix (NumPy or CSR), whose columns are
                those of an encoded row.

        With windows, rows are in the order of time. If the table has the column
        `device`, each window is of one device; without it, the rows are one device's.
        Windows are in the order of their last rows.

        Raises:
            DataError: A column or a value does not match the schema.
        """
        if isinstance(table, np.ndarray) or getattr(table, "format", None) == "csr":
            if table.ndim != 2 or table.shape[1] != self.dim:
                raise DataError(
                    f"the matrix has shape {table.shape}, encoded rows have "
                    f"{self.dim} columns: give a frame or a dict of raw columns"
                )
            return table  # type: ignore[no-any-return]
        if self.schema is None:
            raise DataError(_NO_SCHEMA.format(self.dim))
        from fedbudget.data.tables import read_features

        return self.schema.encode(read_features(table, self.schema, self.device))

    def predict(self, table: Any) -> NDArray[Any]:
        """Return the class of each row, or its value in the label's unit; shape (n,).

        `encode` says which tables are read.
        """
        return self._labels(self.model.scores(self.theta, self.encode(table)))

    def probabilities(self, table: Any) -> Array:
        """Return the probability of each class; shape (n, classes).

        Raises:
            InvalidInputError: The loss gives no probabilities.
        """
        return self._probabilities(self.model.scores(self.theta, self.encode(table)))

    def columns(self, table: Any) -> dict[str, NDArray[Any]]:
        """Return the predictions as named columns, to be stored beside the rows.

        `predicted_LABEL`, and `probability_CLASS` of each class or `score`.
        """
        scores = self.model.scores(self.theta, self.encode(table))
        columns = {f"predicted_{self.label}": self._labels(scores)}
        if self.classes is None:
            return columns
        if self.loss in MARGIN_LOSSES:
            return columns | {"score": scores}
        names = [f"probability_{name}" for name in self.classes]
        return columns | dict(zip(names, self._probabilities(scores).T, strict=True))

    def _labels(self, scores: Floats) -> NDArray[Any]:
        if self.classes is None:
            middle, half = self.label_scale
            return np.asarray(middle + half * scores)
        if len(self.classes) == 2:
            margin = scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores
            index = (margin > self.cut).astype(np.int64)
        else:
            index = self.model.predictions(scores)
        return np.array(self.classes)[index]

    def _probabilities(self, scores: Floats) -> Array:
        if self.classes is None or self.loss in MARGIN_LOSSES:
            raise InvalidInputError(
                f"loss {self.loss!r} gives no probabilities: use logistic or softmax"
            )
        if self.loss == "logistic":
            scores = np.column_stack([np.zeros(len(scores)), scores])
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model: the folder of a run, or a .json or .onnx file.

        Raises:
            RecordError: The folder holds no finished run, or the file does not exist.
            DataError: The file is no model of fedbudget.
        """
        source = Path(path)
        if source.is_dir():
            return cls.from_run(source)
        if source.suffix not in (".json", ".onnx"):
            trust = "; a .joblib file runs code when it is loaded: use joblib yourself"
            raise InvalidInputError(
                f"model {str(source)!r} is not a run's folder, a .json or an .onnx "
                f"file: export one{trust if source.suffix == '.joblib' else ''}"
            )
        try:
            data = source.read_bytes()
        except OSError as error:
            raise RecordError(
                f"model {str(source)!r} cannot be read: {error.strerror}"
            ) from None
        if source.suffix == ".json":
            return cls._from_json(data, source)
        from fedbudget.interop.onnx_files import from_onnx

        return from_onnx(data)  # type: ignore[return-value]

    @classmethod
    def _from_json(cls, data: bytes, source: Path) -> Self:
        try:
            return cls.from_dict(json.loads(data))
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"file {str(source)!r} is not a model of fedbudget ({reason}): give "
                "one that fedbudget export has written"
            ) from None

    @classmethod
    def from_run(cls, path: str | os.PathLike[str]) -> Self:
        """Return the model of a finished run folder.

        Raises:
            RecordError: The folder holds no finished run.
        """
        from fedbudget.record import read_run

        run = read_run(path)
        if run.theta is None:
            raise RecordError(f"{path} holds a run that is not finished: finish it")
        schema = _schema_of(run)
        classes = run.about.get("classes")
        if classes is None and run.plan.loss == "softmax":
            classes = range(run.plan.num_classes)
        if schema is not None:
            classes = schema.classes
        return cls(
            theta=run.theta,
            loss=run.plan.loss,
            schema=schema,
            threshold=run.plan.threshold,
            privacy=str(run.privacy),
            device=str(run.about.get("device") or ""),
            feature_names=() if schema else tuple(run.about.get("feature_names") or ()),
            classes=None if classes is None else tuple(map(str, classes)),
        )

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn model with the same predictions.

        With a schema, a pipeline from raw columns: `SchemaEncoder` and a linear model.
        That is LogisticRegression for logistic and softmax, LinearSVC for hinge and
        smooth_hinge, and LinearRegression for huber. The model's `privacy_statement_`
        says whether it is a release or of a simulation.
        """
        fitted = self._fitted()
        fitted.privacy_statement_ = self.privacy
        return fitted

    def _fitted(self) -> Any:
        fitted = self._linear()
        if self.threshold != 0.5:
            from sklearn.frozen import FrozenEstimator
            from sklearn.model_selection import FixedThresholdClassifier

            assert self.classes is not None  # checked with the threshold
            fitted = FixedThresholdClassifier(
                FrozenEstimator(fitted),
                threshold=self.threshold,
                pos_label=self.classes[1],
                response_method="predict_proba",
            ).fit(np.zeros((2, self.dim)), list(self.classes))
        if self.schema is None:
            return fitted
        from sklearn.pipeline import Pipeline

        from fedbudget.estimators.schema_encoder import SchemaEncoder

        encoder = SchemaEncoder(self.schema, self.device)
        return Pipeline([("encode", encoder), ("model", fitted)])

    def _linear(self) -> Any:
        """Return the linear model for encoded rows."""
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
        fitted.coef_, fitted.intercept_ = weights.copy(), np.zeros(len(weights))
        if self.classes is None:
            fitted.intercept_, half = self.label_scale
            fitted.coef_ = half * weights[0]
        else:
            fitted.classes_ = np.array(self.classes)
            fitted.n_iter_ = np.ones(1, dtype=np.int32)
        fitted.n_features_in_ = self.dim
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
            "format": FORMAT,
            "loss": self.loss,
            "feature_names": list(self.feature_names),
            "classes": None if self.classes is None else list(self.classes),
            "threshold": self.threshold,
            "weights": self.weights.tolist(),
            "schema": None if self.schema is None else self.schema.to_dict(),
            "schema_digest": None if self.schema is None else self.schema.digest,
            "privacy": self.privacy,
            "device": self.device,
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            InvalidInputError: It is no model, or its schema was changed.
        """
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise InvalidInputError(f"its format is not {FORMAT!r}")
        missing = [key for key in _KEYS if key not in plain]
        if missing:
            raise InvalidInputError(f"it lacks {listed(missing)}")
        try:
            weights = np.array(plain["weights"], dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidInputError("its weights are not numbers") from None
        names, classes = plain["feature_names"], plain["classes"]
        if not isinstance(names, list) or not isinstance(classes, list | None):
            raise InvalidInputError("feature_names and classes must be lists")
        return cls(
            theta=weights.reshape(-1),
            loss=plain["loss"],
            feature_names=tuple(map(str, names)),
            classes=None if classes is None else tuple(map(str, classes)),
            threshold=plain["threshold"],
            schema=read_schema(plain.get("schema"), plain.get("schema_digest")),
            privacy=str(plain["privacy"]),
            device=str(plain.get("device", "")),  # older files have none
        )

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


def _schema_of(run: "RecordedRun") -> Schema | None:
    """Return the schema of a run; older folders hold it beside the data's options."""
    if run.plan.schema is not None:
        return run.plan.schema
    plain = run.about.get("schema")
    return Schema.from_dict(plain) if isinstance(plain, dict) else None


def _save_onnx(model: LinearModel, file: IO[bytes]) -> None:
    from fedbudget.interop.onnx_files import to_onnx

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


PERSONAL_FOLDER = "personal"  # in a run's folder
_PERSONAL = (
    "personal model of device {}, fitted to its rows without noise: NOT private; it "
    "belongs on that device alone"
)


def keep_personal(
    path: str | os.PathLike[str], thetas: Array, device_names: Sequence[str]
) -> Path:
    """Write one .json model per device into the folder of a finished run.

    Args:
        path: The run's folder, whose model was adapted.
        thetas: `Run.personal`: one model per device, shape (devices, params).
        device_names: Their names. A name that is no file's name becomes a number.

    Returns:
        The folder of the files, NAME.json each.
    """
    released = LinearModel.from_run(path)
    folder = Path(path) / PERSONAL_FOLDER
    folder.mkdir(exist_ok=True)
    for number_of, (name, theta) in enumerate(zip(device_names, thetas, strict=True)):
        model = replace(released, theta=theta, privacy=_PERSONAL.format(shown(name)))
        is_file_name = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name)
        model.save(folder / f"{name if is_file_name else number_of}.json")
    return folder
