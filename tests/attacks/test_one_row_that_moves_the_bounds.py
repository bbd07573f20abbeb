"""Attack: one extreme row, to move the query for bounds by more than it is charged for.

A query of minima and maxima would move without limit. Here a replaced row moves the
answer by at most 2 / N, whatever its values are, and a device that cannot pay refuses
before it reads a row.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import FedbudgetError
from fedbudget.losses import loss_named
from fedbudget.simulation.dissimilarity import device_gradient
from fedbudget.simulation.scaling import _numbers, _query_rows, scale_privately
from tests import iot_tables as iot

PRICES = fb.Prices(communication=100, computation=1)


def table_with(values: dict[str, Any]) -> fb.Dataset:
    table = {name: cells.copy() for name, cells in iot.energy(600, devices=3).items()}
    for name, value in values.items():
        table[name][0] = value
    return fb.from_table(table, label="kwh", device="meter", schema=iot.ENERGY)


def answers(data: fb.Dataset) -> np.ndarray:
    assert data.schema is not None
    rows = _query_rows(data, data.schema, _numbers(data.schema), 32)
    loss = loss_named("hinge")
    return np.array([device_gradient(rows.train, loss, m) for m in range(3)])


@pytest.mark.parametrize("extreme", [1e9, -1e9])
def test_one_row_moves_the_answer_by_its_share_alone(extreme: float) -> None:
    quiet = table_with({})
    loud = table_with({name: extreme for name in (*iot.ENERGY.features, "kwh")})
    moved = np.linalg.norm(answers(quiet) - answers(loud), axis=1)
    sizes = quiet.num_samples
    assert (moved <= 2 / sizes * (1 + 1e-6)).all()
    # Row 0 may be in any part of its device; opposite ends move by sqrt(2) / N.
    assert moved.max() == 0 or moved.max() > 0.5 / sizes.max()


def test_a_device_that_cannot_pay_refuses_before_it_reads() -> None:
    data = table_with({})
    rich = fb.Budget(epsilon=4, delta=1e-5, cost=1000)
    poor = replace(rich, epsilon=0.01)
    devices = fb.SimulatedDevices(data, budget=poor, prices=PRICES)
    with pytest.raises(FedbudgetError, match="budget"):
        scale_privately(devices, rich, PRICES)
    assert (devices.ledger.epsilon == 0).all()


def test_a_second_query_is_charged_again() -> None:
    budget = fb.Budget(epsilon=4, delta=1e-5, cost=1000)
    devices = fb.SimulatedDevices(table_with({}), budget=budget, prices=PRICES)
    first = scale_privately(devices, budget, PRICES)
    spent = devices.ledger.epsilon.copy()
    second = scale_privately(devices, budget, PRICES)
    assert not set(first.releases) & set(second.releases)
    assert (devices.ledger.epsilon > spent).all()
