"""Audits of policies that take part in sums: uploads, charges and refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedbudget as fb
from fedbudget.auditing.sum_policies import sum_run
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import Policy, SumPolicy, read_policy
from tests.fleet.devices import write_device

SUMS = """
[sums]
least_answers = 4
colluders = 1
peers = "ca.pem"
certificate = "c.pem"
key = "c.key"
"""
# Weak audits are enough here; wrong alarms must be rare.
FAST: dict[str, Any] = {"trials": 4000, "confidence": 1 - 1e-9}


def policy_of(folder: Path, **sums: Any) -> tuple[Policy, SumPolicy]:
    path = write_device(folder)
    path.write_text(path.read_text() + SUMS)
    policy = read_policy(path)
    assert policy.sums is not None
    changed = replace(policy.sums, **sums)
    return replace(policy, sums=changed), changed


@pytest.mark.parametrize("unit", ["sample", "device"])
def test_a_policy_of_sums_is_audited(tmp_path: Path, unit: str) -> None:
    policy, _ = policy_of(tmp_path, trust="sum", unit=unit)
    result = fb.audit(policy, **FAST)
    (item,) = result.claims
    assert result.verdict == "consistent: no evidence against the claim"
    assert item.claim.epsilon == pytest.approx(4.0, rel=1e-6)
    assert 2.5 < item.steps.gaussian < 4 and item.claim.shares == 3
    assert item.guard is not None and item.guard.refused and item.guard.holds
    assert item.guard.spent == pytest.approx(4.0, rel=1e-6)
    assert "through a ledger spent at most epsilon 4 of 4" in str(item.guard)
    assert "4 answers, 1 of them from colluders" in result.notes[0]


def test_a_policy_of_both_kinds_of_runs_makes_two_claims(tmp_path: Path) -> None:
    policy, _ = policy_of(tmp_path)
    result = fb.audit(policy, trials=400, confidence=1 - 1e-9)
    opened, in_sums = result.claims
    assert not result.violated
    assert opened.guard is not None and opened.guard.through == "guard"
    assert in_sums.guard is not None and in_sums.guard.through == "ledger"


def test_a_ledger_that_never_refuses_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, sums = policy_of(tmp_path, trust="sum")
    monkeypatch.setattr(LedgerFile, "charge", lambda *_: None)
    assert not sum_run(policy, sums).charged().holds


def test_less_noise_than_is_charged_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbudget.auditing.upload_paths import DeviceUploads

    policy, _ = policy_of(tmp_path, trust="sum")
    draw = DeviceUploads.draw
    monkeypatch.setattr(
        DeviceUploads, "draw", lambda *args, **bits: draw(*args, **bits) // 2
    )
    assert fb.audit(policy, **FAST).violated


def test_what_no_sum_may_have_is_said(tmp_path: Path) -> None:
    policy, sums = policy_of(tmp_path, trust="sum")
    hinge = replace(policy, data=replace(policy.data, loss="hinge"))
    with pytest.raises(InvalidInputError, match="not smooth"):
        sum_run(hinge, sums)
    poor = replace(policy, budget=replace(policy.budget, cost=1e-6))
    with pytest.raises(InvalidInputError, match="does not pay for one round"):
        sum_run(poor, sums)
