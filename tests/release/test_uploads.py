"""Releases whose server sees only sums: compiled steps, shares of noise, whole runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import fedbudget as fb
from fedbudget.auditing.canaries import opposite_moves
from fedbudget.checks import Array
from fedbudget.data import Dataset
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.exact_uploads import (
    exact_upload,
    quiet_steps,
    rounding_error,
)
from fedbudget.planning.shared_noise import SumSchedule, shared_noise_plan
from fedbudget.release import uploads as uploads_module
from fedbudget.release.rounds import AT_ONCE, dealt_rows
from fedbudget.release.rows import exact_rows
from fedbudget.release.uploads import LARGEST_NORM, UploadRounds
from fedbudget.training import Order
from tests.examples import small_data
from tests.release.examples import KINDS, data_of

LOSSES = ["logistic", "smooth_hinge", "huber", "softmax"]  # hinge is not smooth
DATA = small_data(devices=6, rows=50)
BUDGET = fb.Budget(epsilon=2.0, delta=1e-5, cost=1000, trust="sum")
PRICES = fb.Prices(communication=20, computation=1)
SCHEDULE = SumSchedule(
    tau=5, rounds=6, learning_rate=2.0, least_answers=4, weights=[1, 2, 3, 4, 5, 6]
)
NONE = np.zeros(0, dtype=np.uint32)  # the order of cyclic batches, of full ones


def planned(data: Dataset = DATA, loss: str = "logistic", **changes: Any) -> fb.Plan:
    schedule = replace(SCHEDULE, **changes)
    return shared_noise_plan(data.problem(loss=loss), BUDGET, PRICES, schedule)


def prepared(plan: fb.Plan, data: Dataset = DATA) -> UploadRounds:
    return UploadRounds.of(plan, exact_rows(data.train, plan.model))


def model_of(plan: fb.Plan, length: float) -> Array:
    theta = np.random.default_rng(3).normal(size=plan.model.num_params(plan.dim))
    return np.asarray(theta * length / np.linalg.norm(theta))


def device_rows(data: Dataset, device: int) -> ExactRows:
    x, y = data.train.device(device)
    dense = x if isinstance(x, np.ndarray) else x.toarray()
    # The kernels hold targets in single precision.
    return ExactRows.rounded(dense, y if y.dtype.kind == "i" else y.astype(np.float32))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_moves_are_those_of_the_reference(kind: str, loss: str) -> None:
    data = data_of(kind, loss)
    plan = planned(data, loss, learning_rate=1.5, weights=None, least_answers=2)
    rounds = prepared(replace(plan, l2=0.1), data)
    model = rounds.packed.loss
    assert model.l2 == 0.1
    for length in (0.0, 1.0, 40.0):
        theta = model_of(plan, length)
        moves = rounds._moves(theta, np.arange(2), 0, NONE)
        bounds = rounding_error(
            model, rounds.uploads.steps, start_norm=length, dim=data.dim
        )
        for m in range(2):
            expected = quiet_steps(
                theta, device_rows(data, m), loss=model, tau=5, learning_rate=1.5
            )
            # Both are within the bound of the exact result.
            assert np.linalg.norm(moves[m] - expected) <= 2 * bounds[m]
            assert np.linalg.norm(expected) > 1e4 * bounds[m]


def test_hinge_has_slopes_of_its_own() -> None:
    """It is not smooth, but the device as the unit needs no smoothness."""
    data = data_of("dense", "hinge")
    plan = planned(data, "hinge", weights=None, least_answers=2, unit="device")
    rounds = prepared(plan, data)
    for length in (0.0, 1.0, 40.0):
        theta = model_of(plan, length)
        moves = rounds._moves(theta, np.arange(2), 0, NONE)
        # Every step is at most eta G long.
        assert np.linalg.norm(moves, axis=1).max() <= 5 * 2.0 * (1 + 1e-12)
        for m in range(2):
            expected = quiet_steps(
                theta, device_rows(data, m), loss=plan.model, tau=5, learning_rate=2.0
            )
            assert moves[m] == pytest.approx(expected, abs=1e-12)


def test_cyclic_batches_are_taken_in_turn() -> None:
    plan = planned(batch_size=7)
    assert plan.sampling == "cyclic"
    rounds, theta = prepared(plan), model_of(plan, 0.5)
    deal = dealt_rows(77, DATA.train.offsets)
    moves = rounds._moves(theta, np.arange(6), 3, deal)
    for m in range(6):
        order = deal[DATA.train.offsets[m] : DATA.train.offsets[m + 1]].astype(int)
        blocks = [order[7 * b : 7 * b + 7] for b in range(int(plan.blocks[m]))]
        turned = blocks[3 % len(blocks) :] + blocks[: 3 % len(blocks)]
        expected = quiet_steps(
            theta,
            device_rows(DATA, m),
            loss=plan.model,
            tau=5,
            learning_rate=2.0,
            batches=turned,
        )
        assert moves[m] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("changes", [{}, {"unit": "device", "clip": 0.3}])
def test_whole_uploads_are_those_of_a_device(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedbudget.fleet.device.exact_uploads.ExactNormals.draw",
        lambda self, count, scale_bits: np.zeros(count, dtype=np.int64),
    )
    plan = planned(**changes)
    rounds, theta = prepared(plan), model_of(plan, 0.5)
    whole = rounds.whole_moves(theta, np.arange(6), first_step=0, deal=NONE)
    for m in range(6):
        steps = replace(rounds.uploads.steps, batch_size=float(plan.batch_size[m]))
        own = replace(
            rounds.uploads,
            steps=replace(steps, blocks=1),
            weights=float(plan.weights[m]),
            rounds=plan.rounds,
        )
        upload = exact_upload(
            theta, device_rows(DATA, m), loss=plan.model, uploads=own, grid=rounds.grid
        )
        # Steps may differ in their last bits, which are far below a grid step.
        assert np.abs(whole[m] - upload).max() <= 1


def test_a_sum_has_every_share_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, theta = prepared(planned()), model_of(planned(), 0.5)
    devices = np.array([0, 2, 3, 5])
    clean = rounds.whole_moves(theta, devices, first_step=0, deal=NONE).sum(axis=0)
    for at_once in (AT_ONCE, 7):  # all devices together, and each alone
        monkeypatch.setattr(uploads_module, "AT_ONCE", at_once)
        noise: list[NDArray[np.int64]] = [
            rounds.noisy_sum(theta, devices, first_step=0, deal=NONE) - clean
            for _ in range(2000)
        ]
        drawn = np.ravel(noise) / (2.0**rounds.grid.scale_bits * np.sqrt(4))
        assert len(np.unique(drawn)) == drawn.size  # no share is used twice
        assert stats.kstest(drawn, "norm").pvalue > 1e-7
        # 10,000 squares: their mean is within six standard errors of 1.
        assert np.mean(drawn**2) == pytest.approx(1, abs=6 * np.sqrt(2 / drawn.size))


def test_a_share_has_at_least_the_planned_noise() -> None:
    for plan in (planned(), planned(unit="device"), planned(colluders=2)):
        rounds = prepared(plan)
        std = rounds.grid.step * 2**rounds.grid.scale_bits
        assert plan.noise_std[0] < std < plan.noise_std[0] * 1.001
        covers = rounds.grid.covers(rounds.uploads, plan.model, dim=plan.dim)
        assert covers.all()


@pytest.mark.parametrize("tau", [1, 6, 30])
@pytest.mark.parametrize("loss", LOSSES)
def test_crafted_neighbours_reach_the_counted_distance_and_no_further(
    loss: str, tau: int
) -> None:
    template = data_of("dense", loss, (9, 7))
    model = template.problem(loss=loss).model
    rate = 2 / model.curvature  # the largest
    pair = opposite_moves(
        model,
        rows=9,
        dim=template.dim,
        progress=rate * model.lipschitz * tau,
        at=4,
        whole=False,
    )
    whole = []
    for table in pair.tables:
        x = np.concatenate([table.x, template.train.x[9:]]).astype(np.float32)
        y = np.concatenate([table.y, template.train.y[9:]])
        data = replace(template, train=replace(template.train, x=x, y=y))
        changes = {"tau": tau, "rounds": 2, "weights": None, "least_answers": 2}
        plan = planned(data, loss, learning_rate=rate, **changes)
        rounds = prepared(plan, data)
        whole.append(
            rounds.whole_moves(pair.theta, np.arange(1), first_step=0, deal=NONE)[0]
        )
    bound = rounds.grid.most_moved(rounds.uploads, plan.model, dim=plan.dim)[0]
    moved = float(np.linalg.norm(whole[0] - whole[1]))
    assert 0.998 < moved / bound <= 1


def test_a_release_trains_within_its_budgets() -> None:
    plan = planned(momentum=0.3, weights=None)
    devices = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
    run = fb.train(plan, devices)
    last = run.rounds[-1]
    assert last.answered == 6 and run.kind == "release"
    assert last.epsilon == pytest.approx(plan.epsilon, rel=1e-9)
    assert last.cost == pytest.approx(plan.cost)
    assert "release: (2, 1e-05)-differential privacy for one sample" in str(run.privacy)
    assert "alone, without the others' noise" in str(run.privacy)
    with pytest.raises(TrainingError, match="would overdraw this device's privacy"):
        fb.train(plan, devices)


def test_releases_learn_what_simulations_do() -> None:
    data = small_data(devices=40, rows=62, seed=5)
    plan = shared_noise_plan(
        data.problem(),
        fb.Budget(epsilon=8.0, delta=1e-5, cost=2000),
        PRICES,
        SumSchedule(tau=10, rounds=20, learning_rate=4.0),
    )
    released = fb.train(plan, fb.ReleaseDevices(data)).theta
    simulated = fb.train(plan.without_privacy(), fb.SimulatedDevices(data)).theta
    # The noise of a round's mean, and far below the model's length.
    noise = plan.noise_std[0] * np.sqrt(40 * plan.rounds * data.dim)
    assert np.linalg.norm(released - simulated) < 6 * noise
    assert np.linalg.norm(simulated) > 10 * noise


def test_noise_per_step_may_protect_whole_devices() -> None:
    budget = replace(BUDGET, trust="uploads")
    sized = fb.plan(DATA.problem(), budget, PRICES, noise_schedule=False)
    noise = np.full(6, 60.0)  # against 2 G, whatever the number of rows
    plan = replace(sized, unit="device", noise_std=noise, drift_correction=False)
    plan = replace(plan, epsilon=plan._epsilon_of(plan.gradients))
    run = fb.train(plan, fb.ReleaseDevices(DATA))
    assert "for one device (replace all samples of one device)" in str(run.privacy)
    assert run.rounds[-1].epsilon == pytest.approx(plan.epsilon, rel=1e-9)


def _interrupt(done: fb.Round) -> None:
    if done.number == 3:
        raise KeyboardInterrupt


def test_an_interrupted_release_is_resumed_and_charged_once(tmp_path: Path) -> None:
    plan, folder = planned(batch_size=10), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fb.train(plan, fb.ReleaseDevices(DATA), record=folder, on_round=_interrupt)
    devices = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
    run = fb.train(plan, devices, record=folder)
    assert len(run.rounds) == 6
    assert devices.ledger.epsilon_at(1e-5) == pytest.approx(plan.epsilon, rel=1e-9)


def test_what_cannot_be_released_is_refused() -> None:
    plan = planned()
    with pytest.raises(InvalidInputError, match="the plan has no noise"):
        fb.ReleaseDevices(DATA).begin(plan.without_privacy())
    devices = fb.ReleaseDevices(DATA)
    devices.begin(plan)
    theta = model_of(plan, 2 * LARGEST_NORM)
    with pytest.raises(TrainingError, match=r"norm 2e\+04, above 10000, up to which"):
        devices.run_round(Order(number=1, theta=theta, plan=plan))
    with pytest.raises(InvalidInputError, match="would spend epsilon"):
        fb.ReleaseDevices(DATA).begin(replace(plan, noise_std=plan.noise_std / 2))
