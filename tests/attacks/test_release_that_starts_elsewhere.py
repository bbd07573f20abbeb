"""Attack: let a release start from a model that its ledgers know nothing of.

The model that a run starts from is part of what it publishes. If it comes from a
simulation, or from devices whose ledgers charged it elsewhere, the release's epsilon
leaves out what the start has already told about the same rows.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from tests.examples import small_data

DATA = small_data(devices=4, rows=200)
BUDGET = fb.Budget(epsilon=4, delta=1e-4, cost=500)
PRICES = fb.Prices(communication=100, computation=1)
PLAN = fb.plan(DATA.problem(), BUDGET, PRICES)


def test_a_release_does_not_continue_a_simulation() -> None:
    simulated = fb.train(PLAN, fb.SimulatedDevices(DATA))
    devices = fb.ReleaseDevices(DATA)
    fb.train(PLAN, devices)  # as many steps as the simulation
    spent = devices.ledger.epsilon
    with pytest.raises(fb.InvalidInputError, match="nothing is promised for its model"):
        fb.train(PLAN, devices, after=simulated)
    renamed = replace(simulated, kind="release")
    with pytest.raises(fb.InvalidInputError, match="have taken only 0 of it"):
        fb.train(PLAN, devices, after=renamed)
    assert np.array_equal(devices.ledger.epsilon, spent)


def test_a_release_does_not_continue_that_of_other_ledgers() -> None:
    elsewhere = fb.train(PLAN, fb.ReleaseDevices(DATA))
    devices = fb.ReleaseDevices(DATA)
    own = fb.train(PLAN, devices)
    with pytest.raises(fb.InvalidInputError, match="pass the devices that ran it"):
        fb.train(PLAN, devices, after=elsewhere)
    both = fb.train(PLAN, devices, after=own)
    assert both.privacy.epsilon > own.privacy.epsilon
    assert both.privacy.epsilon == pytest.approx(float(devices.ledger.epsilon.max()))


def test_a_resumed_release_counts_what_a_lower_budget_would_refuse(
    tmp_path: Path,
) -> None:
    def interrupt(latest: fb.Round) -> None:
        if latest.number == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        devices = fb.ReleaseDevices(DATA, budget=BUDGET, prices=PRICES)
        fb.train(PLAN, devices, record=folder, on_round=interrupt)
    lower = replace(BUDGET, epsilon=[4.0, 0.5, 4.0, 4.0])
    with pytest.raises(fb.InvalidInputError, match="device 1 has released round"):
        fb.train(PLAN, fb.ReleaseDevices(DATA, budget=lower), record=folder)
    run = fb.train(PLAN, fb.ReleaseDevices(DATA, budget=BUDGET), record=folder)
    assert len(run.rounds) == PLAN.rounds
