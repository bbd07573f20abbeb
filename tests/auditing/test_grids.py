"""Part (c): released values lie on the grid of the noise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.auditing.grids import measure_grid, measure_model_grid, off_grid
from fedbudget.auditing.mechanisms import DevicePath
from fedbudget.checks import Array
from fedbudget.fleet.device.exact_steps import ExactRows, noisy_steps
from fedbudget.record import RecordedRun
from tests.auditing.examples import LOSSES, FloatNoise, claim


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_releases_are_on_the_grid(loss: str) -> None:
    item = claim(loss=loss)
    result = measure_grid(DevicePath(), item, item.canaries(), values=500)
    assert result.holds and result.off == (0, 0)


def test_noise_in_floating_point_is_caught() -> None:
    item = claim()
    result = measure_grid(FloatNoise(), item, item.canaries(), values=500)
    assert not result.holds and "OFF" in str(result)


def test_values_between_or_beyond_grid_points_are_counted() -> None:
    step = 0.1
    values = np.array([3 * step, 3.5 * step, 3 * step * (1 + 2**-50), 2.0**60 * step])
    assert off_grid(values, step) == 3


def one_step_run(theta: Array, plan: fb.Plan) -> RecordedRun:
    about: dict[str, object] = {"fleet": "home"}
    return RecordedRun(path=Path(), plan=plan, about=about, rounds=[], theta=theta)


def one_step_plan() -> fb.Plan:
    plan = fb.plan(
        fb.Problem(num_samples=[40], dim=3),
        fb.Budget(epsilon=1, delta=1e-5, cost=101),
        fb.Prices(communication=100, computation=1),
    )
    return replace(plan, tau=1, rounds=1, learning_rate=0.3)


def released_model(plan: fb.Plan) -> Array:
    x, y = np.full((40, 3), 0.3), np.arange(40) % 2
    theta = noisy_steps(
        np.zeros(3),
        ExactRows.rounded(x, y),
        loss=plan.model,
        tau=1,
        learning_rate=plan.learning_rate,
        noise_std=float(plan.noise_std[0]),
        batch_size=40,
    )
    assert theta is not None
    return theta


def test_the_model_of_one_step_is_on_the_grid_of_its_noise() -> None:
    plan = one_step_plan()
    theta = released_model(plan)
    result = measure_model_grid(one_step_run(theta, plan), released=True)
    assert result.holds and result.weights == 3 and not result.not_applicable
    moved = measure_model_grid(one_step_run(theta + 1e-13, plan), released=True)
    assert not moved.holds and "OFF" in str(moved)


def test_other_models_have_no_grid_of_their_own() -> None:
    plan = one_step_plan()
    theta = released_model(plan)
    run = one_step_run(theta, plan)
    reasons = [
        measure_model_grid(run, released=False),
        measure_model_grid(replace(run, theta=None), released=True),
        measure_model_grid(replace(run, plan=replace(plan, tau=2)), released=True),
        measure_model_grid(
            replace(run, theta=theta.astype(np.float32).astype(np.float64)),
            released=True,
        ),
    ]
    words = ("simulation", "not finished", "several releases", "float32")
    for result, word in zip(reasons, words, strict=True):
        assert word in result.not_applicable
        assert result.holds and str(result).startswith("not applicable")
