"""The simulated fleet keeps the contract of every transport."""

import pytest

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.training import Devices
from tests.contract_devices import DevicesContract, Make


class TestSimulatedDevices(DevicesContract):
    @pytest.fixture
    def make(self) -> Make:
        def simulated(
            data: Dataset,
            *,
            budget: fb.Budget,
            prices: fb.Prices,
            after: Devices | None = None,
        ) -> Devices:
            # Ledgers in memory die with the process: `catch_up` counts the rounds anew.
            return fb.SimulatedDevices(data, budget=budget, prices=prices)

        return simulated
