"""The model as an ONNX file: raw columns in, label names or real units out.

A model with a schema has one input per column of the schema, named like it:

    number     float64 (n, 1); NaN is an empty cell
    category   string (n, 1), the text as the schema lists it; "" is an empty cell
    time       float64 (n, 1): seconds since 1970-01-01 00:00, by the wall clock

A model of windows has the statistics of a window instead of its readings: one input
per column that `schema.windows.samples(readings, schema.features)` returns.

The graph encodes them as `Schema.encode` does. It cannot refuse a row: a category that
is not listed gives zeros, and an empty number without a `missing` value gives NaN.
A model without a schema has one input `rows`, float32 (n, dim), of encoded rows.

    output   label           string (n,): the class
             probabilities   float64 (n, C), for logistic and softmax
             score           float64 (n, 1), for hinge and smooth_hinge
             value           float64 (n, 1), for huber: its only output, in the
                             label's unit

An output that has the name of a column is called `predicted_` and its name. The file's
metadata holds what `LinearModel.to_dict` returns, without the weights.
"""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbudget.data.features import Categorical, Feature, Numeric
from fedbudget.data.fourier import Fourier
from fedbudget.data.schema import Schema
from fedbudget.data.times import CYCLES, Time
from fedbudget.data.unit_ball import LARGEST_NORM
from fedbudget.errors import DataError, needed
from fedbudget.losses import MARGIN_LOSSES

if TYPE_CHECKING:
    from fedbudget.interop.export import LinearModel

_OPSET, _ML_OPSET, _IR = 17, 2, 8  # of 2022: every runtime of today reads them
_PRODUCER = "fedbudget"


class _Graph:
    """A graph that is being built; names of its own start with `fedbudget/`."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"fedbudget/{len(self.nodes)}"
        node = self.onnx.helper.make_node(
            kind, list(inputs), [name], domain=domain, **attributes
        )
        self.nodes.append(node)
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant under its name."""
        self.constants[f"fedbudget/{name}"] = value
        return f"fedbudget/{name}"

    def number(self, value: float) -> str:
        """Add a number that is broadcast."""
        return self.constant(f"number {value!r}", np.array([[value]]))

    def input(self, name: str, kind: str, columns: int) -> str:
        """Add an input table."""
        self.inputs.append(self._value(name, kind, ["n", columns]))
        return name

    def output(self, name: str, kind: str, source: str, columns: int | None) -> None:
        """Name a tensor as an output."""
        if name in (value.name for value in self.inputs):
            name = f"predicted_{name}"
        self.nodes.append(self.onnx.helper.make_node("Identity", [source], [name]))
        shape = ["n"] if columns is None else ["n", columns]
        self.outputs.append(self._value(name, kind, shape))

    def cast(self, source: str, kind: str) -> str:
        """Convert a tensor."""
        return self.add("Cast", source, to=getattr(self.onnx.TensorProto, kind))

    def _value(self, name: str, kind: str, shape: list[Any]) -> Any:
        number = getattr(self.onnx.TensorProto, kind)
        return self.onnx.helper.make_tensor_value_info(name, number, shape)


def to_onnx(model: "LinearModel") -> bytes:
    """Return the model as the bytes of an ONNX file.

    Raises:
        MissingExtraError: onnx is not installed.
    """
    onnx = _onnx()
    helper, graph = onnx.helper, _Graph(onnx)
    if model.schema is None:
        rows = graph.cast(graph.input("rows", "FLOAT", model.dim), "DOUBLE")
    else:
        rows = _encoded(graph, model.schema)
    weights = graph.constant("weights", np.ascontiguousarray(model.weights.T))
    _decide(graph, model, graph.add("MatMul", rows, weights))
    onnx_model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "linear",
            graph.inputs,
            graph.outputs,
            [_tensor(onnx, name, value) for name, value in graph.constants.items()],
        ),
        producer_name=_PRODUCER,
        opset_imports=[
            helper.make_opsetid("", _OPSET),
            helper.make_opsetid("ai.onnx.ml", _ML_OPSET),
        ],
        ir_version=_IR,
    )
    metadata = model.to_dict()
    del metadata["weights"]
    properties = {name: json.dumps(value) for name, value in metadata.items()}
    helper.set_model_props(onnx_model, properties)
    onnx.checker.check_model(onnx_model, full_check=True)
    return bytes(onnx_model.SerializeToString())


def from_onnx(data: bytes) -> "LinearModel":
    """Read a model that `to_onnx` wrote.

    Raises:
        DataError: The bytes are not an ONNX file, or not one of fedbudget.
    """
    from fedbudget.interop.export import LinearModel

    onnx = _onnx()
    try:
        onnx_model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf has its own exceptions
        raise DataError(
            f"this is not an ONNX file ({error}): give one that fedbudget has written"
        ) from None
    arrays = {item.name: item for item in onnx_model.graph.initializer}
    producer = onnx_model.producer_name
    if producer != _PRODUCER or "fedbudget/weights" not in arrays:
        raise DataError(
            f"this ONNX file was written by {producer!r}, not by fedbudget: its graph "
            "may be different; give one that fedbudget has written"
        )
    plain = {item.key: json.loads(item.value) for item in onnx_model.metadata_props}
    weights = onnx.numpy_helper.to_array(arrays["fedbudget/weights"]).T
    return LinearModel.from_dict(plain | {"weights": weights.tolist()})


def _encoded(graph: _Graph, schema: Schema) -> str:
    """Return raw columns encoded as `Schema.encode` does, in float64."""
    columns = schema.sample_columns
    numbers = {n: k for n, k in columns.items() if isinstance(k, Numeric)}
    parts: dict[str, str] = {}  # column -> its encoded block, one for all numbers
    for name, kind in columns.items():
        is_text = isinstance(kind, Categorical)
        graph.input(name, "STRING" if is_text else "DOUBLE", 1)
        if isinstance(kind, Categorical):
            parts[name] = _one_hot(graph, name, kind)
        elif isinstance(kind, Time):
            parts[name] = _on_circles(graph, name, kind)
    blocks = [_scaled(graph, numbers)] if numbers else []
    blocks += parts.values()
    ones = ""
    if schema.intercept:
        shape = graph.add("Shape", next(iter(columns)))
        value = _tensor(graph.onnx, "value", np.ones(1))
        ones = graph.add("ConstantOfShape", shape, value=value)
    if ones and schema.expansion is None:
        blocks.append(ones)
    joined = graph.add("Concat", *blocks, axis=1) if len(blocks) > 1 else blocks[0]
    first = [*numbers, *(n for n in columns if n not in numbers)]
    order = graph.constant("order", _positions(schema, first))
    x = graph.add("Gather", joined, order, axis=1)
    if schema.expansion is not None:
        return _expanded(graph, schema.expansion, x, ones)
    axis = graph.constant("axis", np.array([1]))
    norm = graph.add("Sqrt", graph.add("ReduceSum", graph.add("Mul", x, x), axis))
    largest = graph.number(LARGEST_NORM)
    scale = graph.add("Div", largest, graph.add("Max", norm, largest))
    # Rows are float32 in training; scores are sums in float64.
    return graph.cast(graph.cast(graph.add("Mul", x, scale), "FLOAT"), "DOUBLE")


def _expanded(graph: _Graph, fourier: Fourier, z: str, ones: str) -> str:
    """Return the Fourier features of encoded columns, as `Fourier.encode` does."""
    columns = graph.constants["fedbudget/order"].size
    blocks = [block for _, block in fourier.blocks(columns)]
    frequencies = graph.constant("frequencies", np.concatenate(blocks).T.copy())
    angle = graph.add("MatMul", z, frequencies)
    scale, constant = fourier.scales(intercept=bool(ones))
    parts = [
        graph.add("Mul", graph.add(function, angle), graph.number(scale))
        for function in ("Cos", "Sin")
    ]
    if ones:
        parts.append(graph.add("Mul", ones, graph.number(constant)))
    x = graph.add("Concat", *parts, axis=1)
    return graph.cast(graph.cast(x, "FLOAT"), "DOUBLE")


def _positions(schema: Schema, columns: list[str]) -> NDArray[np.int64]:
    """Return where each encoded column stands if columns come in another order."""
    widths = {name: _width(kind) for name, kind in schema.sample_columns.items()}
    ends = np.cumsum([widths[name] for name in columns])
    starts = {n: end - widths[n] for n, end in zip(columns, ends, strict=True)}
    positions = [starts[name] + np.arange(width) for name, width in widths.items()]
    if schema.intercept and schema.expansion is None:
        positions.append(np.array([sum(widths.values())]))
    return np.concatenate(positions)


def _width(kind: Feature) -> int:
    """Return how many encoded columns a column gives."""
    if isinstance(kind, Time):
        return 2 * len(kind.cycles)
    return 1 if isinstance(kind, Numeric) else len(kind.values)


def _on_circles(graph: _Graph, name: str, kind: Time) -> str:
    """Return the sine and the cosine of every cycle, as `Time.columns` does."""
    parts = []
    for cycle in kind.cycles:
        period, offset = CYCLES[cycle]
        length = graph.number(period)
        since = graph.add("Add", name, graph.number(offset))
        share = graph.add("Div", graph.add("Mod", since, length, fmod=1), length)
        angle = graph.add("Mul", share, graph.number(2 * np.pi))
        parts += [graph.add("Sin", angle), graph.add("Cos", angle)]
    return graph.add("Concat", *parts, axis=1)


def _scaled(graph: _Graph, numbers: dict[str, Numeric]) -> str:
    """Return the numbers in [-1, 1], in the order of the schema."""
    x = (
        graph.add("Concat", *numbers, axis=1)
        if len(numbers) > 1
        else next(iter(numbers))
    )
    kinds = numbers.values()
    low, high = (
        graph.constant(end, np.array([[getattr(kind, end) for kind in kinds]]))
        for end in ("low", "high")
    )
    empty = [np.nan if kind.missing is None else kind.missing for kind in kinds]
    filled = graph.constant("missing", np.array([empty]))
    x = graph.add("Where", graph.add("IsNaN", x), filled, x)
    x = graph.add("Min", graph.add("Max", x, low), high)
    width = graph.constant(
        "width", np.array([[kind.high - kind.low for kind in kinds]])
    )
    share = graph.add("Div", graph.add("Sub", x, low), width)
    one = graph.number(1.0)
    x = graph.add("Sub", graph.add("Mul", share, graph.number(2.0)), one)
    return graph.add("Min", graph.add("Max", x, graph.number(-1.0)), one)


def _one_hot(graph: _Graph, name: str, kind: Categorical) -> str:
    """Return one column per value of a category."""
    index = {value: code for code, value in enumerate(kind.values)}
    if kind.missing is not None:
        index.setdefault("", index[kind.missing])
    code = graph.add(
        "LabelEncoder",
        name,
        domain="ai.onnx.ml",
        keys_strings=list(index),
        values_int64s=list(index.values()),
        default_int64=-1,
    )
    count = len(kind.values)
    codes = graph.constant(f"codes {count}", np.arange(count).reshape(1, -1))
    return graph.cast(graph.add("Equal", code, codes), "DOUBLE")


def _decide(graph: _Graph, model: "LinearModel", scores: str) -> None:
    """Add the outputs: labels with probabilities or scores, or values."""
    if model.classes is None:
        middle, half = (graph.number(value) for value in model.label_scale)
        value = graph.add("Add", graph.add("Mul", scores, half), middle)
        graph.output("value", "DOUBLE", value, 1)
        return
    count = len(model.classes)
    if model.loss == "softmax":
        probabilities = graph.add("Softmax", scores, axis=1)
    elif model.loss == "logistic":
        second = graph.add("Sigmoid", scores)
        first = graph.add("Sub", graph.number(1.0), second)
        probabilities = graph.add("Concat", first, second, axis=1)
    if count > 2:
        index = graph.add("ArgMax", scores, axis=1, keepdims=0)
    else:
        margin = scores
        if model.loss == "softmax":
            apart = graph.constant("apart", np.array([[-1.0], [1.0]]))
            margin = graph.add("MatMul", scores, apart)
        above = graph.add("Greater", margin, graph.number(model.cut))
        axis = graph.constant("axis", np.array([1]))
        index = graph.add("Squeeze", graph.cast(above, "INT64"), axis)
    names = graph.constant("classes", np.array(model.classes, dtype=object))
    graph.output("label", "STRING", graph.add("Gather", names, index, axis=0), None)
    if model.loss in MARGIN_LOSSES:
        graph.output("score", "DOUBLE", scores, 1)
    else:
        graph.output("probabilities", "DOUBLE", probabilities, count)


def _tensor(onnx: Any, name: str, value: NDArray[Any]) -> Any:
    return onnx.numpy_helper.from_array(value, name)


def _onnx() -> Any:
    with needed("an ONNX file", "onnx", "interop"):
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    return onnx
