"""Threads that share a run, come late or never come give the same bits."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fedbudget.losses import Logistic, Loss, Softmax
from fedbudget.simulation.kernels import runs, sharing
from fedbudget.simulation.kernels.layouts import PackedRows, pack_rows
from fedbudget.simulation.kernels.runs import RoundPlan, simulate, sweep_runs

ROWS, DEVICES, DIM, ROUNDS = 600, 20, 5, 6


def packed(loss: Loss) -> PackedRows:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, DIM))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(0, max(2, loss.num_outputs), ROWS)
    return pack_rows(x, y, np.linspace(0, ROWS, DEVICES + 1).astype(int), loss=loss)


def plan(drift_correction: bool = False) -> RoundPlan:
    weights = np.full(DEVICES, 1 / DEVICES)
    weights[3] = 0
    return RoundPlan(
        tau=3,
        learning_rate=0.5,
        batch_size=10,
        noise_std=0.1,
        weights=weights,
        momentum=0.7,
        drift_correction=drift_correction,
    )


def results(rows: PackedRows, drift_correction: bool) -> list[Any]:
    theta = np.random.default_rng(1).normal(size=rows.num_params)
    run = simulate(rows, theta, plan(drift_correction), rounds=ROUNDS, seed=4)
    return [run.averages, run.models, run.velocities, run.shifts]


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Eight threads on any machine, which do each other's blocks at once."""
    monkeypatch.setattr(runs, "num_threads", lambda: 8)
    monkeypatch.setattr(runs, "_WORTH_THREADS", 0.0)
    monkeypatch.setattr(runs, "_WORTH_HELP", 0.0)
    monkeypatch.setattr(runs, "_PATIENCE", 0)
    monkeypatch.setattr(runs, "_MIN_LOOKS", 0)
    with ThreadPoolExecutor(7) as pool:
        monkeypatch.setattr(sharing, "_pool", lambda: pool)
        yield


@pytest.mark.parametrize("drift_correction", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(num_classes=3)], ids=["1", "3"])
def test_threads_that_do_each_others_blocks_give_the_same_bits(
    loss: Loss,
    drift_correction: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    rows = packed(loss)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "num_threads", lambda: 1)
        expected = results(rows, drift_correction)
    request.getfixturevalue("many_threads")
    for _ in range(100):
        for actual, alone in zip(
            results(rows, drift_correction), expected, strict=True
        ):
            assert np.array_equal(actual, alone)


class NoHelp:
    """A pool whose threads are never scheduled."""

    def submit(self, *_: Any) -> "Future[None]":
        return Future()


@pytest.mark.usefixtures("many_threads")
def test_nobody_waits_for_a_helper_that_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = packed(Logistic())
    expected = results(rows, drift_correction=True)
    monkeypatch.setattr(sharing, "_pool", NoHelp)
    for actual, shared in zip(results(rows, True), expected, strict=True):
        assert np.array_equal(actual, shared)


def test_nobody_waits_for_a_thread_that_stopped_inside_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first block of every round is claimed by nobody who will finish it."""
    rows = packed(Logistic())
    expected = results(rows, drift_correction=True)
    original = runs._rounds

    def claimed(*arguments: Any) -> Any:
        run = original(*arguments)
        run.claims[:] = 1
        return run

    monkeypatch.setattr(runs, "_rounds", claimed)
    for actual, shared in zip(results(rows, True), expected, strict=True):
        assert np.array_equal(actual, shared)


def test_a_late_thread_changes_nothing() -> None:
    """It finds the rounds done, whatever it had begun."""
    rows = packed(Logistic())
    late = []
    original = sharing.shared

    def remembering(task: Any, workers: int) -> None:
        original(task, 1)
        late.append(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "shared", remembering)
        before = results(rows, drift_correction=True)
    copies = [values.copy() for values in before]
    late[0](0)
    for values, copy in zip(before, copies, strict=True):
        assert np.array_equal(values, copy)


@pytest.mark.usefixtures("many_threads")
def test_a_sweep_of_few_runs_gives_the_bits_of_many() -> None:
    rows = packed(Logistic())
    theta, plans = np.zeros(DIM), [plan(), plan(drift_correction=True)]
    seeds = list(range(12))  # more than threads
    many = sweep_runs(rows, theta, plans, rounds=[4, 5], seeds=seeds)
    few = sweep_runs(rows, theta, plans, rounds=[4, 5], seeds=seeds[:1])
    assert np.array_equal(few[:, 0], many[:, 0])
