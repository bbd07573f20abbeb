"""The contract of `Devices`: the same tests for every transport.

A test module runs it by deriving a class from `DevicesContract` with a fixture `make`,
which also stops the processes that it started:

    class TestSimulatedDevices(DevicesContract):
        @pytest.fixture
        def make(self) -> Make:
            return ...

The noise is below rounding error: models can be compared with the reference, and
devices with a (very large) budget still take part.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.algorithm import Batch, local_steps, next_shift, weighted_mean
from fedbudget.checks import Array
from fedbudget.data import Dataset, Part
from fedbudget.ledger import Charge, Ledger
from fedbudget.losses import Floats
from fedbudget.simulation.devices import SimulatedDevices
from fedbudget.training import Devices, InMemory, Measures, Order, Replies

SIZES = (40, 9, 25, 33)  # training rows per device
DIM = 3
PRICES = fb.Prices(communication=10, computation=[1, 2, 3, 4])
ROUND_COST = np.array([14.0, 18.0, 22.0, 26.0])  # of tau = 4 steps, by hand
LARGE = fb.Budget(epsilon=1e12, delta=1e-4, cost=1e9)
QUIET = 1e-6
PRECISION = 2e-5  # a fleet may use single precision, and QUIET is noise


class Make(Protocol):
    """Makes devices that hold these rows, each with its own budget."""

    def __call__(
        self,
        data: Dataset,
        *,
        budget: fb.Budget,
        prices: fb.Prices,
        after: Devices | None = None,
    ) -> Devices:
        """Return the devices.

        With `after`, the server of those devices was killed and is started again; the
        devices keep their own state.
        """
        ...


def rows_of(sizes: Sequence[int]) -> Dataset:
    """Return a small data set of two classes with these training rows per device."""
    rng = np.random.default_rng(3)

    def part(counts: Sequence[int]) -> Part:
        x = rng.normal(size=(sum(counts), DIM)).astype(np.float32)
        x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
        y = (x @ [1.0, -2.0, 0.5] > 0.3 * rng.normal(size=len(x))).astype(np.int64)
        return Part(x=x, y=y, offsets=np.concatenate([[0], np.cumsum(counts)]))

    return Dataset(
        name="small",
        train=part(sizes),
        validation=part([2] * len(sizes)),
        test=part([3] * len(sizes)),
        device_names=tuple(f"device-{m}" for m in range(len(sizes))),
        feature_names=tuple(f"x{i}" for i in range(DIM)),
        classes=("0", "1"),
        dissimilarity="iid",
    )


DATA = rows_of(SIZES)


def plan_for(data: Dataset, **values: Any) -> fb.Plan:
    """Return a quiet plan of full batches, with some of its values changed."""
    budget = fb.Budget(epsilon=4.0, cost=1000)
    plan = fb.plan(
        data.problem(),
        budget,
        fb.Prices(communication=10, computation=1),
        noise_schedule=False,
    )
    weights = np.arange(1.0, data.num_devices + 1)
    quiet: dict[str, Any] = {
        "tau": 4,
        "rounds": 5,
        "learning_rate": 0.8,
        "momentum": 0.0,
        "sampling": "full",
        "batch_size": data.num_samples,
        "noise_std": np.full(data.num_devices, QUIET),
        "weights": weights / weights.sum(),
        "epsilon": np.full(data.num_devices, 1e12),
    }
    return replace(plan, **(quiet | values))


def answers(
    data: Dataset, plan: fb.Plan, theta: Floats, shifts: Floats | None = None
) -> list[Floats]:
    """Return each device's answer without noise, by the reference."""
    return [
        local_steps(
            theta,
            *data.train.device(m),
            loss=plan.model,
            tau=plan.tau,
            learning_rate=plan.learning_rate,
            noise_std=0.0,
            batch=Batch(sampling="full"),
            rng=np.random.default_rng(0),
            shift=0.0 if shifts is None else shifts[m],
        )
        for m in range(data.num_devices)
    ]


def drift_corrected(data: Dataset, plan: fb.Plan, theta: Floats) -> list[Floats]:
    """Return each round's model with drift correction, by the reference."""
    shifts, velocity = np.zeros((data.num_devices, DIM)), np.zeros(DIM)
    thetas: list[Floats] = []
    for number in range(1, plan.rounds + 1):
        active = plan.takes_part(number)
        share = np.where(active, plan.weights, 0.0)
        models = answers(data, plan, theta, shifts)
        average = weighted_mean(models, share / share.sum())
        for m in np.flatnonzero(active):
            shifts[m] = next_shift(shifts[m], models[m], average, tau=plan.tau)
        velocity = plan.momentum * velocity + average - theta
        theta = theta + velocity
        thetas.append(theta)
    return thetas


def run(
    devices: Devices,
    plan: fb.Plan,
    first: int,
    last: int,
    *,
    after: Replies | None = None,
) -> list[Replies]:
    """Run some rounds of a plan, each from the model of the round before."""
    results = [] if after is None else [after]
    for number in range(first, last + 1):
        theta = results[-1].theta if results else np.full(DIM, 0.1)
        state = results[-1].state if results else {}
        order = Order(number=number, theta=theta, plan=plan, state=state)
        results.append(devices.run_round(order))
    return results if after is None else results[1:]


def spent(plan: fb.Plan, rounds: Sequence[int], budget: fb.Budget) -> Array:
    """Return the epsilon of this number of answered rounds per device, by a ledger."""
    ledger = Ledger(None, num_devices=plan.num_devices)
    charge = Charge(steps=plan.tau, noise_multiplier=plan.noise_multiplier, cost=0.0)
    for number in range(max(rounds)):
        ledger.charge(charge, mask=np.array(rounds) > number)
    assert budget.delta == 1e-4  # the delta of a ledger without a budget
    return ledger.epsilon


class DevicesContract:
    """The tests; see the module's docstring for how a transport runs them."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError("a transport's test gives its own devices here")

    def start(self, make: Make, plan: fb.Plan, budget: fb.Budget = LARGE) -> Devices:
        """Return devices on which a run of the plan has begun."""
        devices = make(DATA, budget=budget, prices=PRICES)
        devices.begin(plan)
        return devices

    def test_every_device_with_rows_counts(self, make: Make) -> None:
        assert make(DATA, budget=LARGE, prices=PRICES).num_devices == len(SIZES)

    @pytest.mark.parametrize(
        "change",
        [{"dim": 9}, {"num_samples": [40, 9, 26, 33], "batch_size": [40, 9, 26, 33]}],
    )
    def test_a_plan_for_other_rows_is_refused(
        self, make: Make, change: dict[str, Any]
    ) -> None:
        devices = make(DATA, budget=LARGE, prices=PRICES)
        devices.begin(plan_for(DATA))
        with pytest.raises(fb.InvalidInputError, match="plan again"):
            devices.begin(plan_for(DATA, **change))

    def test_rounds_are_the_weighted_means_of_the_references_answers(
        self, make: Make
    ) -> None:
        plan = plan_for(DATA)
        theta: Floats = np.full(DIM, 0.1)
        for replies in run(self.start(make, plan), plan, 1, 3):
            theta = weighted_mean(answers(DATA, plan, theta), plan.weights)
            assert replies.theta == pytest.approx(theta, abs=PRECISION)
            assert replies.answered.tolist() == [True] * 4
            assert replies.refused == {}

    def test_answers_carry_the_planned_noise(self, make: Make) -> None:
        noise_std = np.array([0.5, 1.0, 2.0, 0.5])
        plan = plan_for(DATA, tau=1, rounds=20, noise_std=noise_std)
        devices, theta, draws = self.start(make, plan), np.full(DIM, 0.1), []
        expected = weighted_mean(answers(DATA, plan, theta), plan.weights)
        for number in range(1, 21):
            order = Order(number=number, theta=theta, plan=plan)
            draws.append(devices.run_round(order).theta - expected)
        std = plan.learning_rate * np.sqrt(np.sum((plan.weights * noise_std) ** 2))
        # 60 normals: their mean square is outside of this once in 100,000 times.
        assert 0.37 < np.mean(np.square(draws)) / std**2 < 2.0

    def test_batches_are_drawn_again_and_divided_by_their_size(
        self, make: Make
    ) -> None:
        # A batch of one row has a large sensitivity: the budget needs more noise.
        batches = {"sampling": "fixed", "batch_size": [1] * 4, "noise_std": [1e-5] * 4}
        plan = plan_for(DATA, tau=1, **batches)
        devices, theta = self.start(make, plan), np.full(DIM, 0.1)
        models = []
        for number in range(1, 4):
            order = Order(number=number, theta=theta, plan=plan)
            models.append(devices.run_round(order).theta)
            move = np.linalg.norm(models[-1] - theta)
            assert 0 < move <= plan.learning_rate * plan.lipschitz + PRECISION
        assert np.abs(np.diff(models, axis=0)).max() > 100 * PRECISION

    def test_devices_that_stop_early_or_have_weight_0_are_not_selected_and_not_charged(
        self, make: Make
    ) -> None:
        weights = np.array([0.2, 0.0, 0.5, 0.3])
        plan = plan_for(DATA, rounds=3, weights=weights, last_round=[3, 3, 1, 2])
        theta: Floats = np.full(DIM, 0.1)
        rounds = run(self.start(make, plan), plan, 1, 3)
        for replies, active in zip(rounds, ([0, 2, 3], [0, 3], [0]), strict=True):
            share = np.zeros(4)
            share[active] = weights[active] / weights[active].sum()
            theta = weighted_mean(answers(DATA, plan, theta), share)
            assert replies.theta == pytest.approx(theta, abs=PRECISION)
            assert np.flatnonzero(replies.answered).tolist() == active
            assert replies.refused == {}
        assert rounds[-1].cost == pytest.approx(ROUND_COST * [3, 0, 1, 2])
        expected = spent(plan, [3, 0, 1, 2], LARGE)
        assert rounds[-1].epsilon == pytest.approx(expected, rel=1e-9)

    def test_every_answered_round_is_charged(self, make: Make) -> None:
        plan = plan_for(DATA, noise_std=np.array([0.5, 1.0, 2.0, 0.5]))
        for number, replies in enumerate(run(self.start(make, plan), plan, 1, 3), 1):
            assert replies.cost == pytest.approx(number * ROUND_COST)
            expected = spent(plan, [number] * 4, LARGE)
            assert replies.epsilon == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize(
        "budget",
        [
            fb.Budget(
                epsilon=1e12, delta=1e-4, cost=[1e9, 1e9, 1.5 * ROUND_COST[2], 1e9]
            ),
            fb.Budget(epsilon=[1e12, 1e12, 1.0, 1e12], delta=1e-4, cost=1e9),
        ],
        ids=["cost", "epsilon"],
    )
    def test_a_device_that_would_overdraw_refuses_and_is_not_averaged(
        self, make: Make, budget: fb.Budget
    ) -> None:
        noise_std = np.full(4, QUIET)
        if np.ndim(budget.epsilon):
            # One round of four steps: mu = 2 sqrt(4) / (25 sigma); 1.5 rounds fit.
            mu = float(fb.privacy.GDP.mu_from_epsilon(1.0, 1e-4))
            noise_std[2] = 2 * np.sqrt(4 * 1.5) / (25 * mu)
        plan = plan_for(DATA, noise_std=noise_std)
        first, second = run(self.start(make, plan, budget), plan, 1, 2)
        assert first.answered.tolist() == [True] * 4
        assert second.answered.tolist() == [True, True, False, True]
        assert list(second.refused) == [2] and "budget" in second.refused[2]
        weights = np.where(second.answered, plan.weights, 0.0)
        mean = weighted_mean(answers(DATA, plan, first.theta), weights / weights.sum())
        assert second.theta == pytest.approx(mean, abs=PRECISION)
        assert second.cost == pytest.approx(ROUND_COST * [2, 2, 1, 2])
        expected = spent(plan, [2, 2, 1, 2], budget)
        assert second.epsilon == pytest.approx(expected, rel=1e-9)

    def test_a_round_that_nobody_can_pay_changes_nothing(self, make: Make) -> None:
        plan = plan_for(DATA)
        devices = self.start(make, plan, fb.Budget(epsilon=1.0, delta=1e-4, cost=1e9))
        (replies,) = run(devices, plan, 1, 1)
        assert not replies.answered.any()
        assert sorted(replies.refused) == [0, 1, 2, 3]
        assert replies.theta.tolist() == [0.1] * DIM
        assert not replies.cost.any() and not replies.epsilon.any()

    @pytest.mark.parametrize("momentum", [0.0, 0.6])
    def test_drift_is_corrected_as_by_the_reference(
        self, make: Make, momentum: float
    ) -> None:
        ends = {"last_round": [5, 5, 2, 4]}
        plan = plan_for(DATA, momentum=momentum, drift_correction=True, **ends)
        finished = fb.train(plan, make(DATA, budget=LARGE, prices=PRICES))
        expected = drift_corrected(DATA, plan, np.zeros(DIM))[-1]
        assert finished.theta == pytest.approx(expected, abs=PRECISION)
        # Without it, devices this heterogeneous end at another model.
        uncorrected = fb.train(
            replace(plan, drift_correction=False), SimulatedDevices(DATA)
        )
        assert np.abs(uncorrected.theta - expected).max() > 100 * PRECISION

    def test_a_server_started_again_continues_as_if_not_killed(
        self, make: Make
    ) -> None:
        plan = plan_for(DATA, drift_correction=True)
        killed = self.start(make, plan)
        before = run(killed, plan, 1, 3)[-1]
        devices = make(DATA, budget=LARGE, prices=PRICES, after=killed)
        devices.begin(plan)
        if isinstance(devices, InMemory):
            order = Order(number=4, theta=before.theta, plan=plan, state=before.state)
            devices.catch_up(order, ())
        rest = run(devices, plan, 4, 5, after=before)
        expected = drift_corrected(DATA, plan, np.full(DIM, 0.1))[3:]
        for number, replies, theta in zip((4, 5), rest, expected, strict=True):
            assert replies.theta == pytest.approx(theta, abs=PRECISION)
            assert replies.answered.all()
            assert replies.cost == pytest.approx(number * ROUND_COST, rel=1e-12)
            charged = spent(plan, [number] * 4, LARGE)
            assert replies.epsilon == pytest.approx(charged, rel=1e-12)

    def test_one_device_is_a_fleet(self, make: Make) -> None:
        data = rows_of([30])
        plan = plan_for(data)
        prices = fb.Prices(communication=10, computation=1)
        devices = make(data, budget=LARGE, prices=prices)
        devices.begin(plan)
        (replies,) = run(devices, plan, 1, 1)
        (expected,) = answers(data, plan, np.full(DIM, 0.1))
        assert replies.theta == pytest.approx(expected, abs=PRECISION)
        assert replies.cost.tolist() == [14.0]

    def test_the_loop_runs_over_them(self, make: Make) -> None:
        plan = plan_for(DATA, rounds=2)
        devices = make(DATA, budget=LARGE, prices=PRICES)
        finished = fb.train(plan, devices)
        theta: Floats = np.zeros(DIM)
        for _ in range(2):
            theta = weighted_mean(answers(DATA, plan, theta), plan.weights)
        assert finished.theta == pytest.approx(theta, abs=PRECISION)
        # Only where the reader of a simulation sees the rows is anything measured.
        assert bool(finished.measured) == isinstance(devices, Measures)
