"""Baselines: the rows they use, their privacy and their measurements."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbudget.data import Part
from fedbudget.errors import InvalidInputError
from fedbudget.privacy import GDP
from fedbudget.reporting import baselines
from fedbudget.simulation.personal import fit
from tests.examples import small_data

DATA = small_data(devices=4, rows=100, unlike=0.5)


def test_the_constant_uses_no_feature() -> None:
    baseline = baselines.constant(DATA)
    share = np.mean(DATA.train.y)
    # By hand: the log-odds of the training labels, and the commoner class.
    assert baseline.theta[0] == pytest.approx(np.log(share / (1 - share)), abs=1e-3)
    common = int(share > 0.5)
    expected = [np.mean(DATA.test.device(m)[1] == common) for m in range(4)]
    assert baseline.per_device["test_accuracy"] == pytest.approx(expected)
    assert baseline.measured["test_accuracy"] == pytest.approx(np.mean(expected))


def test_local_fits_do_not_use_other_devices() -> None:
    local = baselines.local_only(DATA)
    assert local.theta.shape == (4, 5) and local.epsilon == 0
    # Other rows on devices 0 and 1 do not change the model of device 2.
    other = small_data(devices=4, rows=100, unlike=0.5, seed=9).train
    rows, y = np.array(DATA.train.x), DATA.train.y.copy()
    rows[:160], y[:160] = np.asarray(other.x)[:160], other.y[:160]
    train = Part(x=rows, y=y, offsets=DATA.train.offsets)
    changed = baselines.local_only(replace(DATA, train=train))
    assert (changed.theta[2] == local.theta[2]).all()
    assert (changed.theta[0] != local.theta[0]).any()
    # A model for every device is measured on that device's rows.
    x, y = DATA.test.device(2)
    accuracy = np.mean((x @ local.theta[2] > 0) == y)
    assert local.per_device["test_accuracy"][2] == pytest.approx(accuracy)


def test_centralised_beats_devices_with_few_similar_rows() -> None:
    data = small_data(devices=20, rows=20, dim=8, seed=1)
    pooled = baselines.centralised(data).measured["test_loss"]
    assert pooled < baselines.local_only(data).measured["test_loss"]
    assert pooled < baselines.constant(data).measured["test_loss"]
    private = baselines.centralised_private(data, epsilon=4, delta=1e-3)[0]
    assert private.epsilon is not None and 3.9 < private.epsilon <= 4


def test_a_uniform_target_gives_devices_equal_weights() -> None:
    data = small_data(devices=2, rows=100, unlike=3, seed=3)
    first, second = data.train.device(0), data.train.device(1)
    # The same rows, but only a tenth of device 1's own: only its size changes.
    few = Part(
        x=np.concatenate([first[0], second[0][:8]]),
        y=np.concatenate([first[1], second[1][:8]]),
        offsets=np.array([0, 80, 88]),
    )
    smaller = replace(data, train=few)
    losses = {
        target: baselines.centralised(smaller, target=target).per_device["test_loss"]
        for target in ("size", "uniform")
    }
    assert losses["uniform"][1] < losses["size"][1]
    assert losses["uniform"][0] > losses["size"][0]


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_perturbed_fits_hide_the_replacement_of_a_sample(loss: str) -> None:
    data = small_data(devices=1, rows=50)
    model = data.problem(loss=loss).model
    strength, x, y = 0.05, np.asarray(data.train.x), data.train.y
    bound = baselines.sensitivity(model, len(y), strength, 5)
    theta = fit(model, x, y, strength=strength, tolerance=1e-7)
    largest = 0.0
    for row in range(0, len(y), 4):
        others = x.copy()
        others[row] = -x[row]
        other = fit(model, others, y, strength=strength, tolerance=1e-7)
        largest = max(largest, float(np.linalg.norm(other - theta)))
    assert 0.1 * bound < largest <= bound  # the bound holds and is not loose


def test_the_noise_of_one_shot_keeps_its_epsilon() -> None:
    data = small_data(devices=1, rows=100)
    models = [baselines.one_shot(data, epsilon=1.0, seed=s).theta for s in range(200)]
    std = np.std(models, axis=0)
    # By hand: sensitivity 2 G / (N strength), noise = sensitivity / mu.
    mu = float(GDP.mu_from_epsilon(1.0, 1e-4))
    model = data.problem().model
    strength = baselines.planned_strength(data, model, np.ones(1), mu)
    assert std == pytest.approx(2 / (80 * strength) / mu, rel=0.2)
    assert baselines.one_shot(data).epsilon is None


@pytest.mark.parametrize(
    "budget, message",
    [
        ({"epsilon": -1.0}, "epsilon must be above 0"),
        ({"epsilon": np.nan}, "epsilon must be above 0"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be at least"),
        ({"epsilon": 1.0, "delta": 2.0}, "delta must be at least .* below 1"),
    ],
)
def test_one_shot_refuses_invalid_budgets(budget: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        baselines.one_shot(DATA, **budget)


def test_regression_has_losses_but_no_accuracy() -> None:
    data = small_data(classes=None)
    for baseline in (baselines.constant(data), baselines.local_only(data)):
        assert set(baseline.measured) == {"validation_loss", "test_loss"}


def test_devices_without_validation_or_test_rows_are_left_out_of_means() -> None:
    data = small_data(devices=3, rows=4)
    assert (data.validation.sizes == 0).any()
    local = baselines.local_only(data)
    assert np.isnan(local.per_device["validation_loss"]).any()
    assert np.isfinite(local.measured["test_loss"])
