"""A ledger adds up epsilons that promise different things.

A run for one sample and a run for whole devices, or a run of sums and one of uploads,
share a ledger. Their sum, stated as the later run's epsilon, would be too low: the
earlier run promised a device, or whoever sees every upload, far less. So devices refuse
the later run, and a budget for one promise pays for no other.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError
from fedbudget.privacy import GDP
from tests.examples import small_data

DATA = small_data(devices=8, rows=60)
PRICES = fb.Prices(communication=20, computation=1)
SUM = fb.Budget(epsilon=2.0, delta=1e-5, cost=400, trust="sum", least_answers=6)
KINDS = [fb.SimulatedDevices, fb.ReleaseDevices]


def planned(budget: fb.Budget, **options: Any) -> fb.Plan:
    return fb.plan(DATA.problem(), budget, PRICES, **options)


OTHERS = [
    replace(SUM, unit="device"),
    fb.Budget(epsilon=2.0, delta=1e-5, cost=400),
    replace(SUM, colluders=2),
    replace(SUM, least_answers=8),
]
IDS = ["device", "uploads", "colluders", "answers"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", OTHERS, ids=IDS)
def test_a_run_does_not_continue_one_that_promised_less(
    kind: Any, other: fb.Budget
) -> None:
    devices = kind(DATA)
    before = fb.train(planned(SUM), devices)
    spent = devices.ledger.epsilon
    with pytest.raises(InvalidInputError, match="an earlier run on these devices"):
        fb.train(planned(other), devices, after=before)
    assert (devices.ledger.epsilon == spent).all()  # nothing was charged


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", OTHERS, ids=IDS)
def test_a_budget_pays_for_no_weaker_promise(kind: Any, other: fb.Budget) -> None:
    devices = kind(DATA, budget=other, prices=PRICES)
    with pytest.raises(InvalidInputError, match="the devices' budget"):
        fb.train(planned(SUM), devices)
    assert devices.ledger.epsilon.max() == 0


def test_a_stronger_promise_than_the_budgets_is_kept() -> None:
    devices = fb.SimulatedDevices(DATA, budget=SUM, prices=PRICES)
    strict = planned(replace(SUM, colluders=2, least_answers=7))
    assert fb.train(strict, devices).privacy.colluders == 2


def test_a_baseline_without_privacy_may_run_anywhere() -> None:
    devices = fb.SimulatedDevices(DATA)
    fb.train(planned(SUM).without_privacy(), devices)
    assert fb.train(planned(OTHERS[1]), devices).rounds


@pytest.mark.parametrize("accountant", ["gdp", "zcdp", "pld"])
@pytest.mark.parametrize("stop", [1, 100])
def test_alone_the_rounds_of_both_runs_count(accountant: str, stop: int) -> None:
    """Only the own share is noise: earlier rounds must not be left out there."""
    plan = planned(SUM, accountant=accountant)
    devices = fb.SimulatedDevices(DATA)
    first = fb.train(plan, devices)
    both = fb.train(plan, devices, after=first, stop=lambda done: done.number == stop)
    rounds = plan.rounds + len(both.rounds)
    mu_sq = plan.uploads.mu_alone**2 * rounds / plan.rounds
    exact = float(np.max(GDP.epsilon_from_mu(np.sqrt(mu_sq), plan.delta)))
    stated = both.privacy.epsilon_alone
    assert stated is not None
    assert exact <= stated
    assert both.privacy.epsilon >= first.privacy.epsilon
