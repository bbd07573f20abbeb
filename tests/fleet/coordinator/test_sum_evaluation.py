"""An evaluation in one secure sum: real device processes, brokers, its interval."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy.sparse import csr_array

import fedbudget as fb
from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.coordinator.checkpoints import StoredRun
from fedbudget.fleet.coordinator.evaluation import (
    Evaluation,
    evaluate,
    noise_for,
    with_reserve,
)
from fedbudget.fleet.coordinator.sum_evaluation import terms_for
from fedbudget.fleet.demo import Terms
from fedbudget.fleet.device import sum_guard
from fedbudget.fleet.device.evaluation import charge_of_evaluation, exact_counts
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.statement import read_statement
from fedbudget.fleet.wire.evaluation import MEASURES, EvaluationOrder, sensitivity
from fedbudget.fleet.wire.signing import Signer
from tests.cli.running import run as run_command
from tests.fleet.brokers import FLEETS
from tests.fleet.conftest import need_broker
from tests.fleet.examples import RUN, declaration
from tests.fleet.sums import DIM, ROWS, SumFleet

HELD_OUT = 20


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SumFleet]:
    processes = getattr(request, "param", False)
    fleet = SumFleet(tmp_path, 6, 4, 1, processes=processes, held_out=HELD_OUT)
    yield fleet
    fleet.close()


def measured(fleet: SumFleet, theta: Any, **changes: Any) -> Evaluation:
    run = StoredRun(
        run=RUN,
        name="demo",
        plan=StoredRun.plain(fleet.plan()),
        declarations=tuple(fleet.declarations()),
    )
    settings: dict[str, Any] = {
        "signer": Signer.read(fleet.certs / "coordinator.sign"),
        "epsilon": 0.5,
        "measure": "correct",
        "seconds": 30.0,
        "authority": fleet.certs / "ca.pem",
    }
    return evaluate(fleet.loop, run, theta, **(settings | changes))


def truth(theta: Any, devices: range) -> float:
    """Return the accuracy on the held-out rows, which only a test can read."""
    hits = 0
    for m in devices:
        x = np.random.default_rng(m).normal(size=(ROWS, DIM))[-HELD_OUT:]
        hits += int(((x @ theta > 0) == (x[:, 0] > 0)).sum())
    return hits / (HELD_OUT * len(devices))


@pytest.mark.parametrize("fleet", [True], indirect=True)
def test_processes_answer_in_one_sum(fleet: SumFleet) -> None:
    model = fleet.train().theta
    assert model is not None
    seen: list[str] = []
    retained = set(fleet.loop.retained)

    def from_device(name: str, kind: str, payload: bytes) -> bool:
        seen.append(kind)
        return True

    fleet.loop.from_device = from_device
    result = measured(fleet, model, epsilon=1.5)
    assert "reply" not in seen  # no device sent numbers of its own
    assert seen.count("attempt-upload") == seen.count("revealed-shares") == 6
    assert result.answered == fleet.names and not result.silent and not result.refused
    # The noise is about 6 rows of 120 for all six: ten standard deviations are 0.5.
    assert result.total.value == pytest.approx(truth(model, range(6)), abs=0.5)
    assert (result.least_answers, result.colluders) == (4, 1)
    assert result.epsilon_alone is not None and result.epsilon_alone > 1.5
    assert "up to 1 colluding device, who together see only sums of at least 4" in (
        result.statement
    )
    assert fleet.loop.retained.keys() == retained  # no order is left at the broker
    for name in fleet.names:
        statement = read_statement(fleet.folder / name / "ledger.sqlite")
        (period,) = statement.periods
        assert period.evaluations == 1
        run = statement.runs[-1]
        assert (run.name, run.charged, run.answered) == ("evaluation", 1, 1)
        assert run.sums is not None and run.sums.revealed == [1]
        assert run.mu < run.sums.mu_alone == pytest.approx(run.mu * np.sqrt(3))


def test_a_device_that_drops_out_leaves_less_noise(fleet: SumFleet) -> None:
    lost = fleet.names[2]
    fleet.loop.from_device = lambda name, kind, _: (
        (name, kind)
        != (
            lost,
            "attempt-upload",
        )
    )
    theta = np.array([1.0, 0.5, 0.0, 0.0])
    result = measured(fleet, theta, seconds=0.5)
    assert len(result.answered) == 5 and result.silent == (lost,)
    assert result.total.rows == 5 * HELD_OUT
    # By hand: binomial, and the shares of the five that are in the sum.
    share = (result.total.value * 100 + 1) / 102
    spread = np.sqrt(share * (1 - share) / 100 + 5 * result.noise_std**2 / 100**2)
    high = min(1.0, result.total.value + 1.96 * spread)
    assert result.total.high == pytest.approx(high, abs=1e-3)


@pytest.mark.parametrize("phase", ["introduction", "attempt-keys"])
def test_too_few_devices_are_not_charged(fleet: SumFleet, phase: str) -> None:
    few = set(fleet.names[:3])
    fleet.loop.from_device = lambda name, kind, _: kind != phase or name in few
    with pytest.raises(TrainingError, match=r"of at least \d.*and evaluate again"):
        measured(fleet, np.ones(DIM), seconds=0.3)
    assert all(not fleet.entries(name, "charge") for name in fleet.names)


def test_a_fleet_that_is_too_small_is_not_asked(fleet: SumFleet) -> None:
    with pytest.raises(InvalidInputError, match="least_answers 4 is above the 3"):
        terms_for(
            10.0,
            least_answers=4,
            colluders=1,
            declarations=fleet.declarations()[:3],
        )
    with pytest.raises(InvalidInputError, match="does not fit 32 bits"):
        terms_for(1e9, least_answers=4, colluders=1, declarations=fleet.declarations())


def test_garbage_is_noticed(fleet: SumFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sum_guard, "sum_vector", lambda *_: np.array([1 << 29], dtype=np.int64)
    )
    with pytest.raises(TrainingError, match="a device sent garbage"):
        measured(fleet, np.ones(DIM))


def test_a_device_restarted_in_any_phase_answers(fleet: SumFleet) -> None:
    """It is charged once, and sends the same vector."""
    started: set[str] = set()

    def to_device(name: str, kind: str, _: bytes) -> bool:
        if name == fleet.names[0] and kind not in started | {"attempt-roster"}:
            started.add(kind)
            fleet.restart(name)
        return True

    fleet.loop.to_device = to_device
    result = measured(fleet, np.ones(DIM))
    assert started >= {"evaluate", "peers", "attempt", "attempt-answers", "reveal"}
    assert result.answered == fleet.names
    assert len(fleet.entries(fleet.names[0], "charge")) == 1


def test_the_share_of_evaluations_ends(fleet: SumFleet) -> None:
    for _ in range(2):
        assert measured(fleet, np.ones(DIM), epsilon=1.2).answered == fleet.names
    with pytest.raises(TrainingError, match="have spent their share"):
        measured(fleet, np.ones(DIM), epsilon=1.2, seconds=0.3)
    assert all(len(fleet.entries(name, "charge")) == 2 for name in fleet.names)


@pytest.mark.parametrize("measure", MEASURES)
def test_three_witnesses_of_its_cost(measure: str) -> None:
    devices = [
        declaration(device=f"d{m}", evaluation_epsilon=1.0, evaluation_samples=30)
        for m in range(6)
    ]
    noise = noise_for(devices, 0.2, measure)
    terms = terms_for(noise, least_answers=5, colluders=2, declarations=devices)
    order = an_order(measure, terms.to_bytes(), terms.noise_std)
    # By hand: s F over the honest noise 2^b sqrt(t - c), both in grid steps.
    moved = sensitivity(measure) * terms.row_steps
    mu = moved / (2**terms.scale_bits * np.sqrt(3))
    assert charge_of_evaluation(order, 1.0).noise_multiplier == pytest.approx(2 / mu)
    # By its inverse, and by a library that we did not write.
    assert float(fb.privacy.epsilon_from_mu(mu, 1e-4)) <= 0.2
    theirs = dp_accounting.get_epsilon_gaussian(1 / mu, 1e-4)
    assert theirs == pytest.approx(0.2, rel=1e-3)
    # The ring holds all rows and twelve standard deviations of all noise.
    reach = 180 * terms.row_steps + 12 * np.sqrt(6) * 2**terms.scale_bits
    assert reach < 2**31


def an_order(measure: str, terms: bytes, noise_std: float) -> EvaluationOrder:
    loss = "huber" if measure == "squared-error" else "softmax"
    return EvaluationOrder(
        evaluation=bytes(16),
        run=RUN,
        measure=measure,
        noise_std=noise_std,
        loss=loss,
        num_classes=1 if loss == "huber" else 3,
        dim=DIM,
        precision="float64",
        theta=bytes(8 * DIM),
        sum_terms=terms,
    )


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("unit", [1, 7, 1 << 20])
def test_no_replaced_row_moves_whole_numbers_further(measure: str, unit: int) -> None:
    order, rng = an_order(measure, b"x", 1.0), np.random.default_rng(0)
    classes = order.num_classes
    worst = 0.0
    for _ in range(100):
        x = rng.normal(size=(20, DIM))
        x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
        y = rng.uniform(-1, 1, 20) if classes == 1 else rng.integers(3, size=20)
        other_x, other_y = x.copy(), y.copy()
        other_x[0] = -x[0]
        other_y[0] = -np.sign(y[0]) if classes == 1 else (y[0] + 1) % 3
        weights = 100 * rng.normal(size=DIM * classes)
        first, second = (
            np.array(exact_counts(order, weights, ExactRows.rounded(*pair), unit))
            for pair in ((x, y), (other_x, other_y))
        )
        worst = max(worst, float(np.linalg.norm(first - second)))
    assert 0 < worst <= sensitivity(measure) * unit * (1 + 1e-12)


def test_a_reserve_has_the_price_of_a_secure_round() -> None:
    one = declaration(
        evaluation_epsilon=1.0, evaluation_samples=30, secure_round_price=400.0
    )
    seen, summed = (with_reserve(one, 0.2, trust=t) for t in ("uploads", "sum"))
    assert seen.cost - summed.cost == 400.0 - one.communication_price


def test_a_fleet_with_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = min(FLEETS)
    need_broker(kind)
    data = fb.load("adult", split="iid", num_devices=4, seed=0)
    fleet = FLEETS[kind](
        tmp_path, data, Terms(epsilon=4.0, cost=3000.0), deadline=300.0
    )
    for name in fleet.names:
        path = tmp_path / name / "policy.toml"
        added = "\n[evaluation]\nepsilon = 1.0\nnum_samples = 1000\n"
        added += "\n[sums]\nleast_answers = 3\ncolluders = 0\n"
        path.write_text(path.read_text() + added)
    options = ("--evaluation", "0.5", "--trust", "sum", "--least-answers", "3")
    fleet.server.arguments = (*fleet.server.arguments, *options)
    certs = ("--certs", str(fleet.certs), "--port", str(fleet.port))
    with ExitStack() as stack:
        fleet.start(stack)
        assert fleet.server.wait(600) == 0, fleet.server.last_line
        words = ("server", "evaluate", str(tmp_path / "out"), *certs)
        options = ("--epsilon", "0.5", "--wait", "300", "--measure", "per-class")
        shown = run_command(capsys, *words, *options)
        assert shown.code == 0, shown.err
    assert "as the share of each device in one sum" in shown.out
    assert "sums of at least 3 answers" in " ".join(shown.out.split())
    (kept,) = (tmp_path / "out" / "evaluations").iterdir()
    report = json.loads(kept.read_text())
    assert report["answered"] == fleet.names
    assert (report["least_answers"], report["colluders"]) == (3, 0)
    parts = [fleet.data.train.device(m) for m in range(4)]
    plan, model = fleet.plan(), fleet.model()
    hits = 0
    for rows, labels in parts:
        scores = plan.model.scores(model, csr_array(rows).toarray()[-1000:])
        hits += int((plan.model.predictions(scores) == labels[-1000:]).sum())
    assert report["total"]["value"] == pytest.approx(hits / 4000, abs=0.05)
    for name in fleet.names:
        statement = read_statement(tmp_path / name / "ledger.sqlite")
        assert statement.periods[0].evaluations == 1 and statement.epsilon <= 4.0
