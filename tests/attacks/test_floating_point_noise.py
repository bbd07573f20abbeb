"""Noise in floating point tells tables apart (Mironov 2012).

Ilya Mironov, "On significance of the least significant bits for differential privacy",
CCS 2012. A float32 normal times a scale lies on a grid with gaps. Subtracted from a
table's mean gradient, it leaves a model from which only the true table's mean leads
back to that grid. One released model suffices: the noise need not be guessed.

A simulation is open to it, and says that it promises nothing. A release adds whole
numbers to whole numbers: every table leads back to the same grid.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.data import Dataset
from fedbudget.fleet.device.exact_steps import (
    ROW_BITS,
    ExactRows,
    NoiseGrid,
    gradient_sum,
    slope_bits,
)
from fedbudget.release.rounds import noise_grids
from fedbudget.simulation.devices import round_plan
from fedbudget.simulation.kernels.runs import run_rounds
from fedbudget.simulation.packing import packed_rows
from tests.examples import small_data

TRIALS = 30


def table(changed: bool) -> Dataset:
    """Return the rows of one device; neighbouring tables differ in one label."""
    data = small_data(devices=1, rows=64, dim=8)
    y = data.train.y.copy()
    y[5] ^= int(changed)
    return replace(data, train=replace(data.train, y=y))


TABLES = [table(False), table(True)]
PLAN = replace(
    fb.plan(
        TABLES[0].problem(),
        fb.Budget(epsilon=1.0, delta=1e-4, cost=1000),
        fb.Prices(communication=100, computation=1),
    ),
    tau=1,
    rounds=1,
    drift_correction=False,
)


def released(devices: Any) -> Array:
    return fb.train(PLAN, devices).theta


def simulated_noise(model: Array, candidate: Dataset) -> Array:
    """Return the normals that lead from a table's mean to a simulated model."""
    quiet = replace(round_plan(PLAN, PLAN.weights), noise_std=0.0)
    rows = packed_rows(candidate.train, PLAN.model)
    mean = run_rounds(rows, np.zeros(len(model)), quiet, rounds=1, seed=0)[0]
    single = np.float32(PLAN.noise_std[0])
    single = single if single >= PLAN.noise_std[0] else np.nextafter(single, np.inf)
    scale = np.float64(np.float32(PLAN.learning_rate)) * np.float64(single)
    return np.asarray((mean - model) / scale)


def off_float32(normals: Array) -> float:
    """Return the largest distance to a float32, in units of its last place."""
    nearest = normals.astype(np.float32)
    return float(np.max(np.abs(normals - nearest) / np.spacing(np.abs(nearest))))


@pytest.mark.parametrize("truth", [0, 1])
def test_a_simulation_tells_neighbouring_tables_apart(truth: int) -> None:
    for seed in range(TRIALS):
        model = released(fb.SimulatedDevices(TABLES[truth], seed=seed))
        distances = [off_float32(simulated_noise(model, data)) for data in TABLES]
        assert int(np.argmin(distances)) == truth
        assert distances[truth] < 0.1 < distances[1 - truth]


def released_noise(model: Array, candidate: Dataset) -> Array:
    """Return the noise, in grid steps, that leads from a table's sum to a release."""
    grid, size = noise_grids(PLAN)[0], int(PLAN.batch_size[0])
    x, y = candidate.train.device(0)
    rows = ExactRows.rounded(np.asarray(x), y)
    unit = 2.0 ** -(ROW_BITS + slope_bits(len(rows), PLAN.lipschitz))
    sums = gradient_sum(PLAN.model, np.zeros(len(model)), rows) * unit
    gradient = -model / PLAN.learning_rate
    return np.asarray(gradient * size / grid.step - np.rint(sums / grid.step))


def off_whole(noise: Array) -> float:
    """Return the largest distance to a whole number."""
    return float(np.max(np.abs(noise - np.rint(noise))))


@pytest.mark.parametrize("truth", [0, 1])
def test_a_release_leads_back_to_one_grid_from_every_table(truth: int) -> None:
    for _ in range(TRIALS):
        model = released(fb.ReleaseDevices(TABLES[truth]))
        for data in TABLES:
            # The whole numbers have 31 bits and more: float64 leaves an error of 2^-20.
            assert off_whole(released_noise(model, data)) < 1e-4
        # The simulator's grid is not there: the attack sees neither table.
        assert all(off_float32(simulated_noise(model, data)) > 0.1 for data in TABLES)


def test_the_attack_would_see_noise_off_the_grid() -> None:
    # The same sum with ordinary float64 noise: only the true table's noise is the draw.
    grid: NoiseGrid = noise_grids(PLAN)[0]
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=TABLES[0].dim) * PLAN.noise_std[0]
    noise = released_noise(-PLAN.learning_rate * gradient, TABLES[0])
    assert grid.step > 0 and off_whole(noise) > 0.1
