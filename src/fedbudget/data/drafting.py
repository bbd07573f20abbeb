"""A first description of a table, for its owner to correct before anyone trains."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbudget.data.columns import check_name, missing
from fedbudget.data.reading import read_column, read_devices, read_table
from fedbudget.data.schema import Schema
from fedbudget.data.tables import infer_schema
from fedbudget.errors import NotPrivateWarning


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A schema read off the rows, and what else its reader should know of them."""

    schema: Schema
    num_rows: int
    num_devices: int  # 1 where the table does not say whose a row is
    most_rows: int  # of one device
    rows_with_gaps: int  # with an empty cell


def draft(
    source: Any, *, label: str, device: str | None = None, drop: Sequence[str] = ()
) -> Draft:
    """Read bounds and categories off a table: NOT private, and to be replaced.

    >>> found = draft({"v": [1, 2], "y": ["a", "b"], "id": [7, 7]}, label="y",
    ...               device="id")
    >>> found.schema.feature_names, found.most_rows
    (('v', 'intercept'), 2)
    """
    table = read_table(source)
    for name in drop:
        check_name(table.column_names, name)
    table = table.drop_columns(list(drop))
    with warnings.catch_warnings():  # whoever asks for a draft says so himself
        warnings.simplefilter("ignore", NotPrivateWarning)
        schema = infer_schema(table, label=label, device=device)
    used = [*schema.features, label]
    gaps = np.logical_or.reduce([missing(read_column(table, name)) for name in used])
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
    )
