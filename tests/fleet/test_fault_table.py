"""A lost reply, half-open and cut connections over real brokers; a short form.

`benchmarks/fleet/faults.py` has all faults, more rounds, and the seconds.
"""

from pathlib import Path

import pytest

from tests.fleet.brokers import BrokerProcess
from tests.fleet.fault_table import FAULTS, run_fault


@pytest.mark.parametrize(
    "name", ["one reply lost", "device half-open", "connections cut at random"]
)
def test_every_round_is_complete(
    name: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    result = run_fault(FAULTS[name], tmp_path, broker, rounds=6)
    assert result.complete == result.rounds == 6
