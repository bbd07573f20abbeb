"""Drift correction on a real device: its state, lost state, and message-only input."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.algorithm import Batch, local_steps, next_shift, weighted_mean
from fedbudget.checks import Array
from fedbudget.fleet.coordinator.rounds import max_distances, next_shift_limit
from fedbudget.fleet.device import exact_steps as steps, guard as guard_module
from fedbudget.fleet.device.drift import DriftState, LastAnswer, next_state
from fedbudget.fleet.wire.messages import RunOffer, theta_from_bytes
from tests.contract_devices import DATA, DIM, plan_for
from tests.fleet.devices import SIGNER, Site, new_site
from tests.fleet.examples import RUN, offer, order, theta

TAU = 5


def rounds_of_a_server(momentum: float, rounds: int = 6) -> list[tuple[Array, ...]]:
    """Return the order's model, this device's answer and the average of each round."""
    rng = np.random.default_rng(4)
    rows: list[tuple[Array, ...]] = []
    velocity: Array = np.zeros(3)
    model: Array = rng.normal(size=3)
    for _ in range(rounds):
        answer, average = model + rng.normal(size=(2, 3))
        rows.append((model, answer, average))
        velocity = momentum * velocity + average - model
        model = model + velocity
    return rows


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_the_average_follows_from_the_orders(momentum: float) -> None:
    last, shift = None, np.asarray([0.0] * 3)
    for number, (model, answer, average) in enumerate(rounds_of_a_server(momentum), 1):
        state = next_state(last, model, round=number, tau=TAU, momentum=momentum)
        assert state.shift == pytest.approx(shift, abs=1e-12)
        shift = next_shift(shift, answer, average, tau=TAU)
        last = LastAnswer(state, answer)


@pytest.mark.parametrize("momentum, blind", [(0.0, 1), (0.7, 2)])
def test_a_device_that_missed_a_round_keeps_its_shift_until_an_average_is_available(
    momentum: float, blind: int
) -> None:
    last, shifts = None, {}
    server_rounds = rounds_of_a_server(momentum)
    for number in (1, 2, 4, 5, 6):  # the third is missed
        model, answer, _ = server_rounds[number - 1]
        state = next_state(last, model, round=number, tau=TAU, momentum=momentum)
        shifts[number], last = state.shift, LastAnswer(state, answer)
    unchanged = [n for n in (4, 5, 6) if (shifts[n] == shifts[2]).all()]
    assert unchanged == [4, 5, 6][:blind] and shifts[2].any()
    first = 4 + blind
    _, answer, average = server_rounds[first - 2]
    expected = next_shift(shifts[2], answer, average, tau=TAU)
    assert shifts[first] == pytest.approx(expected, abs=1e-12)


def test_a_device_that_joins_late_starts_with_zero() -> None:
    assert not next_state(None, np.ones(3), round=7, tau=TAU, momentum=0.5).shift.any()


def test_a_state_is_read_back_and_invalid_bytes_are_not() -> None:
    arrays = {"shift": np.ones(3), "start": np.arange(3.0)}
    for velocity in (None, np.full(3, -0.5)):
        state = DriftState(round=4, velocity=velocity, **arrays)
        data = state.to_bytes()
        again = DriftState.from_bytes(data, round=4, num_params=3)
        assert again is not None and again.to_bytes() == data
        assert (again.velocity is None) == (velocity is None)
        for invalid in (b"", data[:-1], data + bytes(8), data * 2):
            assert DriftState.from_bytes(invalid, round=4, num_params=3) is None
    broken = np.array([0.0, np.nan, 0, 0, 0, 0]).tobytes()
    assert DriftState.from_bytes(broken, round=4, num_params=3) is None


class Watched:
    """A device that records its shifts."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.shifts: list[Array] = []
        real = steps.noisy_steps

        def watch(*args: Any, **kwargs: Any) -> Any:
            self.shifts.append(kwargs["shift"])
            return real(*args, **kwargs)

        monkeypatch.setattr(guard_module, "noisy_steps", watch)

    def order(self, number: int, model: Any = 0.0) -> Any:
        theta = np.full(4, model).tobytes()
        return self.site.order(round=number, theta=theta)

    def change(self, statement: str) -> None:
        """Change the ledger's file, and start the device again."""
        self.site.guard.close()
        with closing(sqlite3.connect(self.site.folder / "ledger.sqlite")) as database:
            database.execute(statement)
            database.commit()
        self.site.restart()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    site = new_site(tmp_path)
    assert site.offer(drift_momentum=0.0).code == "accepted"
    yield Watched(site, monkeypatch)
    site.guard.close()


@pytest.mark.parametrize("restart", [False, True])
def test_the_shift_is_that_of_the_answer_as_it_was_sent(
    device: Watched, restart: bool
) -> None:
    expected = np.zeros(4)
    for number, model in enumerate((0.0, 1.0, -0.5), 1):
        first = device.order(number, model)
        assert first.code == "answered"
        assert device.shifts[-1] == pytest.approx(expected, abs=1e-12)
        if restart:
            device.site.restart()
        # Sent again unchanged, without a computation.
        assert device.order(number, 9.0).to_bytes() == first.to_bytes()
        assert len(device.shifts) == number
        sent = theta_from_bytes(first.theta, "float64", 4)
        following = {1: 1.0, 2: -0.5, 3: 0.0}[number]
        expected = expected + (following - sent) / TAU
    assert device.shifts[-1].any()


def test_the_answer_is_read_in_the_precision_that_it_was_sent_in(
    device: Watched,
) -> None:
    run = bytes(16)
    device.site.offer(run=run, drift_momentum=0.0, precision="float32")
    replies = [
        device.site.order(run=run, round=number, theta=theta(4, "<f4"))
        for number in (1, 2)
    ]
    sent = theta_from_bytes(replies[0].theta, "float32", 4)
    start = np.frombuffer(theta(4, "<f4"), "<f4").astype(np.float64)
    assert device.shifts[-1].tolist() == ((start - sent) / TAU).tolist()


def test_without_drift_correction_nothing_is_shifted_or_stored(device: Watched) -> None:
    run = bytes(16)
    device.site.offer(run=run)
    for number in (1, 2, 3):
        assert device.site.order(run=run, round=number).code == "answered"
    assert not np.any(device.shifts)
    assert device.site.last_answer(run) is None


LOST = {
    "gone": "DELETE FROM courses",
    "damaged": "UPDATE courses SET course = zeroblob(64)",
    "short": "UPDATE courses SET course = zeroblob(5)",
    "of another round": "UPDATE courses SET round = round - 1",
    "the answer is damaged": "UPDATE answers SET reply = zeroblob(40)",
    "written by an earlier release": "DROP TABLE courses",
}


@pytest.mark.parametrize("statement", LOST.values(), ids=LOST)
def test_a_lost_state_starts_again_from_zero(device: Watched, statement: str) -> None:
    for number in (1, 2):
        device.order(number, number)
    assert device.shifts[-1].any()
    device.change(statement)
    assert device.order(3).code == "answered"
    assert not device.shifts[-1].any()
    assert device.order(4).code == "answered"
    assert device.shifts[-1].any()


def test_a_crash_after_the_charge_leaves_the_last_state(
    device: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.order(1), device.order(2, 1.0)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(guard_module, "noisy_steps", crash)
        with pytest.raises(KeyboardInterrupt):
            device.order(3)
    device.site.restart()
    assert device.order(3).code == "already-charged"
    assert device.order(4).code == "answered"
    assert device.shifts[-1].tolist() == device.shifts[-2].tolist()


def test_a_model_that_would_shift_beyond_all_bounds_is_refused_without_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site(tmp_path)
    site.offer(drift_momentum=0.9, tau=1)
    device = Watched(site, monkeypatch)
    assert device.order(1, -9e29).code == "answered"
    spent = site.spent
    refused = device.order(2, 9e29)
    assert (refused.code, site.spent) == ("bad-model", spent)
    assert "too far from this device's last answer" in refused.reason
    assert device.order(3).code == "answered"
    assert not device.shifts[-1].any()  # the round was missed
    site.guard.close()


def test_the_last_round_stores_no_state(device: Watched) -> None:
    for number in (1, 8):  # of eight
        device.order(number)
        stored = device.site.last_answer(RUN)
        assert (stored is None) == (number == 8)


def test_drift_correction_changes_neither_charge_nor_noise(tmp_path: Path) -> None:
    spent = []
    for momentum in (None, 0.5):
        site = new_site(tmp_path / str(momentum))
        site.offer(drift_momentum=momentum, noise_std=20.0, tau=1)
        for number in range(1, 9):
            (answer,) = site.guard.answer_order(SIGNER.sign(order(round=number)))
            assert answer.code == "answered"
        spent.append(site.spent)
        site.guard.close()
    assert spent[0] == spent[1]


def test_an_offer_without_drift_correction_has_the_same_bytes_as_before() -> None:
    plain, corrected = offer().to_bytes(), offer(drift_momentum=0.5).to_bytes()
    assert b"drift" not in plain and b"drift_momentum" in corrected
    assert RunOffer.from_bytes(plain).drift_momentum is None


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_honest_devices_stay_within_reach(l2: float) -> None:
    """The reach covers drift correction and noise, and is not too loose."""
    noise = np.array([0.05, 0.5, 0.1, 2.0])
    plan = replace(plan_for(DATA, noise_std=noise, drift_correction=True), l2=l2)
    rng = np.random.default_rng(1)
    model: Array = np.zeros(DIM)
    shifts, reach = np.zeros((4, DIM)), np.zeros(4)
    ratios: list[Array] = []
    share: list[Array] = []
    for _ in range(40):
        models = [
            local_steps(
                model,
                *DATA.train.device(m),
                loss=fb.losses.loss_named("logistic", l2=l2),
                tau=plan.tau,
                learning_rate=plan.learning_rate,
                noise_std=noise[m],
                batch=Batch(),
                rng=rng,
                shift=shifts[m],
            )
            for m in range(4)
        ]
        own = max_distances(plan, model)
        share.append(np.linalg.norm(np.array(models) - model, axis=1) / (own + reach))
        average = np.asarray(weighted_mean(models, plan.weights), np.float64)
        for m in range(4):
            shifts[m] = next_shift(shifts[m], models[m], average, tau=plan.tau)
        reach = np.maximum(reach, next_shift_limit(plan, model, average, reach))
        total_shift = plan.tau * np.linalg.norm(shifts, axis=1)
        assert (total_shift <= reach).all()
        ratios.append(reach / own)
        model = average
    assert np.max(share) <= 1 and np.max(share) > 0.15
    assert np.max(ratios) < 12  # rounds do not add up
