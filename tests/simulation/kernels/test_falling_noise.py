"""Kernels with falling noise take the rounds that constant noise takes one by one."""

from dataclasses import replace

import numpy as np
import pytest

from fedbudget.losses import Floats, Logistic, Loss, Softmax
from fedbudget.simulation.kernels.layouts import PackedRows, pack_rows
from fedbudget.simulation.kernels.runs import (
    RoundPlan,
    device_replies,
    no_shifts,
    run_rounds,
    sweep_runs,
)
from tests.simulation.examples import OFFSETS, SIZES, WEIGHTS
from tests.simulation.kernels.test_agreement import labels, rows

SEED, ROUNDS = 5, 6
LOSSES: list[Loss] = [Logistic(l2=0.1), Softmax(num_classes=3)]
PLAN = RoundPlan(
    tau=3,
    learning_rate=0.7,
    batch_size=np.minimum(SIZES, 20),
    noise_std=np.array([0.5, 1.0, 0.2, 0.7]),
    weights=WEIGHTS,
    sampling="fixed",
    momentum=0.4,
    noise_decay=0.6,
)


def packed_for(loss: Loss) -> PackedRows:
    return pack_rows(rows("dense"), labels(loss), OFFSETS, loss=loss)


def one_by_one(packed: PackedRows, plan: RoundPlan, rounds: int = ROUNDS) -> Floats:
    """Return the model after rounds of constant noise, each with its own."""
    theta = velocity = np.zeros(packed.num_params)
    shifts = no_shifts(packed, plan)
    for number in range(rounds):
        noise = np.asarray(plan.noise_std) * plan.noise_decay**number
        model = run_rounds(
            packed,
            theta,
            replace(plan, noise_std=noise, noise_decay=1.0),
            rounds=1,
            seed=SEED,
            first_step=number * plan.tau,
            velocity=velocity,
            shifts=shifts,
        )[-1]
        theta, velocity = model, model - theta
    return theta


@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_rounds_and_sweeps_have_the_noise_of_their_round(
    loss: Loss, drift: bool
) -> None:
    packed = packed_for(loss)
    plan = replace(PLAN, drift_correction=drift)
    start = np.zeros(packed.num_params)
    expected = one_by_one(packed, plan)
    models = run_rounds(packed, start, plan, rounds=ROUNDS, seed=SEED)
    assert models[-1] == pytest.approx(expected, abs=1e-4)
    constant = run_rounds(
        packed, start, replace(plan, noise_decay=1.0), rounds=ROUNDS, seed=SEED
    )
    assert np.abs(constant[-1] - expected).max() > 0.1  # the test can fail
    # Lanes with a decay of their own, and one with constant noise.
    decays = [0.6, 0.7, 0.8, 0.9, 0.95, 1.0]
    plans = [replace(plan, noise_decay=decay) for decay in decays]
    swept = sweep_runs(packed, start, plans, rounds=[ROUNDS] * 6, seeds=[SEED])
    each = [one_by_one(packed, other) for other in plans]
    assert swept[:, 0] == pytest.approx(np.stack(each), abs=1e-4)


def test_a_run_in_two_parts_has_the_noise_of_one() -> None:
    packed = packed_for(LOSSES[0])
    whole = run_rounds(
        packed, np.zeros(packed.num_params), PLAN, rounds=ROUNDS, seed=SEED
    )
    rest = run_rounds(
        packed,
        whole[1],
        PLAN,
        rounds=ROUNDS - 2,
        seed=SEED,
        first_step=2 * PLAN.tau,
        first_round=2,
        velocity=whole[1] - whole[0],
    )
    assert rest[-1] == pytest.approx(whole[-1], abs=1e-6)


def test_replies_have_the_noise_of_their_round() -> None:
    packed = packed_for(LOSSES[0])
    theta = np.zeros(packed.num_params)
    later = device_replies(packed, theta, PLAN, seed=SEED, first_step=9, first_round=3)
    noise = np.asarray(PLAN.noise_std) * PLAN.noise_decay**3
    constant = replace(PLAN, noise_std=noise, noise_decay=1.0)
    same = device_replies(packed, theta, constant, seed=SEED, first_step=9)
    assert later == pytest.approx(same, abs=1e-5)


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5, np.nan])
def test_an_invalid_decay_is_refused(decay: float) -> None:
    packed = packed_for(LOSSES[0])
    with pytest.raises(ValueError, match="noise_decay"):
        run_rounds(
            packed,
            np.zeros(packed.num_params),
            replace(PLAN, noise_decay=decay),
            rounds=1,
            seed=SEED,
        )
