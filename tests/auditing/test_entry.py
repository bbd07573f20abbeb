"""`audit`: plans, policies and runs, from files and in the library."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError, RecordError
from tests.fleet.devices import write_device

# Few trials, and a confidence at which a test fails less than once in a million times.
FAST = {"trials": 6000, "confidence": 1 - 1e-7}


def small_plan(epsilon: float = 4.0) -> fb.Plan:
    return fb.plan(
        fb.Problem(num_samples=[60, 60], dim=3),
        fb.Budget(epsilon=epsilon, delta=1e-5, cost=30),
        fb.Prices(communication=10, computation=1),
    )


def test_a_plan_is_audited_on_both_paths(tmp_path: Path) -> None:
    plan = small_plan()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.to_dict() | {"data": "x", "constants": {}}))
    for target, path in ((plan, "device"), (str(file), None)):
        result = fb.audit(target, path=path, **FAST)  # type: ignore[arg-type]
        assert result.kind == "plan" and not result.violated
        assert result.verdict == "consistent: no evidence against the claim"
        assert result.claims[0].path == (path or "release")
        assert result.model is None and not result.simulation


def test_an_audit_becomes_json() -> None:
    result = fb.audit(small_plan(), **FAST)  # type: ignore[arg-type]
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["verdict"] == result.verdict and plain["violated"] is False
    (claim,) = plain["claims"]
    assert claim["claim"]["epsilon"] == pytest.approx(4.0)
    assert claim["steps"]["gaussian"] < 4 and claim["sensitivity"]["holds"]
    assert [control["caught"] for control in claim["controls"]] == [True, True]


def test_parts_are_reported_with_their_share_of_the_time() -> None:
    shares: list[tuple[str, float]] = []
    fb.audit(
        small_plan(),
        on_part=lambda name, share: shares.append((name, share)),
        **FAST,  # type: ignore[arg-type]
    )
    assert len(shares) == 6 and 0.9 < sum(share for _, share in shares) <= 1


def test_a_policy_is_audited_through_its_guard(tmp_path: Path) -> None:
    path = write_device(tmp_path)
    result = fb.audit(path, **(FAST | {"trials": 2000}))  # type: ignore[arg-type]
    (claim,) = result.claims
    assert result.kind == "policy" and "sensor-1" in result.subject
    assert claim.guard is not None and claim.guard.refused
    assert not result.violated
    with pytest.raises(InvalidInputError, match="no guard"):
        fb.audit(path, path="release", **FAST)  # type: ignore[arg-type]


def recorded(folder: Path, devices: type, **options: object) -> fb.Plan:
    """Record a run of one step on one device."""
    rng = np.random.default_rng(0)
    table = {"v": rng.uniform(0, 9, 60), "y": rng.integers(0, 2, 60)}
    features = {"v": {"low": 0, "high": 9}}
    schema = {"label": {"name": "y", "values": [0, 1]}, "features": features}
    data = fb.from_partitions([table], label="y", schema=schema)
    plan = fb.plan(
        data.problem(),
        fb.Budget(epsilon=4, delta=1e-5, cost=11),
        fb.Prices(communication=10, computation=1),
    )
    assert plan.steps == 1
    fb.train(plan, devices(data, **options), record=folder)
    return plan


def test_the_run_of_a_release_has_its_model_on_the_grid(tmp_path: Path) -> None:
    recorded(tmp_path / "run", fb.ReleaseDevices)
    about = tmp_path / "run" / "about.json"
    plain = json.loads(about.read_text())
    about.write_text(json.dumps(plain | {"kind": "release"}))
    result = fb.audit(tmp_path / "run", **FAST)  # type: ignore[arg-type]
    assert result.kind == "run" and not result.simulation and not result.violated
    assert result.model is not None and not result.model.not_applicable
    assert result.model.weights == 2 and result.model.off == 0


def test_a_model_off_the_grid_is_a_violation(tmp_path: Path) -> None:
    # The simulator's noise is in floating point: it must not pass for a release.
    recorded(tmp_path / "run", fb.SimulatedDevices, seed=1)
    about = tmp_path / "run" / "about.json"
    plain = json.loads(about.read_text())
    about.write_text(json.dumps(plain | {"kind": "release"}))
    result = fb.audit(tmp_path / "run", **FAST)  # type: ignore[arg-type]
    assert result.violated and "OFF the grid" in result.verdict


def test_the_run_of_a_simulation_is_told_apart(tmp_path: Path) -> None:
    recorded(tmp_path / "run", fb.SimulatedDevices, seed=1)
    result = fb.audit(tmp_path / "run", **FAST)  # type: ignore[arg-type]
    assert result.simulation and not result.violated
    assert result.verdict.startswith("nothing is promised for the model")
    assert result.verdict.endswith(": no evidence against the claim")
    assert result.model is not None and "simulation" in result.model.not_applicable


def test_bad_targets_and_options(tmp_path: Path) -> None:
    plan = small_plan()
    for changes, words in (
        ({"seconds": 0.0}, "seconds"),
        ({"trials": 5}, "trials"),
        ({"confidence": 1.0}, "confidence"),
        ({"path": "cloud"}, "path"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            fb.audit(plan, **(FAST | changes))
    with pytest.raises(InvalidInputError, match="no noise"):
        fb.audit(plan.without_privacy(), **FAST)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="target must be"):
        fb.audit(7, **FAST)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="cannot be read"):
        fb.audit(tmp_path / "none.json", **FAST)  # type: ignore[arg-type]
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidInputError, match="is not JSON"):
        fb.audit(tmp_path / "bad.json", **FAST)  # type: ignore[arg-type]
    (tmp_path / "other.json").write_text('{"tau": 3}')
    with pytest.raises(InvalidInputError, match="not a plan"):
        fb.audit(tmp_path / "other.json", **FAST)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="not a run folder"):
        fb.audit(tmp_path, **FAST)  # type: ignore[arg-type]


def test_a_plan_that_promises_too_much_is_refused_before_any_trial(
    tmp_path: Path,
) -> None:
    plan = small_plan()
    lying = replace(plan, noise_std=plan.noise_std / 2).to_dict()
    (tmp_path / "plan.json").write_text(json.dumps(lying))
    with pytest.raises(InvalidInputError, match="would spend epsilon"):
        fb.audit(tmp_path / "plan.json", **FAST)  # type: ignore[arg-type]
    # In the library, a plan is a value that nobody has checked: the trials tell.
    result = fb.audit(replace(plan, noise_std=plan.noise_std / 2), **FAST)  # type: ignore[arg-type]
    assert result.violated and result.verdict.startswith("violated: epsilon")
