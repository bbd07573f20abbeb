"""The epsilon "alone" of a continued run leaves the rounds before it out.

If everybody else colludes, only a device's own shares are noise, in the rounds of all
runs. A statement that counts the last run only is too low. With the accountants zcdp
and pld it was.
"""

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.privacy import GDP
from tests.examples import small_data

DATA = small_data(devices=8, rows=60)
PRICES = fb.Prices(communication=20, computation=1)
SUM = fb.Budget(epsilon=2.0, delta=1e-5, cost=400, trust="sum", least_answers=6)


@pytest.mark.parametrize("accountant", ["gdp", "zcdp", "pld"])
@pytest.mark.parametrize("stop", [1, 100])
def test_alone_the_rounds_of_both_runs_count(accountant: str, stop: int) -> None:
    plan = fb.plan(DATA.problem(), SUM, PRICES, accountant=accountant)
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
