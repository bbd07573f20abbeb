"""Evaluation of a released model: real processes and brokers, and its intervals."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import fedbudget as fb
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.coordinator.evaluation import estimates, noise_for, with_reserve
from fedbudget.fleet.demo import Terms
from fedbudget.fleet.device.statement import read_statement
from tests.cli.running import run
from tests.fleet.brokers import FLEETS
from tests.fleet.conftest import need_broker
from tests.fleet.examples import declaration

EVALUATION = "\n[evaluation]\nepsilon = 1.0\nnum_samples = 1000\n"


@pytest.mark.parametrize("kind", sorted(FLEETS))
def test_a_fleet_measures_its_model(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    need_broker(kind)
    data = fb.load("adult", split="iid", num_devices=3, seed=0)
    fleet = FLEETS[kind](
        tmp_path, data, Terms(epsilon=4.0, cost=3000.0), deadline=300.0
    )
    for name in fleet.names:
        path = tmp_path / name / "policy.toml"
        path.write_text(path.read_text() + EVALUATION)
    fleet.server.arguments = (*fleet.server.arguments, "--evaluation", "0.5")
    certs = ("--certs", str(fleet.certs), "--port", str(fleet.port))
    with ExitStack() as stack:
        fleet.start(stack)
        assert fleet.server.wait(600) == 0, fleet.server.last_line
        words = ("server", "evaluate", str(tmp_path / "out"), *certs)
        both = (*words, "--epsilon", "0.5", "--wait", "300")
        measured = run(capsys, *both, "--measure", "per-class", "--json")
        assert measured.code == 0, measured.err
        too_much = run(capsys, *words, "--epsilon", "1.5")
        assert "above the 1 that device" in too_much.err
    result = json.loads(measured.out)
    assert result["answered"] == fleet.names and result["silent"] == []
    # Against the rows themselves, which only a test can read: the noise is 6 to 7 rows
    # of 3,000, so ten standard deviations are 0.05.
    parts = [fleet.data.train.device(m) for m in range(3)]
    x = np.concatenate([csr_array(rows).toarray()[-1000:] for rows, _ in parts])
    y = np.concatenate([labels[-1000:] for _, labels in parts])
    plan = fleet.plan()
    scores = plan.model.scores(fleet.model(), x)
    truth = float((plan.model.predictions(scores) == y).mean())
    assert result["total"]["value"] == pytest.approx(truth, abs=0.05)
    assert result["total"]["rows"] == 3000 and len(result["classes"]) == 2
    assert plan.num_samples.tolist() == [n - 1000 for n in data.num_samples]
    for name in fleet.names:
        statement = read_statement(tmp_path / name / "ledger.sqlite")
        assert 3.9 < statement.epsilon <= 4.0  # training and evaluation together
        assert statement.periods[0].evaluations == 1
    (kept,) = (tmp_path / "out" / "evaluations").iterdir()
    assert json.loads(kept.read_text())["total"] == result["total"]
    assert kept.stat().st_mode & 0o777 == 0o600


def test_intervals_cover() -> None:
    """Of 4,000 simulated evaluations, about 95 % of the intervals hold the truth."""
    rng = np.random.default_rng(1)
    rows, share, noise = np.array([40, 60, 100]), 0.8, 4.0
    hits = 0
    for _ in range(4000):
        counts = rng.binomial(rows, share) + rng.normal(scale=noise, size=3)
        total, _ = estimates(counts[:, None], rows, noise_std=noise, measure="correct")
        hits += total.low <= share <= total.high
    assert 0.93 < hits / 4000 < 0.98  # a fixed seed


def test_a_class_that_may_have_no_row_has_no_recall() -> None:
    answers = np.array([[80.0, 20.0, 1.0, -2.0]])
    total, classes = estimates(
        answers, np.array([100]), noise_std=3.0, measure="per-class"
    )
    assert total.value == pytest.approx(0.81)
    assert classes[0].value == pytest.approx(0.8) and classes[0].low < 0.7
    assert np.isnan(classes[1].value) and (classes[1].low, classes[1].high) == (0, 1)


def test_squared_errors_are_in_the_labels_unit() -> None:
    total, _ = estimates(
        np.array([[5.0], [5.0]]),
        np.array([100, 100]),
        noise_std=0.1,
        measure="squared-error",
    )
    assert total.value == pytest.approx(4 * 0.05)


def test_what_a_device_does_not_grant_is_not_asked() -> None:
    with pytest.raises(InvalidInputError, match="no device of this run answers"):
        noise_for([], 0.2, "correct")
    granted = declaration(evaluation_epsilon=0.1, evaluation_samples=30)
    with pytest.raises(InvalidInputError, match=r"above the 0\.1 that device sensor-1"):
        noise_for([granted], 0.2, "correct")
    with pytest.raises(InvalidInputError, match="leaves nothing of the 4"):
        with_reserve(granted, 5.0)
    assert with_reserve(declaration(), 5.0) == declaration()  # it answers none
