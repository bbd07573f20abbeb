"""A draft of a schema for `fedbudget init`, for its owner to correct before training.

Bounds and categories are read from the rows: NOT private.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbudget.data.columns import check_name, missing
from fedbudget.data.inference import MOST_CLASSES
from fedbudget.data.reading import is_stamp, read_categories, read_devices, read_table
from fedbudget.data.schema import Schema
from fedbudget.data.tables import infer_schema
from fedbudget.errors import NotPrivateWarning

_FEW_ROWS = 20  # of fewer, all may differ by chance


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A schema read from the rows, and the sizes of the table."""

    schema: Schema
    num_rows: int
    num_devices: int  # 1 without a device column
    most_rows: int  # of one device
    rows_with_gaps: int  # with an empty cell
    left_out: Mapping[str, str]  # columns that are no features, and why


def draft(
    source: Any, *, label: str, device: str | None = None, drop: Sequence[str] = ()
) -> Draft:
    """Read bounds and categories from a table: NOT private, and to be replaced.

    >>> result = draft({"v": [1, 2], "y": ["a", "b"], "id": [7, 7]}, label="y",
    ...                device="id")
    >>> result.schema.feature_names, result.most_rows
    (('v', 'intercept'), 2)
    """
    table = read_table(source)
    for name in drop:
        check_name(table.column_names, name)
    table = table.drop_columns(list(drop))
    left_out = {
        name: reason
        for name in table.column_names
        if name not in (label, device) and (reason := _no_feature(table, name))
    }
    table = table.drop_columns(list(left_out))
    with warnings.catch_warnings():  # the caller gives this warning
        warnings.simplefilter("ignore", NotPrivateWarning)
        schema = infer_schema(table, label=label, device=device)
    used = [*schema.features, label]
    gaps = np.logical_or.reduce(
        [np.asarray(table.column(name).is_null()) for name in used]
    )
    counts = np.array([table.num_rows])
    if device is not None:
        owners = read_devices(table, device)
        gaps |= missing(owners)
        counts = np.bincount(np.asarray(owners.codes)[~missing(owners)])
    return Draft(
        schema=schema,
        num_rows=table.num_rows,
        num_devices=len(counts),
        most_rows=int(counts.max(initial=0)),
        rows_with_gaps=int(gaps.sum()),
        left_out=left_out,
    )


def _no_feature(table: Any, name: str) -> str:
    """Return why a column cannot be a feature: a time stamp or an identifier."""
    import pyarrow as pa

    kind = table.column(name).type
    if is_stamp(kind):
        return ""
    nested = pa.types.is_nested(kind) or pa.types.is_binary(kind)
    if nested or pa.types.is_temporal(kind):
        return f"its type is {kind}"
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return ""
    values = read_categories(table, name).values
    if pa.types.is_integer(kind):
        numbers = np.sort(np.array(values, dtype=np.float64))
        in_order = len(values) == table.num_rows and bool((np.diff(numbers) == 1).all())
        return "it numbers the rows" if in_order and table.num_rows > _FEW_ROWS else ""
    distinct = len(values) == table.num_rows > _FEW_ROWS
    if distinct or len(values) > MOST_CLASSES:
        return f"{len(values)} distinct texts, such as {values[0]!r}: an identifier"
    return ""
