"""The map agrees with the planner, and its lines with the map."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbudget.errors import InfeasibleBudgetError, InvalidInputError
from fedbudget.privacy import Trust
from fedbudget.ui.loss_map import (
    Fleet,
    best_plan,
    loss_map,
    savings_per_unit,
    shape_of,
    what_trust_buys,
)
from tests.cli.examples import write_sensors

FLEETS = (
    Fleet(),
    Fleet(num_devices=40, spread=50, dissimilarity="strong", communication=10),
    Fleet(num_devices=64, samples=100, trust="sum"),
    Fleet(num_devices=500, samples=20, trust="sum", unit="device"),
)


@pytest.mark.parametrize(
    "fleet", FLEETS, ids=["equal", "heterogeneous", "sum", "device"]
)
def test_the_map_says_what_the_planner_says(fleet: Fleet) -> None:
    losses = loss_map(fleet)
    for i, j in ((4, 1), (12, 3), (20, 5), (28, 8)):
        planned = best_plan(fleet, epsilon=losses.epsilons[i], cost=losses.costs[j])
        # The map tries fewer plans: never much better, and at most 15% worse.
        assert 0.95 < losses.loss[i, j] / planned.predicted_loss < 1.15


def test_more_of_a_budget_never_hurts() -> None:
    losses = loss_map(Fleet(communication=20))
    assert (np.diff(losses.loss, axis=0) <= 0).all()
    assert (np.diff(losses.loss, axis=1) <= 0).all()


def test_a_finer_map_keeps_the_points_and_adds_some_between() -> None:
    losses = loss_map(Fleet())
    fine = losses.finer(5)
    assert fine.loss.shape == (31, 41)
    np.testing.assert_allclose(fine.loss[:, ::5], losses.loss)
    np.testing.assert_allclose(fine.costs[::5], losses.costs)
    cells = fine.cells()
    assert len(cells) == fine.loss.size
    assert all(c["cost_from"] < c["cost"] < c["cost_to"] for c in cells)


def test_a_line_has_the_loss_that_it_names() -> None:
    fine = loss_map(Fleet()).finer()
    points = fine.lines(count=4)
    assert len({point["loss"] for point in points}) == 4
    for point in points:
        at = int(np.argmin(np.abs(fine.costs - point["cost"])))
        if fine.costs[at] == point["cost"]:
            column = np.interp(
                np.log(point["epsilon"]),
                np.log(fine.epsilons),
                np.log(fine.loss[:, at]),
            )
            assert np.exp(column) == pytest.approx(point["loss"], rel=1e-6)


def test_expensive_rounds_leave_no_map() -> None:
    with pytest.raises(InfeasibleBudgetError, match=r"costs 5001.*lower the prices"):
        loss_map(Fleet(communication=5000))


def test_sizes_spread_around_the_median() -> None:
    sizes = Fleet(num_devices=5, samples=1000, spread=16).sizes
    assert sizes.tolist() == [250, 500, 1000, 2000, 4000]
    assert Fleet(num_devices=1, samples=7, spread=16).sizes.tolist() == [7]


def test_savings_are_the_prices_of_the_plan() -> None:
    plan = best_plan(Fleet(), epsilon=4, cost=1000)
    savings = savings_per_unit(plan)
    assert savings["privacy"]["saved"] == plan.epsilon_price > 0
    assert savings["cost"]["share"] == plan.cost_price / plan.predicted_loss
    assert [name for name, saving in savings.items() if saving["binds"]] == list(
        plan.binding
    )


def test_trust_buys_what_both_plans_predict() -> None:
    fleet = Fleet(num_devices=64, samples=100)
    both = what_trust_buys(fleet, epsilon=2, cost=1000)
    losses: dict[Trust, float] = {"uploads": both.uploads, "sum": both.sums}
    for trust, loss in losses.items():
        own = best_plan(replace(fleet, trust=trust), epsilon=2, cost=1000)
        assert own.predicted_loss == loss
    assert both.sums < both.uploads and 0 < both.equal_epsilon < 2
    # With that epsilon, sums are as good.
    same = best_plan(replace(fleet, trust="sum"), epsilon=both.equal_epsilon, cost=1000)
    assert same.predicted_loss == pytest.approx(both.uploads, rel=0.1)


def test_trust_buys_nothing_for_a_cost_below_a_round() -> None:
    with pytest.raises(InfeasibleBudgetError, match="cost 50 does not pay for one"):
        what_trust_buys(Fleet(), epsilon=2, cost=50)


def test_a_shape_is_read_from_a_file(tmp_path: Path) -> None:
    write_sensors(tmp_path)
    config = tmp_path / "fedbudget.toml"
    config.write_text(
        '[data]\ntable = "sensors.csv"\ndevice = "sensor_id"\n[label]\nname = "alarm"\n'
        'values = ["no", "yes"]\n[features]\nvolts = { low = 0, high = 5 }\n'
    )
    shape = shape_of(str(config))
    assert shape.counts == (48,) * 5 and shape.dim == 2
    table = str(tmp_path / "sensors.csv")
    assert shape_of(table, label="alarm", device="sensor_id").counts == (48,) * 5
    numbers = shape_of(table, label="volts", device="sensor_id")
    assert numbers.loss == "huber" and numbers.num_classes is None
    with pytest.raises(InvalidInputError, match="nothing"):
        shape_of(table, label="nothing", device="sensor_id")
    (tmp_path / "plan.json").write_text('{"num_samples": [7, 9], "dim": 3}')
    assert shape_of(str(tmp_path / "plan.json")).counts == (7, 9)
    fleet = Fleet(counts=(7, 9), num_devices=2, dim=3)
    assert fleet.sizes.tolist() == [7, 9] and fleet.problem.dim == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", '{"dim": 3}'),
        ("a.json", '{"num_samples": [0], "dim": 3}'),
        ("a.toml", "x = 1"),
        ("none.json", None),
    ],
)
def test_a_file_without_a_shape_is_one_line(
    name: str, text: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        shape_of(str(tmp_path / name))
    assert "\n" not in str(caught.value)
