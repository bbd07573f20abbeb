import numpy as np
import pytest

from fedbudget.data.columns import (
    Coded,
    as_coded,
    as_column,
    check_name,
    keep_rows,
    missing,
)
from fedbudget.errors import DataError


def test_cells_become_numbers_truth_values_or_text() -> None:
    numbers = as_column([1, None, 2.5])
    assert isinstance(numbers, np.ndarray)
    assert missing(numbers).tolist() == [False, True, False]
    truth = as_column([True, None])
    assert isinstance(truth, Coded)
    assert (truth.values, truth.codes.tolist()) == (("false", "true"), [1, -1])
    text = as_column(np.array(["b", "", "a"]))
    assert isinstance(text, Coded)
    assert (text.values, text.codes.tolist()) == (("", "a", "b"), [2, 0, 1])
    assert as_column(text) is text
    truths = as_column(np.array([False, True]))
    assert isinstance(truths, Coded)
    assert truths.codes.tolist() == [0, 1]


def test_numbers_become_categories_and_empty_cells_stay_empty() -> None:
    coded = as_coded(np.array([3.0, np.nan, -1.0, 3.0, 0.25]))
    assert coded.values == ("-1", "0.25", "3")
    assert coded.codes.tolist() == [2, -1, 0, 2, 1]


def test_dropping_rows_drops_values_that_no_longer_occur() -> None:
    column = keep_rows(
        as_column(["c", "a", None, "b"]), np.array([True, False, True, True])
    )
    assert isinstance(column, Coded)
    assert (column.values, column.codes.tolist()) == (("b", "c"), [1, -1, 0])


def test_an_unknown_name_is_refused_with_similar_ones() -> None:
    names = [f"sensor_{j}" for j in range(20)]
    with pytest.raises(
        DataError, match=r"'sensr_7' .* \.\.\.: did you mean 'sensor_7'"
    ):
        check_name(names, "sensr_7")
    with pytest.raises(DataError, match="name one of them"):
        check_name(["a"], "zzzz")
