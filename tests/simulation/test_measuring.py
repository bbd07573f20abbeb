"""Many models measured at once are measured as one by one."""

import numpy as np
import pytest

from fedbudget.data import load
from fedbudget.simulation.measuring import measure, measure_all


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
def test_many_models_measure_as_one_does(loss: str) -> None:
    data = load("adult", split="by-education")
    model = data.problem(loss=loss).model
    params = model.num_params(data.dim)
    thetas = np.random.default_rng(0).normal(scale=3, size=(70, params))
    together = measure_all(data, model, thetas)
    for row in (0, 63, 64, 69):
        single = measure(data, model, thetas[row])
        assert single.keys() == together.keys()
        for name, value in single.items():
            assert together[name][row] == pytest.approx(value, rel=1e-12)
