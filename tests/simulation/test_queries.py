"""From data to a plan: a query is charged, and the plan spends the rest."""

from dataclasses import replace

import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError, NotPrivateWarning
from fedbudget.simulation.queries import Query, prepare
from tests import iot_tables as iot

PRICES = fb.Prices(communication=100, computation=1)
BUDGET = fb.Budget(epsilon=4, delta=1e-5, cost=3000)
DATA = fb.from_table(
    iot.alarms(), label=iot.ALARMS.label, device="sensor", schema=iot.ALARMS
)


def devices_of(rows: fb.Dataset) -> fb.SimulatedDevices:
    return fb.SimulatedDevices(rows, seed=1, budget=BUDGET, prices=PRICES)


def problem_of(rows: fb.Dataset) -> fb.Problem:
    return rows.problem()


def test_without_a_query_it_is_the_plan_of_the_problem() -> None:
    prepared = prepare(DATA, devices_of, problem_of, BUDGET, PRICES, threshold=0.3)
    expected = replace(fb.plan(DATA.problem(), BUDGET, PRICES), threshold=0.3)
    assert prepared.plan.to_dict() == expected.to_dict()
    assert (prepared.devices.ledger.cost == 0).all()


@pytest.mark.parametrize("query", ["bounds", "dissimilarity", "threshold"])
def test_query_and_run_stay_within_both_budgets(query: Query) -> None:
    prepared = prepare(DATA, devices_of, problem_of, BUDGET, PRICES, query=query)
    plan, devices = prepared.plan, prepared.devices
    assert (prepared.problem.prior_mu > 0).all()
    assert (plan.prior_mu == prepared.problem.prior_mu).all()
    fb.train(plan, devices)
    assert devices.ledger.epsilon.max() == pytest.approx(plan.epsilon.max(), rel=1e-3)
    assert devices.ledger.epsilon.max() <= 4 and plan.cost.max() <= 3000
    assert (devices.data.schema != DATA.schema) == (query == "bounds")
    assert (plan.threshold != 0.5) == (query == "threshold")


def test_a_problem_that_is_refused_costs_no_privacy() -> None:
    built = []

    def keep(rows: fb.Dataset) -> fb.SimulatedDevices:
        built.append(devices_of(rows))
        return built[-1]

    def unknown_donor(rows: fb.Dataset) -> fb.Problem:
        return rows.problem(donors=["nobody"])

    with pytest.raises(InvalidInputError, match="nobody"):
        prepare(DATA, keep, unknown_donor, BUDGET, PRICES, query="bounds")
    assert all((devices.ledger.epsilon == 0).all() for devices in built)


def test_measured_bounds_keep_the_donors_and_warn_once() -> None:
    donor = DATA.device_names[0]

    def donated(rows: fb.Dataset) -> fb.Problem:
        return rows.problem(donors=[donor])

    with pytest.warns(NotPrivateWarning) as caught:
        prepared = prepare(DATA, devices_of, donated, BUDGET, PRICES, query="bounds")
    assert len(caught) == 1
    notes = [constant.note for constant in prepared.problem.constants.values()]
    assert any("donor" in note for note in notes)
