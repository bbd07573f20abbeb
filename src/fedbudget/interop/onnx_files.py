"""The released model as an ONNX graph: rows in, labels and probabilities out.

    input    rows            float32 (n, dim), encoded as the model's schema says
    output   label           int64 (n,): an index into the classes in the metadata
             probabilities   float32 (n, C), for logistic and softmax
             score           float32 (n, 1), for hinge
             value           float32 (n, 1), for huber, instead of all of these

What the columns and the classes are called, and what was promised of the model, is in
the file's metadata.
"""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.errors import DataError, needed
from fedbudget.interop.export import LinearModel

_OPSET, _IR = 17, 8  # of 2022: every runtime of today reads them
_PRODUCER = "fedbudget"


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
    made = helper.make_model(
        graph,
        producer_name=_PRODUCER,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
    )
    plain = model.to_dict()
    del plain["weights"]
    helper.set_model_props(made, {k: json.dumps(v) for k, v in plain.items()})
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def from_onnx(data: bytes) -> LinearModel:
    """Read a model that `to_onnx` wrote; weights come back as float32 has them.

    Raises:
        DataError: The bytes are another graph, or none.
    """
    onnx = _onnx()
    try:
        made = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has errors of its own
        raise DataError(
            f"this is not an ONNX file ({error}): give one that fedbudget has written"
        ) from None
    props = {item.key: json.loads(item.value) for item in made.metadata_props}
    found = {item.name: item for item in made.graph.initializer}
    if made.producer_name != _PRODUCER or "weights" not in found or "loss" not in props:
        raise DataError(
            f"this ONNX file is by {made.producer_name!r}, not by fedbudget: its graph "
            "may be anything"
        )
    weights = onnx.numpy_helper.to_array(found["weights"]).T
    classes = props["classes"]
    return LinearModel(
        theta=np.asarray(weights, dtype=np.float64).reshape(-1),
        loss=props["loss"],
        feature_names=tuple(props["feature_names"]),
        classes=None if classes is None else tuple(classes),
        privacy=props["privacy"],
    )


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
    if model.loss == "hinge":
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
