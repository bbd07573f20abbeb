"""Attack: rows pass the check of the unit ball, and are made longer afterwards.

The sensitivity 2 G / X holds for rows of norm at most 1. Whoever holds an array that
was handed over, or a view of it, must not be able to change the checked rows.
"""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedbudget.data.dataset import Part, arrays_of, select_devices, split_rows
from fedbudget.estimators.unit_rows import by_device
from fedbudget.fleet.device.exact_steps import ExactRows
from tests.examples import small_data

ROWS = np.full((10, 4), 0.5, dtype=np.float32)
LABELS = np.arange(10) % 2
OFFSETS = np.array([0, 4, 10])


def norms(part: Part) -> Any:
    x = part.x if isinstance(part.x, np.ndarray) else part.x.toarray()
    return np.linalg.norm(x.astype(np.float64), axis=1)


@pytest.mark.parametrize("form", [np.array, csr_array], ids=["dense", "csr"])
def test_the_arrays_that_were_given_are_not_the_ones_in_use(form: Any) -> None:
    x, y, offsets = form(ROWS), LABELS.copy(), OFFSETS.copy()
    views = [array.view() for array in (*arrays_of(x), y, offsets)]
    part = Part(x=x, y=y, offsets=offsets)
    for view in views:
        view[:] = 100
    assert norms(part).max() <= 1
    assert part.y.tolist() == LABELS.tolist()
    assert part.offsets.tolist() == OFFSETS.tolist()


def test_a_read_only_view_does_not_hide_a_writable_array() -> None:
    x = ROWS.copy()
    view = x.view()
    view.setflags(write=False)
    part = Part(x=view, y=LABELS, offsets=OFFSETS)
    x[:] = 100
    assert norms(part).max() <= 1


@pytest.mark.parametrize("form", [np.array, csr_array], ids=["dense", "csr"])
def test_no_part_can_be_written_to(form: Any) -> None:
    x, ids = form(ROWS), np.arange(10) % 2
    part = Part(x=x, y=LABELS, offsets=OFFSETS)
    estimated, _ = by_device(x, LABELS, ids, classes=("no", "yes"))
    chosen = select_devices(small_data(), [1, 3])
    parts = [part, *split_rows(x, LABELS, ids), estimated.train, chosen.train]
    for each in parts:
        for array in (*arrays_of(each.x), each.y, each.offsets):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 100


def test_the_rows_and_labels_of_a_real_device_are_its_own() -> None:
    x, y = ROWS.copy(), LABELS.astype(np.float64)
    rows = ExactRows.rounded(x, y)
    x[:], y[:] = 100, 100
    assert rows.x.tolist() == ROWS.tolist()
    assert rows.y.tolist() == LABELS.tolist()
    for array in (rows.x, rows.y, rows.first(3).y):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 100
