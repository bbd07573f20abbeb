"""Attack: one extreme row, to move the query for bounds by more than it is charged for.

A query of minima and maxima would move without limit. Here a replaced row moves the
answer by at most sqrt(2) / N, which is what devices are charged for, whatever its
values are; and a device that cannot pay refuses.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.errors import FedbudgetError, InvalidInputError
from fedbudget.losses import loss_named
from fedbudget.privacy import GDP
from fedbudget.simulation.dissimilarity import device_gradient
from fedbudget.simulation.histograms import DISTANCE, histogram_rows
from fedbudget.simulation.scaling import scale_privately
from tests import iot_tables as iot

PRICES = fb.Prices(communication=100, computation=1)


def table_with(values: dict[str, Any]) -> fb.Dataset:
    table = {name: cells.copy() for name, cells in iot.energy(600, devices=3).items()}
    for name, value in values.items():
        table[name][0] = value
    return fb.from_table(table, label="kwh", device="meter", schema=iot.ENERGY)


def shares(rows: fb.Dataset) -> np.ndarray:
    """What devices would send without noise."""
    loss = loss_named("hinge")
    return np.array([-device_gradient(rows.train, loss, m) for m in range(3)])


class Watched(fb.SimulatedDevices):
    """Keeps the bins of every query."""

    queries: tuple[tuple[np.ndarray, int], ...] = ()

    def noisy_histograms(self, bins: Any, count: int, *rest: Any, **cost: Any) -> Any:
        self.queries = (*self.queries, (bins, count))
        return super().noisy_histograms(bins, count, *rest, **cost)


def first_bins(data: fb.Dataset) -> tuple[np.ndarray, int]:
    budget = fb.Budget(epsilon=4, delta=1e-5, cost=1000)
    devices = Watched(data, budget=budget, prices=PRICES)
    scale_privately(devices, budget, PRICES)
    return devices.queries[0]


@pytest.mark.parametrize("extreme", [1e9, -1e9])
def test_one_row_moves_the_answer_by_its_share_alone(extreme: float) -> None:
    quiet = table_with({})
    loud = table_with({name: extreme for name in (*iot.ENERGY.features, "kwh")})
    before, count = first_bins(quiet)
    after, _ = first_bins(loud)
    assert (before != after).any(axis=1).sum() <= 1  # row 0 may be in any part
    sent = [shares(histogram_rows(quiet, bins, count)) for bins in (before, after)]
    moved = np.linalg.norm(sent[0] - sent[1], axis=1)
    assert (moved <= DISTANCE / quiet.num_samples * (1 + 1e-6)).all()


def test_no_pair_of_rows_is_further_apart_than_it_is_charged_for() -> None:
    data = table_with({})
    rng, samples = np.random.default_rng(0), len(table_with({}).train)
    largest = 0.0
    for histograms, count in ((1, 2), (6, 32), (50, 16)):
        bins = rng.integers(count, size=(samples, histograms))
        rows: Any = histogram_rows(data, bins, count).train.x
        u = rows.toarray().astype(np.float64)
        assert (np.linalg.norm(u, axis=1) <= 1).all()
        distances = np.linalg.norm(u[:100, None] - u[None, 100:200], axis=2)
        assert distances.max() <= DISTANCE
        largest = max(largest, distances.max())
    assert largest > DISTANCE * (1 - 1e-6)  # the bound is attained


def test_the_noise_is_that_of_the_charge() -> None:
    data = table_with({})
    std = np.array([0.3, 0.2, 0.1])
    devices = fb.SimulatedDevices(data)
    bins = np.zeros((len(data.train), 200), dtype=np.int64)
    release = devices.noisy_histograms(bins, 100, std, cost=np.ones(3))
    noise = release.gradients.reshape(3, 200, 100)[:, :, 1:]  # no sample is there
    # Shares are sqrt(200) times an entry of a mean row.
    assert noise.std(axis=(1, 2)) == pytest.approx(std * np.sqrt(200), rel=0.02)
    mu = DISTANCE / (data.num_samples * std)
    assert devices.ledger.epsilon == pytest.approx(
        GDP.epsilon_from_mu(mu, np.full(3, 1e-4)), rel=0.01
    )


@pytest.mark.parametrize("bins", [np.full((480, 2), 8), np.zeros((7, 2), int)])
def test_bins_that_are_none_are_refused(bins: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match="for each, in every histogram"):
        histogram_rows(table_with({}), bins, 8)


def test_a_device_that_cannot_pay_refuses() -> None:
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
