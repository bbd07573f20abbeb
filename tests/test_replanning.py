"""Replanned runs stay within their initial budgets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.ledger import Charge, Ledger
from fedbudget.privacy import GDP, Kind, Unit
from fedbudget.training import Order, Replies, Run
from tests.examples import honest, plain, round_of, small_data

PRICES = fb.Prices(communication=100, computation=1)
DATA = small_data(devices=4, rows=200)
PROBLEM = DATA.problem(dissimilarity="iid")
BUDGET = fb.Budget(epsilon=[4.0, 2.0, 4.0, 4.0], delta=1e-4, cost=1000)


def charged(plan: fb.Plan, ledger: Ledger, rounds: int, prices: fb.Prices) -> Run:
    """Return a run of some rounds that only charges; nothing may be refused."""
    ledger.count_prior(plan.prior_mu, plan.prior_releases)
    for number in range(1, rounds + 1):
        selected = plan.takes_part(number)
        charge = Charge(
            steps=plan.tau,
            noise_multiplier=plan.noise_multiplier,
            cost=prices.run_cost(rounds=1, tau=plan.tau, batch_size=plan.batch_size),
        )
        assert (ledger.charge(charge, mask=selected) == selected).all()
    last = round_of(rounds, epsilon=ledger.epsilon, cost=ledger.cost)
    return Run(theta=np.zeros(5), rounds=[last] * rounds, plan=plan)


@settings(max_examples=25)
@given(
    stages=st.lists(
        st.tuples(st.integers(1, 4), st.floats(0.3, 2), st.integers(0, 3)),
        min_size=1,
        max_size=3,
    ),
    epsilon=st.floats(0.5, 8),
    measured=st.sampled_from([0.0, 0.05]),
)
def test_arbitrary_replanning_never_exceeds_a_budget(
    stages: list[tuple[int, float, int]], epsilon: float, measured: float
) -> None:
    problem, prices, gone = PROBLEM, PRICES, set[int]()
    if measured:
        constant = fb.Constant(
            value=0.3, source="measured privately", release="q", mu=measured
        )
        problem = problem.with_constants(dissimilarity=constant)
    budget = fb.Budget(
        epsilon=[epsilon, 0.7 * epsilon, epsilon, epsilon], delta=1e-4, cost=1000
    )
    ledger = Ledger(budget, num_devices=4)
    plan = fb.plan(problem, budget, prices, learning_rate=2.0)
    mu_sq: Array = np.full(4, measured**2)
    for rounds, factor, lost in stages:
        rounds = min(rounds, plan.rounds)
        run = charged(plan, ledger, rounds, prices)
        took = np.minimum(plan.device_rounds, rounds)
        mu_sq += 4 * plan.tau * took / plan.noise_multiplier**2  # by hand
        assert (plan.epsilon <= budget.epsilon).all()
        plan.check_promise()
        prices = fb.Prices(communication=100 * factor, computation=factor)
        gone.add(lost)
        try:
            plan = fb.replan(
                run, problem, budget, prices, gone=sorted(gone), learning_rate=2.0
            )
        except fb.InfeasibleBudgetError:
            break
        assert (plan.weights[sorted(gone)] == 0).all()
        assert (ledger.cost + plan.cost <= 1000 * (1 + 1e-12)).all()
    else:
        charged(plan, ledger, plan.rounds, prices)
        mu_sq += 4 * plan.tau * plan.device_rounds / plan.noise_multiplier**2
    limit = np.asarray(budget.epsilon)
    assert (ledger.epsilon <= limit).all() and (ledger.cost <= 1000 * (1 + 1e-12)).all()
    for m in np.flatnonzero(mu_sq):  # dp-accounting's epsilon of all releases
        spent = dp_accounting.get_epsilon_gaussian(1 / mu_sq[m] ** 0.5, 1e-4)
        assert spent <= limit[m] * (1 + 1e-9)


class Leaving(fb.SimulatedDevices):
    """Devices of which one stops answering after some rounds."""

    def run_round(self, order: Order) -> Replies:
        replies = super().run_round(order)
        if order.first_step < self.stays_for * order.plan.tau:
            return replies
        answered = replies.answered & (np.arange(self.num_devices) != 2)
        return replace(replies, answered=answered)

    stays_for = 1


def test_training_continues_without_a_silent_device() -> None:
    devices = Leaving(DATA, seed=1, budget=BUDGET, prices=PRICES)
    plan = fb.plan(PROBLEM, BUDGET, PRICES)
    assert plan.rounds > 4
    runs = fb.train_replanning(plan, devices, PROBLEM, BUDGET, PRICES)
    assert len(runs) == 2 and len(runs[0].rounds) == 3
    assert runs[0].rounds[-1].silent == (2,)
    assert runs[1].plan.weights[2] == 0 and runs[1].plan.rounds >= 1
    assert runs[1].steps == runs[0].steps + runs[1].plan.steps
    assert not any(done.refused for run in runs for done in run.rounds)
    assert (devices.ledger.epsilon <= np.asarray(BUDGET.epsilon)).all()
    assert (devices.ledger.cost <= 1000).all()
    # Devices that stayed have spent their privacy budgets.
    stayed = np.array([0, 1, 3])
    selected = runs[1].plan.weights[stayed] > 0
    remaining = np.asarray(BUDGET.epsilon)[stayed] - devices.ledger.epsilon[stayed]
    assert (remaining[selected] < 0.01).all()
    assert runs[1].measured["train_loss"] < np.log(2)


def test_a_continued_run_starts_from_the_model_and_draws_new_noise() -> None:
    plan = fb.plan(
        PROBLEM, BUDGET, PRICES, drift_correction=False, noise_schedule=False
    )
    whole = fb.SimulatedDevices(DATA, seed=3)
    straight = fb.train(replace(plan, momentum=0.0), whole)
    parts = fb.SimulatedDevices(DATA, seed=3)
    first = fb.train(
        replace(plan, momentum=0.0), parts, stop=lambda latest: latest.number == 2
    )
    assert len(first.rounds) == 2 and first.steps == 2 * plan.tau
    rest = replace(plan, momentum=0.0, rounds=plan.rounds - 2)
    second = fb.train(rest, parts, after=first)
    # The same plan in two parts gives the same model: noise depends on the step.
    assert second.theta == pytest.approx(straight.theta, abs=1e-9)


def test_full_batches_after_smaller_ones_are_full_for_every_device() -> None:
    plan = fb.plan(PROBLEM, BUDGET, PRICES, batch_size=20)
    run = charged(plan, Ledger(BUDGET, num_devices=4), 1, PRICES)
    rest = fb.replan(run, PROBLEM, BUDGET, PRICES, gone=[0])
    assert (plan.sampling, rest.sampling) == ("fixed", "full")
    assert rest.batch_size.tolist() == PROBLEM.num_samples.tolist()
    assert fb.Plan.from_dict(rest.to_dict()).takes_part(1).tolist() == [
        False,
        *[True] * 3,
    ]


class TestAContinuedRunKeepsItsState:
    """Momentum and drift correction go on where the first run stopped."""

    DATA = small_data(devices=4, rows=200, unlike=2.0)
    PLAN = honest(
        fb.plan(
            DATA.problem(), BUDGET, PRICES, drift_correction=True, noise_schedule=False
        ),
        rounds=8,
        momentum=0.6,
    )

    def parts(
        self, devices: fb.SimulatedDevices, plan: fb.Plan | None = None, **options: Any
    ) -> tuple[Run, Run]:
        """Run five rounds of the plan, and then another plan."""
        rest = replace(self.PLAN, rounds=3) if plan is None else plan
        first = fb.train(self.PLAN, devices, stop=lambda latest: latest.number == 5)
        return first, fb.train(rest, devices, after=first, **options)

    def test_the_same_plan_in_two_parts_gives_the_same_model(self) -> None:
        straight = fb.train(self.PLAN, fb.SimulatedDevices(self.DATA, seed=3))
        first, second = self.parts(fb.SimulatedDevices(self.DATA, seed=3))
        assert second.theta == pytest.approx(straight.theta, abs=1e-5)
        assert np.abs(second.theta - first.theta).max() > 0.01
        # It would not without the state.
        without = replace(first, velocity=None, state={"noise": first.state["noise"]})
        devices = fb.SimulatedDevices(self.DATA, seed=3)
        fb.train(self.PLAN, devices, stop=lambda latest: latest.number == 5)
        restarted = fb.train(replace(self.PLAN, rounds=3), devices, after=without)
        assert np.abs(restarted.theta - straight.theta).max() > 0.01

    def test_it_costs_no_privacy(self) -> None:
        straight = fb.train(self.PLAN, fb.SimulatedDevices(self.DATA, seed=3))
        second = self.parts(fb.SimulatedDevices(self.DATA, seed=3))[1]
        spent = straight.rounds[-1].epsilon
        assert second.rounds[-1].epsilon == pytest.approx(spent, rel=1e-9)

    def test_another_pace_scales_both(self) -> None:
        first, _ = self.parts(fb.SimulatedDevices(self.DATA, seed=3))
        assert first.velocity is not None
        plan = honest(
            self.PLAN,
            learning_rate=self.PLAN.learning_rate / 2,
            tau=3 * self.PLAN.tau,
            momentum=0.2,
            weights=np.array([0.5, 0.5, 0.0, 0.0]),
        )
        devices = Remembering(self.DATA)
        devices._drawn = {0: first.steps}
        with pytest.raises(KeyboardInterrupt):
            fb.train(plan, devices, after=first)
        order = devices.order
        assert np.array_equal(order.theta, first.theta)
        # 1/2 of the rate, 3 times the steps, and 1 / (1 - 0.6) becomes 1 / (1 - 0.2)
        assert order.velocity == pytest.approx(first.velocity * 0.5 * 3 * 0.4 / 0.8)
        halved = 0.5 * first.state["shifts"]
        centred = halved - (halved[0] + halved[1]) / 2
        assert order.state["shifts"] == pytest.approx(centred, abs=1e-6)
        assert order.state.keys() == {"shifts"}

    def test_an_interrupted_continuation_is_resumed(self, tmp_path: Path) -> None:
        straight = self.parts(fb.SimulatedDevices(self.DATA, seed=3))[1]
        devices = fb.SimulatedDevices(self.DATA, seed=3)

        def cut(latest: fb.Round) -> None:
            if latest.number == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.parts(devices, record=tmp_path / "run", on_round=cut)
        again = fb.SimulatedDevices(self.DATA, seed=3)
        _, resumed = self.parts(again, record=tmp_path / "run")
        assert np.array_equal(resumed.theta, straight.theta)
        assert plain(resumed.rounds) == plain(straight.rounds)

    def test_real_devices_that_correct_drift_get_no_velocity(self) -> None:
        simulated, _ = self.parts(fb.SimulatedDevices(self.DATA, seed=3))
        first = replace(simulated, kind="release")
        for drift_correction in (True, False):
            plan = replace(self.PLAN, drift_correction=drift_correction)
            devices = Real()
            with pytest.raises(KeyboardInterrupt):
                fb.train(plan, devices, after=first)
            assert devices.order.velocity is not None
            moves = bool(devices.order.velocity.any())
            assert moves == (not drift_correction)
            assert devices.order.state == {}


def test_a_fleet_that_counts_one_run_states_the_spending_of_both() -> None:
    first, second = Counting(), Counting()
    plan = replace(honest(TestAContinuedRunKeepsItsState.PLAN), noise_decay=1.0)
    run = fb.train(plan, first)
    both = fb.train(plan, second, after=run)
    assert both.rounds[-1].cost.tolist() == [2 * plan.rounds] * 4
    straight = replace(plan, rounds=2 * plan.rounds).gradients
    exact = GDP.epsilon(straight, delta=plan.delta)
    assert both.rounds[-1].epsilon == pytest.approx(exact, rel=1e-6)
    assert (both.rounds[-1].epsilon >= exact * (1 - 1e-9)).all()
    assert both.privacy.epsilon == pytest.approx(float(exact.max()), rel=1e-6)


class Counting:
    """Devices outside this process; their coordinator counts one run."""

    kind: Kind = "release"
    num_devices = 4

    def begin(self, plan: fb.Plan) -> None:
        pass

    def run_round(self, order: Order) -> Replies:
        releases = replace(order.plan, rounds=order.number).gradients
        return Replies(
            theta=order.theta,
            answered=np.ones(4, dtype=bool),
            epsilon=GDP.epsilon(releases, delta=order.plan.delta),
            cost=np.full(4, float(order.number)),
        )


class Real:
    """Devices that keep their own state; they stop at the first order."""

    kind: Kind = "release"
    num_devices = 4
    order: Order

    def begin(self, plan: fb.Plan) -> None:
        pass

    def run_round(self, order: Order) -> Replies:
        self.order = order
        raise KeyboardInterrupt


class Remembering(fb.SimulatedDevices):
    """Simulated devices that stop at the first order."""

    order: Order

    def run_round(self, order: Order) -> Replies:
        self.order = order
        raise KeyboardInterrupt


def test_invalid_replanning_is_refused() -> None:
    plan = fb.plan(PROBLEM, BUDGET, PRICES)
    ledger = Ledger(BUDGET, num_devices=4)
    run = charged(plan, ledger, plan.rounds, PRICES)
    with pytest.raises(fb.InfeasibleBudgetError, match="no device is left"):
        fb.replan(run, PROBLEM, BUDGET, PRICES)
    with pytest.raises(fb.InvalidInputError, match="takes no accountant"):
        fb.replan(run, PROBLEM, BUDGET, PRICES, accountant="zcdp")
    last = round_of(epsilon=np.full(4, np.inf), cost=np.zeros(4))
    free = Run(theta=run.theta, rounds=[last], plan=plan)
    with pytest.raises(fb.InvalidInputError, match="without privacy"):
        fb.replan(free, PROBLEM, BUDGET, PRICES)


def test_spending_is_read_at_the_delta_of_its_plan() -> None:
    # Devices without a budget of their own, and two deltas: the plan's and the rest's.
    for first, then in ((1e-7, 1e-7), (1e-4, 1e-7), (1e-7, 1e-4)):
        budget = fb.Budget(epsilon=2.0, delta=first, cost=1000)
        plan = fb.plan(PROBLEM, budget, PRICES, learning_rate=2.0)
        devices = fb.SimulatedDevices(DATA)
        run = fb.train(plan, devices, stop=lambda latest: latest.number == 2)
        budget = fb.Budget(epsilon=3.0, delta=then, cost=1000)
        rest = fb.replan(run, PROBLEM, budget, PRICES, learning_rate=2.0)
        fb.train(rest, devices, after=run)
        assert (devices.ledger.epsilon_at(then) <= 3.0).all()
        assert (rest.delta == then).all()


def test_another_problem_or_an_unknown_device_is_refused() -> None:
    plan = fb.plan(PROBLEM, BUDGET, PRICES)
    run = charged(plan, Ledger(BUDGET, num_devices=4), 2, PRICES)
    for gone in ([99], [-1], ["a"], [1.5]):
        with pytest.raises(fb.InvalidInputError, match="gone must be"):
            fb.replan(run, PROBLEM, BUDGET, PRICES, gone=gone)  # type: ignore[arg-type]
    two = fb.Budget(epsilon=4, delta=1e-4, cost=1000)
    for other in (
        fb.Problem(num_samples=PROBLEM.num_samples[:2], dim=PROBLEM.dim),
        fb.Problem(num_samples=PROBLEM.num_samples, dim=9),
        fb.Problem(num_samples=PROBLEM.num_samples, dim=PROBLEM.dim, loss="hinge"),
    ):
        with pytest.raises(fb.InvalidInputError, match="give the problem that the run"):
            fb.replan(run, other, two, PRICES)


@pytest.mark.parametrize("sampled", [True, False])
def test_invalid_replanning_is_refused_before_the_first_round(
    sampled: bool,
) -> None:
    if sampled:
        plan = fb.plan(PROBLEM, BUDGET, PRICES, accountant="pld", batch_size=20)
        message = "Poisson-sampled"
    else:
        plan = fb.plan(PROBLEM, BUDGET, PRICES).without_privacy()
        message = "without privacy"
    devices = Leaving(DATA, seed=1)
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.train_replanning(plan, devices, PROBLEM, BUDGET, PRICES)
    assert devices.ledger.cost.tolist() == [0.0] * 4


class TestSums:
    """Runs whose server sees only sums are planned again, too."""

    budget = fb.Budget(epsilon=2.0, delta=1e-5, cost=2000, trust="sum")
    prices = fb.Prices(communication=50, computation=1, secure_round=80)
    data = small_data(devices=12, rows=60)
    problem = data.problem(dissimilarity="iid")

    @pytest.mark.parametrize("unit", ["sample", "device"])
    @pytest.mark.parametrize("kind", ["simulation", "release"])
    def test_the_rest_keeps_the_budgets(self, unit: Unit, kind: str) -> None:
        epsilon = 2.0 if unit == "sample" else 60.0
        budget = replace(
            self.budget, epsilon=epsilon, unit=unit, least_answers=9, colluders=1
        )
        first = fb.plan(self.problem, budget, self.prices)
        devices: fb.ReleaseDevices | fb.SimulatedDevices
        limits: dict[str, Any] = {"budget": budget, "prices": self.prices}
        half = first.rounds // 2
        assert half >= 1
        devices = fb.SimulatedDevices(self.data, **limits)
        if kind == "release":
            devices = fb.ReleaseDevices(self.data, **limits)
        run = fb.train(first, devices, stop=lambda done: done.number == half)
        rest = fb.replan(run, self.problem, budget, self.prices, gone=[4])
        assert (rest.trust, rest.unit, rest.least_answers) == ("sum", unit, 9)
        assert rest.weights[4] == 0 and np.ptp(rest.noise_std) == 0
        after = fb.train(rest, devices, after=run)
        last = after.rounds[-1]
        assert last.answered == 11 and last.epsilon.max() <= epsilon * (1 + 1e-9)
        assert last.cost.max() <= 2000
        assert last.epsilon[0] > 0.95 * epsilon  # the rest is spent
        # Alone, the rounds of both plans count: never less than they were worth.
        alone = rest.privacy.epsilon_alone
        assert alone is not None
        exact = fb.privacy.GDP.epsilon_from_mu(
            np.sqrt(
                half / first.rounds * first.uploads.mu_alone[0] ** 2
                + rest.uploads.mu_alone[0] ** 2
            ),
            1e-5,
        )
        assert exact <= alone < np.inf

    def test_training_continues_without_a_silent_device(self) -> None:
        budget = replace(self.budget, least_answers=8)
        start = fb.plan(self.problem, budget, self.prices)
        devices = Leaving(self.data, budget=budget, prices=self.prices)
        runs = fb.train_replanning(start, devices, self.problem, budget, self.prices)
        assert len(runs) == 2 and runs[1].plan.trust == "sum"
        assert runs[-1].rounds[-1].epsilon.max() <= 2 * (1 + 1e-9)

    def test_too_few_devices_end_it(self) -> None:
        budget = replace(self.budget, least_answers=11)
        first = fb.plan(self.problem, budget, self.prices)
        run = fb.train(first, fb.SimulatedDevices(self.data), stop=lambda done: True)
        with pytest.raises(
            fb.InfeasibleBudgetError, match="10 devices are left, below"
        ):
            fb.replan(run, self.problem, budget, self.prices, gone=[1, 2])

    def test_another_trust_or_unit_is_refused(self) -> None:
        run = fb.train(
            fb.plan(self.problem, self.budget, self.prices),
            fb.SimulatedDevices(self.data),
            stop=lambda done: True,
        )
        for change in ({"trust": "uploads"}, {"unit": "device"}):
            other = replace(self.budget, **change)  # type: ignore[arg-type]
            with pytest.raises(fb.InvalidInputError, match="the run was planned with"):
                fb.replan(run, self.problem, other, self.prices)
