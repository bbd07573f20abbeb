"""Part (d): trials step by step, and whole runs through the device's own loop."""

import math

import numpy as np
import pytest
from scipy import stats

from fedbudget.auditing import mechanisms
from fedbudget.auditing.bounds import Trials
from fedbudget.auditing.mechanisms import LEARNING_RATE, DevicePath, added_sums
from fedbudget.auditing.trials import (
    Effort,
    Signal,
    collect,
    run_trials,
    steps_trials,
)
from fedbudget.checks import Array
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device import exact_steps
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers
from tests.auditing.examples import LOSSES, SeededPath, claim


def check_law(trials: Trials, mu: float) -> None:
    """The means differ by mu and the variances are 1; fails once in 10^8 times."""
    spread = math.sqrt(1 / len(trials.first) + 1 / len(trials.second))
    distance = trials.first.mean() - trials.second.mean()
    assert abs(distance - mu) < 6 * spread
    for side in (trials.first, trials.second):
        low, high = stats.chi2.ppf(np.array([1e-9, 1 - 1e-9]), len(side) - 1)
        assert low < len(side) * side.var() < high
    assert abs(trials.first.mean() + trials.second.mean()) < 6 * spread


@pytest.mark.parametrize("loss", LOSSES)
def test_trials_have_the_law_of_the_claim(loss: str) -> None:
    item = claim(10.0, loss=loss, steps=3)
    trials = steps_trials(SeededPath(), item, item.canaries(), Effort(trials=4000))
    check_law(trials, 2 * math.sqrt(3) / item.noise_multiplier)


@pytest.mark.parametrize("loss", LOSSES)
def test_whole_runs_have_the_same_law(loss: str) -> None:
    item = claim(10.0, loss=loss, steps=3)
    trials = run_trials(DevicePath(), item, Effort(trials=300))
    check_law(trials, 2 * math.sqrt(3) / item.noise_multiplier)


def seeded_normals() -> ExactNormals:
    rng = np.random.default_rng(5)
    return ExactNormals(lambda count: rng.integers(0, 2**64, count, dtype=np.uint64))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_of_a_trial_is_a_step_of_the_device(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same words give the same released sums, to the bit.
    item = claim(loss=loss, steps=1).small()
    pair = item.canaries()
    count = item.num_params
    monkeypatch.setattr(exact_steps, "ExactNormals", seeded_normals)
    path = DevicePath()
    for table in pair.tables:
        sums = path.runs(item, table, np.zeros(count), 1)
        total = path.exact_sum(item, np.zeros(count), table)
        grid = path.grid(item)
        noise = seeded_normals().draw(count, scale_bits=grid.scale_bits)
        released = path.release(grid, total, noise[None, :])[0]
        step = LEARNING_RATE * (released / item.batch_size)
        models = np.zeros((1, count)) - step
        assert np.array_equal(sums, added_sums(item, np.zeros(count), models))


def test_the_table_of_whole_runs_has_the_noise_multiplier_of_the_claim() -> None:
    item = claim(batch_size=100_000)
    small = item.small()
    assert small.batch_size < 100 and small.dim <= item.dim
    assert small.noise_multiplier == pytest.approx(item.noise_multiplier)


def test_only_coordinates_that_differ_are_drawn() -> None:
    drawn: list[int] = []

    class Counting(SeededPath):
        def draw(self, count: int, *, scale_bits: int) -> Integers:
            drawn.append(count)
            return super().draw(count, scale_bits=scale_bits)

    item = claim(steps=5)
    path = Counting()
    steps_trials(path, item, item.canaries(), Effort(trials=100))
    assert sum(drawn) == 2 * 100 * 5
    assert list(Signal.of(path, item, item.canaries()).index) == [0]


def test_time_ends_trials_and_sides_are_equal() -> None:
    def trial(side: int, count: int) -> Array:
        return np.full(count, float(side))

    trials = collect(trial, Effort(seconds=0.0), at_once=3, threads=2)
    assert len(trials.first) == len(trials.second) >= 3
    assert set(trials.first) == {0.0} and set(trials.second) == {1.0}
    exact = collect(trial, Effort(trials=25), at_once=10)
    assert len(exact.first) == len(exact.second) == 25


def test_a_run_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "noisy_steps", lambda *_, **__: None)
    with pytest.raises(InvalidInputError, match="ended early"):
        run_trials(DevicePath(), claim(), Effort(trials=10))
