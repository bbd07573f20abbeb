"""A public description of a table's columns, and the encoding that it fixes.

Bounds and categories come from whoever describes the table, never from its rows: a
schema may be published before any row is collected. Each row is then encoded on its
own, so that replacing one row changes no other, which the privacy guarantee needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedbudget.data.columns import (
    Cells,
    Coded,
    Column,
    Numbers,
    as_coded,
    as_column,
    named,
)
from fedbudget.errors import DataError, InvalidInputError, MissingExtraError
from fedbudget.models import Labels, Rows

# Rows end a hair inside the unit ball: an entry's rounding to float32 is at most 2^-24
# of it, so a row scaled to this norm stays at or below 1 exactly, not just nearly.
LARGEST_NORM = 1 - 2.0**-23

# Rows with at most this share of non-zero entries are stored as CSR.
SPARSE_SHARE = 0.25


@dataclass(frozen=True)
class Numeric:
    """A number with public bounds: clipped to [low, high], which becomes [-1, 1]."""

    low: float
    high: float
    missing: float | None = None  # what an empty cell stands for; None: not allowed

    def __post_init__(self) -> None:
        if not (-inf < self.low < self.high < inf and self.high - self.low < inf):
            raise InvalidInputError(
                f"low must be below high, both finite, got low={self.low} and "
                f"high={self.high}: give the public range of the column"
            )
        if self.missing is not None and not self.low <= self.missing <= self.high:
            raise InvalidInputError(
                f"missing={self.missing} is outside [{self.low}, {self.high}]: choose "
                "a value inside"
            )

    def encode(self, name: str, column: Column) -> Numbers:
        """Return numbers in [-1, 1]; shape (n,)."""
        if isinstance(column, Coded):
            shown = f"{column.values[0]!r}" if column.values else "nothing"
            raise DataError(
                f"column {name!r} holds text, such as {shown}, but the schema says "
                "Numeric: make the column numeric or describe it as Categorical"
            )
        if self.missing is not None:
            column = np.where(np.isnan(column), self.missing, column)
        bad = ~np.isfinite(column)
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"column {name!r} holds {column[row]} in row {row} (counted from 0), "
                "not a finite number: replace it, or drop the row"
            )
        low, width = self.low, self.high - self.low
        share = (np.clip(column, low, self.high) - low) / width
        return np.clip(2 * share - 1, -1.0, 1.0)  # again: rounding may pass the end


@dataclass(frozen=True)
class Categorical:
    """A category out of a public list; becomes one column per value."""

    values: Sequence[str]  # kept as a tuple
    missing: str | None = None  # the value an empty cell stands for; None: not allowed
    other: Literal["error", "ignore"] = "error"  # an unlisted value; ignore: all zeros

    def __post_init__(self) -> None:
        alone = isinstance(self.values, str)  # a tuple of it would be its letters
        object.__setattr__(self, "values", tuple(map(str, self.values)))
        if alone or not self.values or len(set(self.values)) < len(self.values):
            raise InvalidInputError(
                f"values must be distinct and at least one, got {self.values[:5]}: "
                "list each category once, [...]"
            )
        if self.missing is not None and self.missing not in self.values:
            raise InvalidInputError(
                f"missing={self.missing!r} is not among the values: add it to them"
            )
        if self.other not in ("error", "ignore"):
            raise InvalidInputError(
                f"other={self.other!r} is not known: use 'error' or 'ignore'"
            )

    def encode(self, name: str, column: Column) -> NDArray[np.int64]:
        """Return the index of each row's value; -1 where the row gets only zeros."""
        coded = as_coded(column)
        index = {value: code for code, value in enumerate(self.values)}
        # One place more, for code -1: an empty cell reads the last entry.
        table = np.full(len(coded.values) + 1, -1, dtype=np.int64)
        table[:-1] = [index.get(value, -1) for value in coded.values]
        if self.missing is not None:
            table[-1] = index[self.missing]
        codes = table[coded.codes]
        if self.other == "error" and bool((codes < 0).any()):
            row = int(np.argmax(codes < 0))
            code = int(coded.codes[row])
            value = repr(coded.values[code]) if code >= 0 else "no value"
            raise DataError(
                f"column {name!r} holds {value} in row {row} (counted from 0), which "
                f"is not one of its {len(self.values)} values: add it to the schema, "
                "or set other='ignore' or missing= there"
            )
        return codes


Feature = Numeric | Categorical


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
    target: Feature  # Categorical: its values are the classes; Numeric: regression
    intercept: bool = True  # add a constant column, before rows are scaled

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", dict(self.features))
        if not self.features:
            raise InvalidInputError("features is empty: describe at least one column")
        if self.label in self.features:
            raise InvalidInputError(
                f"label {self.label!r} is also a feature: take it out of the features"
            )
        if isinstance(self.target, Categorical) and len(self.target.values) < 2:
            raise InvalidInputError(
                f"label {self.label!r} has one class, {self.target.values[0]!r}: "
                "list at least 2"
            )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes, in the order of their indices; None for regression."""
        kind = self.target
        return tuple(kind.values) if isinstance(kind, Categorical) else None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        names: list[str] = []
        for name, kind in self.features.items():
            if isinstance(kind, Numeric):
                names.append(name)
            else:
                names += [f"{name}={value}" for value in kind.values]
        return (*names, "intercept") if self.intercept else tuple(names)

    def encode(self, columns: Mapping[str, Cells]) -> Rows:
        """Turn columns into rows in the unit ball; shape (n, dim), float32.

        Numbers go to [-1, 1], categories to one-hot columns, then each row is divided
        by max(1, its norm), alone. The norm of a result, taken in float64, is never
        above 1. Rows that are mostly zeros come as CSR.

        Raises:
            DataError: A column or a value is not what the schema says.
        """
        ready = {name: as_column(values) for name, values in columns.items()}
        encoded = [
            kind.encode(name, named(ready, name))
            for name, kind in self.features.items()
        ]
        square = np.full(len(encoded[0]), float(self.intercept))
        for entry in encoded:
            square += entry**2 if entry.dtype.kind == "f" else entry >= 0
        scale = LARGEST_NORM / np.maximum(LARGEST_NORM, np.sqrt(square))
        dim = len(self.feature_names)
        if (len(encoded) + self.intercept) <= SPARSE_SHARE * dim:
            return self._sparse(encoded, scale, dim)
        return self._dense(encoded, scale, dim)

    def encode_label(self, column: Cells) -> Labels:
        """Return class indices (int64), or targets in [-1, 1] (float64)."""
        labels = self.target.encode(self.label, as_column(column))
        if labels.dtype.kind == "i" and bool((labels < 0).any()):
            raise DataError(
                f"label {self.label!r} holds a value that is no class: drop those "
                "rows, for other='ignore' is for features only"
            )
        return labels

    def _dense(self, encoded: list[Any], scale: Numbers, dim: int) -> Rows:
        x = np.zeros((len(scale), dim), dtype=np.float32)
        place = 0
        for entry, kind in zip(encoded, self.features.values(), strict=True):
            if isinstance(kind, Numeric):
                x[:, place] = entry * scale
                place += 1
            else:
                rows = np.flatnonzero(entry >= 0)
                x[rows, place + entry[rows]] = scale[rows]
                place += len(kind.values)
        if self.intercept:
            x[:, place] = scale
        return x

    def _sparse(self, encoded: list[Any], scale: Numbers, dim: int) -> Rows:
        try:
            from scipy.sparse import csr_array
        except ImportError:
            raise MissingExtraError("encoding sparse rows", "scipy") from None
        width = len(encoded) + self.intercept
        data = np.empty((len(scale), width), dtype=np.float32)
        indices = np.empty((len(scale), width), dtype=np.int32)
        data[:], indices[:] = scale[:, None], dim - 1  # right already for the intercept
        place = 0
        for j, kind in enumerate(self.features.values()):
            if isinstance(kind, Numeric):
                data[:, j], indices[:, j] = encoded[j] * scale, place
                place += 1
            else:
                data[:, j] *= encoded[j] >= 0
                indices[:, j] = place + np.maximum(encoded[j], 0)
                place += len(kind.values)
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
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        >>> label = {"name": "y", "values": ["no", "yes"]}
        >>> features = {"age": {"low": 0, "high": 99}}
        >>> Schema.from_dict({"label": label, "features": features}).classes
        ('no', 'yes')
        """
        try:
            label = dict(plain["label"])
            return cls(
                label=label.pop("name"),
                target=_feature("label", label),
                features={n: _feature(n, f) for n, f in plain["features"].items()},
                intercept=plain.get("intercept", True),
            )
        except (KeyError, AttributeError, TypeError) as error:
            raise InvalidInputError(
                f"not a schema, {error} is missing or wrong: write label.name and "
                "features.NAME, each with low and high, or values"
            ) from None


def _plain(kind: Feature) -> dict[str, Any]:
    """Return the fields of a feature that are not at their default."""
    if isinstance(kind, Numeric):
        plain: dict[str, Any] = {"low": kind.low, "high": kind.high}
    else:
        plain = {"values": list(kind.values)}
        plain |= {"other": kind.other} if kind.other != "error" else {}
    return plain if kind.missing is None else {**plain, "missing": kind.missing}


def _feature(name: str, plain: Mapping[str, Any]) -> Feature:
    """Read one feature."""
    try:
        return Categorical(**plain) if "values" in plain else Numeric(**plain)
    except TypeError as error:
        raise InvalidInputError(
            f"column {name!r} is not described well, {error}: give low and high, "
            "or values"
        ) from None
