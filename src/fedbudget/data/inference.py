"""Infer a schema from the rows: convenient for a first look, and NOT private."""

import warnings
from collections.abc import Mapping
from math import inf

import numpy as np

from fedbudget.data.columns import Coded, Column, as_coded, decimal_comma, missing
from fedbudget.data.features import Categorical, Encoded, Feature, Numeric
from fedbudget.data.schema import Schema
from fedbudget.data.times import Time
from fedbudget.errors import DataError, DataWarning, NotPrivateWarning

MOST_CLASSES = 1000  # more distinct values than this are an identifier, not a category
MOST_NUMERIC_CLASSES = 20  # a numeric label with more distinct values is regression
LARGEST_EXACT = 2**53  # float64 rounds larger whole numbers


def schema_from_rows(
    columns: Mapping[str, Column],
    *,
    label: str,
    intercept: bool = True,
    times: Mapping[str, Time] | None = None,
) -> Schema:
    """Read bounds and categories from the rows, and warn that this is not private.

    All non-empty cells are used, also those of rows with empty cells.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", NotPrivateWarning)
    ...     columns = {"age": np.array([20.0, 60.0]), "y": np.array([0.0, 1.0])}
    ...     schema_from_rows(columns, label="y").features
    {'age': Numeric(low=20.0, high=60.0, missing=None, unit='')}
    """
    stamps = times or {}
    features: dict[str, Feature] = {
        name: stamps[name] if name in stamps else _feature(name, c)
        for name, c in columns.items()
        if name != label
    }
    if not features:
        raise DataError(
            f"the table has no feature column besides label {label!r} and the device: "
            "add at least one"
        )
    target = _target(label, columns[label])
    names = ", ".join(repr(n) for n in (*features, label) if n not in stamps)
    warnings.warn(
        f"the bounds and categories of columns {names} were read from private rows, "
        "and no privacy guarantee covers them; pass schema=Schema(...) with public "
        "bounds and categories instead (on the command line: fedbudget init, or "
        "--schema)",
        NotPrivateWarning,
        stacklevel=3,
    )
    return Schema(features=features, label=label, target=target, intercept=intercept)


def _feature(name: str, column: Column) -> Encoded:
    """Infer one feature from its cells."""
    if not isinstance(column, Coded):
        return _bounds(name, column)
    _check_mixed(name, column)
    if column.values and all(map(decimal_comma, column.values)):
        cell = column.values[0]
        raise DataError(
            f"column {name!r} holds {cell!r}{decimal_comma(cell)}, and so in every "
            "row, such as by pandas.read_csv(path, decimal=',')",
            column=name,
        )
    if len(column.values) > MOST_CLASSES:
        raise DataError(
            f"column {name!r} holds {len(column.values)} distinct texts, such as "
            f"{column.values[0]!r}, and a category may have {MOST_CLASSES}: leave the "
            "column out, or list its values in a schema",
            column=name,
        )
    return Categorical(column.values)


def _bounds(name: str, numbers: Column) -> Numeric:
    """Return the minimum and the maximum as bounds."""
    values = np.asarray(numbers)
    bad = np.isinf(values)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"column {name!r} holds {values[row]} in row {row} (counted from 0), not a "
            "finite number: replace it, or drop the row",
            column=name,
        )
    present = values[~np.isnan(values)]  # NaN is an empty cell
    if not len(present):
        raise DataError(
            f"column {name!r} has no value in any row: leave it out", column=name
        )
    low, high = float(present.min()), float(present.max())
    if high - low == inf:
        raise DataError(
            f"column {name!r} ranges from {low} to {high}, too wide to scale: divide "
            "it by a power of ten",
            column=name,
        )
    if low == high:  # a constant: use any range around it
        low, high = low - max(1.0, abs(low)), high + max(1.0, abs(high))
    return Numeric(low, high)


def _target(label: str, column: Column) -> Encoded:
    """Infer whether the label is a class or a number."""
    if not isinstance(column, Coded):
        bounds = _bounds(label, column)
        present = np.asarray(column)[~missing(column)]
        if len(np.unique(present)) > MOST_NUMERIC_CLASSES:
            return bounds
        largest = float(np.abs(present).max())
        if largest >= LARGEST_EXACT:
            raise DataError(
                f"label {label!r} holds numbers up to {largest:g}, and above "
                f"{LARGEST_EXACT} a decimal number may stand for several classes: "
                "make the column text or whole numbers, or list the classes in a "
                "schema",
                column=label,
            )
    else:
        _warn_of_mixed(f"label {label!r}", column)
    classes = as_coded(column).values
    if len(classes) < 2:
        shown = repr(classes[0]) if classes else "none"
        raise DataError(
            f"label {label!r} has one class, {shown}, and needs at least 2: check the "
            "column, or list the classes in a schema",
            column=label,
        )
    if len(classes) > MOST_CLASSES:
        raise DataError(
            f"label {label!r} has {len(classes)} distinct texts, such as "
            f"{classes[0]!r}, and classification allows {MOST_CLASSES}: choose another "
            "column, or a numeric one for regression",
            column=label,
        )
    return Categorical(classes)


def _check_mixed(name: str, column: Coded) -> None:
    """Refuse a column of numbers with some words among them."""
    words = [value for value in column.values if not _is_number(value)]
    if words and len(column.values) - len(words) > MOST_NUMERIC_CLASSES:
        row = _first_row(column, words[0])
        raise DataError(
            f"column {name!r} mixes numbers and text, {words[0]!r} in row {row} "
            "(counted from 0): use only one of them, or empty the cell",
            column=name,
        )
    _warn_of_mixed(f"column {name!r}", column)


def _warn_of_mixed(name: str, column: Coded) -> None:
    """Warn of words among numbers, for which all cells are read as categories."""
    is_word = np.array([not _is_number(value) for value in column.values], dtype=bool)
    present = column.codes[column.codes >= 0]
    words = int(is_word[present].sum())
    if not 0 < 2 * words < len(present):
        return
    word = column.values[int(np.argmax(is_word))]
    warnings.warn(
        f"{name} holds numbers in {len(present) - words} rows but {word!r} in row "
        f"{_first_row(column, word)} (counted from 0), so all of them were read as "
        "categories: correct or empty the cell if it is a mistake",
        DataWarning,
        stacklevel=2,
    )


def _first_row(column: Coded, value: str) -> int:
    return int(np.argmax(column.codes == column.values.index(value)))


def _is_number(text: str) -> bool:
    """Return whether the text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
