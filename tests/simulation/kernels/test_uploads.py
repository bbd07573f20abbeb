"""Noise once per upload in the kernels: drawn once per round, for the mean."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedbudget.algorithm import Batch, local_steps, model_of_sum, noisy_upload
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Floats, Labels, Logistic, Loss, SmoothHinge, Softmax
from fedbudget.simulation.kernels.layouts import PackedRows, pack_rows
from fedbudget.simulation.kernels.runs import (
    RoundPlan,
    device_replies,
    run_rounds,
    sweep_runs,
)
from tests.simulation.examples import OFFSETS, WEIGHTS

LOSSES: list[Loss] = [Logistic(l2=0.05), SmoothHinge(), Softmax(num_classes=3)]
PLAN = RoundPlan(
    tau=4,
    learning_rate=0.7,
    batch_size=1,
    noise_std=0.0,
    weights=WEIGHTS,
    sampling="full",
)


def rows(loss: Loss) -> tuple[np.ndarray, Labels, PackedRows]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(int(OFFSETS[-1]), 21))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(max(2, loss.num_outputs), size=len(x))
    return x, y, pack_rows(x, y, OFFSETS, loss=loss)


def reference(loss: Loss, x: np.ndarray, y: Labels, clip: float | None) -> Floats:
    """Return the model after three rounds without noise."""
    rng = np.random.default_rng(0)
    theta: Floats = np.zeros(loss.num_params(x.shape[1]))
    for _ in range(3):
        uploads = []
        for weight, (a, b) in zip(WEIGHTS, pairwise(OFFSETS), strict=True):
            reply = local_steps(
                theta,
                x[a:b],
                y[a:b],
                loss=loss,
                tau=PLAN.tau,
                learning_rate=PLAN.learning_rate,
                noise_std=0.0,
                batch=Batch(),
                rng=rng,
            )
            upload = noisy_upload(
                theta, reply, weight=weight, noise_std=0.0, rng=rng, clip=clip
            )
            uploads.append(upload)
        theta = model_of_sum(theta, uploads, WEIGHTS)
    return theta


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("clip", [None, 0.05, 0.3])
def test_without_noise_the_kernels_take_the_references_rounds(
    loss: Loss, clip: float | None
) -> None:
    x, y, packed = rows(loss)
    expected = reference(loss, x, y, clip)
    if clip is not None:  # it makes a difference
        assert np.abs(expected - reference(loss, x, y, None)).max() > 1e-3
    theta = np.zeros(packed.num_params)
    plan = replace(PLAN, clip=clip)
    assert run_rounds(packed, theta, plan, rounds=3, seed=1)[-1] == pytest.approx(
        expected, abs=2e-5
    )
    # Plans side by side have clipping norms of their own.
    plans = [plan, *(replace(PLAN, clip=0.01 * i) for i in range(1, 20))]
    swept = sweep_runs(packed, theta, plans, rounds=[3] * 20, seeds=[1])
    assert swept[0, 0] == pytest.approx(expected, abs=2e-5)
    third = reference(loss, x, y, 0.03)
    assert swept[3, 0] == pytest.approx(third, abs=2e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_noise_of_the_mean_has_the_plans_std_and_is_drawn_every_round(
    loss: Loss,
) -> None:
    _, _, packed = rows(loss)
    theta = np.zeros(packed.num_params)
    noisy = replace(PLAN, learning_rate=1e-30, upload_noise=0.25)
    models = [
        run_rounds(packed, theta, noisy, rounds=2, seed=seed) for seed in range(400)
    ]
    first = np.array([model[0] for model in models])
    second = np.array([model[1] - model[0] for model in models])
    count = first.size
    # At least 8,400 normals: five standard errors of their std, and of a correlation.
    for noise in (first, second):
        assert np.std(noise) == pytest.approx(0.25, rel=5 / np.sqrt(2 * count))
        assert abs(np.mean(noise)) < 5 * 0.25 / np.sqrt(count)
    correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(count)
    columns = np.corrcoef(first[:, 0], first[:, 1])[0, 1]
    assert abs(columns) < 5 / np.sqrt(len(first))


def test_plans_side_by_side_have_noise_of_their_own_std() -> None:
    _, _, packed = rows(LOSSES[0])
    theta = np.zeros(packed.num_params)
    plans = [
        replace(PLAN, learning_rate=1e-30, upload_noise=0.1 * i) for i in range(1, 17)
    ]
    swept = sweep_runs(packed, theta, plans, rounds=[1] * 16, seeds=[1, 2])
    for i in (2, 9, 16):
        assert swept[i - 1] == pytest.approx(i * swept[0], rel=1e-5)
    assert np.abs(swept[0, 0] - swept[0, 1]).max() > 0.01


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"noise_std": 0.1}, "upload_noise 0.5 is drawn once per round"),
        ({"drift_correction": True}, "set noise_std to 0 and drift_correction"),
        ({"upload_noise": -1.0}, "upload_noise must be at least 0"),
        ({"clip": 0.0}, "clip must be above 0"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, float], message: str) -> None:
    _, _, packed = rows(LOSSES[0])
    plan = replace(PLAN, upload_noise=0.5)
    with pytest.raises(InvalidInputError, match=message):
        run_rounds(
            packed,
            np.zeros(packed.num_params),
            replace(plan, **changes),  # type: ignore[arg-type]
            rounds=1,
            seed=1,
        )
    with pytest.raises(InvalidInputError, match="use run_rounds"):
        device_replies(packed, np.zeros(packed.num_params), plan, seed=1)
