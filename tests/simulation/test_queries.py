"""From data to a plan: a query is charged, and the plan spends the rest."""

from dataclasses import replace
from typing import Any

import pytest

import fedbudget as fb
from fedbudget.errors import InvalidInputError, NotPrivateWarning
from fedbudget.simulation.queries import Query, prepare
from fedbudget.simulation.scaling import scale_privately
from fedbudget.simulation.thresholds import plan_with_threshold
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
    assert devices.ledger.cost == pytest.approx(plan.cost)
    assert plan.prior_cost is not None and (plan.prior_cost >= 101).all()
    assert (devices.data.schema != DATA.schema) == (query == "bounds")
    assert (plan.threshold != 0.5) == (query == "threshold")


def test_a_run_that_continues_after_a_query_stays_within_the_cost() -> None:
    budget = replace(BUDGET, cost=1000)

    def build(rows: fb.Dataset) -> fb.SimulatedDevices:
        return fb.SimulatedDevices(rows, seed=1, budget=budget, prices=PRICES)

    prepared = prepare(DATA, build, problem_of, budget, PRICES, query="bounds")
    devices = prepared.devices
    run = fb.train(prepared.plan, devices, stop=lambda done: done.number == 2)
    rest = fb.replan(run, prepared.problem, budget, PRICES)
    fb.train(rest, devices, after=run)
    rounds = devices.ledger.cost - 303  # the query's three parts
    assert (devices.ledger.cost <= 1000).all()
    assert rounds == pytest.approx(run.rounds[-1].cost + rest.cost - 2 * 303)
    assert run.rounds[-1].cost.min() > 303


def test_a_threshold_after_bounds_leaves_the_cost_of_both() -> None:
    scaled = scale_privately(devices_of(DATA), BUDGET, PRICES)
    devices = devices_of(scaled.data)
    problem, plan = plan_with_threshold(devices, scaled.problem(), BUDGET, PRICES)
    assert plan.prior_cost == pytest.approx(404)
    assert len(problem.prior_releases) == 4
    run = fb.train(plan, devices)
    assert devices.ledger.cost == pytest.approx(plan.cost)
    assert run.rounds[-1].cost.max() == pytest.approx(plan.cost.max())
    assert (devices.ledger.cost <= 3000).all()


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


@pytest.mark.parametrize("query", ["bounds", "dissimilarity"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampling": "none"}, "'none' is not known"),
        ({"accountant": "none"}, "'none' is not known"),
        ({"threshold": 1.5}, "threshold must be"),
    ],
)
def test_options_that_are_refused_cost_no_privacy(
    query: Query, options: dict[str, Any], says: str
) -> None:
    built = []

    def keep(rows: fb.Dataset) -> fb.SimulatedDevices:
        built.append(devices_of(rows))
        return built[-1]

    with pytest.raises(InvalidInputError, match=says):
        prepare(DATA, keep, problem_of, BUDGET, PRICES, query=query, **options)
    assert all((devices.ledger.epsilon == 0).all() for devices in built)


def test_a_stated_threshold_is_not_measured() -> None:
    devices = devices_of(DATA)
    with pytest.raises(InvalidInputError, match=r"threshold is 0\.3, and query"):
        prepare(
            DATA,
            lambda rows: devices,
            problem_of,
            BUDGET,
            PRICES,
            query="threshold",
            threshold=0.3,
        )
    assert (devices.ledger.epsilon == 0).all()


def test_measured_bounds_keep_the_donors_and_warn_once() -> None:
    donor = DATA.device_names[0]

    def donated(rows: fb.Dataset) -> fb.Problem:
        return rows.problem(donors=[donor])

    with pytest.warns(NotPrivateWarning) as caught:
        prepared = prepare(DATA, devices_of, donated, BUDGET, PRICES, query="bounds")
    assert len(caught) == 1
    notes = [constant.note for constant in prepared.problem.constants.values()]
    assert any("donor" in note for note in notes)
