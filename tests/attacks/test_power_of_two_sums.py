"""Sums in float32 move by more than 2 G: the power-of-two straddle.

A float32 has 24 bits. Just below a power of two its spacing is half of that above. A
partial sum just above absorbs rows that are smaller than half its spacing; one just
below counts each of them, and rounds it up. So one row that lifts a partial sum over a
power of two decides whether thousands of later rows count: the sum moves by much more
than that row. (Casacuberta, Shoemate, Vadhan and Wagaman, "Widespread underestimation
of sensitivity in differentially private libraries and how to fix it", CCS 2022.)

A release sums whole numbers: it moves by at most 2 G, whatever the rows.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import fedbudget as fb
from fedbudget.data import Dataset, Part
from fedbudget.fleet.device.exact_steps import ROW_BITS
from fedbudget.losses import Hinge
from fedbudget.release.rounds import ReleaseRounds
from fedbudget.release.rows import exact_rows
from fedbudget.simulation.kernels.layouts import pack_rows
from fedbudget.simulation.kernels.runs import RoundPlan, run_rounds
from tests.release.examples import Sums

TOP = 1 << 12  # the power of two
SPACING = 2.0**-12  # of float32 just below it
SMALL = 24_576  # rows smaller than half the spacing above
G = 1.0  # of the hinge loss


def table(lifted: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows of one column, and labels; the tables differ in one label.

    At theta = 0 a slope of the hinge loss is +1 for the label 0, and -1 for 1. The
    first rows sum to the power of two. The next lifts the sum by 2 spacings, or lowers
    it; the kernels sum four rows at a time, so three zeros follow. The small rows are
    subtracted.
    """
    first, small = np.ones(TOP), np.full(SMALL, 0.9 * SPACING)
    x = np.concatenate([first, [2 * SPACING, 0, 0, 0], small])
    y = np.concatenate([np.zeros(TOP), [0 if lifted else 1, 0, 0, 0], np.ones(SMALL)])
    return x.astype(np.float32)[:, None], y.astype(np.int64)


TRUE = 4 * SPACING  # how far the exact sums are apart


def in_float32(lifted: bool) -> float:
    """Sum the gradients one after another in float32."""
    x, y = table(lifted)
    slopes = np.where(y > 0, np.float32(-1), np.float32(1))
    return float(np.add.accumulate(slopes * x[:, 0], dtype=np.float32)[-1])


def simulated(lifted: bool) -> float:
    """Return the simulator's sum: a step without noise from theta = 0."""
    x, y = table(lifted)
    packed = pack_rows(x, y, np.array([0, len(y)]), loss=Hinge())
    plan = RoundPlan(
        tau=1,
        learning_rate=1.0,
        batch_size=len(y),
        noise_std=0.0,
        weights=1.0,
        sampling="full",
    )
    return float(
        -run_rounds(packed, np.zeros(1), plan, rounds=1, seed=0)[0, 0] * len(y)
    )


def test_float32_sums_move_by_more_than_2g() -> None:
    assert abs(in_float32(True) - in_float32(False)) > 2.5 * 2 * G


def test_the_simulators_sums_move_by_more_than_2g() -> None:
    assert abs(simulated(True) - simulated(False)) > 1.4 * 2 * G


def exact(lifted: bool) -> tuple[int, int]:
    """Return the sum of a release in whole numbers, and the units of 1."""
    x, y = table(lifted)
    part = Part(x=x, y=y, offsets=np.array([0, len(y)]))
    few = Part(x=x[:2], y=y[:2], offsets=np.array([0, 2]))
    data = Dataset(
        name="straddle",
        train=part,
        validation=few,
        test=few,
        device_names=("device",),
        feature_names=("x",),
        classes=("0", "1"),
        dissimilarity="iid",
    )
    plan = fb.plan(
        data.problem(loss="hinge"),
        fb.Budget(epsilon=1.0, cost=1000),
        fb.Prices(communication=10, computation=1),
    )
    plan = replace(plan, sampling="full", batch_size=data.num_samples)
    rounds = ReleaseRounds.of(plan, exact_rows(data.train, plan.model))
    sums = Sums(data=data, rounds=rounds)
    total = sums.of_batch(np.zeros(1), np.arange(len(y)))
    return int(total[0]), 2 ** (ROW_BITS + sums.bits)


def test_the_sums_of_a_release_move_by_at_most_2g() -> None:
    (lifted, unit), (lowered, _) = exact(True), exact(False)
    assert abs(lifted - lowered) <= 2 * G * unit
    # It is the difference of the two rows, to the last bit.
    assert lifted - lowered == TRUE * unit


def test_the_sum_itself_is_exact() -> None:
    x, y = table(True)
    total, unit = exact(True)
    whole = [round(float(value) * 2**ROW_BITS) for value in x[:, 0]]
    signed = sum(-w if label else w for w, label in zip(whole, y, strict=True))
    assert total == signed * (unit >> ROW_BITS)
    assert total / unit == pytest.approx(TOP - SMALL * 0.9 * SPACING, abs=0.01)
