"""The demonstration ends in one line once a part of it has ended."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedbudget.errors import InvalidInputError, TrainingError
from fedbudget.fleet.demo import TrialFleet
from fedbudget.fleet.trial import Child, Terms
from tests.contract_devices import rows_of


@pytest.mark.parametrize("changed", [{"epsilon": -1}, {"delta": 2}, {"cost": 0}])
def test_terms_that_no_device_would_take_start_nothing(
    changed: dict[str, float],
) -> None:
    usual: dict[str, Any] = {"epsilon": 4, "cost": 200, "communication": 4}
    with pytest.raises(InvalidInputError, match=next(iter(changed))):
        Terms(**(usual | {"computation": 1} | changed))


def test_a_device_that_ends_ends_the_demonstration(tmp_path: Path) -> None:
    terms = Terms(epsilon=8, cost=200, communication=4, computation=1)
    fleet = TrialFleet(tmp_path, rows_of([30, 30]), terms)
    fleet.devices[1] = Child(("device", "no-policy.toml"), fleet.log_of("lost"))
    with ExitStack() as stack:
        fleet.start(stack)
        with pytest.raises(
            TrainingError, match=r"device \S+ has ended: error: .*no-pol"
        ):
            fleet.wait(lambda status: None)
    assert fleet.server.code is not None  # nothing is left running
    assert fleet.broker.code is not None
