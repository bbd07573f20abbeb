"""A hostile coordinator: a short campaign; benchmarks/fleet has the long one."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbudget.fleet.device import (
    drift,
    exact_steps as steps,
    guard as guard_module,
)
from tests.fleet.device.hostile_orders import Campaign


def attacked(folder: Path, orders: int) -> Campaign:
    campaign = Campaign(folder, random.Random(orders))
    campaign.run(orders, lambda number: None)
    return campaign


def test_no_order_is_charged_wrongly_or_crashes_the_guard(tmp_path: Path) -> None:
    campaign = attacked(tmp_path, 2000)
    assert campaign.breaches == []
    assert campaign.fresh > 10 and campaign.charged >= campaign.fresh
    assert len(campaign.attacks) == 10
    assert {"accepted", "answered", "policy", "bad-model"} <= set(campaign.answers)


def test_the_campaign_finds_a_guard_that_adds_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = steps.noisy_steps
    quiet = {"noise_std": 1e-9}
    monkeypatch.setattr(
        guard_module, "noisy_steps", lambda *a, **b: real(*a, **(b | quiet))
    )
    campaign = attacked(tmp_path, 1000)
    assert any("has no noise" in breach for breach in campaign.breaches)


def test_the_campaign_finds_a_guard_that_checks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "check_offer", lambda *_: None)
    campaign = attacked(tmp_path, 300)
    assert any("outside the policy" in breach for breach in campaign.breaches)


def test_the_campaign_finds_an_incorrect_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = guard_module.noise_multiplier
    monkeypatch.setattr(
        guard_module, "noise_multiplier", lambda *order: 2 * real(*order)
    )
    campaign = attacked(tmp_path, 300)
    assert any("became" in breach for breach in campaign.breaches)


def test_the_campaign_finds_a_shift_that_does_not_follow_from_the_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drift.next_state

    def secret(*args: Any, **kwargs: Any) -> drift.DriftState:
        state = real(*args, **kwargs)
        return replace(state, shift=state.shift + 100.0)

    monkeypatch.setattr(guard_module, "next_state", secret)
    campaign = attacked(tmp_path, 1000)
    assert any("steps and their shift" in breach for breach in campaign.breaches)
