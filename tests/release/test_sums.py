"""Compiled sums of gradients: exact, row by row, and within their sensitivity."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedbudget.fleet.device.exact_steps import (
    BLOCK,
    ROW_BITS,
    ExactRows,
    gradient_sum,
    slope_bits,
)
from fedbudget.losses import Huber
from fedbudget.simulation.kernels.layouts import DenseRows, OneHotRows, SparseRows
from tests.release.examples import KINDS, LOSSES, Sums

LAYOUTS = {
    "dense": DenseRows,
    "pairs": OneHotRows,
    "codes": OneHotRows,
    "sparse": SparseRows,
}


def big(values: NDArray[Any]) -> list[int]:
    """Return Python's integers, which never overflow."""
    return [int(value) for value in values]


def squared(values: list[int]) -> int:
    return sum(value * value for value in values)


def on_grid(sums: Sums) -> list[list[int]]:
    """Return the first device's rows as whole numbers."""
    exact = sums.exact().x.astype(np.float64) * 2**ROW_BITS
    return [big(row) for row in exact]


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_is_tested(kind: str) -> None:
    rows = Sums.of(kind, "logistic").rounds.rows
    assert type(rows) is LAYOUTS[kind]
    if isinstance(rows, OneHotRows):
        assert (len(rows.pairs) > 0) == (kind == "pairs")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_the_big_integers_of_single_rows(kind: str, loss: str) -> None:
    sums = Sums.of(kind, loss)
    theta, rows = sums.theta(3.0), on_grid(sums)
    single = [
        [slope * entry for slope in sums.slopes(theta, r) for entry in row]
        for r, row in enumerate(rows)
    ]
    rng = np.random.default_rng(2)
    some = rng.choice(len(rows), 77, replace=False)
    for batch in (np.arange(len(rows)), some, some[:1], np.arange(BLOCK), some[:0]):
        expected = [
            sum(column) for column in zip(*(single[r] for r in batch), strict=True)
        ]
        expected = expected or [0] * len(theta)
        assert big(sums.of_batch(theta, batch)) == expected


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_neither_order_nor_other_rows_change_a_bit(kind: str, loss: str) -> None:
    sums, rng = Sums.of(kind, loss), np.random.default_rng(4)
    theta, count = sums.theta(10.0), len(sums.exact())
    whole = sums.of_batch(theta, np.arange(count))
    assert (sums.of_batch(theta, rng.permutation(count)) == whole).all()
    cut = int(rng.integers(1, count))
    parts = [sums.of_batch(theta, part) for part in np.split(np.arange(count), [cut])]
    assert (parts[0] + parts[1] == whole).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_slopes_are_those_of_the_reference(kind: str, loss: str) -> None:
    sums = Sums.of(kind, loss)
    model, exact, scale = sums.rounds.plan.model, sums.exact(), 2.0**sums.bits
    for size in (0.0, 0.3, 5.0):
        theta = sums.theta(size)
        scores = model.scores(theta, exact.x.astype(np.float64))
        expected = model.slopes(scores, exact.y).reshape(len(exact), -1) * scale
        for row in range(0, len(exact), 13):
            if loss == "hinge" and abs(abs(scores[row]) - 1) < 1e-5:
                continue  # at the kink, rounding decides
            slopes = sums.slopes(theta, row)
            assert slopes == pytest.approx(expected[row], abs=2)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_the_reference(kind: str, loss: str) -> None:
    sums = Sums.of(kind, loss)
    theta, exact = sums.theta(0.5), sums.exact()
    reference = gradient_sum(sums.rounds.plan.model, theta, exact)
    ours = sums.of_batch(theta, np.arange(len(exact)))
    # At most two units of a slope per row, times an entry.
    largest = 2 * np.abs(exact.x).sum(axis=0).max() * 2**ROW_BITS
    assert np.abs(ours - reference).max() <= largest
    assert np.abs(reference).max() > 1000 * largest / len(exact)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e3, 1e29])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_has_at_most_norm_g_for_any_model(loss: str, size: float) -> None:
    # In whole numbers, so without a tolerance.
    sums = Sums.of("dense", loss)
    bound = (sums.rounds.plan.lipschitz * 2.0 ** (ROW_BITS + sums.bits)) ** 2
    for seed in range(5):
        theta = sums.theta(size, seed)
        for row in range(0, len(sums.exact()), 29):
            moved = squared(big(sums.of_batch(theta, [row])))
            assert moved <= bound * (1 + 1e-15)  # rounding of the bound itself


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_not_even_broken_models_exceed_the_bound(
    kind: str, loss: str, value: float
) -> None:
    sums = Sums.of(kind, loss)
    theta = np.full(sums.rounds.packed.num_params, value)
    theta[::2] *= -1
    limit = 2 * 4**sums.bits if loss == "softmax" else 4**sums.bits
    for row in range(0, len(sums.exact()), 100):
        assert squared(sums.slopes(theta, row)) <= limit


def test_probabilities_that_exceed_1_do_not_exceed_the_bound() -> None:
    # The scores of the other two classes are equal: their slopes sum to all of it.
    sums = Sums.of("codes", "softmax")
    theta = np.zeros((3, sums.rounds.plan.dim))
    for top in (0.1, 3.0, 20.0, 80.0):
        for label in range(3):
            theta[:] = top
            theta[label] = -top
            for row in range(0, 200, 7):
                slopes = sums.slopes(theta.reshape(-1), row)
                others = [slope for slope in slopes if slope > 0]
                assert sum(others) <= 2**sums.bits
                assert min(slopes) >= -(2**sums.bits)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_rounded_as_on_a_device(kind: str) -> None:
    sums = Sums.of(kind, "hinge")
    # At theta = 0 every slope of the hinge loss is 1 or -1: sums show the entries.
    rows, y = on_grid(sums), sums.exact().y
    for row in range(0, len(rows), 53):
        sign = 1 if y[row] > 0 else -1
        expected = [-sign * entry * 2**sums.bits for entry in rows[row]]
        assert big(sums.of_batch(sums.theta(0.0), [row])) == expected


def test_steeper_slopes_have_fewer_bits() -> None:
    # 512 products must fit 53 bits, also for a loss that is steep.
    loss = Huber(threshold=5.0)
    assert slope_bits(1000, 5.0) == 18
    x = np.ones((BLOCK, 1), dtype=np.float32)
    y = np.full(BLOCK, -1.0)
    theta = np.array([3.999999])
    rows = ExactRows.rounded(x, y)
    one = gradient_sum(loss, theta, rows.first(1))
    many = ExactRows(x=x, y=y)
    scale = slope_bits(BLOCK, 5.0) - slope_bits(1, 5.0)
    assert scale == 0
    assert int(gradient_sum(loss, theta, many)[0]) == BLOCK * int(one[0])
