"""With noise and sampling on, kernels and reference agree in distribution."""

import subprocess
import sys
from dataclasses import replace

import numba
import numpy as np
import pytest

from fedbudget.algorithm import Batch, Sampling, local_steps, weighted_mean
from fedbudget.errors import InvalidInputError
from fedbudget.losses import Floats, Logistic
from fedbudget.simulation.kernels import runs as kernels
from fedbudget.simulation.kernels.layouts import PackedRows, pack_one_hot, pack_rows
from fedbudget.simulation.kernels.runs import (
    RoundPlan,
    device_replies,
    run_rounds,
    sweep_runs,
)

SIZES = np.array([40, 25])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
WEIGHTS = np.array([0.7, 0.3])
RNG = np.random.default_rng(1)
X = RNG.normal(size=(65, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = (X[:, 0] + 0.3 * RNG.normal(size=65) > 0).astype(int)
LOSS = Logistic()
PLAN = RoundPlan(
    tau=2,
    learning_rate=1.5,
    batch_size=np.array([5, 4]),
    noise_std=np.array([0.3, 0.6]),
    weights=WEIGHTS,
)
ROUNDS = 2


@pytest.fixture(scope="module")
def packed() -> PackedRows:
    return pack_rows(X, Y, OFFSETS, loss=LOSS)


def reference_runs(plan: RoundPlan, repeats: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    sizes, noise = np.asarray(plan.batch_size), np.asarray(plan.noise_std)
    finals = np.empty((repeats, 3))
    for repeat in range(repeats):
        theta: Floats = np.zeros(3)
        orders = [rng.permutation(int(n)) for n in SIZES]  # for cyclic batches
        for number in range(ROUNDS):
            replies = [
                local_steps(
                    theta,
                    X[OFFSETS[m] : OFFSETS[m + 1]],
                    Y[OFFSETS[m] : OFFSETS[m + 1]],
                    loss=LOSS,
                    tau=plan.tau,
                    learning_rate=plan.learning_rate,
                    noise_std=noise[m],
                    batch=Batch(sampling=plan.sampling, size=int(sizes[m])),
                    rng=rng,
                    first_step=number * plan.tau,
                    permutation=orders[m],
                )
                for m in range(2)
            ]
            theta = weighted_mean(replies, WEIGHTS)
        finals[repeat] = theta
    return finals


def assert_same_distribution(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare mean and covariance of models and mean loss within 5 standard errors."""
    for statistic in (
        lambda t: t,
        lambda t: np.einsum("ni,nj->nij", t - t.mean(0), t - t.mean(0)),
        lambda t: np.array([LOSS.value(row, X, Y) for row in t]),
    ):
        a, b = statistic(actual), statistic(expected)
        error = np.sqrt(a.var(axis=0) / len(a) + b.var(axis=0) / len(b))
        assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) < 5 * error).all()


@pytest.mark.parametrize("sampling", ["full", "fixed", "poisson", "cyclic"])
def test_final_models_have_the_references_distribution(
    packed: PackedRows, sampling: Sampling
) -> None:
    plan = replace(PLAN, sampling=sampling)
    expected = reference_runs(plan, 2500)
    theta = np.zeros(3)
    swept = sweep_runs(packed, theta, [plan], rounds=[ROUNDS], seeds=range(20_000))
    assert_same_distribution(swept[0], expected)
    lanes = sweep_runs(
        packed, theta, [plan] * 4, rounds=[ROUNDS] * 4, seeds=range(20_000)
    )
    # Lanes share the batches and the noise of the single run: the same models.
    assert lanes[3] == pytest.approx(swept[0], abs=1e-4)


def test_replies_have_the_noise_that_the_mean_draws_at_once(packed: PackedRows) -> None:
    seeds, theta = range(2500), np.zeros(3)
    means = [run_rounds(packed, theta, PLAN, rounds=1, seed=s)[0] for s in seeds]
    replies = [
        WEIGHTS @ device_replies(packed, theta, PLAN, seed=s + 10_000) for s in seeds
    ]
    assert_same_distribution(np.array(means), np.array(replies))


def test_smaller_batches_in_other_lanes_have_the_references_distribution(
    packed: PackedRows,
) -> None:
    larger = replace(PLAN, batch_size=np.array([20, 20]))
    plans = [larger, larger, larger, PLAN]
    swept = sweep_runs(
        packed, np.zeros(3), plans, rounds=[ROUNDS] * 4, seeds=range(20_000)
    )
    assert_same_distribution(swept[3], reference_runs(PLAN, 2500))


def test_results_do_not_depend_on_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_WORTH_THREADS", 0.0)  # else a short run uses one
    monkeypatch.setattr(kernels, "_WORTH_HELP", 0.0)
    rng = np.random.default_rng(3)
    columns = np.stack([g * 4 + rng.integers(0, 4, 600) for g in range(4)], axis=1)
    offsets = np.arange(0, 601, 2)
    packed = pack_one_hot(columns, rng.integers(0, 2, 600), offsets, dim=16, loss=LOSS)
    plan = RoundPlan(
        tau=2, learning_rate=0.5, batch_size=1, noise_std=0.1, weights=1 / 300
    )
    threads = numba.get_num_threads()
    results = []
    for count in {1, threads}:
        numba.set_num_threads(count)
        models = run_rounds(packed, np.zeros(16), plan, rounds=3, seed=5)
        swept = sweep_runs(
            packed, np.zeros(16), [plan] * 5, rounds=[3] * 5, seeds=[5, 6, 7]
        )
        results.append((models, swept))
    numba.set_num_threads(threads)
    for result in results:
        assert np.array_equal(result[0], results[0][0])
        assert np.array_equal(result[1], results[0][1])


def test_seeds_differ_and_a_seed_repeats(packed: PackedRows) -> None:
    def run(seed: int) -> np.ndarray:
        return run_rounds(packed, np.zeros(3), PLAN, rounds=2, seed=seed)

    assert np.array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


def test_a_run_can_be_continued(packed: PackedRows) -> None:
    uninterrupted = run_rounds(packed, np.zeros(3), PLAN, rounds=5, seed=1)
    rest = run_rounds(
        packed, uninterrupted[1], PLAN, rounds=3, seed=1, first_step=2 * PLAN.tau
    )
    assert np.array_equal(uninterrupted[2:], rest)


def test_a_device_of_weight_zero_changes_nothing(packed: PackedRows) -> None:
    single = replace(PLAN, weights=np.array([1.0, 0.0]))
    louder = replace(single, noise_std=np.array([0.3, 100.0]))
    models = [
        run_rounds(packed, np.zeros(3), plan, rounds=2, seed=1)
        for plan in (single, louder)
    ]
    assert np.array_equal(models[0], models[1])
    replies = device_replies(packed, np.zeros(3), single, seed=1)
    assert np.isfinite(replies[0]).all()
    assert np.isnan(replies[1]).all()


def test_poisson_divides_by_the_public_size() -> None:
    # Every drawn row moves theta by 0.5 / 20.
    packed = pack_rows(
        np.ones((400, 1)), np.ones(400), np.array([0, 400]), loss=Logistic()
    )
    plan = RoundPlan(
        tau=1,
        learning_rate=1.0,
        batch_size=20,
        noise_std=0.0,
        weights=1.0,
        sampling="poisson",
    )
    swept = sweep_runs(packed, np.zeros(1), [plan], rounds=[1], seeds=range(2000))
    counts = swept[0, :, 0] * 20 / 0.5
    assert counts == pytest.approx(np.round(counts), abs=1e-3)
    assert counts.mean() == pytest.approx(20, abs=5 * (19 / 2000) ** 0.5)
    assert counts.var() == pytest.approx(19, rel=0.15)


@pytest.mark.parametrize(
    "invalid",
    [
        {"batch_size": 26},
        {"batch_size": 0},
        {"weights": np.ones(3)},
        {"weights": np.array([1.0, -1.0])},
        {"noise_std": np.nan},
        {"tau": 0},
        {"learning_rate": np.inf},
        {"sampling": "half"},
    ],
)
def test_invalid_plans_are_refused(
    packed: PackedRows, invalid: dict[str, object]
) -> None:
    plan = replace(PLAN, **invalid)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        run_rounds(packed, np.zeros(3), plan, rounds=1, seed=0)


def test_importing_the_devices_does_not_import_numba() -> None:
    code = (
        "import sys, fedbudget.simulation.kernels.runs, fedbudget.algorithm;"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
