"""Trials through a real guard: what a policy releases, and what it refuses."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbudget.auditing import guards as guards_module
from fedbudget.auditing.guards import guard_trials, guarded_run
from fedbudget.auditing.trials import Effort
from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import Policy, read_policy
from fedbudget.privacy import accountant_named
from tests.auditing.test_trials import check_law
from tests.fleet.devices import write_device


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return read_policy(write_device(tmp_path))


@pytest.mark.parametrize("accountant", ["gdp", "zcdp"])
def test_the_whole_budget_is_spent_and_no_more(policy: Policy, accountant: str) -> None:
    run = guarded_run(changed(policy, accountant=accountant))
    mu = 2 * run.claim.steps**0.5 / run.claim.noise_multiplier
    epsilon = accountant_named(accountant).epsilon_from_mu(mu, 1e-4)  # type: ignore[attr-defined]
    assert float(epsilon) == pytest.approx(4.0, rel=1e-6)
    assert run.claim.epsilon <= 4 and run.exhausts
    trials, test = guard_trials(run, Effort(trials=30))
    assert test.runs == 60 and test.refused and test.holds
    assert test.spent == pytest.approx(4.0, rel=1e-6) and test.spent <= 4
    check_law(trials, mu)


def test_the_owners_rows_and_ledger_are_not_touched(policy: Policy) -> None:
    policy.data.file.unlink()  # there is nothing to read
    guard_trials(guarded_run(policy), Effort(trials=10))
    assert not policy.ledger.exists()


def test_refusals_do_not_fill_the_log(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        guard_trials(guarded_run(policy), Effort(trials=10))
    assert caplog.records == []


def test_a_guard_that_never_refuses_is_caught(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charge_anything(self: LedgerFile, *_: Any) -> None:
        return None

    monkeypatch.setattr(LedgerFile, "charge", charge_anything)
    _, test = guard_trials(guarded_run(policy), Effort(trials=10))
    assert test.refused is False and not test.holds and "ANSWERED" in str(test)


def test_a_guard_with_half_of_the_noise_is_seen(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(Guard):
        def _compute(self, offer: Any, *rest: Any) -> Any:
            return super()._compute(
                replace(offer, noise_std=offer.noise_std / 2), *rest
            )

    monkeypatch.setattr(guards_module, "Guard", Careless)
    trials, _ = guard_trials(guarded_run(policy), Effort(trials=40))
    # The standard deviation of 40 draws of std 0.5 is above 0.8 less often than 1e-9.
    assert trials.first.std() < 0.8 and trials.second.std() < 0.8


def changed(policy: Policy, **changes: Any) -> Policy:
    orders = {k: v for k, v in changes.items() if hasattr(policy.orders, k)}
    budget = {k: v for k, v in changes.items() if hasattr(policy.budget, k)}
    return replace(
        policy,
        orders=replace(policy.orders, **orders),
        budget=replace(policy.budget, **budget),
    )


def test_the_limits_of_a_policy_are_kept(policy: Policy) -> None:
    short = guarded_run(changed(policy, most_tau=3))
    assert short.tau == 3 and short.rounds > 2 and short.exhausts
    one = guarded_run(changed(policy, most_rounds=1))
    assert one.rounds == one.offered == 1
    _, test = guard_trials(one, Effort(trials=10))
    assert test.refused
    noisy = guarded_run(changed(policy, least_noise_multiplier=50.0))
    # 6 rounds of 50 steps cost 900 of 1000: the cost budget ends first.
    assert noisy.claim.noise_multiplier == 50 and noisy.exhausts
    assert (noisy.rounds, noisy.tau) == (6, 50)


def test_a_cost_budget_that_ends_first_bounds_the_claim(policy: Policy) -> None:
    # 100 for a round and 1 for a step: 105 pay for one round of 5 steps.
    poor = changed(policy, cost=105.0, least_noise_multiplier=20.0)
    run = guarded_run(poor)
    assert (run.rounds, run.tau) == (1, 5) and run.exhausts
    assert run.claim.epsilon < 2
    _, test = guard_trials(run, Effort(trials=10))
    assert test.refused and test.spent == pytest.approx(run.claim.epsilon)


def test_a_budget_that_is_too_large_for_an_audit_is_not_reached(
    policy: Policy,
) -> None:
    rich = changed(policy, cost=1e9, least_noise_multiplier=1000.0, most_tau=1000)
    run = guarded_run(rich)
    assert not run.exhausts and run.claim.epsilon < 1
    assert run.claim.steps <= 2000


def test_a_cost_budget_without_a_round_is_refused(policy: Policy) -> None:
    with pytest.raises(InvalidInputError, match="does not pay"):
        guarded_run(changed(policy, cost=100.5))
