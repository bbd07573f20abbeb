"""The audit of releases in this process: the same parts, compiled."""

import math

import numpy as np
import pytest

from fedbudget.auditing.audits import CONSISTENT, audit_claim
from fedbudget.auditing.grids import measure_grid
from fedbudget.auditing.mechanisms import DevicePath
from fedbudget.auditing.release_path import ReleasePath
from fedbudget.auditing.sensitivity import measure_sensitivity
from fedbudget.auditing.trials import Effort, run_trials
from tests.auditing.examples import LOSSES, claim
from tests.auditing.test_trials import check_law


@pytest.mark.parametrize("loss", LOSSES)
def test_compiled_sums_keep_the_bound(loss: str) -> None:
    result = measure_sensitivity(ReleasePath(), claim(loss=loss))
    assert result.holds and result.largest > 1 - 2.0**-22


@pytest.mark.parametrize("loss", LOSSES)
def test_canaries_have_the_same_sums_on_both_paths(loss: str) -> None:
    item = claim(loss=loss)
    pair = item.canaries()
    for table in pair.tables:
        ours, theirs = (
            path.exact_sum(item, pair.theta, table)
            for path in (ReleasePath(), DevicePath())
        )
        assert ours.unit == theirs.unit
        assert np.array_equal(ours.numbers, theirs.numbers)


def test_a_compiled_release_is_that_of_the_grid() -> None:
    item = claim()
    pair, path = item.canaries(), ReleasePath()
    grid = path.grid(item)
    total = path.exact_sum(item, pair.theta, pair.first)
    noise = path.draw(50 * len(total.numbers), scale_bits=grid.scale_bits)
    noise = noise.reshape(50, -1)
    released = path.release(grid, total, noise)
    assert released == pytest.approx(grid.noisy(total.floats, noise), rel=1e-15)
    assert measure_grid(path, item, pair, values=300).holds


@pytest.mark.parametrize("loss", LOSSES)
def test_whole_runs_have_the_law_of_the_claim(loss: str) -> None:
    item = claim(10.0, loss=loss, steps=3)
    trials = run_trials(ReleasePath(), item, Effort(trials=3000))
    check_law(trials, 2 * math.sqrt(3) / item.noise_multiplier)


def test_releases_are_consistent_with_their_claim() -> None:
    result = audit_claim(ReleasePath(), claim(), Effort(trials=20_000), error=1e-7)
    assert result.verdict == CONSISTENT and result.path == "release"
    # The bound has mean 3.64, deviation 0.05. `benchmarks/auditing.py` shows
    # how close to the claim it comes in a minute.
    assert 3.2 < result.steps.gaussian < 4
