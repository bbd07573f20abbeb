"""Attack: a private cell that decides in which window all later readings are.

One window is the unit of the promise. If a row with an empty cell were left out, the
readings after it would move by one, and every later sample of the device would change.
If windows overlapped, one reading would be in several samples.
"""

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data import Categorical, Numeric, Schema, Windows
from fedbudget.errors import InvalidInputError


def schema(missing: float | None, step: int | None = None) -> Schema:
    return Schema(
        features={"v": Numeric(-1, 1, missing=missing)},
        label="y",
        target=Categorical(("no", "yes")),
        windows=Windows(length=20, columns=("v",), step=step),
    )


def table(empty: int | None) -> dict[str, list[object]]:
    values: list[object] = np.sin(np.arange(200.0)).tolist()
    if empty is not None:
        values[empty] = None
    return {"id": ["d"] * 200, "v": values, "y": ["no", "yes"] * 100}


def test_an_empty_cell_changes_one_sample_at_most() -> None:
    x = [np.asarray(schema(0.0).encode(table(empty))) for empty in (None, 30)]
    changed = np.flatnonzero((x[0] != x[1]).any(axis=1))
    assert changed.tolist() == [1]


def test_rows_cannot_be_dropped_from_windows() -> None:
    with pytest.raises(InvalidInputError, match="move all later ones"):
        with pytest.warns(fb.NotPrivateWarning):
            fb.from_table(
                table(30), label="y", device="id", schema=schema(None), missing="drop"
            )


def test_windows_cannot_overlap() -> None:
    with pytest.raises(InvalidInputError, match="in up to 2 samples"):
        schema(None, step=10)
