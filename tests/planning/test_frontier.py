"""The frontier: a larger budget is never worse, and has a dual price."""

import json

import numpy as np
import pytest

import fedbudget as fb

ADULT = fb.Problem(num_samples=[1628] * 16, dim=102)
PRICES = fb.Prices(communication=100, computation=1)


def test_more_budget_never_hurts() -> None:
    result = fb.frontier(ADULT, PRICES, epsilons=[1, 2, 4, 10], costs=[200, 500, 1000])
    loss = result.predicted_loss
    # The planner prefers a cheaper plan within half a percent.
    assert (np.diff(loss, axis=0) <= 0.005 * loss[:-1]).all()
    assert (np.diff(loss, axis=1) <= 0.005 * loss[:, :-1]).all()
    assert (result.epsilon_price >= 0).all() and (result.cost_price >= 0).all()


def test_a_dual_price_is_what_the_next_unit_saves() -> None:
    budget = fb.Budget(epsilon=1.0, delta=1e-4, cost=1000)
    larger = fb.Budget(epsilon=1.1, delta=1e-4, cost=1000)
    plan, better = (fb.plan(ADULT, b, PRICES) for b in (budget, larger))
    saved = (plan.predicted_loss - better.predicted_loss) / 0.1
    assert plan.epsilon_price == pytest.approx(saved, rel=0.05)


def test_what_is_not_affordable_is_left_empty() -> None:
    points = []
    result = fb.frontier(
        ADULT,
        PRICES,
        epsilons=[4],
        costs=[50, 1000],
        on_point=lambda: points.append(1),
        planner="bound",
    )
    assert np.isnan(result.predicted_loss[0, 0]) and result.plans[0][0] is None
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["predicted_loss"][0][0] is None and plain["binding"][0][0] is None
    assert plain["tau"][0][1] >= 1
    assert len(points) == 2


@pytest.mark.parametrize("axis", ["epsilons", "costs"])
@pytest.mark.parametrize("values", [[0.0], [-1, 1], [np.nan], "many", []])
def test_bad_axes_are_refused(axis: str, values: object) -> None:
    with pytest.raises(fb.InvalidInputError, match=axis):
        fb.frontier(ADULT, PRICES, **{axis: values})  # type: ignore[arg-type]
