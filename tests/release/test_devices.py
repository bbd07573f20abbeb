"""Devices of a release: steps, batches, accuracy, resumed runs, refusals."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import fedbudget as fb
from fedbudget.algorithm import Batch, local_steps, weighted_mean
from fedbudget.fleet.coordinator.devices import FleetDevices
from fedbudget.release import rounds as rounds_module
from fedbudget.release.rounds import ReleaseRounds, dealt_rows
from fedbudget.release.rows import exact_rows
from fedbudget.release.steps import draw_batch
from fedbudget.release.sums import Scratch
from fedbudget.simulation.kernels.simd import compiled
from fedbudget.simulation.measuring import measure
from fedbudget.training import Devices, InMemory, Measures, Order
from tests.examples import honest, small_data
from tests.release.examples import KINDS, LOSSES, data_of, plan_of

PRICES = fb.Prices(communication=20, computation=1)
BUDGET = fb.Budget(epsilon=4.0, cost=1000)
DATA = small_data()
PLAN = fb.plan(DATA.problem(), BUDGET, PRICES, noise_schedule=False)
CYCLIC = fb.plan(
    DATA.problem(),
    BUDGET,
    fb.Prices(communication=20, computation=1, computation_per_sample=0.2),
    sampling="cyclic",
    batch_size=16,
    weights="uniform",
)
QUIET = 1e-6


def cut(plan: fb.Plan, devices: Devices, folder: Path, last: int) -> None:
    """Interrupt a run after a round."""

    def interrupt(latest: fb.Round) -> None:
        if latest.number == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.train(plan, devices, record=folder, on_round=interrupt)


def test_they_release_and_do_not_measure() -> None:
    devices = fb.ReleaseDevices(DATA)
    assert isinstance(devices, InMemory) and not isinstance(devices, Measures)
    kinds = fb.ReleaseDevices.kind, FleetDevices.kind, fb.SimulatedDevices.kind
    assert kinds == ("release", "release", "simulation")
    assert fb.train(PLAN, devices).measured == {}
    with pytest.raises(fb.InvalidInputError, match="personal=True measures"):
        fb.train(PLAN, devices, personal=True)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_the_reference(kind: str, loss: str) -> None:
    data = data_of(kind, loss)
    settings = {"tau": 3, "learning_rate": 0.4, "l2": 0.05}
    plan = plan_of(data, loss, noise_std=np.full(2, QUIET), **settings)
    rounds = ReleaseRounds.of(plan, exact_rows(data.train, plan.model))
    theta = np.random.default_rng(3).normal(size=rounds.packed.num_params) * 0.2
    shifts = np.random.default_rng(4).normal(size=(2, len(theta))) * 0.01
    replies = rounds.replies(
        theta, np.arange(2), first_step=0, shifts=shifts, deal=no_deal()
    )
    for m in range(2):
        expected = local_steps(
            theta,
            *data.train.device(m),
            loss=plan.model,
            tau=3,
            learning_rate=0.4,
            noise_std=0.0,
            batch=Batch(),
            rng=np.random.default_rng(0),
            shift=shifts[m],
        )
        assert replies[m] == pytest.approx(expected, abs=1e-5)


def no_deal() -> NDArray[np.uint32]:
    return np.zeros(0, dtype=np.uint32)


def test_cyclic_batches_are_disjoint_and_taken_in_turn() -> None:
    plan = replace(CYCLIC, tau=7, noise_std=np.full(4, QUIET), learning_rate=0.5)
    rounds = ReleaseRounds.of(plan, exact_rows(DATA.train, plan.model))
    deal = dealt_rows(77, DATA.train.offsets)
    theta = np.full(DATA.dim, 0.1)
    replies = rounds.replies(theta, np.arange(4), first_step=5, shifts=None, deal=deal)
    for m in range(4):
        order = deal[DATA.train.offsets[m] : DATA.train.offsets[m + 1]].astype(int)
        assert sorted(order) == list(range(DATA.num_samples[m]))
        expected = local_steps(
            theta,
            *DATA.train.device(m),
            loss=plan.model,
            tau=7,
            learning_rate=0.5,
            noise_std=0.0,
            batch=Batch(sampling="cyclic", size=16),
            rng=np.random.default_rng(0),
            first_step=5,
            permutation=order,
        )
        assert replies[m] == pytest.approx(expected, abs=1e-5)
    assert (dealt_rows(77, DATA.train.offsets) == deal).all()
    assert (dealt_rows(78, DATA.train.offsets) != deal).any()


@compiled
def one_batch(rows: Any, words: Any, deal: Any, work: Any, scratch: Any) -> Any:
    return draw_batch(rows, 0, 0, words, deal, work, scratch)


def batches(sampling: str, size: int, count: int) -> list[NDArray[np.int64]]:
    """Return batches of the first device."""
    data = small_data(devices=1, rows=60)
    plan = plan_of(data, "logistic", sampling=sampling, batch_size=[size])
    rounds = ReleaseRounds.of(plan, exact_rows(data.train, plan.model))
    rng, drawn = np.random.default_rng(6), []
    for _ in range(count):
        scratch = Scratch(*(buffer[0].copy() for buffer in rounds.memory))
        words = rng.integers(0, 2**64, int(rounds.batch_words[0]), dtype=np.uint64)
        number = one_batch(rounds.rows, words, no_deal(), rounds.work, scratch)
        drawn.append(scratch.order[:number].astype(np.int64))
    return drawn


def test_fixed_batches_are_uniform_subsets() -> None:
    drawn = batches("fixed", 11, 4000)
    assert all(len(set(batch)) == len(batch) == 11 for batch in drawn)
    n = int(max(batch.max() for batch in drawn)) + 1
    counts = np.bincount(np.concatenate(drawn), minlength=n)
    # Without replacement the counts vary less than those of a chi-square test.
    assert stats.chisquare(counts).pvalue > 1e-6
    firsts = np.bincount([batch[0] for batch in drawn], minlength=n)
    assert stats.chisquare(firsts).pvalue > 1e-6


def test_poisson_batches_draw_every_row_by_itself() -> None:
    drawn = batches("poisson", 11, 4000)
    n = 1 + max(int(batch.max(initial=0)) for batch in drawn)
    assert all((np.diff(batch) > 0).all() for batch in drawn)
    sizes = np.array([len(batch) for batch in drawn])
    total = stats.binomtest(int(sizes.sum()), 4000 * n, 11 / n)
    assert total.pvalue > 1e-6
    counts = np.bincount(np.concatenate(drawn), minlength=n)
    assert stats.chisquare(counts).pvalue > 1e-6
    # Sizes of batches vary as a binomial: rows are independent.
    cells = stats.binom.cdf([7, 8, 9, 10, 11, 12, 13, 14], n, 11 / n)
    expected = 4000 * np.diff(np.concatenate([[0], cells, [1]]))
    observed = np.bincount(np.clip(sizes, 7, 15) - 7, minlength=9)
    assert stats.chisquare(observed, expected).pvalue > 1e-6


@pytest.mark.parametrize("size", [1, 3, 7, 48])
def test_poisson_batches_never_exceed_the_accounted_probability(size: int) -> None:
    data = small_data(devices=1, rows=60)
    plan = plan_of(data, "logistic", sampling="poisson", batch_size=[size])
    work = ReleaseRounds.of(plan, exact_rows(data.train, plan.model)).work
    probability = Fraction(int(work.inclusion[0]), 2**32)
    accounted = Fraction(float(plan.sampling_probability[0]))
    assert accounted - Fraction(1, 2**32) <= probability <= accounted
    if size == data.num_samples[0]:
        assert probability == 1


def test_words_of_the_stream_are_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounds, devices and steps get other words, however a round is divided.
    monkeypatch.setattr(rounds_module, "AT_ONCE", 30)
    plan = replace(PLAN, tau=6, noise_std=np.full(4, 1.0), drift_correction=False)
    rounds = ReleaseRounds.of(plan, exact_rows(DATA.train, plan.model))
    theta = np.zeros(DATA.dim)
    models = [
        rounds.replies(theta, np.arange(4), first_step=0, shifts=None, deal=no_deal())
        for _ in range(2)
    ]
    assert len(np.unique(models)) == 2 * 4 * DATA.dim


def test_the_number_of_threads_does_not_change_a_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted:
        """A stream that a test can repeat."""

        def __init__(self) -> None:
            self.rng = np.random.default_rng(9)

        def __call__(self, count: int) -> NDArray[np.uint64]:
            return self.rng.integers(0, 2**64, count, dtype=np.uint64)

    monkeypatch.setattr("fedbudget.release.normals.Stream", Counted)
    data = data_of("pairs", "logistic", (400, 300, 500, 200, 100))
    plan = plan_of(data, "logistic", sampling="fixed", batch_size=[64] * 5, tau=5)
    models, before = [], numba.get_num_threads()
    try:
        for threads in (1, min(2, before)):
            numba.set_num_threads(threads)
            rounds = ReleaseRounds.of(plan, exact_rows(data.train, plan.model))
            models.append(
                rounds.replies(
                    np.zeros(data.dim),
                    np.arange(5),
                    first_step=0,
                    shifts=None,
                    deal=no_deal(),
                )
            )
    finally:
        numba.set_num_threads(before)
    assert (models[0] == models[1]).all()


@pytest.mark.parametrize("sampling", ["full", "fixed", "poisson", "cyclic"])
@pytest.mark.parametrize("drift_correction", [False, True])
def test_a_release_is_as_accurate_as_its_simulation(
    sampling: str, drift_correction: bool
) -> None:
    data = small_data(devices=3, rows=500)  # the larger class has 69 % of the rows
    options: dict[str, Any] = {}
    if sampling == "poisson":
        options["accountant"] = "pld"
    if sampling in ("fixed", "cyclic"):
        options["sampling"] = sampling
    if sampling != "full":
        options["batch_size"] = 100
    plan = fb.plan(data.problem(), BUDGET, PRICES, **options)
    assert plan.sampling == sampling
    plan = replace(plan, drift_correction=drift_correction)
    released, simulated = (
        measure(data, plan.model, fb.train(plan, devices).theta)["test_accuracy"]
        for devices in (fb.ReleaseDevices(data), fb.SimulatedDevices(data))
    )
    # Their standard deviation is 0.02 at most.
    assert min(released, simulated) > 0.75
    assert released == pytest.approx(simulated, abs=0.2)


def test_on_adult_too() -> None:
    data = fb.load("adult", split="iid")
    prices = fb.Prices(communication=100, computation=1)
    plan = fb.plan(data.problem(), BUDGET, prices)
    released, simulated = (
        measure(data, plan.model, fb.train(plan, devices).theta)["test_accuracy"]
        for devices in (fb.ReleaseDevices(data), fb.SimulatedDevices(data))
    )
    assert released > 0.79  # the larger class has 76 %
    assert released == pytest.approx(simulated, abs=0.02)  # ten standard deviations


def test_no_two_releases_have_the_same_noise() -> None:
    devices = fb.ReleaseDevices(DATA)
    first, second = (fb.train(PLAN, devices).theta for _ in range(2))
    other = fb.train(PLAN, fb.ReleaseDevices(DATA)).theta
    for one, two in ((first, second), (first, other), (second, other)):
        assert (one != two).all()


class TestLedger:
    def test_a_run_spends_what_its_simulation_spends(self) -> None:
        for plan in (PLAN, CYCLIC):
            spent = []
            for kind in (fb.ReleaseDevices, fb.SimulatedDevices):
                devices = kind(DATA, budget=BUDGET, prices=PRICES)
                done = fb.train(plan, devices).rounds
                spent.append([(r.epsilon.tolist(), r.cost.tolist()) for r in done])
            assert spent[0] == spent[1]

    def test_an_exhausted_budget_ends_the_second_run(self) -> None:
        devices = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
        fb.train(PLAN, devices)
        before = devices.ledger.epsilon
        with pytest.raises(fb.TrainingError, match="overdraw"):
            fb.train(PLAN, devices)
        assert (devices.ledger.epsilon <= BUDGET.epsilon).all()
        assert (devices.ledger.epsilon >= before).all()

    @pytest.mark.parametrize("plan", [PLAN, CYCLIC], ids=["full", "cyclic"])
    def test_a_resumed_run_charges_what_an_uninterrupted_one_does(
        self, plan: fb.Plan, tmp_path: Path
    ) -> None:
        first = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
        cut(plan, first, tmp_path, plan.rounds // 2)
        second = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
        resumed = fb.train(plan, second, record=tmp_path)
        whole = fb.train(plan, fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES))
        assert len(resumed.rounds) == plan.rounds
        for one, other in zip(resumed.rounds, whole.rounds, strict=True):
            assert one.epsilon == pytest.approx(other.epsilon, rel=1e-12)
            assert one.cost == pytest.approx(other.cost, rel=1e-12)
        if plan is CYCLIC:
            assert second._stream == first._stream  # the same disjoint batches

    def test_devices_that_ran_the_rounds_do_not_charge_them_again(
        self, tmp_path: Path
    ) -> None:
        devices = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
        cut(PLAN, devices, tmp_path, 1)
        fb.train(PLAN, devices, record=tmp_path)
        whole = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
        fb.train(PLAN, whole)
        assert devices.ledger.epsilon == pytest.approx(whole.ledger.epsilon, rel=1e-12)

    def test_a_round_that_is_run_again_is_charged_again(self) -> None:
        devices = fb.ReleaseDevices(DATA)
        devices.begin(CYCLIC)
        order = Order(number=1, theta=np.zeros(DATA.dim), plan=CYCLIC)
        first = devices.run_round(order)
        again = devices.run_round(replace(order, state=first.state))
        assert (again.epsilon > first.epsilon).all()
        assert (again.theta != first.theta).all()
        assert again.state["noise"] != first.state["noise"]  # other batches

    def test_a_continued_run_goes_on_with_its_batches(self) -> None:
        devices = fb.ReleaseDevices(DATA)
        one = honest(CYCLIC, rounds=1, tau=1)
        run = fb.train(one, devices)
        before = devices.ledger.epsilon
        fb.train(one, devices, after=run)  # the second batch of the same pass
        assert (devices.ledger.epsilon == before).all()


class TestRecord:
    def test_nothing_computed_from_rows_without_noise_is_in_it(
        self, tmp_path: Path
    ) -> None:
        fb.train(PLAN, fb.ReleaseDevices(DATA), record=tmp_path)
        about = json.loads((tmp_path / "about.json").read_text())
        assert about["kind"] == "release"
        assert not {"rows", "seed"} & set(about)
        table = "".join(path.read_text() for path in tmp_path.glob("*.csv"))
        assert "loss" not in table and "accuracy" not in table

    @pytest.mark.parametrize("kinds", [(0, 1), (1, 0)], ids=["release", "simulation"])
    def test_a_run_is_not_resumed_as_another_kind(
        self, kinds: tuple[int, int], tmp_path: Path
    ) -> None:
        classes = fb.ReleaseDevices, fb.SimulatedDevices
        first, second = (classes[kind](DATA) for kind in kinds)
        cut(PLAN, first, tmp_path, 1)
        with pytest.raises(
            fb.RecordError, match=r"holds a (release|simulation), not a"
        ):
            fb.train(PLAN, second, record=tmp_path)


class TestBadInput:
    def test_a_plan_without_noise_is_refused(self) -> None:
        with pytest.raises(fb.InvalidInputError, match="no noise on device 0"):
            fb.train(PLAN.without_privacy(), fb.ReleaseDevices(DATA))

    def test_noise_that_cannot_be_drawn_exactly_is_refused(self) -> None:
        plan = replace(PLAN, noise_std=np.full(4, 1e9))
        with pytest.raises(fb.InvalidInputError, match=r"noise_std 1e\+09"):
            fb.train(plan, fb.ReleaseDevices(DATA))

    def test_a_plan_that_breaks_its_promise_is_refused(self) -> None:
        plan = replace(PLAN, noise_std=PLAN.noise_std / 2)
        devices = fb.ReleaseDevices(DATA)
        with pytest.raises(fb.InvalidInputError):
            fb.train(plan, devices)
        assert not devices.ledger.epsilon.any()

    def test_rows_that_change_during_a_run_change_nothing(self) -> None:
        x = np.array(DATA.train.x)
        data = replace(DATA, train=replace(DATA.train, x=x))
        plan = replace(PLAN, noise_std=np.full(4, QUIET), tau=1, drift_correction=False)
        plan = honest(plan, epsilon=np.full(4, 1e12))
        devices = fb.ReleaseDevices(data)
        devices.begin(plan)
        x[:] = 0.0
        order = Order(number=1, theta=np.zeros(DATA.dim), plan=plan)
        steps = [
            local_steps(
                np.zeros(DATA.dim),
                *DATA.train.device(m),
                loss=plan.model,
                tau=1,
                learning_rate=plan.learning_rate,
                noise_std=0.0,
                batch=Batch(),
                rng=np.random.default_rng(0),
            )
            for m in range(4)
        ]
        expected = weighted_mean(steps, plan.weights)
        assert devices.run_round(order).theta == pytest.approx(expected, abs=1e-4)

    def test_prices_for_other_devices_are_refused(self) -> None:
        prices = fb.Prices(communication=[1.0, 2.0], computation=1)
        with pytest.raises(fb.InvalidInputError, match=r"prices\.communication"):
            fb.ReleaseDevices(DATA, prices=prices)

    def test_a_model_that_diverges_ends_the_run(self) -> None:
        plan = replace(PLAN, learning_rate=1e9)
        with pytest.raises(fb.TrainingError, match="lower learning_rate"):
            fb.train(plan, fb.ReleaseDevices(DATA))

    def test_steps_stop_before_scores_overflow(self) -> None:
        plan = replace(PLAN, learning_rate=1e25, tau=50)
        rounds = ReleaseRounds.of(plan, exact_rows(DATA.train, plan.model))
        replies = rounds.replies(
            np.zeros(DATA.dim), np.arange(4), first_step=0, shifts=None, deal=no_deal()
        )
        assert np.isfinite(replies).all()
