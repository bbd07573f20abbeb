"""Attack: add up epsilons that do not protect the same unit from the same adversary.

A round that protects one sample says next to nothing about a device of 200 of them; a
round whose noise is shared says little against those who see its upload, or against
more colluders than it was planned for. A second run that states more than the first one
kept would print one epsilon for both.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.privacy import Scope
from fedbudget.replanning import replan
from fedbudget.simulation.dissimilarity import measure_dissimilarity
from fedbudget.simulation.thresholds import measure_threshold
from tests.examples import small_data

PRICES = fb.Prices(communication=100, computation=1)
DATA = small_data(devices=6, rows=200)
PROBLEM = DATA.problem()
KINDS = (fb.ReleaseDevices, fb.SimulatedDevices)


def budget(**scope: Any) -> fb.Budget:
    return fb.Budget(epsilon=4, delta=1e-4, cost=500, **scope)


def plan(**scope: Any) -> fb.Plan:
    return fb.plan(PROBLEM, budget(**scope), PRICES)


OPEN: dict[str, Any] = {}
SUM = {"trust": "sum", "least_answers": 4}
WHOLE = SUM | {"unit": "device"}
COLLUDING = SUM | {"colluders": 2}
# What was released first, what is stated then, and why they do not add up.
MIXTURES = [
    (SUM, WHOLE, "protect one sample, not one device"),
    (OPEN, WHOLE, "protect one sample, not one device"),
    (SUM, OPEN, "only if the server sees sums, not uploads"),
    (SUM, COLLUDING, "hold against 0 colluders, not 2"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "then", "why"), MIXTURES)
def test_a_second_run_that_states_more_is_refused(
    kind: Any, first: dict[str, Any], then: dict[str, Any], why: str
) -> None:
    devices = kind(DATA)
    run = fb.train(plan(**first), devices)
    spent = devices.ledger.epsilon
    for after in (None, run):
        with pytest.raises(fb.InvalidInputError, match=why):
            fb.train(plan(**then), devices, after=after)
    assert np.array_equal(devices.ledger.epsilon, spent)
    fb.train(plan(**then), kind(DATA))  # alone, it is what it states


@pytest.mark.parametrize(
    ("own", "offered", "why"),
    [(own, offered, why) for offered, own, why in MIXTURES if own != OPEN],
)
def test_devices_refuse_plans_that_protect_less_than_their_budgets(
    own: dict[str, Any], offered: dict[str, Any], why: str
) -> None:
    devices = fb.ReleaseDevices(DATA, budget=budget(**own), prices=PRICES)
    with pytest.raises(fb.InvalidInputError, match=why):
        fb.train(plan(**offered), devices)
    assert not devices.ledger.epsilon.any()


def test_a_second_run_that_states_less_is_carried_out() -> None:
    devices = fb.ReleaseDevices(DATA)
    first = fb.train(plan(**COLLUDING), devices)
    second = fb.train(plan(**SUM), devices, after=first)
    assert second.privacy.colluders == 0
    assert second.privacy.epsilon > first.privacy.epsilon


def test_the_rest_of_a_run_is_not_planned_for_more_colluders() -> None:
    start = plan(**SUM)
    run = fb.train(start, fb.ReleaseDevices(DATA), stop=lambda _: True)
    with pytest.raises(fb.InvalidInputError, match="0 colluders, not 2"):
        replan(run, PROBLEM, budget(**COLLUDING), PRICES)


@pytest.mark.parametrize("measure", [measure_dissimilarity, measure_threshold])
def test_devices_with_a_budget_for_all_their_rows_answer_no_query(measure: Any) -> None:
    whole = budget(**WHOLE)
    devices = fb.ReleaseDevices(DATA, budget=whole, prices=PRICES)
    for asked_with in (whole, budget()):  # the devices' own, or another one
        with pytest.raises(fb.InvalidInputError, match="protects one sample"):
            measure(devices, PROBLEM, asked_with, PRICES)
    assert not devices.ledger.epsilon.any()


def test_after_a_query_no_plan_is_for_whole_devices() -> None:
    devices = fb.ReleaseDevices(DATA)
    measure_dissimilarity(devices, PROBLEM, budget(), PRICES)
    with pytest.raises(fb.InvalidInputError, match="one sample, not one device"):
        fb.train(plan(**WHOLE), devices)


def test_scopes_are_ordered_by_what_they_protect() -> None:
    open_, few, many = (
        Scope("sample"),
        Scope("sample", "sum", 0),
        Scope("sample", "sum", 3),
    )
    scopes = [
        open_,
        few,
        many,
        *(s._replace(unit="device") for s in (open_, few, many)),
    ]
    for one in scopes:
        assert not one.lacks(one)
        for other in scopes:
            if not (one.lacks(other) or other.lacks(one)):
                assert one == other
    strongest = Scope("device")
    assert not any(strongest.lacks(scope) for scope in scopes)


def test_without_noise_nothing_is_stated() -> None:
    devices = fb.SimulatedDevices(DATA)
    fb.train(plan(**SUM), devices)
    fb.train(replace(plan().without_privacy()), devices)
    assert np.isinf(devices.ledger.epsilon).all()
