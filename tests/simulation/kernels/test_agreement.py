"""With noise and sampling off, kernels and reference take the same steps."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedbudget.losses import (
    Floats,
    Hinge,
    Huber,
    Labels,
    Logistic,
    Loss,
    SmoothHinge,
    Softmax,
)
from fedbudget.simulation.kernels.layouts import (
    OneHotRows,
    PackedRows,
    SparseRows,
    pack_rows,
)
from fedbudget.simulation.kernels.runs import (
    RoundPlan,
    device_replies,
    run_rounds,
    sweep_runs,
)
from tests.simulation.examples import OFFSETS, WEIGHTS, reference

GROUPS = (3, 2, 17, 4)  # categories of the one-hot columns
LOSSES: list[Loss] = [
    Logistic(l2=0.1),
    Hinge(),
    SmoothHinge(),
    SmoothHinge(width=0.4, l2=0.1),
    Huber(threshold=0.3),
    Softmax(num_classes=2),
    Softmax(num_classes=3, l2=0.1),
    Softmax(num_classes=20),
]


def rows(kind: str) -> Any:
    rng = np.random.default_rng(7)
    num_rows = OFFSETS[-1]
    if kind == "dense":
        x = rng.normal(size=(num_rows, 37))
        return x / np.linalg.norm(x, axis=1, keepdims=True)
    if kind == "sparse":
        keep = rng.random((num_rows, 37)) < 0.2
        return csr_array(keep * rng.normal(size=keep.shape) * 0.3)
    if kind == "one-hot":
        starts = np.cumsum((0, *GROUPS[:-1]))
        picks = [
            s + rng.integers(0, c, num_rows)
            for s, c in zip(starts, GROUPS, strict=True)
        ]
        columns = np.stack(picks, axis=1)
    else:  # any five columns: nothing to merge
        columns = rng.permuted(np.tile(np.arange(300), (num_rows, 1)), axis=1)[:, :5]
    x = np.zeros((num_rows, columns.max() + 1))
    np.put_along_axis(x, columns, columns.shape[1] ** -0.5, axis=1)
    return csr_array(x)


def labels(loss: Loss) -> Labels:
    rng = np.random.default_rng(8)
    if isinstance(loss, Huber):
        return rng.uniform(-1, 1, int(OFFSETS[-1]))
    return rng.integers(0, max(2, loss.num_outputs), int(OFFSETS[-1]))


def full_plan(
    learning_rate: float = 0.7, tau: int = 3, drift_correction: bool = False
) -> RoundPlan:
    return RoundPlan(
        tau=tau,
        learning_rate=learning_rate,
        batch_size=1,
        noise_std=0.0,
        weights=WEIGHTS,
        sampling="full",
        drift_correction=drift_correction,
    )


@pytest.fixture(params=["dense", "sparse", "one-hot", "any-columns"])
def x(request: pytest.FixtureRequest) -> Any:
    return rows(request.param)


@pytest.mark.parametrize(
    "loss", LOSSES, ids=lambda loss: f"{loss.name}{loss.num_outputs}"
)
def test_rounds_replies_and_sweeps_take_the_references_steps(
    x: Any, loss: Loss
) -> None:
    y = labels(loss)
    packed = pack_rows(x, y, OFFSETS, loss=loss)
    theta = np.random.default_rng(9).normal(size=packed.num_params)
    plans = [full_plan(rate) for rate in (0.7, 0.1, 0.2, 0.3, 0.5)]
    expected = [reference(loss, x, y, theta, plan, 4) for plan in plans]

    swept = sweep_runs(packed, theta, plans, rounds=[4] * 5, seeds=[1, 2])
    assert swept[:, 0] == pytest.approx(np.stack(expected), abs=2e-5)
    assert swept[:, 1] == pytest.approx(np.stack(expected), abs=2e-5)
    single = sweep_runs(packed, theta, plans[:1], rounds=[4], seeds=[1])
    assert single[0, 0] == pytest.approx(expected[0], abs=2e-5)
    if isinstance(packed.rows, SparseRows):
        return  # the rest shares its steps with the above and compiles slowly
    models = run_rounds(packed, theta, plans[0], rounds=4, seed=1)
    assert models[-1] == pytest.approx(expected[0], abs=2e-5)
    replies = device_replies(packed, theta, plans[0], seed=1)
    assert WEIGHTS @ replies == pytest.approx(models[0], abs=1e-5)


@pytest.mark.parametrize("loss", [LOSSES[0], LOSSES[6]], ids=lambda loss: loss.name)
def test_drift_correction_takes_the_references_steps(loss: Loss) -> None:
    x, y = rows("dense"), labels(loss)
    packed = pack_rows(x, y, OFFSETS, loss=loss)
    theta = np.random.default_rng(9).normal(size=packed.num_params)
    plans = [full_plan(rate, drift_correction=True) for rate in (0.7, 0.1, 0.2, 0.3)]
    expected = [reference(loss, x, y, theta, plan, 4) for plan in plans]
    assert np.abs(expected[0] - reference(loss, x, y, theta, full_plan(), 4)).max() > (
        1e-3
    )

    swept = sweep_runs(packed, theta, plans, rounds=[4] * 4, seeds=[1, 2])
    assert swept[:, 1] == pytest.approx(np.stack(expected), abs=2e-5)
    models = run_rounds(packed, theta, plans[0], rounds=4, seed=1)
    assert models[-1] == pytest.approx(expected[0], abs=2e-5)


def test_drift_correction_removes_the_bias_of_local_steps() -> None:
    x, loss = rows("dense"), Logistic(l2=0.1)
    y = labels(loss)
    packed = pack_rows(x, y, OFFSETS, loss=loss)
    start = np.zeros(packed.num_params)

    def end(tau: int, rounds: int, drift_correction: bool = False) -> Floats:
        plan = full_plan(tau=tau, drift_correction=drift_correction)
        return np.asarray(run_rounds(packed, start, plan, rounds=rounds, seed=1)[-1])

    optimum = end(tau=1, rounds=2000)
    assert np.abs(end(tau=20, rounds=400) - optimum).max() > 1e-2
    assert end(tau=20, rounds=400, drift_correction=True) == pytest.approx(
        optimum, abs=1e-4
    )


def test_with_drift_correction_the_mean_has_the_noise_of_every_device() -> None:
    loss = Logistic()
    y = labels(loss)
    packed = pack_rows(rows("dense"), y, OFFSETS, loss=loss)
    quiet, noisy = (
        RoundPlan(
            tau=1,
            learning_rate=1.0,
            batch_size=1,
            noise_std=std,
            weights=WEIGHTS,
            sampling="full",
            drift_correction=True,
        )
        for std in (np.zeros(4), np.array([1.0, 2.0, 3.0, 4.0]))
    )
    theta = np.zeros(packed.num_params)
    clean = run_rounds(packed, theta, quiet, rounds=1, seed=0)[0]
    noise = [
        run_rounds(packed, theta, noisy, rounds=1, seed=s)[0] - clean
        for s in range(300)
    ]
    expected = np.sqrt(np.sum((WEIGHTS * [1.0, 2.0, 3.0, 4.0]) ** 2))
    # 300 x 37 normals: the standard error of their spread is 0.7 %; four times that
    assert np.std(noise) == pytest.approx(expected, rel=0.03)


def test_merged_columns_take_the_references_steps() -> None:
    x, loss = rows("one-hot"), Logistic(l2=0.1)
    y = labels(loss)
    packed = pack_rows(x, y, OFFSETS, loss=loss)
    one_by_one = pack_rows(x, y, np.array([0, len(y)]), loss=loss)
    assert one_by_one.merged is not None
    assert packed.merged is None  # its devices have too few rows
    merged = PackedRows(
        loss=loss,
        dim=packed.dim,
        rows=one_by_one.merged._replace(offsets=packed.rows.offsets),
    )
    theta = np.random.default_rng(9).normal(size=packed.num_params)
    models = run_rounds(merged, theta, full_plan(), rounds=4, seed=1)
    assert models[-1] == pytest.approx(
        reference(loss, x, y, theta, full_plan(), 4), abs=2e-5
    )


def test_the_layout_follows_from_the_rows() -> None:
    y = labels(Logistic())
    kinds = [
        type(pack_rows(rows(kind), y, OFFSETS, loss=Logistic()).rows)
        for kind in ("sparse", "one-hot", "any-columns")
    ]
    assert kinds == [SparseRows, OneHotRows, OneHotRows]


def test_plans_of_one_sweep_may_differ_in_tau_and_rounds() -> None:
    x, loss = rows("one-hot"), Logistic()
    y = labels(loss)
    packed = pack_rows(x, y, OFFSETS, loss=loss)
    theta = np.zeros(packed.num_params)
    plans = [full_plan(tau=tau) for tau in (1, 2, 2, 2, 2, 5)]
    rounds = [6, 1, 2, 3, 4, 2]
    swept = sweep_runs(packed, theta, plans, rounds=rounds, seeds=[3])
    for plan, count, model in zip(plans, rounds, swept[:, 0], strict=True):
        expected = reference(loss, x, y, theta, plan, count)
        assert model == pytest.approx(expected, abs=2e-5)
