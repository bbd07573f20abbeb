from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.sparse import coo_array, csr_array

from fedbudget.data import Part
from fedbudget.data.unit_ball import ROUNDING, check_unit_ball, in_unit_ball
from fedbudget.errors import DataError


def part(x: Any) -> Part:
    return Part(x=x, y=np.zeros(x.shape[0]), offsets=np.array([0, x.shape[0]]))


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.8, 0.8], r"row 2 .* has norm 1\.13137, above 1: divide each row by"),
        ([1 + 1e-6, 0], "row 2 .* above 1"),
        ([np.nan, 0], "row 2 .* norm nan, .* not a finite number"),
        ([-np.inf, 0], "row 2 .* norm inf, .* not a finite number"),
        ([1e30, 0], "row 2 .* norm 1e[+]30, above 1"),
    ],
)
def test_a_part_refuses_rows_outside_the_unit_ball(
    kind: Any, dtype: Any, row: list[float], message: str
) -> None:
    inside = [[0.6, 0.8], [0, 0]]
    assert len(part(kind(np.array(inside, dtype=dtype)))) == 2
    with pytest.raises(DataError, match=message):
        part(kind(np.array([*inside, row], dtype=dtype)))


def test_rows_of_nan_are_refused() -> None:
    for kind in (np.asarray, csr_array):
        with pytest.raises(DataError, match=r"row 0 .* norm nan"):
            part(kind(np.full((3, 2), np.nan, np.float32)))


def test_duplicate_sparse_entries_are_added() -> None:
    twice = csr_array(
        (np.array([0.8, 0.8]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2)
    )
    with pytest.raises(DataError, match=r"row 0 .* norm 1\.6"):
        part(twice)
    assert twice.nnz == 2  # the caller's array is unchanged


@given(
    rows=st.lists(
        st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5), min_size=1
    )
)
def test_rows_scaled_to_norm_one_and_rounded_are_accepted(
    rows: list[list[float]],
) -> None:
    x = np.array(rows)
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    check_unit_ball(x.astype(np.float32))
    check_unit_ball(csr_array(x.astype(np.float32)))


@given(
    rows=st.lists(
        st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5), min_size=1
    ),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_rows_above_one_by_rounding_are_scaled_and_the_others_unchanged(
    rows: list[list[float]], dtype: Any
) -> None:
    x = np.array(rows)
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    x = x.astype(dtype)
    longest = np.sqrt(np.sum(np.square(x, dtype=np.float64), axis=1)).max()
    if longest > 1 + ROUNDING:  # half precision rounds by more
        return
    single = x if dtype is not np.float16 else x.astype(np.float32)  # SciPy has no half
    sparse: Any = in_unit_ball(csr_array(single))
    both: list[Any] = [in_unit_ball(x), sparse.toarray()]
    for scaled in both:
        used = scaled.astype(np.float32)  # as the kernels do
        squares = np.sum(np.square(used, dtype=np.float64), axis=1)
        assert (squares <= 1).all()
        before = np.sum(np.square(x.astype(np.float32), dtype=np.float64), axis=1)
        within = (before <= 1) & (np.sum(np.square(x, dtype=np.float64), axis=1) <= 1)
        assert (scaled[within] == x[within]).all()


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_a_part_has_no_row_above_one(kind: Any) -> None:
    x = kind(np.array([[1 + 2.0**-23], [0.5]]))
    rows = part(x).x
    assert rows[[0]].sum() <= 1 and rows[[1]].sum() == 0.5
    assert x[[0]].sum() > 1  # the caller's array is unchanged


@pytest.mark.parametrize(
    "x",
    [np.zeros(3), np.zeros((3, 1), dtype=object), coo_array(np.eye(3)), [[0.0]] * 3],
)
def test_anything_but_a_matrix_of_numbers_is_refused(x: Any) -> None:
    with pytest.raises(DataError, match=r"x (has shape|is a)"):
        check_unit_ball(x)


def test_a_part_of_no_rows_or_no_columns_is_fine() -> None:
    check_unit_ball(np.zeros((0, 4), np.float32))
    check_unit_ball(np.zeros((4, 0), np.float32))
    check_unit_ball(csr_array((0, 4)))
    check_unit_ball(csr_array((4, 1)))
