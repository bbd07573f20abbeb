"""What the kinds of columns say about the rows' mean, against rows drawn by hand."""

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data.encoding import FALL, MEAN_SQUARE, VARIANCE, Encoding


def test_the_spike_is_the_share_of_the_mean_in_rows_like_those_assumed() -> None:
    rng = np.random.default_rng(0)
    count, numbers, values = 100_000, 6, 4
    columns = np.sqrt(MEAN_SQUARE) + np.sqrt(VARIANCE) * rng.normal(
        size=(count, numbers)
    )
    frequency = np.arange(1.0, values + 1) ** -FALL
    one_hot = np.eye(values)[rng.choice(values, count, p=frequency / frequency.sum())]
    rows = np.column_stack([columns, one_hot, np.ones(count)])
    share = np.sum(rows.mean(0) ** 2) / np.mean(np.sum(rows**2, axis=1))
    encoding = Encoding(numbers=numbers, categories=(values,), intercept=True)
    assert encoding.spike_share == pytest.approx(share, rel=0.01)


def test_an_intercept_raises_the_spike_and_categories_lower_it() -> None:
    plain = Encoding(numbers=5, categories=(), intercept=False)
    assert (
        plain.spike_share
        < Encoding(numbers=5, categories=(), intercept=True).spike_share
    )
    shares = [
        Encoding(numbers=5, categories=(9,) * count, intercept=True).spike_share
        for count in range(5)
    ]
    assert shares == sorted(shares, reverse=True)


def test_a_table_plans_with_its_encoding_and_reads_no_row() -> None:
    data = fb.load("adult", split="iid")
    problem = data.problem()
    note = problem.constants["spike_share"].note
    assert note == "by the encoding: 8 one-hot columns, no intercept"
    assert problem["spike_share"] < fb.Problem(num_samples=[9], dim=102)["spike_share"]
    vehicle = fb.load("vehicle", split="iid").problem(loss="hinge")
    assert vehicle["spike_share"] == 0


def test_donors_are_read_and_say_so() -> None:
    data = fb.load("adult", split="iid")
    with pytest.warns(fb.NotPrivateWarning, match="2 donors: no epsilon covers"):
        problem = data.problem(donors=["0", "3"])
    assert problem.modes is not None
    assert problem.modes.num_rows == data.num_samples[[0, 3]].sum()
    assert "2 donor devices" in problem.constants["smoothness"].note
    with pytest.raises(fb.InvalidInputError, match="donor 'x' is not a device"):
        data.problem(donors=["x"])
