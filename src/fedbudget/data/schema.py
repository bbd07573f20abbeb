"""A public description of a table's columns, and the encoding that it fixes.

Bounds and categories are public knowledge, never read from rows: a schema can be
published before any row is collected. Each row is encoded independently of the others,
which the privacy guarantee needs.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedbudget.data.columns import Cells, Numbers, as_coded, as_column, check_name
from fedbudget.data.encoding import Encoding
from fedbudget.data.features import (
    Categorical,
    Encoded,
    Feature,
    Numeric,
    first_cell,
)
from fedbudget.data.fourier import FeatureStep, Fourier, parse_features
from fedbudget.data.times import Time
from fedbudget.data.unit_ball import LARGEST_NORM, check_unit_ball
from fedbudget.data.windows import Windows
from fedbudget.errors import DataError, InvalidInputError, needed
from fedbudget.losses import Labels, Rows
from fedbudget.text import listed, shown

# Rows with at most this share of non-zero entries are stored as CSR.
SPARSE_SHARE = 0.25
_ROWS = 1024  # that are expanded at a time


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table: features, label, and whether to add an intercept.

    >>> schema = Schema(
    ...     features={"age": Numeric(0, 100), "sex": Categorical(("f", "m"))},
    ...     label="alarm",
    ...     target=Categorical(("no", "yes")),
    ... )
    >>> schema.feature_names
    ('age', 'sex=f', 'sex=m', 'intercept')
    """

    features: Mapping[str, Feature]
    label: str  # the name of the label's column
    target: Encoded  # Categorical: its values are the classes; Numeric: regression
    intercept: bool = True  # add a constant column, before rows are scaled
    windows: Windows | None = None  # readings of a device as samples
    expansion: Fourier | None = None  # non-linear features of all encoded columns

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "features", dict(self.features))
        if not self.features:
            raise InvalidInputError("features is empty: describe at least one column")
        if self.label in self.features:
            raise InvalidInputError(
                f"label {self.label!r} is also a feature: take it out of the features",
                column=self.label,
            )
        if isinstance(self.target, Categorical):
            if len(self.target.values) < 2:
                raise InvalidInputError(
                    f"label {self.label!r} has one class, {self.target.values[0]!r}: "
                    "list at least 2",
                    column=self.label,
                )
            if self.target.other != "error":
                raise InvalidInputError(
                    f"label {self.label!r} has other={self.target.other!r}, which is "
                    "for features only: leave it out, and drop rows without a class",
                    column=self.label,
                )
        names = self._linear_names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            also = ", or set intercept=False" if twice == "intercept" else ""
            raise InvalidInputError(
                f"features give two encoded columns the name {twice!r}: rename one of "
                f"the table's columns{also}"
            )

    def _check_types(self) -> None:
        """Refuse fields of an invalid type."""
        if not isinstance(self.features, Mapping):
            raise InvalidInputError(
                f"features must be a dict, got {shown(self.features)}: write "
                "{'age': Numeric(0, 100)}"
            )
        for name in (self.label, *self.features):
            if not isinstance(name, str):
                raise InvalidInputError(
                    f"a column's name must be a text, got {shown(name)}: name a column "
                    "of the table"
                )
        for name, kind in {**self.features, self.label: self.target}.items():
            if not isinstance(kind, Feature):
                raise InvalidInputError(
                    f"column {name!r} is described by {shown(kind)}: use Numeric(low, "
                    "high), Categorical(values) or Time(cycles)",
                    column=name,
                )
        if isinstance(self.target, Time):
            raise InvalidInputError(
                f"label {self.label!r} is a time stamp: predict a number or a class",
                column=self.label,
            )
        if not isinstance(self.intercept, bool):
            raise InvalidInputError(
                f"intercept must be true or false, got {shown(self.intercept)}: use "
                "true to add a constant column",
                argument="intercept",
            )
        if not isinstance(self.windows, Windows | None):
            raise InvalidInputError(
                f"windows must be Windows(...), got {shown(self.windows)}: leave it "
                "out if a row is a sample",
                argument="windows",
            )
        if not isinstance(self.expansion, Fourier | None):
            raise InvalidInputError(
                f"expansion must be Fourier(...), got {shown(self.expansion)}: leave "
                "it out for a model that is linear in the columns",
                argument="expansion",
            )

    @property
    def columns(self) -> dict[str, Feature]:
        """The features and the label, by the names of the table's columns."""
        return {**self.features, self.label: self.target}

    @property
    def sample_columns(self) -> Mapping[str, Feature]:
        """The columns of a sample: of a row, or a window's statistics and others."""
        if self.windows is None:
            return self.features
        return self.windows.features(self.features)

    @property
    def sample_features(self) -> dict[str, Encoded]:
        """The features of a sample: its columns, with times on circles."""
        features: dict[str, Encoded] = {}
        for name, kind in self.sample_columns.items():
            names = kind.names(name) if isinstance(kind, Time) else (name,)
            for each in names:
                if each in features:
                    raise InvalidInputError(
                        f"features give two columns the name {each!r}: rename one of "
                        "the table's columns",
                        column=name,
                    )
                features[each] = Numeric(-1, 1) if isinstance(kind, Time) else kind
        return features

    def block_of(self, rows: int) -> int:
        """Return about so many rows, such that no window is cut: to read in blocks."""
        size = 1 if self.windows is None else self.windows.length
        return max(1, rows // size) * size

    def rows_of_samples(self, rows: int) -> NDArray[np.int64]:
        """Return the row that ends each sample: every row, or a window's last."""
        return np.arange(rows) if self.windows is None else self.windows.last_rows(rows)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes, in the order of their indices; None for regression."""
        kind = self.target
        return tuple(kind.values) if isinstance(kind, Categorical) else None

    @property
    def unit(self) -> str:
        """The unit of the label; empty for classes, or if none is given."""
        return self.target.unit if isinstance(self.target, Numeric) else ""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        if self.expansion is None:
            return self._linear_names
        names = self.expansion.names
        return (*names, "intercept") if self.intercept else names

    @property
    def _linear_names(self) -> tuple[str, ...]:
        """The names of the encoded columns before an expansion."""
        names: list[str] = []
        for name, kind in self.sample_features.items():
            if isinstance(kind, Numeric):
                names.append(name)
            else:
                names += [f"{name}={value}" for value in kind.values]
        return (*names, "intercept") if self.intercept else tuple(names)

    @property
    def encoding(self) -> Encoding:
        """The kinds of columns, which say how large the mean of the rows can be."""
        kinds = self.sample_features.values()
        categories = [len(k.values) for k in kinds if isinstance(k, Categorical)]
        return Encoding(
            numbers=sum(isinstance(kind, Numeric) for kind in kinds),
            categories=tuple(categories),
            intercept=self.intercept,
            scale=None if self.expansion is None else self.expansion.scale,
        )

    def with_features(self, features: FeatureStep) -> Self:
        """Return the schema with another feature step.

        Args:
            features: None or ``linear`` for none, ``fourier`` or ``fourier:COUNT`` for
                random Fourier features of the usual scale; a `Fourier`, or its fields
                as in a file, ``{"kind": "fourier", "count": 500}``.

        >>> label = {"name": "y", "values": ["no", "yes"]}
        >>> schema = Schema.from_dict({"label": label, "features":
        ...                            {"age": {"low": 0, "high": 99}}})
        >>> schema.with_features("fourier:6").expansion
        Fourier(count=6, scale=0.387, seed=0)
        """
        if isinstance(features, str):
            count = parse_features(features)
            scale = self.encoding.usual_scale
            features = None if count is None else Fourier(count=count, scale=scale)
        elif isinstance(features, Mapping):
            features = Fourier.read(features, self.encoding.usual_scale)
        return replace(self, expansion=features)

    def encode(self, columns: Mapping[str, Cells], *, dense: bool = False) -> Rows:
        """Turn columns into rows in the unit ball; shape (n, dim), float32.

        Numbers are scaled to [-1, 1], categories become one-hot columns, and each row
        is divided by max(1, its norm). No norm of the result, computed in float64, is
        above 1. Rows that are mostly zeros are returned as CSR, unless `dense`.

        Raises:
            DataError: A column or a value does not match the schema.
        """
        features = self.sample_features
        if self.windows is not None:
            for name in self.features:
                check_name(columns, name)
            columns = self.windows.samples(columns, self.features)
        columns = self._with_times(columns)
        encoded = [self._encoded(name, columns) for name in features]
        sizes = {name: len(e) for name, e in zip(features, encoded, strict=True)}
        if len(set(sizes.values())) > 1:
            raise DataError(f"columns differ in length, {shown(sizes)}: give all rows")
        square = np.full(len(encoded[0]), float(self.intercept))
        for entry in encoded:
            square += entry**2 if entry.dtype.kind == "f" else entry >= 0
        dim = len(self._linear_names)
        if self.expansion is not None:
            return self._expanded(encoded, dim - self.intercept)
        scale = LARGEST_NORM / np.maximum(LARGEST_NORM, np.sqrt(square))
        if dense or (len(encoded) + self.intercept) > SPARSE_SHARE * dim:
            x = self._dense(encoded, scale, dim)
        else:
            x = self._sparse(encoded, scale, dim)
        check_unit_ball(x)  # the privacy guarantee depends on it
        return x

    def unit_rows(self, z: Numbers) -> Rows:
        """Turn encoded columns into rows in the unit ball, as `encode` does; dense.

        Args:
            z: Numbers in [-1, 1] and one-hot columns, before rows are scaled, without
                the intercept; shape (n, columns).
        """
        x = np.empty((len(z), len(self.feature_names)), dtype=np.float32)
        for first in range(0, len(z), _ROWS):
            block = slice(first, first + _ROWS)
            if self.expansion is not None:
                x[block] = self.expansion.encode(z[block], intercept=self.intercept)
                continue
            ones = np.ones((len(z[block]), int(self.intercept)))
            rows = np.hstack([z[block], ones])
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            x[block] = rows * (LARGEST_NORM / np.maximum(LARGEST_NORM, norms))
        check_unit_ball(x)  # the privacy guarantee depends on it
        return x

    def _with_times(self, columns: Mapping[str, Cells]) -> Mapping[str, Cells]:
        """Return the columns, with those of time stamps beside them."""
        times = {n: k for n, k in self.features.items() if isinstance(k, Time)}
        for name, kind in times.items():
            check_name(columns, name)
            columns = {**columns, **kind.columns(name, columns[name])}
        return columns

    def _expanded(self, encoded: list[Any], dim: int) -> Rows:
        """Return the features of the expansion, block by block of rows."""
        assert self.expansion is not None  # true for every caller
        width = len(self.feature_names)
        x = np.empty((len(encoded[0]), width), dtype=np.float32)
        for first in range(0, len(x), _ROWS):
            rows = slice(first, first + _ROWS)
            part = [entry[rows] for entry in encoded]
            z = np.zeros((len(part[0]), dim))
            self._fill(z, part, np.ones(len(z)))
            x[rows] = self.expansion.encode(z, intercept=self.intercept)
        check_unit_ball(x)  # the privacy guarantee depends on it
        return x

    def _encoded(self, name: str, columns: Mapping[str, Cells]) -> Any:
        """Return one feature's column: numbers in [-1, 1], or indices of values."""
        check_name(columns, name)
        kind, cells = self.sample_features[name], columns[name]
        if isinstance(kind, Numeric):
            return kind.encode(name, as_column(cells))
        return kind.encode(name, as_coded(cells))

    def encode_label(self, column: Cells) -> Labels:
        """Return class indices (int64), or targets in [-1, 1] (float64)."""
        if self.windows is not None:
            column = self.windows.at_end(column)
        if isinstance(self.target, Numeric):
            return self.target.encode(self.label, as_column(column))
        coded = as_coded(column)
        labels = self.target.codes(coded)
        bad = labels < 0
        if bool(bad.any()):
            cell, _ = first_cell(coded, bad)
            raise DataError(
                f"label {self.label!r} holds {cell}, which is not one of its "
                f"{len(self.target.values)} classes: correct it, drop the row, or add "
                "the class to the label's values in the schema",
                column=self.label,
            )
        return labels

    def _dense(self, encoded: list[Any], scale: Numbers, dim: int) -> Rows:
        x = np.zeros((len(scale), dim), dtype=np.float32)
        self._fill(x, encoded, scale)
        if self.intercept:
            x[:, -1] = scale
        return x

    def _fill(self, x: NDArray[Any], encoded: list[Any], scale: Numbers) -> None:
        """Write the encoded columns, each row times its scale."""
        position = 0
        for entry, kind in zip(encoded, self.sample_features.values(), strict=True):
            if isinstance(kind, Numeric):
                x[:, position] = entry * scale
                position += 1
            else:
                rows = np.flatnonzero(entry >= 0)
                x[rows, position + entry[rows]] = scale[rows]
                position += len(kind.values)

    def _sparse(self, encoded: list[Any], scale: Numbers, dim: int) -> Rows:
        with needed("encoding sparse rows", "scipy"):
            from scipy.sparse import csr_array
        width = len(encoded) + self.intercept
        data = np.empty((len(scale), width), dtype=np.float32)
        indices = np.empty((len(scale), width), dtype=np.int32)
        data[:], indices[:] = scale[:, None], dim - 1  # the values of the intercept
        position = 0
        for j, kind in enumerate(self.sample_features.values()):
            if isinstance(kind, Numeric):
                data[:, j], indices[:, j] = encoded[j] * scale, position
                position += 1
            else:
                data[:, j] *= encoded[j] >= 0
                indices[:, j] = position + np.maximum(encoded[j], 0)
                position += len(kind.values)
        indptr = np.arange(0, data.size + 1, width)
        x = csr_array((data.ravel(), indices.ravel(), indptr), shape=(len(scale), dim))
        x.eliminate_zeros()
        return cast(Rows, x)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON or TOML; `from_dict` reads them."""
        return {
            "label": {"name": self.label, **_plain(self.target)},
            "intercept": self.intercept,
            "features": {name: _plain(kind) for name, kind in self.features.items()},
            **({} if self.windows is None else {"windows": self.windows.plain}),
            **({} if self.expansion is None else {"expansion": self.expansion.plain}),
        }

    def to_json(self) -> str:
        """Return the canonical JSON: the same text for the same encoding.

        Keys are in the order of `to_dict`, not sorted: the order of the features is the
        order of the encoded columns. So a schema travels as this text wherever a
        format might sort the keys of a map.
        """
        plain = self.to_dict()
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON, in hexadecimal.

        Equal digests mean the same encoding: columns, their order, bounds, categories
        and label.

        >>> schema = Schema(features={"v": Numeric(0, 9)}, label="y",
        ...                 target=Categorical(("no", "yes")))
        >>> schema.digest == Schema.from_json(schema.to_json()).digest
        True
        """
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError, TypeError) as error:
            raise InvalidInputError(
                f"not a schema, {shown(text)} is no JSON ({error}): {_LAYOUT}"
            ) from None
        return cls.from_dict(plain)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        >>> label = {"name": "y", "values": ["no", "yes"]}
        >>> features = {"age": {"low": 0, "high": 99}}
        >>> Schema.from_dict({"label": label, "features": features}).classes
        ('no', 'yes')
        """
        optional = ("intercept", "windows", "expansion")
        _check_keys("not a schema", plain, ("label", "features"), optional)
        for part in ("label", "features"):
            if not isinstance(plain[part], Mapping):
                raise InvalidInputError(
                    f"not a schema, {part} is {shown(plain[part])}: {_LAYOUT}"
                )
        label = dict(plain["label"])
        if not isinstance(label.get("name"), str):
            raise InvalidInputError(
                f"not a schema, label.name is {shown(label.get('name'))}: name the "
                "label's column, in quotes"
            )
        name = label.pop("name")
        schema = cls(
            label=name,
            target=_feature("label", name, label),  # type: ignore[arg-type]  # checked
            features={
                n: _feature("column", n, f) for n, f in plain["features"].items()
            },
            intercept=plain.get("intercept", True),
            windows=Windows.read(plain["windows"]) if plain.get("windows") else None,
        )
        if plain.get("expansion") is None:
            return schema
        usual = schema.encoding.usual_scale
        return replace(schema, expansion=Fourier.read(plain["expansion"], usual))


def read_schema(plain: Any, digest: Any) -> Schema | None:
    """Read a schema that was stored beside its digest; None: none was stored.

    Raises:
        InvalidInputError: It is no schema, or has another digest.
    """
    if plain is None:
        return None
    schema = Schema.from_dict(plain)
    if digest != schema.digest:
        raise InvalidInputError(
            f"the schema has digest {schema.digest[:12]}..., not {shown(digest)} as is "
            "stored beside it: it was changed; restore it, or train again"
        )
    return schema


def schema_from_config(values: Mapping[str, Any]) -> Schema:
    """Return the schema in the values of a `fedbudget.toml`."""
    parts = ("label", "features", "windows", "expansion")
    plain = {name: values[name] for name in parts if name in values}
    return Schema.from_dict(
        {**plain, "intercept": values["data"].get("intercept", True)}
    )


def read_schema_file(path: str | Path) -> Schema:
    """Read a schema from a JSON or TOML file; a `fedbudget.toml` has one, too.

    Raises:
        InvalidInputError: It cannot be read or is no schema; or it is a config whose
            bounds may have been read from private rows.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
        plain = tomllib.loads(text) if source.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidInputError(f"schema {str(source)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"schema {str(source)!r} cannot be read: {error}"
        ) from None
    if not isinstance(plain, Mapping) or not isinstance(plain.get("data"), Mapping):
        return Schema.from_dict(plain)
    if plain["data"].get("public_bounds") is not True:
        raise InvalidInputError(
            f"schema {str(source)!r} does not say that its bounds are public: replace "
            "those that were read from rows, then set public_bounds = true in [data]"
        )
    return schema_from_config(plain)


_LAYOUT = (
    "write label.name and features.NAME, each with low and high, or values, or cycles"
)


def _check_keys(
    problem: str, plain: Any, required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    """Refuse a value that is no dict, lacks a key, or has an unknown one."""
    if not isinstance(plain, Mapping):
        raise InvalidInputError(f"{problem}, it is {shown(plain)}: {_LAYOUT}")
    unknown = [key for key in plain if key not in (*required, *optional)]
    if unknown:
        raise InvalidInputError(
            f"{problem}, {shown(unknown[0])} is not known: use only "
            f"{', '.join((*required, *optional))}"
        )
    missing = [key for key in required if key not in plain]
    if missing:
        raise InvalidInputError(f"{problem}, it lacks {listed(missing)}: {_LAYOUT}")


def _plain(kind: Feature) -> dict[str, Any]:
    """Return the fields of a feature that are not at their default."""
    if isinstance(kind, Numeric):
        plain: dict[str, Any] = {"low": kind.low, "high": kind.high}
        plain |= {"unit": kind.unit} if kind.unit else {}
    elif isinstance(kind, Time):
        return {"cycles": list(kind.cycles)}
    else:
        plain = {"values": list(kind.values)}
        plain |= {"other": kind.other} if kind.other != "error" else {}
    return plain if kind.missing is None else {**plain, "missing": kind.missing}


def _feature(kind: str, name: str, plain: Any) -> Feature:
    """Read one feature, or the label."""
    column = f"{kind} {name!r}"
    if isinstance(plain, Mapping) and "cycles" in plain:
        return _time(column, name, plain)
    is_categorical = isinstance(plain, Mapping) and "values" in plain
    required = ("values",) if is_categorical else ("low", "high")
    try:
        _check_keys(
            f"{column} is not described well",
            plain,
            required,
            ("missing", "other" if is_categorical else "unit"),
        )
    except InvalidInputError as error:
        error.column = name
        raise
    try:
        return Categorical(**plain) if is_categorical else Numeric(**plain)
    except InvalidInputError as error:
        raise InvalidInputError(f"{column}: {error}", column=name) from None


def _time(column: str, name: str, plain: Mapping[str, Any]) -> Time:
    """Read a time stamp's description."""
    try:
        _check_keys(f"{column} is not described well", plain, ("cycles",), ())
        return Time(plain["cycles"])
    except InvalidInputError as error:
        raise InvalidInputError(f"{column}: {error}", column=name) from None
