import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.sparse import csr_array

from fedbudget.data import Categorical, Numeric, Schema
from fedbudget.errors import DataError, InvalidInputError

YES_NO = Categorical(("no", "yes"))
# printf '%s' '{"label":...}' | sha256sum, of the text in the test below.
DIGEST = "8f1e9b4349862a8eed14a49014333d2de0467d898d7354c7c0af183e473cf7cb"


def make(features: Any, *, intercept: Any = True) -> Schema:
    return Schema(features=features, label="y", target=YES_NO, intercept=intercept)


def categorical(values: Any) -> Categorical:
    return Categorical(values)


def dense(x: Any) -> Any:
    return (x.toarray() if isinstance(x, csr_array) else x).astype(np.float64)


@given(
    numbers=st.lists(
        st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=20
    ),
    bound=st.floats(1e-3, 1e6),
    width=st.sampled_from([2, 60]),
    intercept=st.booleans(),
)
def test_every_row_is_in_the_unit_ball_exactly(
    numbers: list[list[float]], bound: float, width: int, intercept: bool
) -> None:
    columns: dict[str, Any] = {f"n{j}": c for j, c in enumerate(np.array(numbers).T)}
    columns["k"] = [str(j % width) for j in range(len(numbers))]
    features: dict[str, Any] = {f"n{j}": Numeric(-bound, bound) for j in range(4)}
    features["k"] = Categorical(tuple(map(str, range(width))))
    x = make(features, intercept=intercept).encode(columns)
    assert x.dtype == np.float32
    assert isinstance(x, csr_array) == (width == 60)
    assert np.linalg.norm(dense(x), axis=1).max() <= 1


@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    other=st.floats(allow_nan=False, allow_infinity=False),
)
def test_rows_are_encoded_one_by_one(value: float, other: float) -> None:
    schema = make({"a": Numeric(-5, 5), "b": Numeric(0, 1)})
    single = schema.encode({"a": [value], "b": [0.25]})
    both = schema.encode({"a": [value, other], "b": [0.25, 0.5]})
    assert np.array_equal(dense(single)[0], dense(both)[0])


def test_encoding_by_hand() -> None:
    features = {"age": Numeric(0, 100), "sex": Categorical(("f", "m"))}
    x = make(features).encode({"age": [50, 100, 900], "sex": ["f", "m", "m"]})
    # (0, 1, 0, 1) has norm sqrt(2), (1, 0, 1, 1) has sqrt(3); 900 is clipped to 100.
    expected = [
        np.array([0, 1, 0, 1]) / 2**0.5,
        np.array([1, 0, 1, 1]) / 3**0.5,
        np.array([1, 0, 1, 1]) / 3**0.5,
    ]
    assert np.allclose(dense(x), expected, atol=2e-7)
    small = make({"age": Numeric(0, 100)}, intercept=False).encode({"age": [75]})
    assert dense(small).tolist() == [[0.5]]  # inside the ball: not scaled


def test_dense_and_sparse_hold_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {
        "a": Numeric(0, 1),
        "k": Categorical(tuple(map(str, range(40))), other="ignore"),
    }
    columns: dict[str, Any] = {"a": [0.1, 0.5, 0.9], "k": ["3", "none", "39"]}
    sparse = make(features).encode(columns)
    monkeypatch.setattr("fedbudget.data.schema.SPARSE_SHARE", 0.0)
    assert isinstance(sparse, csr_array)
    assert np.array_equal(dense(sparse), dense(make(features).encode(columns)))


def test_a_value_outside_the_list_is_refused_or_becomes_zeros() -> None:
    columns = {"k": ["a", "z"]}
    with pytest.raises(
        DataError, match=r"'k' holds 'z' in row 1 .* add it to the schema"
    ):
        make({"k": Categorical(("a", "b"))}).encode(columns)
    lenient = make({"k": Categorical(("a", "b"), other="ignore")}, intercept=False)
    assert dense(lenient.encode(columns))[1].tolist() == [0, 0]


def test_an_empty_cell_is_refused_or_has_the_value_of_the_schema() -> None:
    columns: dict[str, Any] = {"k": ["a", None], "n": [0.0, np.nan]}
    with pytest.raises(DataError, match="'k' holds no value in row 1"):
        make({"k": Categorical(("a", "b"))}).encode(columns)
    with pytest.raises(DataError, match=r"'n' holds nan in row 1"):
        make({"n": Numeric(0, 2)}).encode(columns)
    kinds = {"k": Categorical(("a", "b"), missing="b"), "n": Numeric(0, 2, missing=1)}
    x = dense(make(kinds, intercept=False).encode(columns))
    assert x[1, :2].tolist() == [0, pytest.approx(1)]
    assert x[1, 2] == 0


def test_invalid_columns_are_refused() -> None:
    schema = make({"age": Numeric(0, 1)})
    with pytest.raises(DataError, match=r"'age' is not in .* did you mean 'ages'\?"):
        schema.encode({"ages": [1.0]})
    with pytest.raises(DataError, match="'age' holds text, such as 'old'"):
        schema.encode({"age": ["old"]})
    with pytest.raises(DataError, match="'age' holds inf in row 0"):
        schema.encode({"age": [np.inf]})


def test_labels_are_class_indices_or_scaled_numbers() -> None:
    schema = make({"a": Numeric(0, 1)})
    assert schema.encode_label(["yes", "no"]).tolist() == [1, 0]
    with pytest.raises(DataError, match="'y' holds 'maybe' in row 0") as caught:
        schema.encode_label(["maybe"])
    assert "drop the row, or add the class" in str(caught.value)
    assert "ignore" not in str(caught.value)
    real = Schema(features=schema.features, label="y", target=Numeric(0, 10))
    assert real.classes is None
    assert real.encode_label([0, 5, 99]).tolist() == [-1, 0, 1]
    numbered = Schema(
        features=schema.features, label="y", target=Categorical(("0", "1"))
    )
    assert numbered.encode_label(np.array([1, 0])).tolist() == [1, 0]
    lenient = Categorical(("0", "1"), other="ignore")
    with pytest.raises(InvalidInputError, match=r"'y' has other='ignore', .* leave it"):
        Schema(features=schema.features, label="y", target=lenient)


def test_a_schema_survives_json_and_pickle() -> None:
    schema = Schema(
        features={
            "a": Numeric(0, 1.5, missing=1),
            "k": Categorical(["u", "v"], missing="u", other="ignore"),
        },
        label="y",
        target=YES_NO,
        intercept=False,
    )
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_the_digest_says_whether_two_schemas_encode_alike() -> None:
    first = make({"a": Numeric(0, 1), "b": Numeric(0, 2, unit="kWh")})
    assert Schema.from_json(first.to_json()) == first
    stored = json.loads(json.dumps(first.to_dict()))
    assert Schema.from_dict(stored).digest == first.digest
    # -0.0 and 0 are the same bound, whatever their text.
    same = make({"a": Numeric(-0.0, 1), "b": Numeric(0, 2, unit="kWh")})
    assert same.digest == first.digest
    others = [
        make({"b": Numeric(0, 2, unit="kWh"), "a": Numeric(0, 1)}),  # another order
        make({"a": Numeric(0, 1), "b": Numeric(0, 2, unit="Wh")}),
        make({"a": Numeric(0, 1), "b": Numeric(0, 2)}),
        make(first.features, intercept=False),
        Schema(features=first.features, label="y", target=Categorical(("yes", "no"))),
        Schema(features=first.features, label="z", target=YES_NO),
    ]
    assert len({first.digest, *(schema.digest for schema in others)}) == 7


def test_the_digest_is_the_sha_256_of_the_canonical_json() -> None:
    schema = Schema(features={"v": Numeric(0, 9)}, label="y", target=YES_NO)
    assert schema.to_json() == (
        '{"label":{"name":"y","values":["no","yes"]},"intercept":true,'
        '"features":{"v":{"low":0.0,"high":9.0}}}'
    )
    assert schema.digest == DIGEST


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(-1, 1))
def test_decode_is_the_inverse_of_encode(
    low: float, width: float, share: float
) -> None:
    kind = Numeric(low, low + width)
    value = kind.decode(np.array([share]))
    scale = max(abs(low), width)
    assert kind.encode("v", value) == pytest.approx([share], abs=1e-9 * scale / width)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "[" * 5000])
def test_a_text_that_is_no_schema_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not a schema") as caught:
        Schema.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Numeric(1, 1), "low must be below high"),
        (lambda: Numeric(0, 1, unit=3), "unit must be a text, got 3"),  # type: ignore[arg-type]
        (lambda: Numeric(-1.7e308, 1.7e308), "low must be below high"),
        (lambda: Numeric(0, 1, missing=2), "missing=2 is outside"),
        (lambda: Categorical("abc"), "list each category once"),
        (lambda: Categorical(()), "at least one"),
        (lambda: Categorical(("a", "a")), "distinct"),
        (lambda: Categorical(("a",), missing="b"), "not among the values"),
        (lambda: make({}), "features is empty"),
        (lambda: make({"y": Numeric(0, 1)}), "also a feature"),
        (
            lambda: Schema(
                features={"a": YES_NO}, label="y", target=Categorical(("no",))
            ),
            "has one class, 'no'",
        ),
        (lambda: Schema.from_dict({}), "not a schema"),
        (
            lambda: Schema.from_dict(
                {
                    "label": {"name": "y", "low": 0, "high": 1},
                    "features": {"a": {"lo": 0}},
                }
            ),
            "'a' is not described well, 'lo' is not known: use only low, high",
        ),
        (lambda: categorical({"a", "b"}), "values must be a list"),
        (lambda: categorical((1, 1.0)), "distinct"),
        (lambda: categorical(("a", None)), "texts, numbers or truth values, got None"),
        (lambda: categorical((float("nan"), 1)), "truth values, got nan"),
        (lambda: categorical((10**5000,)), "got a very long int"),
        (lambda: Numeric(0, 10**400), "high must be a number"),
        (lambda: Numeric(False, True), "low must be a number, got False"),
        (lambda: Numeric(2**53, 2**53 + 1), "low must be below high"),
        (lambda: make({"a": "Numeric"}), "'a' is described by 'Numeric': use Numeric"),
        (lambda: make({3: YES_NO}), "name must be a text, got 3"),
        (lambda: make([YES_NO]), "features must be a dict"),
        (lambda: make({"a": YES_NO}, intercept=1), "intercept must be true or false"),
        (
            lambda: make({"a=b": Numeric(0, 1), "a": Categorical(("b", "c"))}),
            "two encoded columns the name 'a=b': rename",
        ),
        (
            lambda: make({"intercept": Numeric(0, 1)}),
            "the name 'intercept': rename .*, or set intercept=False",
        ),
    ],
)
def test_an_invalid_schema_is_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        build()


def test_a_feature_may_be_called_intercept_if_none_is_added() -> None:
    schema = make({"intercept": Numeric(0, 1)}, intercept=False)
    assert schema.feature_names == ("intercept",)


def test_columns_of_different_lengths_are_refused() -> None:
    schema = make({"a": Numeric(0, 1), "b": Numeric(0, 1)})
    with pytest.raises(DataError, match=r"differ in length, \{'a': 2, 'b': 1\}"):
        schema.encode({"a": [0, 1], "b": [0]})


def test_encoded_rows_outside_the_unit_ball_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedbudget.data.schema.LARGEST_NORM", 2.0)
    with pytest.raises(DataError, match=r"row 0 .* norm 1\.41421, above 1"):
        make({"a": Numeric(0, 1)}).encode({"a": [1]})


PLAIN: dict[str, Any] = {
    "label": {"name": "y", "values": [0, 1]},
    "features": {"c": {"values": [str(i) for i in range(40)]}},
}


@pytest.mark.parametrize("intercept", [2, 0.5, -1, "no", None, [], {}, 0, 1])
def test_the_intercept_is_a_truth_value(intercept: Any) -> None:
    with pytest.raises(InvalidInputError, match="intercept must be true or false"):
        Schema.from_dict({**PLAIN, "intercept": intercept})
    with pytest.raises(InvalidInputError, match="intercept must be true or false"):
        make({"a": YES_NO}, intercept=intercept)


@pytest.mark.parametrize("key", ["intercpt", "Features", ""])
def test_unknown_keys_are_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidInputError, match=f"'{key}' is not known: use only"):
        Schema.from_dict({**PLAIN, key: True})
    for part in ({"low": 0, "high": 1}, {"values": ["a"]}):
        with pytest.raises(InvalidInputError, match=f"'{key}' is not known: use only"):
            Schema.from_dict({**PLAIN, "features": {"a": {**part, key: 1}}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "low", "high", "values", "missing", "other", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
LISTING, BOUNDS = {"values": ["u"]}, {"low": 0, "high": 1}
POSITIONS: dict[str, Callable[[Any], Any]] = {
    "all of it": lambda value: value,
    "label": lambda value: {**PLAIN, "label": value},
    "name": lambda value: {**PLAIN, "label": {**LISTING, "name": value}},
    "features": lambda value: {**PLAIN, "features": value},
    "intercept": lambda value: {**PLAIN, "intercept": value},
    "a feature": lambda value: {**PLAIN, "features": {"a": value}},
    "values": lambda value: {**PLAIN, "features": {"a": {"values": value}}},
    "a value": lambda value: {**PLAIN, "features": {"a": {"values": [value]}}},
    "low": lambda value: {**PLAIN, "features": {"a": {**BOUNDS, "low": value}}},
    "missing": lambda value: {
        **PLAIN,
        "features": {"a": {**LISTING, "missing": value}},
    },
    "other": lambda value: {**PLAIN, "features": {"a": {**LISTING, "other": value}}},
}


def assert_schema_or_one_line(plain: Any) -> None:
    try:
        schema = Schema.from_dict(plain)
    except InvalidInputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 300
        for word in ("object", "argument", "__init__", "subscriptable"):
            assert word not in str(error)
    else:
        assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize("position", POSITIONS)
@settings(max_examples=40)
@given(value=JSON)
def test_any_json_value_is_a_schema_or_refused_in_one_line(
    position: str, value: Any
) -> None:
    assert_schema_or_one_line(POSITIONS[position](value))


@pytest.mark.parametrize("position", POSITIONS)
def test_deep_nesting_is_refused_in_one_line(position: str) -> None:
    lists: Any = []
    dicts: Any = {}
    for _ in range(100_000):
        lists, dicts = [lists], {"label": dicts}
    assert_schema_or_one_line(POSITIONS[position](lists))
    assert_schema_or_one_line(POSITIONS[position](dicts))
