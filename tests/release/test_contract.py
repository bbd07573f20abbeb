"""Devices of a release fulfil the contract of all `Devices`."""

import pytest

import fedbudget as fb
from fedbudget.data import Dataset
from fedbudget.training import Devices
from tests.contract_devices import DevicesContract, Make


class TestReleaseDevices(DevicesContract):
    @pytest.fixture
    def make(self) -> Make:
        def release(
            data: Dataset,
            *,
            budget: fb.Budget,
            prices: fb.Prices,
            after: Devices | None = None,
        ) -> Devices:
            # Ledgers in memory end with the process: `catch_up` charges them again.
            return fb.ReleaseDevices(data, budget=budget, prices=prices)

        return release
