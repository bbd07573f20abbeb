"""The round loop: its algorithms, its arithmetic, its interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.algorithm import Batch, Server, State, local_steps, weighted_mean
from fedbudget.privacy import GDP, Kind
from fedbudget.record import read_run
from fedbudget.simulation.dissimilarity import measure_dissimilarity
from fedbudget.training import Order, Replies
from tests import examples
from tests.examples import honest, plain

PRICES = fb.Prices(communication=100, computation=1)
BUDGET = fb.Budget(epsilon=4.0, delta=1e-4, cost=1000)


def small_data(seed: int = 0, devices: int = 4, rows: int = 120) -> fb.Dataset:
    """Two noisy classes on a few devices, as pyarrow sees them."""
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    label = (x @ [1.0, -2.0, 0.5] + rng.normal(size=rows) > 0).astype(int)
    columns = {f"x{i}": x[:, i] for i in range(3)}
    table = pa.table(
        {**columns, "label": label, "device": rng.integers(devices, size=rows)}
    )
    features = {f"x{i}": fb.Numeric(-3, 3) for i in range(3)}
    schema = fb.Schema(
        features=features, label="label", target=fb.Categorical(values=("0", "1"))
    )
    return fb.from_table(table, label="label", device="device", schema=schema)


DATA = small_data()
PLAN = fb.plan(DATA.problem(), BUDGET, PRICES, noise_schedule=False)


class Scripted:
    """Devices whose answers a test gives."""

    kind: Kind = "simulation"
    caveats: tuple[str, ...] = ("NOT covered: a test's counts",)
    num_devices = 4

    def __init__(self, averages: list[Any]) -> None:
        self.averages = averages
        self.orders: list[Order] = []
        self.caught_up = self.identified = 0

    def identity(self) -> dict[str, Any]:
        self.identified += 1
        return {}

    def begin(self, plan: fb.Plan) -> None:
        pass

    def run_round(self, order: Order) -> Replies:
        self.orders.append(order)
        theta = self.averages[order.number - 1]
        answered = np.full(4, theta is not None)
        return Replies(
            theta=order.theta if theta is None else np.asarray(theta),
            answered=answered,
            epsilon=np.zeros(4),
            cost=np.zeros(4),
            refused={} if theta is not None else {0: "asleep"},
        )

    def steps_taken(self, state: State) -> int:
        return 0

    def catch_up(self, order: Order, refused: Any) -> None:
        self.caught_up = order.number - 1

    def measure(self, theta: np.ndarray) -> dict[str, float]:
        return {"train_loss": float(theta[0])}

    def measure_details(self, theta: np.ndarray) -> dict[str, float]:
        return {"test_auc": float(theta[0])}

    def measure_personal(self, theta: np.ndarray) -> dict[str, float]:
        return {"personal_train_loss": float(theta[0])}


def changed(**values: Any) -> fb.Plan:
    return honest(PLAN, **values)


def test_the_release_is_the_last_average() -> None:
    averages = [np.full(4, r + 1.0) for r in range(3)]
    run = fb.train(changed(rounds=3, momentum=0.0), Scripted(averages))
    assert run.theta.tolist() == [3.0] * 4
    assert [done.number for done in run.rounds] == [1, 2, 3]
    assert run.rounds[-1].steps == 3 * PLAN.tau


def test_a_run_states_its_kind_and_what_is_not_covered(tmp_path: Path) -> None:
    devices = Scripted([np.ones(4)])
    run = fb.train(changed(rounds=1), devices, record=tmp_path)
    assert str(run.privacy).startswith("simulation: devices would spend (")
    assert str(run.privacy).endswith("this model; NOT covered: a test's counts")
    assert str(read_run(tmp_path).privacy) == str(run.privacy)
    devices = Scripted([np.ones(4)])
    devices.kind = "release"
    run = fb.train(changed(rounds=1), devices)
    assert run.kind == "release" and str(run.privacy).startswith("release: (")


def test_rows_are_identified_for_a_record_only(tmp_path: Path) -> None:
    """It is a checksum of all rows: a run without a record does not wait for it."""
    devices = Scripted([np.ones(4)])
    fb.train(changed(rounds=1), devices)
    assert devices.identified == 0
    fb.train(changed(rounds=1), devices, record=tmp_path / "run")
    assert devices.identified == 1


def test_momentum_is_heavy_ball_by_hand() -> None:
    # theta1 = 1; theta2 = 2 + 0.5 (1 - 0) = 2.5; theta3 = 3 + 0.5 (2.5 - 1) = 3.75
    averages = [np.full(4, r + 1.0) for r in range(3)]
    run = fb.train(changed(rounds=3, momentum=0.5), Scripted(averages))
    assert run.theta.tolist() == [3.75] * 4


def test_a_round_that_nobody_answers_ends_the_run_and_keeps_the_record(
    tmp_path: Path,
) -> None:
    devices = Scripted([np.ones(4), None])
    with pytest.raises(fb.TrainingError, match="no device answered round 2: asleep"):
        fb.train(changed(rounds=3), devices, record=str(tmp_path / "run"))
    again = Scripted([np.ones(4), np.ones(4), np.ones(4)])
    run = fb.train(changed(rounds=3), again, record=tmp_path / "run")
    assert len(run.rounds) == 3 and again.caught_up == 1
    assert [order.number for order in again.orders] == [2, 3]


def test_a_model_that_is_no_longer_finite_ends_the_run(tmp_path: Path) -> None:
    devices = Scripted([np.ones(4), np.full(4, np.inf)])
    with pytest.raises(fb.TrainingError, match="no longer finite after round 2"):
        fb.train(changed(rounds=3), devices, record=str(tmp_path / "run"))
    assert (tmp_path / "run" / "rounds.jsonl").read_text().count("\n") == 1


def test_the_server_survives_a_checkpoint() -> None:
    server = Server.start(4)
    for value in (1.0, 2.0):
        server.update(np.full(4, value), momentum=0.5)
    back = Server.from_arrays(server.to_arrays())
    assert back.theta.tolist() == server.theta.tolist()
    assert vars(back).keys() == vars(server).keys()


def reference_run(plan: fb.Plan, data: fb.Dataset) -> np.ndarray:
    """The paper's pseudocode, without noise and with full batches."""
    theta = velocity = np.zeros(plan.dim)
    for _ in range(plan.rounds):
        models = [
            local_steps(
                theta,
                *data.train.device(m),
                loss=plan.model,
                tau=plan.tau,
                learning_rate=plan.learning_rate,
                noise_std=0.0,
                batch=Batch(sampling="full"),
                rng=np.random.default_rng(0),
            )
            for m in range(data.num_devices)
        ]
        velocity = (
            plan.momentum * velocity + weighted_mean(models, plan.weights) - theta
        )
        theta = theta + velocity
    return np.asarray(theta)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("tau", [1, 5])
def test_without_noise_the_simulation_is_the_pseudocode(
    tau: int, momentum: float
) -> None:
    # tau = 1 is distributed SGD, tau = 5 is PASGD.
    plan = changed(tau=tau, rounds=7, momentum=momentum).without_privacy()
    run = fb.train(plan, fb.SimulatedDevices(DATA))
    assert run.theta == pytest.approx(reference_run(plan, DATA), abs=2e-5)
    swept = fb.sweep(DATA, [plan, plan, plan, plan], seeds=[0, 1])
    for model in swept.theta.reshape(-1, plan.dim):
        assert model == pytest.approx(reference_run(plan, DATA), abs=2e-5)
    assert run.rounds[-1].epsilon[0] == np.inf
    assert "NOT PRIVATE" in str(plan.privacy)


def test_a_run_learns_and_spends_what_the_plan_says() -> None:
    run = fb.train(PLAN, fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES))
    assert run.rounds[-1].epsilon == pytest.approx(PLAN.epsilon.tolist())
    assert run.rounds[-1].cost == pytest.approx(PLAN.cost.tolist())
    adult = fb.load("adult", split="iid")
    plan = fb.plan(adult.problem(), BUDGET, PRICES)
    run = fb.train(plan, fb.SimulatedDevices(adult, budget=BUDGET, prices=PRICES))
    assert run.measured["test_accuracy"] > 0.80  # the constant predictor has 0.76
    assert run.measured["train_loss"] < 0.40


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    models = [
        fb.train(PLAN, fb.SimulatedDevices(DATA, seed=s)).theta for s in (0, 0, 1)
    ]
    assert models[0].tolist() == models[1].tolist()
    assert models[0].tolist() != models[2].tolist()


def test_a_sweep_runs_what_train_runs() -> None:
    plans = [changed(rounds=r, momentum=m) for r, m in ((3, 0.0), (5, 0.5), (9, 0.8))]
    swept = fb.sweep(DATA, plans, seeds=[3, 4])
    for p, plan in enumerate(plans):
        for s, seed in enumerate((3, 4)):
            run = fb.train(plan, fb.SimulatedDevices(DATA, seed=seed))
            assert np.array_equal(swept.theta[p, s], run.theta)
            accuracy = swept.measured["test_accuracy"][p, s]
            assert accuracy == pytest.approx(run.measured["test_accuracy"])
    assert len(list(swept.rows())) == 6


class TestMeasuringSomeRounds:
    """With `measure_every`, some rounds have measurements, and the last one always."""

    def measured(self, run: fb.Run) -> list[int]:
        return [done.number for done in run.rounds if done.measured]

    @pytest.mark.parametrize(
        "every, expected", [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (100, [7])]
    )
    def test_every_so_many_rounds_and_the_last(
        self, every: int, expected: list[int]
    ) -> None:
        plan = changed(rounds=7)
        run = fb.train(plan, fb.SimulatedDevices(DATA), measure_every=every)
        assert self.measured(run) == expected
        all_of_them = fb.train(plan, fb.SimulatedDevices(DATA))
        assert np.array_equal(run.theta, all_of_them.theta)
        for number in expected:
            measured = run.rounds[number - 1].measured
            assert measured == all_of_them.rounds[number - 1].measured

    def test_a_run_that_is_stopped_is_measured_at_its_end(self) -> None:
        run = fb.train(
            changed(rounds=7),
            fb.SimulatedDevices(DATA),
            measure_every=3,
            stop=lambda latest: latest.number == 4,
        )
        assert self.measured(run) == [3, 4]
        assert run.measured["train_loss"] > 0

    def test_it_may_change_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        plan = changed(rounds=7)

        def cut(latest: fb.Round) -> None:
            if latest.number == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fb.train(
                plan,
                fb.SimulatedDevices(DATA),
                measure_every=3,
                record=tmp_path / "run",
                on_round=cut,
            )
        interrupted = read_run(tmp_path / "run")
        assert interrupted.metric == "test_accuracy"
        assert len(interrupted.series("train_loss")) == 1
        assert len(interrupted.spent("cost")) == 4
        assert interrupted.spent("cost", measured=True).tolist() == [
            interrupted.rounds[2].cost.max()
        ]
        fb.train(
            plan, fb.SimulatedDevices(DATA), measure_every=2, record=tmp_path / "run"
        )
        run = read_run(tmp_path / "run")
        assert [done.number for done in run.measured_rounds] == [3, 6, 7]

    @pytest.mark.parametrize("every", [0, -1, 1.5])
    def test_other_numbers_are_refused(self, every: Any) -> None:
        with pytest.raises(fb.InvalidInputError, match="measure_every"):
            fb.train(PLAN, fb.SimulatedDevices(DATA), measure_every=every)


class TestTheDeviceDecides:
    """The devices' own ledgers refuse, whatever the plan says."""

    def test_a_plan_that_overdraws_is_refused_by_the_device(self) -> None:
        stricter = fb.Budget(epsilon=[4.0, 4.0, 1.0, 4.0], cost=1000)
        devices = fb.SimulatedDevices(DATA, budget=stricter, prices=PRICES)
        run = fb.train(PLAN, devices)
        assert (devices.ledger.epsilon <= [4.0, 4.0, 1.0, 4.0]).all()
        assert run.rounds[-1].answered == 3
        assert "overdraw this device's privacy" in run.rounds[-1].refused[2]

    def test_a_plan_without_noise_is_refused_by_all(self) -> None:
        devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES)
        with pytest.raises(fb.TrainingError, match="no device answered round 1"):
            fb.train(PLAN.without_privacy(), devices)
        assert (devices.ledger.epsilon == 0).all()

    def test_what_measuring_cost_is_in_the_devices_epsilon(self) -> None:
        measured = fb.Constant(
            value=0.2, source="measured privately", release="q", mu=0.3
        )
        problem = DATA.problem().with_constants(smoothness=measured)
        plan = fb.plan(problem, BUDGET, PRICES)
        devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES)
        run = fb.train(plan, devices)
        assert run.rounds[-1].answered == 4
        assert devices.ledger.epsilon == pytest.approx(plan.epsilon)
        without = fb.SimulatedDevices(DATA)
        fb.train(replace(plan, prior_mu=np.zeros(4)), without)
        assert (without.ledger.epsilon < 0.99 * devices.ledger.epsilon).all()

    def test_measurements_that_do_not_know_of_each_other_are_added_up(self) -> None:
        problem = DATA.problem()
        devices = fb.SimulatedDevices(DATA)
        for seed, times in ((0, 1), (0, 1), (1, 2)):  # the same one, then another
            queried = fb.SimulatedDevices(DATA, seed=seed)
            measured = measure_dissimilarity(queried, problem, BUDGET, PRICES)
            devices.begin(fb.plan(measured, BUDGET, PRICES))
            mu = measured.prior_mu * times**0.5
            spent = GDP.epsilon_from_mu(mu, 1e-4)
            assert devices.ledger.epsilon == pytest.approx(spent)

    @pytest.mark.parametrize("own", [None, fb.Budget(epsilon=9, delta=1e-3, cost=1e4)])
    def test_epsilons_of_a_run_are_at_the_plans_delta(
        self, own: fb.Budget | None
    ) -> None:
        plan = fb.plan(DATA.problem(), replace(BUDGET, delta=1e-7), PRICES)
        run = fb.train(plan, fb.SimulatedDevices(DATA, budget=own, prices=PRICES))
        assert run.rounds[-1].epsilon == pytest.approx(plan.epsilon, rel=1e-6)

    def test_a_second_run_finds_the_budget_spent(self) -> None:
        devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES)
        fb.train(PLAN, devices)
        with pytest.raises(fb.TrainingError, match="overdraw"):
            fb.train(PLAN, devices)

    def test_a_second_run_draws_noise_of_its_own(self) -> None:
        devices = fb.SimulatedDevices(DATA)
        first, second = fb.train(PLAN, devices), fb.train(PLAN, devices)
        assert not np.array_equal(first.theta, second.theta)
        again = fb.SimulatedDevices(DATA)
        assert np.array_equal(fb.train(PLAN, again).theta, first.theta)
        assert np.array_equal(fb.train(PLAN, again).theta, second.theta)

    def test_a_silent_device_is_charged_but_not_averaged(self) -> None:
        plan = changed(rounds=9)
        devices = fb.SimulatedDevices(DATA, participation=0.5, seed=5)
        run = fb.train(plan, devices)
        assert {done.answered for done in run.rounds} - {4}
        full = fb.SimulatedDevices(DATA, seed=5)
        fb.train(plan, full)
        assert devices.ledger.epsilon == pytest.approx(full.ledger.epsilon)

    def test_a_device_without_weight_spends_nothing(self) -> None:
        plan = changed(weights=[0.5, 0.5, 0.0, 0.0])
        devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES)
        fb.train(plan, devices)
        assert devices.ledger.cost[2] == devices.ledger.epsilon[3] == 0


@pytest.mark.parametrize(
    "plan, message",
    [
        (lambda: fb.plan(fb.Problem(num_samples=[9], dim=4), BUDGET, PRICES), "1 dev"),
        (lambda: changed(dim=9, schema=None), "rows of 9 columns, the data have 4"),
        (lambda: changed(loss="huber", schema=None), "huber"),
        (
            lambda: changed(loss="softmax", num_classes=3, lipschitz=2.0, schema=None),
            "3 classes, the data have 2",
        ),
        (
            lambda: changed(num_samples=[9999] * 4, batch_size=[9999] * 4),
            "9999 training rows on device 0",
        ),
    ],
)
def test_a_plan_for_other_data_is_refused(plan: Any, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.train(plan(), fb.SimulatedDevices(DATA))


class TestInterrupted:
    """Interrupted runs: resumed, charged once, or refused."""

    def cut(self, folder: Path, devices: fb.SimulatedDevices, **options: Any) -> None:
        def stop(latest: fb.Round) -> None:
            if latest.number == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fb.train(PLAN, devices, record=folder, on_round=stop, **options)

    def test_a_run_after_a_resumed_one_draws_noise_of_its_own(
        self, tmp_path: Path
    ) -> None:
        self.cut(tmp_path / "run", fb.SimulatedDevices(DATA))
        devices = fb.SimulatedDevices(DATA)
        first = fb.train(PLAN, devices, record=tmp_path / "run")
        second = fb.train(PLAN, devices)
        straight = fb.SimulatedDevices(DATA)
        assert np.array_equal(first.theta, fb.train(PLAN, straight).theta)
        assert np.array_equal(second.theta, fb.train(PLAN, straight).theta)
        assert not np.array_equal(first.theta, second.theta)

    def test_a_second_run_is_resumed_with_its_own_noise(self, tmp_path: Path) -> None:
        straight = fb.SimulatedDevices(DATA)
        second = [fb.train(PLAN, straight) for _ in range(2)][1]
        devices = fb.SimulatedDevices(DATA)
        fb.train(PLAN, devices)
        self.cut(tmp_path / "run", devices)
        resumed = fb.train(PLAN, fb.SimulatedDevices(DATA), record=tmp_path / "run")
        assert np.array_equal(resumed.theta, second.theta)

    def test_resumed_by_the_same_devices_no_round_is_charged_twice(
        self, tmp_path: Path
    ) -> None:
        devices = fb.SimulatedDevices(DATA, budget=BUDGET, prices=PRICES)
        self.cut(tmp_path / "run", devices)
        run = fb.train(PLAN, devices, record=tmp_path / "run")
        assert devices.ledger.epsilon == pytest.approx(PLAN.epsilon)
        assert devices.ledger.cost == pytest.approx(PLAN.cost)
        straight = fb.train(PLAN, fb.SimulatedDevices(DATA))
        assert np.array_equal(run.theta, straight.theta)

    @pytest.mark.parametrize(
        "other, message",
        [
            ({"seed": 1}, "a run with seed 0, not 1"),
            ({"participation": 0.9}, "a run with participation 1.0, not 0.9"),
        ],
    )
    def test_seed_and_participation_must_be_the_same(
        self, tmp_path: Path, other: dict[str, Any], message: str
    ) -> None:
        self.cut(tmp_path / "run", fb.SimulatedDevices(DATA))
        devices = fb.SimulatedDevices(DATA, **other)
        with pytest.raises(fb.RecordError, match=message):
            fb.train(PLAN, devices, record=tmp_path / "run")

    def test_other_rows_of_the_same_sizes_are_other_data(self, tmp_path: Path) -> None:
        self.cut(tmp_path / "run", fb.SimulatedDevices(DATA))
        turned = replace(DATA, train=replace(DATA.train, y=1 - DATA.train.y))
        with pytest.raises(fb.RecordError, match="a run with rows"):
            fb.train(PLAN, fb.SimulatedDevices(turned), record=tmp_path / "run")

    def test_a_continued_run_is_resumed_or_refused(self, tmp_path: Path) -> None:
        plan = changed(momentum=0.0)
        straight = fb.SimulatedDevices(DATA)
        first = fb.train(plan, straight)
        whole = fb.train(PLAN, straight, after=first)
        devices = fb.SimulatedDevices(DATA)
        fb.train(plan, devices)
        self.cut(tmp_path / "run", devices, after=first)
        with pytest.raises(fb.InvalidInputError, match="have taken only 0 of it"):
            fb.train(
                PLAN, fb.SimulatedDevices(DATA), after=first, record=tmp_path / "run"
            )
        with pytest.raises(fb.RecordError, match=r"with steps_before \d+, not 0"):
            fb.train(PLAN, fb.SimulatedDevices(DATA), record=tmp_path / "run")
        again = fb.SimulatedDevices(DATA)
        fb.train(plan, again)  # the first part, once more: the same numbers
        rest = fb.train(PLAN, again, after=first, record=tmp_path / "run")
        assert np.array_equal(rest.theta, whole.theta)
        assert plain(rest.rounds) == plain(whole.rounds)
        assert np.array_equal(again.ledger.epsilon, straight.ledger.epsilon)


def test_two_continuations_of_one_run_draw_different_noise() -> None:
    one = changed(tau=1, rounds=1, momentum=0.0, learning_rate=1.0, last_round=None)
    devices = fb.SimulatedDevices(DATA)
    run = fb.train(one, devices)
    near = fb.train(one, devices, after=run).theta - run.theta
    far = fb.train(replace(one, learning_rate=2.0), devices, after=run)
    # With the same noise, the second would go twice as far in the same direction.
    assert not np.allclose(2 * near, far.theta - run.theta, atol=1e-4)


def test_continuing_on_devices_that_did_not_run_the_first_part_is_refused(
    tmp_path: Path,
) -> None:
    run = fb.train(PLAN, fb.SimulatedDevices(DATA))
    with pytest.raises(fb.InvalidInputError, match="pass the devices that ran it"):
        fb.train(
            PLAN, fb.SimulatedDevices(DATA), after=run, record=tmp_path / "not begun"
        )
    assert not (tmp_path / "not begun").exists()


def test_a_plan_that_claims_more_privacy_than_its_noise_gives_is_refused() -> None:
    loud = replace(PLAN, noise_std=PLAN.noise_std / 20)
    with pytest.raises(fb.InvalidInputError, match="as this plan states: plan again"):
        fb.train(loud, fb.SimulatedDevices(DATA))
    with pytest.raises(fb.InvalidInputError, match="as this plan states: plan again"):
        fb.sweep(DATA, [PLAN, loud], seeds=[0])


def test_the_spending_of_each_of_many_devices_is_stored(tmp_path: Path) -> None:
    data = examples.small_data(devices=101, rows=12)
    epsilon = np.where(np.arange(101) < 5, 10.0, 1.0)
    budget = fb.Budget(epsilon=epsilon, cost=1000)
    plan = fb.plan(data.problem(), budget, PRICES, weights="uniform")
    devices = fb.SimulatedDevices(data, budget=budget, prices=PRICES)
    run = fb.train(
        plan, devices, record=tmp_path / "run", stop=lambda latest: latest.number == 2
    )
    for last in (run.rounds[-1], read_run(tmp_path / "run").rounds[-1]):
        assert last.epsilon.tolist() == devices.ledger.epsilon.tolist()
        assert last.cost.tolist() == devices.ledger.cost.tolist()
    with np.load(tmp_path / "run" / "model.npz") as file:
        assert file["epsilon"].tolist() == devices.ledger.epsilon.tolist()
        assert file["cost"].tolist() == devices.ledger.cost.tolist()
    rest = fb.replan(run, data.problem(), budget, PRICES, weights="uniform")
    assert (rest.weights > 0).all()  # devices with the smallest budget can still pay


@pytest.mark.parametrize("rate, message", [(1e30, "long, above 1e"), (1e39, "finite")])
def test_a_run_that_diverges_is_stopped_and_keeps_its_record(
    rate: float, message: str, tmp_path: Path
) -> None:
    with np.errstate(over="ignore"):
        with pytest.raises(fb.TrainingError, match=f"{message}.* after round 1: lower"):
            fb.train(
                changed(learning_rate=rate),
                fb.SimulatedDevices(DATA),
                record=tmp_path / "run",
            )
    assert (tmp_path / "run" / "plan.json").exists()
    assert not (tmp_path / "run" / "model.npz").exists()


def test_bad_arguments_are_refused() -> None:
    devices = fb.SimulatedDevices(DATA)
    with pytest.raises(fb.InvalidInputError, match="after must be a Run"):
        fb.train(PLAN, devices, after=PLAN)  # type: ignore[arg-type]
    two = fb.Prices(communication=[1, 2], computation=1)
    with pytest.raises(fb.InvalidInputError, match=r"prices\.communication has 2 val"):
        fb.SimulatedDevices(DATA, prices=two)
    with pytest.raises(fb.InvalidInputError, match="participation must be above 0"):
        fb.SimulatedDevices(DATA, participation=0)
    with pytest.raises(fb.InvalidInputError, match="needs plans and seeds"):
        fb.sweep(DATA, [], seeds=[0])
    with pytest.raises(fb.InvalidInputError, match="different losses"):
        fb.sweep(DATA, [PLAN, changed(loss="hinge")])
    with pytest.raises(fb.InvalidInputError, match="'cloud' is not known"):
        fb.sweep(DATA, [PLAN], backend="cloud")


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from test_training import DATA, changed
import fedbudget as fb

plan = changed(rounds=500, tau=2, drift_correction=True)
fb.train(plan, fb.SimulatedDevices(DATA, seed=1), record=sys.argv[1])
"""


def test_a_run_killed_at_any_moment_ends_with_the_same_numbers(tmp_path: Path) -> None:
    tests = Path(__file__).parent
    script = SCRIPT.format(tests=str(tests), root=str(tests.parent))

    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], env=os.environ.copy()
        )

    plan = changed(rounds=500, tau=2, drift_correction=True)
    whole = fb.train(plan, fb.SimulatedDevices(DATA, seed=1))
    killed = 0
    for _ in range(20):
        process = start(tmp_path / "cut")
        rounds = tmp_path / "cut" / "rounds.jsonl"
        before = rounds.read_text().count("\n") if rounds.exists() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            now = rounds.read_text().count("\n") if rounds.exists() else 0
            if killed < 3 and now >= before + 20:
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
    assert killed == 3
    cut = np.load(tmp_path / "cut" / "model.npz")["theta"]
    assert whole.theta.tolist() == cut.tolist()
    lines = (tmp_path / "cut" / "rounds.jsonl").read_text().splitlines()
    assert lines == [json.dumps(row) for row in plain(whole.rounds)]


@pytest.mark.parametrize("kind", [fb.ReleaseDevices, fb.SimulatedDevices])
def test_a_continued_run_states_what_all_its_rounds_spent(
    kind: type[fb.ReleaseDevices | fb.SimulatedDevices], tmp_path: Path
) -> None:
    devices = kind(DATA)
    first = fb.train(PLAN, devices)
    second = fb.train(PLAN, devices, after=first, record=tmp_path / "run")
    spent = float(second.rounds[-1].epsilon.max())
    assert spent > 1.2 * PLAN.epsilon.max()
    assert first.privacy.epsilon == pytest.approx(PLAN.epsilon.max())
    assert second.privacy.epsilon == pytest.approx(spent)
    recorded = read_run(tmp_path / "run")
    assert recorded.privacy.epsilon == pytest.approx(spent)
    assert recorded.about["privacy"] == str(second.privacy)


def test_a_continued_run_says_so_before_it_ends(tmp_path: Path) -> None:
    devices = fb.SimulatedDevices(DATA)
    first = fb.train(PLAN, devices)

    def interrupt(_: fb.Round) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.train(
            PLAN, devices, after=first, record=tmp_path / "run", on_round=interrupt
        )
    said = json.loads((tmp_path / "run" / "about.json").read_text())["privacy"]
    assert said.endswith(
        "the run that it continues is not in this epsilon, and adds to it"
    )
