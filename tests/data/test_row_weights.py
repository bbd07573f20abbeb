"""Weights in [0, 1]: expected gradients, and a sensitivity that stays."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data.dataset import Part
from fedbudget.data.row_weights import (
    balanced_threshold,
    check_shares,
    read_shares,
    weight_rows,
)
from fedbudget.errors import InvalidInputError
from fedbudget.losses import loss_named
from tests import iot_tables as iot

SHARES = {"no": 0.96, "yes": 0.04}
DATA = fb.from_table(
    iot.alarms(20_000, 10), label="alarm", device="sensor", schema=iot.ALARMS
)


def dense(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else x.toarray()


def kept(data: fb.Dataset) -> Any:
    return dense(data.train.x).any(axis=1)


def test_balanced_classes_have_equal_numbers_of_rows_left() -> None:
    balanced = weight_rows(DATA, class_weight="balanced", class_shares=SHARES)
    left, y = kept(balanced), DATA.train.y
    assert left[y == 1].all()  # the rare class has weight 1
    count = int((y == 0).sum())
    # Binomial with probability 1/24: within 6 deviations, once in a billion.
    expected, deviation = count / 24, np.sqrt(count / 24 * 23 / 24)
    assert abs(left[y == 0].sum() - expected) < 6 * deviation
    assert (dense(balanced.train.x)[left] == dense(DATA.train.x)[left]).all()
    assert (balanced.num_samples == DATA.num_samples).all()  # what is public stays
    assert balanced.test is DATA.test


def test_a_weight_is_a_probability() -> None:
    weight = np.linspace(0, 1, len(DATA.train))
    left = kept(weight_rows(DATA, sample_weight=weight, seed=3))
    deviation = np.sqrt(np.sum(weight * (1 - weight)))
    assert abs(left.sum() - weight.sum()) < 6 * deviation
    assert not left[0] and left[-1]


def test_the_expected_gradient_is_the_weighted_one() -> None:
    loss, theta = loss_named("logistic"), np.linspace(-1, 1, DATA.dim)
    gradients = loss.sample_gradients(theta, dense(DATA.train.x), DATA.train.y)
    weight = np.where(DATA.train.y == 1, 1.0, 1 / 24)
    expected = weight @ gradients / len(weight)
    thinned = weight_rows(DATA, class_weight="balanced", class_shares=SHARES)
    actual = loss.gradient(theta, dense(thinned.train.x), thinned.train.y)
    variance = (weight * (1 - weight)) @ gradients**2 / len(weight) ** 2
    assert (np.abs(actual - expected) < 7 * np.sqrt(variance) + 1e-7).all()


def test_replacing_one_row_changes_one_row_by_at_most_twice_the_bound() -> None:
    loss, theta = loss_named("logistic"), np.linspace(-3, 3, DATA.dim)
    options: Any = {"class_weight": "balanced", "class_shares": SHARES, "seed": 1}
    before = weight_rows(DATA, **options)
    for row in (0, 17, 4000):
        x, y = dense(DATA.train.x).copy(), DATA.train.y.copy()
        x[row], y[row] = -x[row], 1 - y[row]
        part = Part(x=x, y=y, offsets=DATA.train.offsets)
        after = weight_rows(replace(DATA, train=part), **options)
        first = loss.sample_gradients(theta, dense(before.train.x), before.train.y)
        second = loss.sample_gradients(theta, dense(after.train.x), after.train.y)
        changed = np.flatnonzero((first != second).any(axis=1))
        assert set(changed) <= {row}
        moved = np.linalg.norm(first.sum(axis=0) - second.sum(axis=0))
        assert moved <= 2 * loss.lipschitz


def test_public_shares() -> None:
    assert read_shares("no=0.97, yes=0.03") == {"no": 0.97, "yes": 0.03}
    assert read_shares("a=b=0.5,c=0.5") == {"a=b": 0.5, "c": 0.5}
    assert check_shares({"b": 0.505, "a": 0.505}, ("a", "b")).tolist() == [0.5, 0.5]
    assert balanced_threshold(SHARES, ("no", "yes")) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: read_shares("no"), "write no=0.97,yes=0.03"),
        (lambda: check_shares(SHARES, ("no", "maybe")), "give one share for each"),
        (lambda: check_shares({"no": 0.4, "yes": 0.4}, ("no", "yes")), "sum to 1"),
        (lambda: check_shares({"no": 1.0, "yes": 0.0}, ("no", "yes")), "above 0"),
        (lambda: check_shares(SHARES, None), "labels are numbers"),
        (lambda: weight_rows(DATA, class_weight="balanced"), "give class_shares"),
        (lambda: weight_rows(DATA, class_weight="heavy"), "heavy"),
        (
            lambda: weight_rows(DATA, class_weight={"no": 1.0, "yes": -24.0}),
            "class_weight .*-24 for class 1",
        ),
        (lambda: weight_rows(DATA, class_weight={"no": 1.0}), "one weight for each"),
        (lambda: weight_rows(DATA, sample_weight=[1.0]), "one weight for each"),
        (lambda: weight_rows(DATA, sample_weight=3.0), "one weight for each"),
        (
            lambda: weight_rows(DATA, sample_weight=np.full(len(DATA.train), 2.0)),
            "sample_weight .* got 2 for row 0: divide all .* publicly known maximum",
        ),
        (
            lambda: weight_rows(DATA, sample_weight=np.zeros(len(DATA.train))),
            "sample_weight is zero for all",
        ),
        (lambda: check_shares({"no": "a", "yes": 1}, ("no", "yes")), "got .*'a'"),  # type: ignore[dict-item]
    ],
)
def test_bad_weights_are_refused(call: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        call()
