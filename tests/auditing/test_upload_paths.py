"""The audit of plans whose server sees only sums: claims, both paths, and faults.

Where random words are not seeded, the error probability is 1e-7.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.auditing.audits import CONSISTENT, audit_claim
from fedbudget.auditing.canaries import Table
from fedbudget.auditing.grids import measure_grid
from fedbudget.auditing.mechanisms import ExactSum
from fedbudget.auditing.sensitivity import measure_sensitivity
from fedbudget.auditing.settings import claims_of
from fedbudget.auditing.trials import Effort, run_trials, steps_trials
from fedbudget.auditing.upload_claims import UploadClaim
from fedbudget.auditing.upload_paths import DeviceUploads, ReleaseUploads
from fedbudget.checks import Array
from fedbudget.fleet.device.exact_noise import ExactNormals, Integers
from fedbudget.planning.shared_noise import SumSchedule, shared_noise_plan
from tests.auditing.test_trials import check_law
from tests.examples import small_data

LOSSES = ["logistic", "smooth_hinge", "huber", "softmax"]
BUDGET = fb.Budget(epsilon=4.0, delta=1e-5, cost=1000)
PRICES = fb.Prices(communication=10, computation=1)
SCHEDULE = SumSchedule(tau=6, rounds=4, learning_rate=1.9, least_answers=5, colluders=2)


def planned(loss: str = "logistic", **changes: Any) -> fb.Plan:
    classes = {"softmax": 3, "huber": None}.get(loss, 2)
    data = small_data(devices=6, rows=60, classes=classes)
    problem = data.problem(loss=loss)
    return shared_noise_plan(problem, BUDGET, PRICES, replace(SCHEDULE, **changes))


def claim_of(plan: fb.Plan) -> UploadClaim:
    (claim,), _ = claims_of(plan)
    assert isinstance(claim, UploadClaim)
    return claim


class SeededUploads(ReleaseUploads):
    """Compiled uploads, with noise from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        def words(count: int) -> np.ndarray:
            return self._rng.integers(0, 2**64, count, dtype=np.uint64)

        return ExactNormals(words).draw(count, scale_bits=scale_bits)


PLANS = [
    *[planned(loss) for loss in LOSSES],
    planned(unit="device", rounds=2),
    planned(unit="device", clip=0.5),
    planned(batch_size=9),
    planned(batch_size=9, tau=13),
    planned(least_answers=3, colluders=2),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.loss} {plan.unit}")
def test_a_claim_keeps_the_mu_of_its_plan(plan: fb.Plan) -> None:
    claim = claim_of(plan)
    mu = 2 * np.sqrt(claim.steps) / claim.noise_multiplier
    assert mu == pytest.approx(float(plan.uploads.mu.max()))
    small = claim.small()
    assert small.noise_multiplier == pytest.approx(claim.noise_multiplier)
    assert small.batch_size * small.blocks <= 32
    assert claim.shares == plan.least_answers - plan.colluders


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.loss} {plan.unit}")
def test_canaries_reach_the_bound_on_both_paths(plan: fb.Plan) -> None:
    claim = claim_of(plan)
    compiled = measure_sensitivity(ReleaseUploads(), claim)
    assert compiled.holds and 0.99 < compiled.largest <= 1
    assert 0.99 < compiled.on_grid <= 1
    real = measure_sensitivity(DeviceUploads(), claim)
    assert real.holds and real.largest == pytest.approx(compiled.largest, rel=1e-6)
    assert measure_grid(ReleaseUploads(), claim, claim.canaries(), values=300).holds


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.loss} {plan.unit}")
def test_trials_have_the_law_of_the_claim(plan: fb.Plan) -> None:
    claim = claim_of(plan)
    trials = steps_trials(SeededUploads(), claim, claim.canaries(), Effort(trials=4000))
    check_law(trials, 2 * np.sqrt(claim.steps) / claim.noise_multiplier)


@pytest.mark.parametrize("path", [ReleaseUploads(), DeviceUploads()])
def test_whole_runs_have_the_same_law(path: DeviceUploads) -> None:
    for plan in (planned(), planned(batch_size=9, tau=13)):
        claim = claim_of(plan)
        trials = run_trials(path, claim, Effort(trials=400))
        # The canaries' moves are a little shorter than the bound on a small table.
        mu = 2 * np.sqrt(claim.steps) / claim.noise_multiplier
        check_law(trials, 0.998 * mu)


def test_a_plan_is_consistent_with_its_claim() -> None:
    result = fb.audit(planned(), trials=5000, confidence=1 - 1e-7)
    (item,) = result.claims
    assert result.verdict == CONSISTENT and item.path == "release"
    assert 0.6 * 4 < item.steps.gaussian < 4
    assert "the noise of a sum is that of 3 honest devices" in result.notes[0]
    assert "x the bound of 6 steps: within" in str(item.sensitivity)
    plain = result.to_dict()["claims"][0]["claim"]
    assert plain["uploads"]["steps"]["tau"] == 6
    assert plain["uploads"]["least_answers"] == 5


def test_a_recorded_release_is_audited(tmp_path: Path) -> None:
    data = small_data(devices=6, rows=60)
    folder = tmp_path / "run"
    fb.train(planned(), fb.ReleaseDevices(data), record=folder)
    result = fb.audit(folder, trials=1000, confidence=1 - 1e-7)
    assert not result.violated and result.model is not None
    assert "a mean of sums" in result.model.not_applicable
    assert "step(s) of" not in result.subject


class ForgottenShares(SeededUploads):
    """Adds the noise of one device only."""

    def draw(self, count: int, *, scale_bits: int) -> Integers:
        noise = super().draw(count, scale_bits=scale_bits)
        noise[-(-count // 3) :] = 0
        return noise


class OneMoreStep(SeededUploads):
    """Takes twice the local steps that are accounted for."""

    def exact_sum(self, claim: UploadClaim, theta: Array, table: Table) -> ExactSum:
        steps = replace(claim.uploads.steps, tau=2 * claim.uploads.steps.tau)
        longer = replace(claim, uploads=replace(claim.uploads, steps=steps))
        total = super().exact_sum(longer, theta, table)
        scale = float(total.unit) / claim.grid.step
        numbers = np.rint(total.numbers * scale).astype(np.int64)
        return ExactSum(
            numbers=numbers, unit=super().exact_sum(claim, theta, table).unit
        )


def test_faults_are_caught() -> None:
    claim, effort = claim_of(planned()), Effort(trials=3000)
    forgotten = audit_claim(ForgottenShares(), claim, effort, error=1e-7)
    assert any("epsilon is at least" in text for text in forgotten.violations)
    longer = measure_sensitivity(OneMoreStep(), claim)
    assert not longer.holds and longer.largest == pytest.approx(2, rel=0.01)


def test_a_plan_without_noise_has_nothing_to_audit() -> None:
    with pytest.raises(fb.InvalidInputError, match="nothing to audit"):
        fb.audit(planned().without_privacy())
